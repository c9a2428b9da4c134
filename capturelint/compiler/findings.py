"""What became of a compiled step, as findings: the rule's name, the user's line, what was seen and the cure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capturelint.compiler.report import CompiledBucket, CompileEvent, CompileKind, CompileReport, Coverage
from capturelint.finding import Evidence, Finding
from capturelint.place import Place
from capturelint.vocabulary import Confidence, Outcome

MAX_REASON = 60
MAX_KERNELS = 5


@dataclass(frozen=True, slots=True)
class Wording:
    """How a kind of event is told. ``message`` may use the event's reason."""

    message: str
    help: str
    outcome: Outcome


WORDINGS: Mapping[CompileKind, Wording] = {
    CompileKind.GRAPH_BREAK: Wording(
        "Dynamo splits the step here: {reason}",
        "keep it out of the step; `fullgraph=True` turns a break into an error",
        Outcome.SLOW,
    ),
    CompileKind.SKIP: Wording(
        "no CUDA graph is used: {reason}",
        "keep written tensors static (`mark_static_address`, a buffer) and control flow branch-free",
        Outcome.SKIP,
    ),
    CompileKind.PARTITION: Wording(
        "runs outside CUDA graphs: {reason}",
        "move it out of the step, or keep it on the device with fixed shapes",
        Outcome.SLOW,
    ),
    CompileKind.RECOMPILE: Wording(
        "compiled again because a guard failed: {reason}",
        "keep the value constant, or hold it in a tensor",
        Outcome.RECAPTURE,
    ),
    CompileKind.RERECORD: Wording(
        "a CUDA graph is recorded again: {reason}",
        "copy inputs into buffers at fixed addresses; run under `torch.no_grad()`",
        Outcome.RECAPTURE,
    ),
    CompileKind.OVERWRITTEN_OUTPUT: Wording(
        "an output was read after a later step had overwritten it",
        "clone what outlives its step, outside the compiled function",
        Outcome.CAPTURE_ERROR,
    ),
}


CONFIRMS: Mapping[CompileKind, frozenset[str]] = {
    CompileKind.GRAPH_BREAK: frozenset(
        {"host-sync", "implicit-sync", "tensor-branch", "dynamic-shape", "host-side-effect", "host-random", "upload"}
        | {"unsafe-operation", "stream-misuse", "generator", "capture-dependent-maths", "autocast-cache"}
    ),
    CompileKind.SKIP: frozenset(
        {"mutated-input", "state-rebind", "cache-growth", "upload", "host-sync", "dynamic-shape", "tensor-branch"}
        | {"unsafe-operation"}
    ),
    CompileKind.PARTITION: frozenset(
        {"host-sync", "implicit-sync", "upload", "dynamic-shape", "unsafe-operation", "tensor-branch"}
    ),
    CompileKind.RECOMPILE: frozenset(
        {"baked-scalar", "cache-growth", "lazy-init", "state-rebind", "bucket-gap", "tensor-branch"}
        | {"varying-stride"}
        | {"host-sync", "host-side-effect", "host-random"}
    ),
    CompileKind.RERECORD: frozenset({"state-rebind", "input-rebind", "cache-growth", "lazy-init", "mutated-input"}),
    CompileKind.OVERWRITTEN_OUTPUT: frozenset({"stale-output", "state-rebind"}),
}
"""The static rules that an event on their line proves: what they foretell is what happened."""


