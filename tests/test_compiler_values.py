"""What a compiled step computes: held against eager, and against itself without graphs; states put back in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the compiled step is run by torch")

import torch
import torch._dynamo

from capturelint.compiler.report import CompiledBucket
from capturelint.runtime import compiled_step, states
from capturelint.runtime.bucket import Session
from capturelint.runtime.in_process import silent_channel
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Plan
from capturelint.runtime.rewind import Memory
from capturelint.runtime.target import Target
from capturelint.runtime.worker import device_context

FUSED = 0.5
"""How far the compiled code of these tests is from eager."""


@dataclass
class Fused:
    """What a compiler makes of a step: other values."""

    step: object

    def __call__(self, state, x):
        return self.step(state, x) + FUSED


TARGET = Target(
    lambda device: torch.ones(4),
    lambda batch, number, device: {"x": torch.full((4,), float(number + 1))},
    lambda state, x: state * x,
    (),
)


@pytest.fixture
def session(monkeypatch):
    """A session on an emulated device, whose compiler adds ``FUSED``."""
    monkeypatch.setattr(torch._dynamo, "reset", lambda: None)
    plan = Plan("", "emulated", (4,), steps=5, warm_up=2, max_length=0)
    with device_context("emulated"), silent_channel() as channel, monkeypatch.context() as patched:
        patched.setattr(torch, "compile", Fused)
        yield Session(plan, TARGET, states.origin(lambda: TARGET.build("cuda")), Project(()), channel)


def seen_with(session: Session, replayed) -> tuple[CompiledBucket, compiled_step.Seen]:
    """What a compiled run leaves that returns ``replayed(step)``."""
    _, reference = compiled_step.referenced(session, 4)
    seen = compiled_step.Seen(reference)
    for number in (*range(5), *range(2, 5)):
        seen.observe(number, replayed(number))
    return CompiledBucket(4, max_error=seen.worst, tolerance=seen.tolerance), seen


def test_a_compiled_step_that_equals_eager_is_not_asked_again(session):
    result, seen = seen_with(session, lambda number: torch.full((4,), number + 1.0))

    assert (result.max_error, len(seen.outputs)) == (0.0, 5)
    assert compiled_step.without_graphs(compiled_step.compiled_plainly(session), result, seen) is result


def test_a_target_that_ends_early_is_held_against_the_steps_that_it_makes(session):
    def inputs(batch, number, device):
        assert number < 4, "no more tokens"
        return TARGET.inputs(batch, number, device)

    shorter, reference = compiled_step.referenced(replace(session, target=replace(TARGET, inputs=inputs)), 4)

    assert (shorter.plan.steps, len(reference.run.outputs)) == (4, 4)


def test_compiled_code_that_is_far_from_eager_is_no_fault_of_its_graphs(session):
    result, seen = seen_with(session, lambda number: torch.full((4,), number + 1 + FUSED))
    told = compiled_step.without_graphs(compiled_step.compiled_plainly(session), result, seen)

    assert told.differs == ""
    (note,) = told.notes
    assert note.endswith("off eager, with and without graphs: its rounding, or its own random numbers")


def test_a_replay_that_the_same_code_does_not_compute_is_the_graphs_fault(session):
    result, seen = seen_with(session, lambda number: torch.full((4,), min(number, 2) + 1 + FUSED))
    told = compiled_step.without_graphs(compiled_step.compiled_plainly(session), result, seen)

    assert "from step 3 on its replay differs from the same code without graphs" in told.differs


def test_a_state_is_put_back_where_it_was():
    cache = torch.zeros(2)
    state = SimpleNamespace(cache=cache, position=3, layers=[{"k": torch.ones(2)}], last=torch.zeros(1))
    memory = Memory(state)
    memory.remember()
    cache.add_(5)
    state.position = 9
    state.layers[0]["k"] = torch.full((2,), 7.0)
    state.last = torch.ones(1)
    memory.rewind()

    assert state.cache is cache
    assert (state.cache.tolist(), state.position, state.last.tolist()) == ([0.0, 0.0], 3, [0.0])
    assert state.layers[0]["k"].tolist() == [1.0, 1.0]


def test_a_rebound_slot_gets_a_copy_that_the_next_row_may_write():
    state = {"last": torch.zeros(1)}
    memory = Memory(state)
    memory.remember()
    for _ in range(2):
        state["last"] = torch.ones(1)
        memory.rewind()
        state["last"].add_(1)

    memory.rewind()
    assert state["last"].tolist() == [0.0]


def test_parameters_and_what_cannot_be_set_are_left_alone():
    module = torch.nn.Linear(2, 2)
    state = (module, 5)
    memory = Memory(state)
    memory.remember()
    with torch.no_grad():
        module.weight.fill_(1)
    memory.rewind()

    assert module.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
