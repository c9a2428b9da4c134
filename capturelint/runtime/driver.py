"""The target's own capture code, run as it is and compared with its eager counterpart.

A driver returns ``{"expected", "got"}``, or its outputs stacked over steps, which are then compared with what the
reference returns. It captures by itself, so a refusal has the driver's frames and no step of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from capturelint.errors import TargetError
from capturelint.runtime.channel import Channel
from capturelint.runtime.compare import compare, tolerance
from capturelint.runtime.driver_causes import causes, freed, looked_for, refused_calls, watched_run
from capturelint.runtime.eager import DEVICE
from capturelint.runtime.forks import Forks
from capturelint.runtime.launches import Launches
from capturelint.runtime.observations import BucketResult, Observation
from capturelint.runtime.outputs import Leaf, leaves
from capturelint.runtime.poison import FreeMemory
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Plan, Stage
from capturelint.runtime.target import pick
from capturelint.runtime.witness import AFTERMATH, REFUSALS, aftermath, first_line, is_broken, is_out_of_memory, refusal
from capturelint.vocabulary import ObservationKind, Verdict

Judge = Callable[[Any], BucketResult]

DRIVEN = 0
"""A driver has no batch size of ours."""


def run_driver(plan: Plan, channel: Channel, project: Project, device: str) -> None:
    """Run a plan's driver and send its one result, completed by what a second run under worse conditions shows."""
    channel.enter(Stage.LOAD)
    path = Path(plan.target)
    assert plan.driver is not None
    driver = pick(path, plan.driver)
    channel.enter(Stage.DRIVER, DRIVEN)
    if plan.traced:
        channel.send(traced(driver, project))
        return
    forks, launches = Forks(project), Launches()
    try:
        with forks.watching(), launches.watching():
            returned = settled(driver)
            channel.look()
    except BaseException as error:
        if not launches.num_captures and not is_out_of_memory(error):
            # Nothing of graphs has happened: it is the target's own fault.
            raise
        result = failed(error, project, forks, launches)
        channel.send(explained(result, driver, project) if launches.in_replay and not is_broken(error) else result)
        return
    judge = judge_of(plan, path, channel, returned)
    result = judge(returned)
    if result.verdict is Verdict.REPLAY_DIFFERS:
        channel.enter(Stage.BLAME, DRIVEN)
        result = explained(result, driver, project)
    channel.send(result)
    if result.verdict is not Verdict.OK:
        return
    channel.enter(Stage.PROBE, DRIVEN)
    result = with_memory_watched(result, driver, project)
    # The emulator overwrites freed memory by itself, at the first run.
    if result.verdict is Verdict.OK and device == "cuda":
        result = with_free_memory_overwritten(result, judge, driver, project)
    channel.send(result)


def judge_of(plan: Plan, path: Path, channel: Channel, returned: object) -> Judge:
    """How what a driver returns becomes a result; its eager counterpart runs once, where it brings none with it."""
    if isinstance(returned, Mapping) and returned.keys() >= {"expected", "got"}:
        return lambda given: compared(plan, steps_of(given["expected"]), steps_of(given["got"]))
    channel.enter(Stage.EAGER, DRIVEN)
    expected = steps_of(reference(plan, path)(DEVICE))
    return lambda given: compared(plan, expected, steps_of(given))


def with_memory_watched(result: BucketResult, driver: Callable[[str], object], project: Project) -> BucketResult:
    """The result of a right driver whose graphs read memory that is free, which somebody may by luck have again."""
    found = tuple(freed(driver, project))
    if not found:
        return probed(result, "memory alive")
    message = "a graph reads memory that is free before its replay"
    wrong = replace(result, verdict=Verdict.REPLAY_DIFFERS, message=message, observations=found)
    return explained(wrong, driver, project)


def with_free_memory_overwritten(
    result: BucketResult, judge: Judge, driver: Callable[[str], object], project: Project
) -> BucketResult:
    """The result of a right driver once free memory is overwritten in front of its replays.

    Memory that a graph reads and nobody holds keeps its values as long as nobody asks for it.
    """
    try:
        with Launches(FreeMemory().overwrite).watching():
            again = judge(settled(driver))
        plain = again if again.verdict is Verdict.OK else judge(settled(driver))
    except BaseException as error:  # noqa: BLE001 - the driver may raise anything, sys.exit included
        if is_broken(error):
            return spoiled(result, f"the driver fails: {first_line(error)}")
        return probed(result, f"{NOT_OVERWRITTEN} raises {type(error).__name__} when it runs again")
    if again.verdict is Verdict.OK:
        return probed(result, "free memory overwritten")
    if plain.verdict is not Verdict.OK:
        return probed(result, f"{NOT_OVERWRITTEN} differs by itself when it runs again")
    return explained(replace(spoiled(again, again.message), is_lost=False), driver, project)


NOT_OVERWRITTEN = "free memory not overwritten: the driver"


def probed(result: BucketResult, said: str) -> BucketResult:
    """The result with one more probe."""
    return replace(result, probes=(*result.probes, said))


def settled(driver: Callable[[str], object]) -> object:
    """What a driver returns, when the device is done with it."""
    returned = driver(DEVICE)
    torch.cuda.synchronize()
    return returned


