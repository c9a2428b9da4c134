"""Why a replay differs: the same steps again, captured and eager, under the recorders.

Runs only after a difference was seen, from fresh states, so the recorders cannot have caused it. The order is that of
likelihood of being the cause: work left out while captured, frozen numbers and shapes, homes that moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from capturelint.runtime.capture import capture
from capturelint.runtime.channel import Channel
from capturelint.runtime.differences import StepTrace, captured_otherwise, frozen, moved_homes, trace_of
from capturelint.runtime.eager import make_inputs
from capturelint.runtime.homes import Home, homes
from capturelint.runtime.lines import LineLog
from capturelint.runtime.observations import Observation
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Stage
from capturelint.runtime.target import Target
from capturelint.runtime.trace import Recorder


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
    first = eager[0]
    captured = captured_trace(bench)
    otherwise = captured_otherwise(captured, first)
    if otherwise is not None:
        return [otherwise]
    for later in eager[1:]:
        if found := frozen(first, later):
            return found
    return explain_moves(bench)


def traced_steps(bench: Bench) -> list[StepTrace]:
    """The step that gets captured and those after it, run eagerly."""
    state = bench.fresh()
    run_quietly(bench, state, range(bench.warm_up))
    return [trace_step(bench, state, step) for step in range(bench.warm_up, bench.steps)]


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
    state = bench.fresh()
    run_quietly(bench, state, range(bench.warm_up))
    watched = homes(state)
    run_quietly(bench, state, range(bench.warm_up, bench.warm_up + 1))
    moved = {home.name for home in watched if home.current() is not home.tensor}
    if not moved:
        return []
    state = bench.fresh()
    run_quietly(bench, state, range(bench.warm_up))
    before = trace_step(bench, state, bench.warm_up, [home for home in homes(state) if home.name in moved])
    after = trace_step(bench, state, bench.warm_up + 1)
    seen: set[tuple[str, int]] = set()
    found = []
    for move in moved_homes(before, after):
        where = (move.spots[-1].path, move.spots[-1].line) if move.spots else ("", 0)
        if where not in seen:
            seen.add(where)
            found.append(move)
    return found


def run_quietly(bench: Bench, state: object, steps: range) -> None:
    """Eager steps that nobody records."""
    for step in steps:
        bench.channel.enter(Stage.BLAME, bench.bucket, step)
        given = make_inputs(bench.target, bench.bucket, step)
        with torch.no_grad():
            bench.target.step(state, **given)


def trace_step(bench: Bench, state: object, step: int, watched: list[Home] | None = None) -> StepTrace:
    """One eager step under the recorders."""
    bench.channel.enter(Stage.BLAME, bench.bucket, step)
    addresses = {home.tensor.data_ptr(): home.name for home in homes(state)}
    given = make_inputs(bench.target, bench.bucket, step)
    recorder, log = Recorder(bench.project), LineLog(bench.project, watched or [])
    with torch.no_grad(), log.recording(), recorder:
        bench.target.step(state, **given)
    return trace_of(step, recorder.calls, log, addresses)
