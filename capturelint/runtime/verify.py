"""A target and its buckets become a ``VerifyReport``: workers are run until every bucket has a verdict.

This half never imports torch. What a worker cannot say any more (it hung, it died) is said here, for the bucket that
it was at; the other buckets go on in a new worker.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from capturelint.compiler.report import CompileReport
from capturelint.errors import DeviceError, TargetError
from capturelint.finding import Finding
from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.observations import BucketResult, Floor, Machine, Observation, Spot
from capturelint.runtime.project import Project, project_roots
from capturelint.runtime.protocol import Done, Fault, Message, Peak, Plan, Progress, Stage
from capturelint.runtime.supervise import Ended, listen, started
from capturelint.vocabulary import ObservationKind, Verdict

MIN_STEPS = 6
"""A target that cannot go on after this many eager steps is verified over the steps that it can make."""

LAUNCH_BOUND = 1.3
"""Replay must be this many times faster than eager for the step to be called launch-bound."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may take: seconds of silence, GiB of memory."""

    timeout_s: float
    memory_gib: float | None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Everything that ``verify`` found. Buckets stand in the order asked for."""

    target: str
    machine: Machine
    buckets: tuple[BucketResult, ...]
    findings: tuple[Finding, ...]
    floor: Floor | None = None
    notes: tuple[str, ...] = ()
    compiled: CompileReport | None = None
    compiled_lost: bool = False
    """The compiled step, where it was asked for, is not one graph, or replays wrongly."""

    @property
    def verdict(self) -> str:
        """``safe``: every bucket replays what eager computes; ``fault``: what went wrong was never about graphs."""
        bad = [bucket for bucket in self.buckets if bucket.verdict is not Verdict.OK]
        if not bad:
            return "unsafe" if self.compiled_lost else "safe"
        return "fault" if all(bucket.fault for bucket in bad) and not self.compiled_lost else "unsafe"

    @property
    def launch_bound(self) -> bool | None:
        """Whether launching kernels is what the eager step waits for; ``None`` where nothing was measured."""
        ratios = [
            bucket.eager_ms.p50 / bucket.replay_ms.p50
            for bucket in self.buckets
            if bucket.eager_ms is not None and bucket.replay_ms is not None
        ]
        return max(ratios) >= LAUNCH_BOUND if ratios else None


@dataclass(slots=True)
class Ledger:
    """What is known while workers come and go."""

    plan: Plan
    machine: Machine | None = None
    results: dict[int, BucketResult] = field(default_factory=dict)
    floor: Floor | None = None
    notes: list[str] = field(default_factory=list)
    fault: Fault | None = None
    peak: int = 0
    device_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def remaining(self) -> tuple[int, ...]:
        """Buckets without a verdict, largest first: a smaller graph fits into the memory pool of a larger one."""
        return tuple(sorted((size for size in self.plan.buckets if size not in self.results), reverse=True))


def verify(
    plan: Plan,
    limits: Limits,
    suspects: Suspects,
    steps_are_default: bool = False,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> VerifyReport:
    """Run a plan to its end. Raises ``TargetError`` or ``DeviceError`` where no bucket can be verified."""
    if importlib.util.find_spec("torch") is None:
        raise DeviceError("verify needs torch; install it with: pip install 'capturelint[verify]'")
    ledger = Ledger(plan)
    while ledger.remaining:
        before = (ledger.remaining, ledger.plan.steps)
        ended = run_worker(replace(ledger.plan, buckets=ledger.remaining), limits, ledger, tell)
        settle(ledger, ended, limits, steps_are_default)
        if before == (ledger.remaining, ledger.plan.steps):
            raise TargetError(f"{plan.target}: the worker ended without a verdict\n{ended.output}".rstrip())
    retrace(ledger, limits, tell)
    return report_of(ledger, suspects)


def run_worker(plan: Plan, limits: Limits, ledger: Ledger, tell: Callable[[Progress], None]) -> Ended:
    """One worker's messages into the ledger."""
    ledger.fault, ledger.peak = None, 0
    with started(plan) as worker:
        for message in listen(worker, limits.timeout_s, limits.memory_gib):
            if isinstance(message, Ended):
                return message
            note(ledger, message, tell)
    raise AssertionError("a worker always ends")


def note(ledger: Ledger, message: Message, tell: Callable[[Progress], None]) -> None:
    """One message into the ledger. A bucket's later result completes the earlier one."""
    match message:
        case Progress():
            tell(message)
        case Machine():
            ledger.machine = message
        case BucketResult():
            ledger.results[message.size] = message
            note_peak(ledger, message.size)
        case Peak():
            ledger.peak = message.nbytes
            note_peak(ledger, message.bucket)
        case Fault():
            ledger.fault = message
        case Done():
            ledger.floor = message.floor or ledger.floor
            ledger.notes.extend(text for text in message.notes if text not in ledger.notes)


def note_peak(ledger: Ledger, bucket: int | None) -> None:
    """Charge a bucket with what its worker has held so far; 0 is not told."""
    if bucket is not None and ledger.peak:
        ledger.device_bytes[bucket] = max(ledger.peak, ledger.device_bytes.get(bucket, 0))


def settle(ledger: Ledger, ended: Ended, limits: Limits, steps_are_default: bool) -> None:
    """Give the bucket at which a worker stopped its verdict."""
    fault = ledger.fault
    if fault is not None:
        settle_fault(ledger, fault, steps_are_default)
    elif ended.reason != "done":
        settle_end(ledger, ended, limits)