def spoiled(result: BucketResult, what: str) -> BucketResult:
    """The result of a driver that goes wrong with free memory overwritten."""
    message = f"with the device's free memory overwritten in front of each replay, {what}"
    seen = Observation(ObservationKind.VALUES_DIFFER, message)
    return replace(result, verdict=Verdict.REPLAY_DIFFERS, message=message, observations=(seen,), is_lost=True)


def traced(driver: Callable[[str], object], project: Project) -> BucketResult:
    """The causes alone, in a process that the driver's own run has not broken."""
    run = watched_run(driver, project)
    if refused := refused_calls(run):
        return BucketResult(DRIVEN, Verdict.CAPTURE_ERROR, observations=refused)
    return BucketResult(DRIVEN, Verdict.REPLAY_DIFFERS, observations=tuple(causes(run, driver, project)))


def explained(result: BucketResult, driver: Callable[[str], object], project: Project) -> BucketResult:
    """A wrong result with its causes; as it is where none is seen, or where looking for them fails."""
    try:
        run = watched_run(driver, project)
        found = causes(run, driver, project)
        reason = looked_for(run)
    except Exception as error:  # noqa: BLE001 - the target's code runs again here and may raise anything
        found, reason = [], f"looking for the cause failed: {first_line(error)}"
    if found:
        return replace(result, observations=tuple(found))
    return replace(
        result,
        observations=tuple(
            seen if seen.spots else replace(seen, text=f"{seen.text}; {reason}") for seen in result.observations
        ),
    )


def reference(plan: Plan, path: Path):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """The eager counterpart. Raises ``TargetError`` where none was named."""
    if plan.reference is None:
        raise TargetError(
            f"{path}: `{plan.driver}` returns no expected values; name its eager counterpart: --reference [FILE:]NAME"
        )
    file, _, name = plan.reference.rpartition(":")
    return pick(Path(file) if file else path, name)


def steps_of(output: object) -> list[Sequence[Leaf]]:
    """An output as a row of steps: a stacked tensor is cut along its first dimension."""
    found = leaves(output)
    if len(found) == 1 and isinstance(found[0], torch.Tensor) and found[0].dim() > 0:
        return [[row] for row in found[0].unbind(0)]
    return [[leaf] for leaf in found]


def compared(plan: Plan, expected: list[Sequence[Leaf]], got: list[Sequence[Leaf]]) -> BucketResult:
    """The verdict over a driver's outputs."""
    if len(expected) != len(got):
        message = f"`{plan.driver}` returns {len(got)} steps, its reference {len(expected)}"
        return differs(message, float("inf"), 0.0, len(got), 0)
    allowed = plan.tolerance if plan.tolerance is not None else tolerance(expected[0] if expected else [], 0.0)
    comparison = compare(expected, got)
    at = comparison.first_above(allowed)
    if at is None:
        return BucketResult(
            DRIVEN, Verdict.OK, steps=len(got), max_error=comparison.worst, noise=0.0, tolerance=allowed
        )
    error = comparison.errors[at]
    message = f"`{plan.driver}` differs from eager from step {at} on, by {error:.2g} of the largest value"
    return differs(message, comparison.worst, allowed, len(got), at)


def differs(message: str, worst: float, allowed: float, steps: int, at: int) -> BucketResult:
    """The result of a driver whose outputs are wrong."""
    seen = Observation(ObservationKind.VALUES_DIFFER, message, step=at)
    return BucketResult(
        DRIVEN, Verdict.REPLAY_DIFFERS, steps, worst, 0.0, allowed, message=message, observations=(seen,)
    )


def failed(error: BaseException, project: Project, forks: Forks, launches: Launches) -> BucketResult:
    """The result of a driver that raised: no memory, a refused capture, a failed replay, or an error of its own."""
    seen = aftermath(refusal(error, project, [], forks.unjoined, 0), (), forks.queried)
    if is_out_of_memory(error):
        return BucketResult(DRIVEN, Verdict.OUT_OF_MEMORY, message=seen.text)
    if launches.in_capture or any(word in seen.text for word in (*REFUSALS, AFTERMATH)):
        return BucketResult(DRIVEN, Verdict.CAPTURE_ERROR, message=seen.text, observations=(seen,), is_lost=True)
    if launches.in_replay or (is_broken(error) and launches.num_replays):
        return failed_replay(seen.text, launches)
    seen = replace(seen, kind=ObservationKind.RAISED)
    return BucketResult(DRIVEN, Verdict.CRASH, message=seen.text, observations=(seen,))


def failed_replay(text: str, launches: Launches) -> BucketResult:
    """The result where the device fails once graphs are replayed; the line of its error is that of some later call."""
    where = f"replay {launches.num_replays} fails" if launches.in_replay else "the device fails after"
    count = "" if launches.in_replay else f" {launches.num_replays} replays"
    message = f"{where}{count}, where no line is known: {text}"
    seen = Observation(ObservationKind.VALUES_DIFFER, message)
    return BucketResult(DRIVEN, Verdict.REPLAY_DIFFERS, message=message, observations=(seen,), is_lost=True)