def compile_findings(report: CompileReport, suspects: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """One finding an event, worst first, then the suspects that an event on their line proves.

    A place that torch does not tell stays unknown.
    """
    wrong = tuple(wrong_replay(bucket) for bucket in report.buckets if bucket.differs)
    joined = [(event, proven_by(event, suspects)) for event in report.events]
    proven = {(each.rule, each.place): each for _, found in reversed(joined) for each in found}
    return (*wrong, *(finding_of(event, found) for event, found in joined), *reversed(proven.values()))


def finding_of(event: CompileEvent, proven: Sequence[Finding] = ()) -> Finding:
    """An event as a finding, with the way to it and the cure that a suspect on its line knows."""
    wording = WORDINGS[event.kind]
    reason = event.reason if len(event.reason) <= MAX_REASON else f"{event.reason[: MAX_REASON - 3]}..."
    causes = "".join(f"; check says {each.rule}: {each.message}" for each in proven)
    return Finding(
        rule=event.kind.value,
        place=Place(Path(event.path), event.line) if event.path and event.line else None,
        message=wording.message.format(reason=reason),
        help=(*dict.fromkeys(text for each in proven for text in each.help), wording.help),
        outcome=wording.outcome,
        confidence=Confidence.PROVEN,
        trail=proven[0].trail if proven else (),
        evidence=Evidence(f"{told(event)}{causes}", event.bucket),
    )


def told(event: CompileEvent) -> str:
    """What torch says of an event."""
    detail = f" ({event.detail})" if event.detail else ""
    return f"compiled with reduce-overhead, torch says: {event.reason}{detail}"


def proven_by(event: CompileEvent, suspects: Sequence[Finding]) -> tuple[Finding, ...]:
    """The static findings on an event's line that it confirms."""
    if not event.path or not event.line:
        return ()
    path, line = Path(event.path).resolve(), event.line
    return tuple(
        replace(suspect, confidence=Confidence.PROVEN, evidence=Evidence(told(event), event.bucket))
        for suspect in suspects
        if suspect.rule in CONFIRMS[event.kind]
        and suspect.place is not None
        and suspect.place.line <= line <= max(suspect.place.end_line, suspect.place.line)
        and suspect.place.path.resolve() == path
    )


def wrong_replay(bucket: CompiledBucket) -> Finding:
    """A compiled step whose graphs replay other values than its code computes; no line is known."""
    return Finding(
        rule="unexplained",
        place=None,
        message="the compiled step replays other values than the same code without graphs",
        help=("clone outputs that are kept, and keep state in tensors that are written in place",),
        outcome=Outcome.SILENT_WRONG,
        confidence=Confidence.PROVEN,
        evidence=Evidence(bucket.differs, bucket.size),
    )


def summary(report: CompileReport) -> tuple[str, ...]:
    """What the compiled step is worth, in lines: coverage, kernels outside graphs, and what could not be seen."""
    lines = [*report.partial]
    said: dict[tuple[str, ...], list[int]] = {}
    for bucket in report.buckets:
        for line in bucket_lines(bucket):
            said.setdefault((line,), []).append(bucket.size)
    for (line,), sizes in said.items():
        sizes_told = ", ".join(map(str, sizes))
        lines.append(line if len(report.buckets) == 1 else f"batch {sizes_told}: {line}")
    return tuple(f"compiled: {line}" for line in lines)


def bucket_lines(bucket: CompiledBucket) -> list[str]:
    """What one batch size gave."""
    lines = []
    if bucket.error is not None:
        lines.append(f"the compiled step fails: {bucket.error}")
    if bucket.coverage is not None:
        lines += coverage_lines(bucket.coverage)
    if bucket.max_error is not None:
        lines.append(f"largest error against eager {bucket.max_error:.2g}, tolerance {bucket.tolerance:.2g}")
    return [*lines, *filter(None, [bucket.differs]), *bucket.notes]


def coverage_lines(coverage: Coverage) -> list[str]:
    """``120 of 123 kernels (97.6%) run inside 2 graph launches``, and the kernels that do not."""
    inside = f"{coverage.kernels_in_graphs} of {coverage.kernels} kernels ({coverage.percent:.1f}%)"
    lines = [f"{inside} run inside graphs, {coverage.graph_launches} graph launches a step"]
    for kernel in coverage.outside[:MAX_KERNELS]:
        where = (
            f" at {kernel.path}:{kernel.line}"
            if kernel.exact
            else f" in `{kernel.function}` ({kernel.path}:{kernel.line})"
        )
        where = where if kernel.path else ""
        lines.append(f"outside: {kernel.count} x {kernel.name[:80]}{where}")
    if len(coverage.outside) > MAX_KERNELS:
        lines.append(f"outside: {len(coverage.outside) - MAX_KERNELS} more kernels")
    return lines
