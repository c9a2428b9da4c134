"""Host numbers as they were in the steps before the capture, which the warm-up has used up.

A server captures once, and its requests start at the first step again. What a step does only while a count is low (a
word that is forced, a book that is delayed) is in no graph that was captured later, and no replay of the same row of
steps can miss it. So the captured step runs eagerly once more with the numbers of each step before it, all tensors
being as they are. Only numbers that the captured step moves too are put back: others have settled by the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from capturelint.runtime.bucket import Session, bench_of
from capturelint.runtime.capture import Pool, capture
from capturelint.runtime.compare import step_error, tolerance
from capturelint.runtime.contents import Content, contents
from capturelint.runtime.differences import StepTrace, frozen
from capturelint.runtime.eager import run_eager
from capturelint.runtime.explain import Bench, explain_numbers, host_numbers, run_quietly, trace_step, traced_back
from capturelint.runtime.homes import NUMBERS, Slot, global_slots
from capturelint.runtime.observations import Observation
from capturelint.runtime.outputs import Leaf
from capturelint.runtime.rewind import Memory, erase, write
from capturelint.runtime.states import RandomState

ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, AttributeError)


@dataclass(frozen=True, slots=True)
class Values:
    """The host's part of a state at one step: numbers by slot, and what containers hold."""

    step: int
    numbers: Sequence[Slot]
    contents: Sequence[Content]

    def have_changed(self) -> bool:
        """Whether any of it is otherwise by now."""
        return any(slot.has_changed() for slot in self.numbers) or any(each.has_changed() for each in self.contents)


@dataclass(slots=True)
class Early:
    """A state at the captured step, and the host's part of it at each of the steps before.

    ``moved`` are the numbers that the captured step moves on, ``grown`` names the containers.
    """

    session: Session
    bench: Bench
    state: object
    memory: Memory
    randomness: RandomState
    past: Sequence[Values]
    moved: Sequence[Slot] = ()
    grown: frozenset[str] = frozenset()

    def outputs(self, values: Values | None = None) -> Sequence[Leaf]:
        """What the captured step returns, with ``values`` in place of what it moves."""
        self.rewind(values)
        steps = range(self.bench.warm_up, self.bench.warm_up + 1)
        return run_eager(self.bench.target, self.state, self.bench.bucket, steps, self.session.channel).outputs[0]

    def trace(self, values: Values | None = None) -> StepTrace:
        """The calls of the captured step, with ``values`` in place of what it moves."""
        self.rewind(values)
        return trace_step(self.bench, self.state, self.bench.warm_up)

    def rewind(self, values: Values | None) -> None:
        """Put everything back to where the captured step starts, but for what is given."""
        self.memory.rewind()
        self.randomness.restore()
        for slot in self.moved:
            write(slot, slot.value)
        if values is None:
            return
        for content in values.contents:
            if content.name in self.grown:
                content.restore()
        held = {slot.name: slot for slot in values.numbers}
        for slot in self.moved:
            if slot.name in held:
                write(slot, held[slot.name].value)
            else:
                erase(slot)


def early_steps(session: Session, bucket: int) -> Early | None:
    """Run the warm-up steps, and find what of the host's part of the state the captured step moves on.

    ``None`` where the step before it moved nothing: most states are spared the copies of their tensors.
    """
    bench = bench_of(session, bucket)
    state = session.fresh(bucket)
    past: list[Values] = []
    for step in range(bench.warm_up):
        past.append(Values(step, host_numbers(bench, state), contents(state)))
        run_quietly(bench, state, range(step, step + 1))
    if not any(values.have_changed() for values in past[-1:]):
        return None
    memory = Memory(state)
    memory.remember()
    early = Early(session, bench, state, memory, RandomState.now(), past)
    numbers, held = host_numbers(bench, state), contents(state)
    early.outputs()
    early.moved = [slot for slot in numbers if slot.has_changed()]
    early.grown = frozenset(each.name for each in held if each.has_changed())
    return early


def early_branches(session: Session, bucket: int, pool: Pool) -> Iterator[Observation]:
    """What the captured step does otherwise with the numbers of a step before it, where its outputs show it."""
    with kept_globals(session):
        yield from early_differences(session, bucket, pool)


def moved_while_captured(session: Session, bench: Bench, pool: Pool) -> frozenset[str]:
    """The numbers and containers that a step moves while captured; what it counts in eager steps only is none."""
    state, found = session.fresh(bench.bucket), set[str]()

    @contextmanager
    def watching() -> Iterator[None]:
        before: list[Slot | Content] = [*host_numbers(bench, state), *contents(state)]
        yield
        found.update(each.name for each in before if each.has_changed())

    capture(bench.target, state, bench.bucket, bench.warm_up, session.channel, pool, watching, probing=True)
    return frozenset(found)


@contextmanager
def kept_globals(session: Session) -> Iterator[None]:
    """Numbers of the target's modules as ``build`` left them, and afterwards as they were before."""
    now = global_slots(session.project.modules(), NUMBERS)
    for slot in session.numbers:
        write(slot, slot.value)
    try:
        yield
    finally:
        for slot in now:
            write(slot, slot.value)


def early_differences(session: Session, bucket: int, pool: Pool) -> Iterator[Observation]:
    """The first step before the captured one whose numbers change what the captured one returns."""
    early = early_steps(session, bucket)
    if early is None:
        return
    names = moved_while_captured(session, early.bench, pool)
    early.moved = [slot for slot in early.moved if slot.name in names]
    early.grown &= names
    if not early.moved and not early.grown:
        return
    usual, again = early.outputs(), early.outputs()
    # A state that cannot be put back as a whole differs from itself.
    allowed = tolerance(usual, step_error(usual, again))
    for values in early.past:
        try:
            is_other = not step_error(usual, early.outputs(values)) <= allowed
            found = frozen(early.trace(), replace(early.trace(values), step=values.step)) if is_other else []
        except ERRORS:
            # The tensors are those of another step, which the target may rightly refuse.
            continue
        if found and found[0].spots:
            yield from traced_back(found, explain_numbers(early.bench), ())
            return