def settle_fault(ledger: Ledger, fault: Fault, steps_are_default: bool) -> None:
    """The target failed without any capture, or the machine does."""
    if fault.machine:
        raise DeviceError(fault.message)
    if fault.bucket is None:
        raise TargetError(fault.message)
    if fault.bucket in ledger.results and fault.stage is Stage.PROBE and "CUDA error" in fault.message:
        ledger.results[fault.bucket] = failed_probe(ledger.results[fault.bucket], fault.message)
        return
    if fault.bucket in ledger.results:
        ledger.notes.append(f"batch {fault.bucket}: {fault.message}, after the verdict; nothing more was tried")
        return
    if steps_are_default and fault.step is not None and MIN_STEPS <= fault.step < ledger.plan.steps:
        ledger.plan = replace(ledger.plan, steps=fault.step)
        ledger.notes.append(f"{fault.message}; verified the {fault.step} steps before it (--steps)")
        return
    verdict = Verdict.OUT_OF_MEMORY if fault.out_of_memory else Verdict.CRASH
    ledger.results[fault.bucket] = BucketResult(
        fault.bucket, verdict, message=fault.message, fault=not fault.out_of_memory
    )


def settle_end(ledger: Ledger, ended: Ended, limits: Limits) -> None:
    """A worker hung, died or outgrew its memory."""
    stage, bucket = ended.last.stage, ended.last.bucket
    spots = target_spots(ended.spots, ledger.plan.target)
    where = f" at {os.path.relpath(spots[-1].path)}:{spots[-1].line}" if spots else ""
    verdict, words = {
        "hang": (Verdict.TIMEOUT, f"no answer for {limits.timeout_s:g} s{where}"),
        "memory": (Verdict.OUT_OF_MEMORY, f"took more than {limits.memory_gib or 0:.3g} GiB of host memory{where}"),
        "died": (Verdict.CRASH, f"the process {ended.words}{where}"),
    }[ended.reason]
    during = "build" if stage is Stage.BUILD else stage.value
    message = f"{words}, during {during}" + (f" of step {ended.last.step}" if ended.last.step is not None else "")
    if bucket is None:
        raise TargetError(f"{ledger.plan.target}: {message}{quoted(ended.output)}")
    if bucket in ledger.results and stage is Stage.PROBE:
        ledger.results[bucket] = failed_probe(ledger.results[bucket], message)
        return
    if bucket in ledger.results:
        ledger.notes.append(f"batch {bucket}: {message}, after the verdict; nothing more was measured")
        return
    kind = ObservationKind.REFUSED if stage is Stage.CAPTURE else ObservationKind.RAISED
    is_finding = bool(spots) and verdict is not Verdict.OUT_OF_MEMORY
    observations = (Observation(kind, message, spots, step=ended.last.step),) if is_finding else ()
    ledger.results[bucket] = BucketResult(
        bucket,
        verdict,
        message=message + quoted(ended.output if ended.reason == "died" else ""),
        fault=not stage.captures and verdict is not Verdict.OUT_OF_MEMORY,
        observations=observations if stage.captures else (),
    )


def failed_probe(result: BucketResult, message: str) -> BucketResult:
    """A replay that was right and failed once memory was overwritten or the buckets took turns."""
    seen = Observation(ObservationKind.VALUES_DIFFER, message)
    return replace(result, verdict=Verdict.REPLAY_DIFFERS, message=message, observations=(seen,))


def quoted(output: str) -> str:
    """The last line that a dead worker printed."""
    lines = [line for line in output.splitlines() if line.strip()]
    return f" (it printed: {lines[-1].strip()})" if lines else ""


def target_spots(spots: tuple[Spot, ...], target: str) -> tuple[Spot, ...]:
    """The lines of a stack that belong to the target's project."""
    project = Project(project_roots(Path(target)))
    return tuple(spot for spot in spots if project.owns(spot.path))


def retrace(ledger: Ledger, limits: Limits, tell: Callable[[Progress], None]) -> None:
    """Try again under the recorders where a process could not look for the line any more.

    A driver's message stays: the second run looks for causes only, and may not fail at all.
    """
    for size, result in list(ledger.results.items()):
        if not result.is_lost or any(seen.spots for seen in result.observations):
            continue
        run_worker(replace(ledger.plan, buckets=(size,), traced=True), limits, ledger, tell)
        again = ledger.results[size]
        if not any(seen.spots for seen in again.observations):
            ledger.results[size] = result
        elif ledger.plan.driver is not None:
            ledger.results[size] = replace(again, message=result.message)


def report_of(ledger: Ledger, suspects: Suspects) -> VerifyReport:
    """The finished report; the same line in several buckets is one finding."""
    buckets = tuple(
        replace(ledger.results[size], device_bytes=ledger.device_bytes.get(size)) for size in ledger.plan.buckets
    )
    findings: list[Finding] = []
    seen: set[tuple[str, object]] = set()
    for bucket in buckets:
        for finding in blame(bucket.observations, bucket.size, suspects):
            key = (finding.rule, finding.place)
            if key not in seen:
                seen.add(key)
                findings.append(finding)
    ok = [bucket.size for bucket in buckets if bucket.verdict is Verdict.OK]
    if ok and any(bucket.verdict is Verdict.OUT_OF_MEMORY for bucket in buckets):
        ledger.notes.append(f"batch {max(ok)} is the largest that fits")
    machine = ledger.machine or Machine(ledger.plan.device, "unknown")
    if ledger.plan.memory_limit_gib is not None and machine.device == "cuda" and not machine.tells_memory:
        ledger.notes.append(
            "the driver does not tell what a process holds: the limit is that of torch's allocator alone"
        )
    return VerifyReport(ledger.plan.target, machine, buckets, tuple(findings), ledger.floor, tuple(ledger.notes))
