"""A report of ``verify`` for people: where it ran, a row a bucket, the findings, what it is worth, a count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from capturelint import __version__
from capturelint.compiler.report import Milliseconds
from capturelint.finding import Finding
from capturelint.report.model import CheckReport, ReadLines, count_by_outcome, counted
from capturelint.report.verify_json import speedup
from capturelint.report.wrapping import rows
from capturelint.runtime.observations import BucketResult, Machine, Times
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

Cell = Callable[[BucketResult], str]


def render_verify_text(
    report: VerifyReport, read: ReadLines, colour: bool = False, width: int | None = None, quiet: bool = False
) -> str:
    """The whole report; ``quiet`` leaves the findings."""
    if quiet:
        return render_findings(with_reasons(report), read, colour, width)
    findings = render_findings(report, read, colour, width)
    parts = [
        prose([f"{report.target} {machine_line(report.machine)}"], width),
        "\n".join(table(report.buckets, () if report.compiled is None else TIMES)),
        "\n".join(times_table(report)),
        prose([f"batch {name_of(bucket)}: {bucket.message}" for bucket in report.buckets if bucket.message], width),
        findings.rstrip("\n"),
        prose(probe_lines(report.buckets), width),
        prose([*report.notes, *worth(report)], width),
        prose([last_line(report)], width),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def prose(texts: Sequence[str], width: int | None) -> str:
    """Texts, each on lines of its own."""
    return "\n".join(row for text in texts for row in rows(text, width))


def machine_line(machine: Machine) -> str:
    """Where the verdicts come from; an emulated run says so first of all."""
    if machine.device == "emulated":
        return f"emulated on the CPU (torch {machine.torch}): verdicts only, no times"
    return f"on {machine.gpu} (torch {machine.torch})"


def render_findings(report: VerifyReport, read: ReadLines, colour: bool, width: int | None) -> str:
    """The findings with their frames, as ``check`` prints them."""
    if not report.findings:
        return ""
    from capturelint.report.text import render_text

    return render_text(as_check(report), read=read, colour=colour, width=width, quiet=True)


def with_reasons(report: VerifyReport) -> VerifyReport:
    """The report with a finding for each verdict that has none, for formats that show findings alone.

    Memory that runs out, a time-out or a target that fails by itself have a reason and no line of a rule.
    """
    told = {finding.evidence.bucket for finding in report.findings if finding.evidence is not None}
    said = [
        f"batch {name_of(bucket)}: {bucket.verdict.value}: {bucket.message}"
        for bucket in report.buckets
        if bucket.verdict is not Verdict.OK and not bucket.observations and bucket.size not in told
    ]
    if report.compiled_lost and not report.findings:
        said.append("; ".join(report.notes))
    reasons = [Finding("unexplained", None, text, (), Outcome.CAPTURE_ERROR, Confidence.PROVEN) for text in said]
    return replace(report, findings=(*report.findings, *reasons))


def as_check(report: VerifyReport) -> CheckReport:
    """The findings in the record that the shared formats are written from."""
    return CheckReport(__version__, report.machine.torch, files=1, findings=report.findings, notes=report.notes)


COLUMNS: Sequence[tuple[str, Cell]] = (
    ("batch", lambda bucket: name_of(bucket)),
    ("verdict", lambda bucket: bucket.verdict.value),
    ("steps", lambda bucket: str(bucket.steps or "")),
    ("max error", lambda bucket: number(bucket.max_error)),
    ("tolerance", lambda bucket: number(bucket.tolerance)),
    ("eager ms", lambda bucket: milliseconds(bucket.eager_ms)),
    ("replay ms", lambda bucket: milliseconds(bucket.replay_ms)),
    ("p99", lambda bucket: f"{bucket.replay_ms.p99:.2f}" if bucket.replay_ms else ""),
    ("speed-up", lambda bucket: f"{ratio:.1f}x" if (ratio := speedup(bucket)) else ""),
    ("nodes", lambda bucket: str(bucket.graph_nodes or "")),
    ("pool MB", lambda bucket: "" if bucket.pool_bytes is None else f"{bucket.pool_bytes / 1e6:.1f}"),
    ("device MB", lambda bucket: "" if bucket.device_bytes is None else f"{bucket.device_bytes / 1e6:.0f}"),
    ("capture s", lambda bucket: "" if bucket.capture_s is None else f"{bucket.capture_s:.2f}"),
)


TIMES = ("eager ms", "replay ms", "p99")
"""Columns that stand in a table of their own where the compiled step has times beside them."""


def table(buckets: Sequence[BucketResult], without: Sequence[str] = ()) -> list[str]:
    """One row a bucket; columns without any value are left out, the verdict stands left, numbers right."""
    columns = [(title, [cell(bucket) for bucket in buckets]) for title, cell in COLUMNS if title not in without]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    rows = [[title for title, _ in kept], *map(list, zip(*(cells for _, cells in kept), strict=True))]
    widths = [max(len(row[index]) for row in rows) for index in range(len(kept))]
    return [
        "  ".join(
            text.ljust(width) if kept[index][0] == "verdict" else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def times_table(report: VerifyReport) -> list[str]:
    """Milliseconds a step, a row a way to run it: eager, captured, compiled, both, and the floor below them all."""
    if report.compiled is None:
        return []
    compiled = [report.compiled.bucket(bucket.size) for bucket in report.buckets]
    rows: list[tuple[str, list[Times | Milliseconds | None]]] = [
        ("eager", [bucket.eager_ms for bucket in report.buckets]),
        ("captured", [bucket.replay_ms for bucket in report.buckets]),
        ("compiled", [each.compiled_ms if each else None for each in compiled]),
        ("compiled, captured", [each.compiled_captured_ms if each else None for each in compiled]),
    ]
    kept = [(name, cells) for name, cells in rows if any(cells)]
    if not kept:
        return []
    texts = [
        ["ms a step", *(f"batch {name_of(bucket)}" for bucket in report.buckets)],
        ["", *("p50 / p99" for _ in report.buckets)],
        *([name, *map(both_quantiles, cells)] for name, cells in kept),
    ]
    if report.floor is not None:
        texts.append(["floor", *(f"{report.floor.ms:.2f}" for _ in report.buckets)])
    widths = [max(len(row[index]) for row in texts) for index in range(len(texts[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in texts]


def both_quantiles(times: Times | Milliseconds | None) -> str:
    """``4.60 / 4.61``; dots where nothing was measured."""
    return "..." if times is None else f"{times.p50:.2f} / {times.p99:.2f}"


def probe_lines(buckets: Sequence[BucketResult]) -> list[str]:
    """What right replays went through besides, one line for the buckets that say the same."""
    said: dict[tuple[str, ...], list[str]] = {}
    for bucket in buckets:
        if bucket.probes:
            said.setdefault(bucket.probes, []).append(name_of(bucket))
    return [f"probes at batch {', '.join(sizes)}: {', '.join(probes)}" for probes, sizes in said.items()]


def name_of(bucket: BucketResult) -> str:
    """The batch size; a driver has none of ours."""
    return str(bucket.size or "driver")


def number(value: float | None) -> str:
    """Two significant digits."""
    return "" if value is None else f"{value:.2g}"


def milliseconds(times: Times | None) -> str:
    """The median."""
    return "" if times is None else f"{times.p50:.2f}"


BANDWIDTH_BOUND = 0.5
"""Of a replay's time: where reading the step's bytes once takes this much, nothing but fewer bytes will help."""


def worth(report: VerifyReport) -> list[str]:
    """What graphs are worth for this step, where it was measured."""
    measured = [bucket for bucket in report.buckets if speedup(bucket) is not None]
    if report.launch_bound is None or not measured:
        return []
    best = max(measured, key=lambda bucket: speedup(bucket) or 0.0)
    floor = (
        f"; floor {report.floor.ms:.2f} ms to read its bytes once" if report.floor and report.floor.ms >= 0.01 else ""
    )
    activity = (
        f"; an eager step launches {best.kernels} kernels, and the GPU works {best.busy_share:.0%} of it"
        if best.kernels is not None and best.busy_share is not None
        else ""
    )
    pools = [bucket.pool_bytes for bucket in measured if bucket.pool_bytes is not None]
    memory = [f"pools of {len(pools)} buckets together: {sum(pools) / 1e6:.1f} MB"] if len(pools) > 1 else []
    if report.launch_bound:
        return [*memory, f"launch-bound: graphs pay, {speedup(best)}x at batch {best.size}{floor}{activity}"]
    return [*memory, f"{bound_by(report, best)}: graphs gain {speedup(best)}x at most{floor}{activity}"]


def bound_by(report: VerifyReport, bucket: BucketResult) -> str:
    """What a step waits for that does not wait for launches."""
    if report.floor is None or bucket.replay_ms is None:
        return "not launch-bound"
    return "bandwidth-bound" if report.floor.ms >= BANDWIDTH_BOUND * bucket.replay_ms.p50 else "kernel-bound"


def last_line(report: VerifyReport) -> str:
    """``unsafe: 1 of 4 buckets, 1 finding (1 capture error)``."""
    bad = sum(bucket.verdict is not Verdict.OK for bucket in report.buckets)
    found = (
        f", {counted(len(report.findings), 'finding')} ({count_by_outcome(report.findings)})" if report.findings else ""
    )
    if not bad:
        return f"{report.verdict}: {counted(len(report.buckets), 'bucket')}{found}"
    return f"{report.verdict}: {bad} of {counted(len(report.buckets), 'bucket')}{found}"
