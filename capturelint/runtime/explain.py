"""Why a replay differs: the same steps again, captured and eager, under the recorders.

Runs only after a difference was seen, from fresh states, so the recorders cannot have caused it. The order is that of
likelihood of being the cause: work left out while captured, frozen numbers and shapes, homes that moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from capturelint.runtime.capture import capture
from capturelint.runtime.channel import Channel
from capturelint.runtime.differences import (
    StepTrace,
    captured_otherwise,
    frozen,
    grown,
    moved_homes,
    moved_numbers,
    trace_of,
    unique,
)
from capturelint.runtime.eager import make_inputs
from capturelint.runtime.homes import NUMBERS, Slot, global_slots, homes, lengths, named_slots, numbers
from capturelint.runtime.lines import LineLog, numpy_dice, numpy_kinds
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Stage
from capturelint.runtime.syntax import source_lines
from capturelint.runtime.target import Target
from capturelint.runtime.trace import Recorder
from capturelint.vocabulary import ObservationKind

MAX_WATCHED = 64
"""Slots looked at after every line: layers hold the same ones, and the first few name the line."""

MAX_NUMBERS = 3


@dataclass(frozen=True, slots=True)
class Bench:
    """What the explaining runs need. ``fresh`` gives a state ready for the bucket."""

    target: Target
    fresh: Callable[[], object]
    bucket: int
    warm_up: int
    steps: int
    channel: Channel
    project: Project


def explain(bench: Bench) -> list[Observation]:
    """The causes found, the likeliest kind only; empty if the recorders saw none."""
    eager = traced_steps(bench)
    first = next(eager)
    captured = captured_trace(bench)
    otherwise = captured_otherwise(captured, first)
    if otherwise is not None:
        return [otherwise]
    for later in eager:
        if found := frozen(first, later):
            if takes_more(found[0]) and (growing := explain_growth(bench, found[0])):
                return growing
            if found[0].kind is ObservationKind.TENSOR_CHANGED and (moving := explain_moves(bench)):
                return moving
            return traced_back(found, explain_numbers(bench), later.draws)
    return explain_moves(bench) or hidden_numbers(bench)


def traced_steps(bench: Bench) -> Iterator[StepTrace]:
    """The step that gets captured and those after it, run eagerly as they are asked for."""
    state = bench.fresh()
    run_quietly(bench, state, range(bench.warm_up))
    for step in range(bench.warm_up, bench.steps):
        yield trace_step(bench, state, step)


def captured_trace(bench: Bench) -> StepTrace:
    """The calls that a capture of the step records."""
    recorder, log = Recorder(bench.project), LineLog(bench.project)

    @contextmanager
    def watching() -> Iterator[None]:
        with log.recording(), recorder:
            yield

    capture(bench.target, bench.fresh(), bench.bucket, bench.warm_up, bench.channel, watching=watching)
    return trace_of(bench.warm_up, recorder.calls, log, {})


def explain_moves(bench: Bench) -> list[Observation]:
    """Homes that a step gave another tensor which the next step read."""
    before, after = watched_step(bench, lambda state: tensor_slots(bench, state))
    return list(unique(moved_homes(before, after)))


def tensor_slots(bench: Bench, state: object) -> list[Slot]:
    """Where a step may find a tensor: under the names of its modules, and under its state, whose names are told."""
    return [*global_slots(bench.project.modules(), torch.Tensor), *(home.slot for home in homes(state))]


def slots_of_kind(bench: Bench, state: object, kinds: tuple[type, ...]) -> list[Slot]:
    """Where a step may find an object of a kind."""
    found = list(named_slots(None, {"state": state}, kinds))
    return [*found, *global_slots(bench.project.modules(), kinds)]


def takes_more(seen: Observation) -> bool:
    """Whether the same call from the same line was given another number of tensors."""
    return seen.kind is ObservationKind.CALL_CHANGED and seen.before == seen.after


def explain_growth(bench: Bench, seen: Observation) -> list[Observation]:
    """Containers of the state that the captured step makes longer, where a call changes with what it is given."""
    before, _ = watched_step(bench, lengths)
    return list(unique(grown(before, seen)))


def host_numbers(bench: Bench, state: object) -> list[Slot]:
    """Where a step may find a host number: in its state, and under the names of its modules."""
    return [*numbers(state), *global_slots(bench.project.modules(), NUMBERS)]


def explain_numbers(bench: Bench) -> list[Observation]:
    """Host numbers that the captured step moves: what the frozen ones come from."""
    before, _ = watched_step(bench, lambda state: host_numbers(bench, state))
    return list(unique(moved_numbers(before)))[:MAX_NUMBERS]


def hidden_numbers(bench: Bench) -> list[Observation]:
    """Host numbers that a step moves, where no call shows what becomes of them: an operator's own code may use them."""
    moved = [each for each in explain_numbers(bench) if each.spots]
    return [replace(each, text=f"`{each.home}` {each.text}", sure=False) for each in moved]


