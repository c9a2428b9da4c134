"""What became of a compiled step, as findings: the rule's name, the user's line, what was seen and the cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capturelint.compiler.report import CompileEvent, CompileKind, CompileReport, Coverage
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


def compile_findings(report: CompileReport, bucket: int) -> tuple[Finding, ...]:
    """One finding an event, worst first. A place that torch does not tell stays unknown."""
    return tuple(finding_of(event, bucket) for event in report.events)


def finding_of(event: CompileEvent, bucket: int) -> Finding:
    """An event as a finding."""
    wording = WORDINGS[event.kind]
    reason = event.reason if len(event.reason) <= MAX_REASON else f"{event.reason[: MAX_REASON - 3]}..."
    told = event.reason if not event.detail else f"{event.reason} ({event.detail})"
    return Finding(
        rule=event.kind.value,
        place=Place(Path(event.path), event.line) if event.path and event.line else None,
        message=wording.message.format(reason=reason),
        help=(wording.help,),
        outcome=wording.outcome,
        confidence=Confidence.PROVEN,
        evidence=Evidence(f"compiled with reduce-overhead, torch says: {told}", bucket),
    )


def summary(report: CompileReport) -> tuple[str, ...]:
    """What the compiled step is worth, in lines: coverage, kernels outside graphs, and what could not be seen."""
    lines = [*report.partial]
    if report.error is not None:
        lines.append(f"the compiled step fails: {report.error}")
    if report.coverage is not None:
        lines += coverage_lines(report.coverage)
    if report.times is not None:
        lines.append(f"{report.times.p50:.3f} ms a step (p50), {report.times.p99:.3f} ms (p99)")
    return tuple(f"compiled: {line}" for line in lines)


def coverage_lines(coverage: Coverage) -> list[str]:
    """``120 of 123 kernels (97.6%) run inside 2 graph launches``, and the kernels that do not."""
    inside = f"{coverage.kernels_in_graphs} of {coverage.kernels} kernels ({coverage.percent:.1f}%)"
    lines = [f"{inside} run inside graphs, {coverage.graph_launches} graph launches a step"]
    for kernel in coverage.outside[:MAX_KERNELS]:
        where = f" from `{kernel.function}` ({kernel.path}:{kernel.line})" if kernel.function else ""
        lines.append(f"outside: {kernel.count} x {kernel.name[:80]}{where}")
    if len(coverage.outside) > MAX_KERNELS:
        lines.append(f"outside: {len(coverage.outside) - MAX_KERNELS} more kernels")
    return lines
