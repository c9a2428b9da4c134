"""A plan becomes results: load the target, build it, verify its buckets largest first, one message each.

Errors that the target raises without any capture are its own fault and are sent as such, with the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capturelint.errors import CapturelintError
from capturelint.runtime import states
from capturelint.runtime.bucket import Judged, Session, verify_bucket
from capturelint.runtime.channel import Channel
from capturelint.runtime.observations import Machine
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Fault, Plan, Stage
from capturelint.runtime.target import Target, load_module, plain_target
from capturelint.runtime.witness import is_out_of_memory


def run_plan(plan: Plan, machine: Machine, channel: Channel) -> None:
    """Verify every bucket of a plan, until one leaves the process unfit."""
    project = Project((Path(plan.target).resolve().parent,))
    with faults_sent(channel, project):
        if plan.driver is not None:
            from capturelint.runtime.driver import run_driver

            run_driver(plan, channel, project)
            return
        channel.enter(Stage.LOAD)
        target = load_target(plan)
        project = Project(target.roots)
        channel.enter(Stage.BUILD)
        session = Session(plan, target, states.origin(lambda: target.build("cuda")), project, channel)
        verify_buckets(session, machine)


def load_target(plan: Plan) -> Target:
    """Whatever form the target has."""
    if plan.target.startswith("hf:"):
        from capturelint.runtime.hf import hf_target

        return hf_target(plan.target.removeprefix("hf:"), plan.tiny, plan.max_length)
    path = Path(plan.target)
    return plain_target(load_module(path), path)


def verify_buckets(session: Session, machine: Machine) -> None:
    """One result a bucket, in the plan's order."""
    for bucket in session.plan.buckets:
        judged = verify_bucket(session, bucket)
        session.channel.send(judged.result)
        if judged.unfit:
            return
        if machine.device == "cuda":
            send_measured(session, judged)


def send_measured(session: Session, judged: Judged) -> None:
    """The result again, with times and sizes; the first one stands if measuring fails."""
    if judged.captured is None or judged.reference is None:
        return
    from capturelint.runtime.measure import measured

    session.channel.enter(Stage.MEASURE, judged.result.size)
    session.channel.send(measured(session, judged.result, judged.captured))


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
    if isinstance(error, SyntaxError) and not spots:
        where = f"{error.filename}:{error.lineno}: "
    text = " ".join(str(error).split("\n")[0].split())
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