def traced_back(
    found: list[Observation], moved: list[Observation], draws: tuple[tuple[Spot, ...], ...]
) -> list[Observation]:
    """Frozen numbers with where they come from: a host number of the state, or a draw.

    The line that moves a number is an observation of its own only where it stands in another file than its uses.
    """
    if not moved and draws and draws[0] and found[0].kind is ObservationKind.SCALAR_CHANGED:
        return [replace(found[0], kind=ObservationKind.RANDOM_FROZEN, spots=draws[0])]
    drawn = {spots[-1:] for spots in draws if spots}
    if shuffled := next((each for each in moved if each.spots[-1:] in drawn), None):
        said = f"{found[0].text}; `{shuffled.home}` {shuffled.text}"
        return [replace(found[0], kind=ObservationKind.RANDOM_FROZEN, text=said, spots=shuffled.spots)]
    if found[0].kind is ObservationKind.CALL_CHANGED and (tested := [each for each in moved if tests(found[0], each)]):
        found, moved = [replace(found[0], kind=ObservationKind.BRANCH_CHANGED)], tested
    said = "".join(f"; `{each.home}` {each.text}" for each in moved[:1])
    files = {each.spots[-1].path for each in found if each.spots}
    elsewhere = [each for each in moved if each.spots and each.spots[-1].path not in files]
    return [
        *(replace(each, text=each.text + said) for each in found),
        *(replace(each, text=f"`{each.home}` {each.text}") for each in elsewhere),
    ]


def tests(branch: Observation, moved: Observation) -> bool:
    """Whether the line of a branch names a moved number; a flag that flips is no number."""
    if not branch.spots or moved.after in ("True", "False"):
        return False
    spot = branch.spots[-1]
    code = source_lines(spot.path)[spot.line - 1 : spot.line]
    return any(re.search(rf"\b{re.escape(name_of(moved))}\b".encode(), line) for line in code)


def name_of(moved: Observation) -> str:
    """The last part of a slot's name: ``turn`` of ``state.heads[0].turn``, ``pos`` of ``state['pos']``."""
    return str(re.findall(r"\w+", moved.home)[-1])


def watched_step(bench: Bench, slots: Callable[[object], list[Slot]]) -> tuple[StepTrace, StepTrace]:
    """The captured step and the one after it, eagerly; the first one with the lines that changed a slot.

    The changed slots are found by a run without line tracing, so that few are watched in the one with it.
    """
    state = bench.fresh()
    run_quietly(bench, state, range(bench.warm_up))
    watched = slots(state)
    run_quietly(bench, state, range(bench.warm_up, bench.warm_up + 1))
    changed = [slot.name for slot in watched if slot.has_changed()][:MAX_WATCHED]
    state = bench.fresh()
    run_quietly(bench, state, range(bench.warm_up))
    before = trace_step(bench, state, bench.warm_up, [slot for slot in slots(state) if slot.name in changed])
    return before, trace_step(bench, state, bench.warm_up + 1)


def run_quietly(bench: Bench, state: object, steps: range) -> None:
    """Eager steps that nobody records."""
    for step in steps:
        bench.channel.enter(Stage.BLAME, bench.bucket, step)
        given = make_inputs(bench.target, bench.bucket, step)
        with torch.no_grad():
            bench.target.step(state, **given)


def trace_step(bench: Bench, state: object, step: int, watched: list[Slot] | None = None) -> StepTrace:
    """One eager step under the recorders."""
    bench.channel.enter(Stage.BLAME, bench.bucket, step)
    addresses = {slot.address: slot.name for slot in tensor_slots(bench, state)}
    given = make_inputs(bench.target, bench.bucket, step)
    dice = numpy_dice(slot.value for slot in slots_of_kind(bench, state, numpy_kinds()))
    recorder, log = Recorder(bench.project), LineLog(bench.project, watched or [], dice=dice)
    with torch.no_grad(), log.recording(), recorder:
        bench.target.step(state, **given)
    return trace_of(step, recorder.calls, log, addresses)
