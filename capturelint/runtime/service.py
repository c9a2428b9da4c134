"""A plan becomes results: load the target, build it, verify its buckets largest first, one message each.

Errors that the target raises without any capture are its own fault and are sent as such, with the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from capturelint.errors import CapturelintError
from capturelint.runtime import states
from capturelint.runtime.bucket import Judged, Session, verify_bucket
from capturelint.runtime.capture import Captured, Pool
from capturelint.runtime.channel import Channel
from capturelint.runtime.homes import NUMBERS, global_slots
from capturelint.runtime.observations import BucketResult, Machine
from capturelint.runtime.probes import Kept, interleaved, probed
from capturelint.runtime.project import Project, project_roots
from capturelint.runtime.protocol import Done, Fault, Plan, Stage
from capturelint.runtime.target import Target, is_model_only, load_module, plain_target
from capturelint.runtime.witness import first_line, is_out_of_memory
from capturelint.vocabulary import Verdict


def run_plan(plan: Plan, machine: Machine, channel: Channel) -> None:
    """Verify every bucket of a plan, until one leaves the process unfit."""
    project = Project(project_roots(Path(plan.target)))
    with faults_sent(channel, project):
        if plan.driver is not None:
            from capturelint.runtime.driver import run_driver

            run_driver(plan, channel, project, machine.device)
            return
        channel.enter(Stage.LOAD)
        target = load_target(plan)
        project = Project(target.roots)
        channel.enter(Stage.BUILD)
        origin = states.origin(lambda: target.build("cuda"))
        project = Project((*target.roots, *target.more_roots()))
        numbers = global_slots(project.modules(), NUMBERS)
        verify_buckets(Session(plan, target, origin, project, channel, numbers), machine)


def load_target(plan: Plan) -> Target:
    """Whatever form the target has."""
    if plan.target.startswith("hf:"):
        from capturelint.runtime.hf import hf_target

        return hf_target(plan.target.removeprefix("hf:"), plan.tiny, plan.max_length)
    path = Path(plan.target)
    module = load_module(path)
    if is_model_only(module):
        from capturelint.runtime.model_only import model_target

        return model_target(module.build, path, plan.max_length)
    return plain_target(module, path)


def verify_buckets(session: Session, machine: Machine) -> None:
    """One result a bucket, in the plan's order, and the floor in the end.

    The graphs stay alive and share the first one's memory pool, as a server's do.
    """
    kept: list[Kept] = []
    captures: list[Captured] = []
    for bucket in session.plan.buckets:
        pool_before = pool_nbytes(captures)
        session, judged = verify_or_rebuild(session, bucket, captures[0].graph.pool() if captures else None)
        session.channel.send(judged.result)
        if judged.unfit:
            return
        if judged.captured is None or judged.reference is None:
            continue
        captures.append(judged.captured)
        # A wrong replay may write where it must not, so only a right one is run again.
        if not judged.is_right or judged.captured.start is None:
            continue
        result = judged.result
        if machine.device == "cuda":
            result = send_measured(session, result, judged.captured, pool_before)
        if not judged.is_exact:
            continue
        result = probed(session, Kept(result, judged.captured, judged.reference), machine.device)
        session.channel.send(result)
        if result.verdict is Verdict.OK:
            kept.append(Kept(result, judged.captured, judged.reference))
    changed = {result.size: result for result in (interleaved(session, kept) if len(kept) > 1 else ())}
    for result in changed.values():
        session.channel.send(result)
    session.channel.enter(Stage.MEASURE)
    if machine.device != "cuda" or not kept:
        session.channel.send(Done())
        return
    finish(session, [replace(each, result=changed.get(each.size, each.result)) for each in kept])


def finish(session: Session, kept: Sequence[Kept]) -> None:
    """What is measured last, as it may disturb what comes after: the floor, and the profiler's view of the steps."""
    from capturelint.runtime.measure import floor_of, profiled, timed_lines

    session.channel.send(Done(floor_of(min(each.reference.nbytes for each in kept))))
    largest = max(each.result.size for each in kept)
    for each in kept:
        session.channel.enter(Stage.MEASURE, each.result.size)
        result = profiled(session, each.result)
        if result.size == largest:
            session.channel.send(result)
            result = timed_lines(session, result, each.captured)
        session.channel.send(result)


def verify_or_rebuild(session: Session, bucket: int, pool: Pool) -> tuple[Session, Judged]:
    """Verify from copies of the built state; where eager steps fail on those, from builds of their own.

    A copy has other ids and none of the globals that ``build`` may have filled, which is not the target's fault.
    """
    try:
        return session, verify_bucket(session, bucket, pool)
    except Exception:
        if session.origin.original is None or session.channel.now.stage not in (Stage.EAGER, Stage.WARM_UP):
            raise
    session = replace(session, origin=session.origin.rebuilt())
    return session, verify_bucket(session, bucket, pool)


def send_measured(session: Session, result: BucketResult, captured: Captured, pool_before: int) -> BucketResult:
    """The result again, with times and sizes; ``pool_before`` is what the pool had when its capture began."""
    from capturelint.runtime.measure import measured

    session.channel.enter(Stage.MEASURE, result.size)
    complete = measured(session, result, captured, pool_before)
    session.channel.send(complete)
    return complete


def pool_nbytes(captures: Sequence[Captured]) -> int:
    """Device memory of the pool that the graphs share; 0 for none, and where nothing is measured."""
    from capturelint.runtime.measure import pool_nbytes

    return pool_nbytes(captures[0].graph) if captures else 0


@contextmanager
def faults_sent(channel: Channel, project: Project) -> Iterator[None]:
    """Send what the target raises as its own fault."""
    try:
        yield
    except CapturelintError:
        raise
    except BaseException as error:  # noqa: BLE001 - the target may raise anything, sys.exit included
        now = channel.now
        message = fault_message(error, now.stage, now.step, project)
        channel.send(Fault(now.stage, message, False, now.bucket, now.step, is_out_of_memory(error)))


def fault_message(error: BaseException, stage: Stage, step: int | None, project: Project) -> str:
    """``model.py:12: `step` raises without any capture in step 3: ValueError: no``."""
    spots = project.raised_at(error)
    where = f"{os.path.relpath(spots[-1].path)}:{spots[-1].line}: " if spots else ""
    text = first_line(error)
    if isinstance(error, SyntaxError) and not spots and error.filename:
        where, text = f"{os.path.relpath(error.filename)}:{error.lineno or 1}: ", error.msg
    did = f"calls sys.exit({error.code!r})" if isinstance(error, SystemExit) else "raises"
    said = (
        ""
        if isinstance(error, SystemExit)
        else f": {type(error).__name__}: {text}"
        if text
        else f": {type(error).__name__}"
    )
    return f"{where}{what_ran(stage, step, spots[0].name if spots else '')} {did}{said}"


def what_ran(stage: Stage, step: int | None, entry: str) -> str:
    """The part of the target that was running."""
    match stage:
        case Stage.LOAD:
            return "the file, when it is loaded,"
        case Stage.BUILD:
            return "`build`"
        case Stage.DRIVER:
            return f"`{entry}`" if entry else "the driver"
        case Stage.REPLAY | Stage.PROBE | Stage.MEASURE | Stage.BLAME:
            return f"`{entry or 'step'}`, during {stage.value} of step {step},"
        case _:
            name = f"`{entry}`" if entry in ("inputs", "step") else "`step`"
            return f"{name}, without any capture, in step {step}" if step is not None else name
