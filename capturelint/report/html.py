"""A report of ``check`` or ``verify`` -> one HTML file that needs nothing else: no script, no font, no request.

It follows the reader's light or dark setting, fits a phone and prints. Everything that comes from a source or a file
name is escaped twice: control characters become visible, and the template escapes HTML.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capturelint.catalog import load_rules
from capturelint.errors import UsageError
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.report.frame import drawn
from capturelint.report.model import CheckReport, ReadLines, counted, entry_line, relative, summary_line
from capturelint.report.verify_json import speedup
from capturelint.report.verify_text import COLUMNS, last_line, worth
from capturelint.runtime.observations import BucketResult, Times
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

CONTEXT = 4
"""Lines of source shown above and below a finding."""
BAR_WIDTH = 360
BAR_LEFT = 96


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the numbers at the top. ``mood`` is ``good``, ``bad``, ``warn`` or nothing."""

    label: str
    value: str
    note: str = ""
    mood: str = ""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A line of source, cut at the marked part."""

    number: int
    before: str
    marked: str
    after: str
    hit: bool


@dataclass(frozen=True, slots=True)
class FindingCard:
    """A finding as the page shows it."""

    rule: str
    message: str
    where: str
    outcome: str
    confidence: str
    sure: bool
    rows: tuple[SourceRow, ...]
    trail: tuple[str, ...]
    evidence: str
    why: str
    help: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the chart; lengths are in the picture's own units."""

    label: str
    kind: str
    value: str
    p99: str
    width: float
    y: int


@dataclass(frozen=True, slots=True)
class Chart:
    """Eager and replayed step, a pair of bars a bucket."""

    bars: tuple[Bar, ...]
    height: int
    floor_x: float | None
    description: str


@dataclass(frozen=True, slots=True)
class Table:
    """Head and rows of text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the template reads."""

    title: str
    verdict: str
    subtitle: str
    mood: str
    figures: tuple[Figure, ...]
    findings: tuple[FindingCard, ...]
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    table: Table | None = None
    bucket_notes: tuple[str, ...] = ()
    chart: Chart | None = None


def check_html(report: CheckReport, read: ReadLines, command: Sequence[str]) -> str:
    """The page of a ``check``; ``command`` is how to reproduce it. Raises ``UsageError`` without jinja2."""
    shown = report.shown
    errors = [f for f in shown if f.outcome is Outcome.CAPTURE_ERROR]
    silent = [f for f in shown if f.outcome is Outcome.SILENT_WRONG]
    return write(
        View(
            title="capturelint check",
            verdict=visible(summary_line(report)),
            subtitle=visible(entry_line(report)),
            mood="bad" if shown else "warn" if not report.entries else "good",
            figures=(
                Figure("files", str(report.files)),
                Figure("entries", str(len(report.entries)), mood="" if report.entries else "warn"),
                Figure("capture errors", str(len(errors)), mood="bad" if errors else ""),
                Figure("silently wrong", str(len(silent)), mood="bad" if silent else ""),
                Figure("suppressed", str(report.num_suppressed)),
            ),
            findings=tuple(card(finding, read) for finding in shown),
            environment=(
                ("command", shown_command(command)),
                ("capturelint", report.version),
                ("torch assumed", report.torch or "every supported version"),
                ("python", platform.python_version()),
            ),
            notes=(*map(visible, report.notes), *(visible(str(error)) for error in report.errors)),
        )
    )


def verify_html(report: VerifyReport, read: ReadLines, command: Sequence[str], version: str) -> str:
    """The page of a ``verify``; ``command`` is how to reproduce it. Raises ``UsageError`` without jinja2."""
    machine = report.machine
    where = machine.gpu or "emulated on the CPU: verdicts and errors, no times"
    return write(
        View(
            title=f"capturelint verify {visible(report.target)}",
            verdict=visible(f"{report.target}: {last_line(report)}"),
            subtitle=visible(where),
            mood="good" if report.verdict == "safe" else "bad",
            figures=tuple(verify_figures(report)),
            findings=tuple(card(finding, read) for finding in report.findings),
            environment=(
                ("command", shown_command(command)),
                ("capturelint", version),
                ("device", visible(machine.gpu or machine.device)),
                ("torch", machine.torch),
                ("python", platform.python_version()),
                ("platform", platform.platform()),
            ),
            notes=tuple(map(visible, (*report.notes, *worth(report)))),
            table=bucket_table(report.buckets),
            bucket_notes=tuple(visible(f"batch {b.size}: {b.message}") for b in report.buckets if b.message),
            chart=latency_chart(report),
        )
    )


def write(view: View) -> str:
    """The page. Raises ``UsageError`` where jinja2 is not installed."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise UsageError("the HTML report needs jinja2; install it with: pip install 'capturelint[report]'") from error
    template = (Path(__file__).parent / "templates/report.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(view=view)


def shown_command(command: Sequence[str]) -> str:
    """A command line that can be pasted into a shell."""
    return visible(shlex.join(command))


def verify_figures(report: VerifyReport) -> Iterator[Figure]:
    """What matters most: buckets that are right, speed-up, worst error, memory, floor. Unmeasured ones are absent."""
    right = sum(bucket.verdict is Verdict.OK for bucket in report.buckets)
    whole = right == len(report.buckets)
    yield Figure("replay equals eager", f"{right} of {len(report.buckets)}", "batch sizes", "good" if whole else "bad")
    ratios = [(ratio, bucket.size) for bucket in report.buckets if (ratio := speedup(bucket)) is not None]
    if ratios:
        best, size = max(ratios)
        yield Figure("speed-up", f"{best:.1f}x", f"at batch {size}")
    errors = [(b.max_error, b) for b in report.buckets if b.max_error is not None]
    if errors:
        worst, bucket = max(errors, key=lambda pair: pair[0])
        limit = f"allowed {bucket.tolerance:.2g}" if bucket.tolerance is not None else ""
        yield Figure(
            "worst error", f"{worst:.2g}", f"batch {bucket.size}; {limit}".rstrip("; "), "" if whole else "bad"
        )
    pools = [bucket.pool_bytes for bucket in report.buckets if bucket.pool_bytes is not None]
    if pools:
        yield Figure("graph memory", f"{sum(pools) / 1e6:.1f} MB", counted(len(pools), "graph"))
    if report.floor is not None:
        yield Figure("floor", f"{report.floor.ms:.2f} ms", "to read the weights once")


def bucket_table(buckets: Sequence[BucketResult]) -> Table:
    """The table of the text report; columns without any value are left out, as there."""
    columns = [(title, [cell(bucket) for bucket in buckets]) for title, cell in COLUMNS]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    return Table(tuple(title for title, _ in kept), tuple(zip(*(cells for _, cells in kept), strict=True)))


def latency_chart(report: VerifyReport) -> Chart | None:
    """Bars for eager and replay, where times were measured."""
    pairs = [(b.size, b.eager_ms, b.replay_ms) for b in report.buckets if b.eager_ms and b.replay_ms]
    if not pairs:
        return None
    longest = max(max(eager.p50, replay.p50) for _, eager, replay in pairs)
    bars: list[Bar] = []
    for index, (size, eager, replay) in enumerate(pairs):
        bars.append(bar(f"batch {size}", "eager", eager, longest, index * 56))
        bars.append(bar("", "replay", replay, longest, index * 56 + 22))
    floor = report.floor
    floor_x = round(BAR_LEFT + floor.ms / longest * BAR_WIDTH, 1) if floor is not None else None
    said = "; ".join(f"batch {s}: eager {e.p50:.2f} ms, replay {r.p50:.2f} ms" for s, e, r in pairs)
    below = f"; the dashed line is the floor, {floor.ms:.2f} ms" if floor is not None else ""
    return Chart(tuple(bars), len(pairs) * 56, floor_x, f"{said}{below}")


def bar(label: str, kind: str, times: Times, longest: float, y: int) -> Bar:
    """One bar, at least wide enough to be seen."""
    width = round(max(2.0, times.p50 / longest * BAR_WIDTH), 1)
    return Bar(label, kind, f"{times.p50:.2f}", f"{times.p99:.2f}", width, y)


def card(finding: Finding, read: ReadLines) -> FindingCard:
    """A finding with the source around it."""
    place = finding.place
    rule = load_rules().get(finding.rule)
    cell = f"cell {place.cell}, " if place and place.cell is not None else ""
    return FindingCard(
        rule=finding.rule,
        message=visible(finding.message),
        where=visible(f"{relative(place.path)}, {cell}line {place.line}") if place else "no line is known",
        outcome=finding.outcome.value,
        confidence=finding.confidence.word,
        sure=finding.confidence >= Confidence.CERTAIN,
        rows=tuple(source_rows(place, read(place.path, place.cell))) if place else (),
        trail=tuple(visible(f"{step.name} ({relative(step.path)}:{step.line})") for step in finding.trail),
        evidence=visible(finding.evidence.text) if finding.evidence else "",
        why=" ".join(rule.why.split()) if rule else "",
        help=tuple(map(visible, finding.help)),
    )


def source_rows(place: Place, lines: Sequence[str]) -> Iterator[SourceRow]:
    """The lines around a place; those of the place are marked."""
    last = max(place.line, place.end_line)
    for number in range(max(1, place.line - CONTEXT), min(len(lines), last + CONTEXT) + 1):
        line = lines[number - 1]
        hit = place.line <= number <= last
        indent = len(line) - len(line.lstrip())
        begin = max(indent, place.column - 1 if number == place.line else 0)
        end = place.end_column - 1 if number == last and place.end_column else len(line)
        cut = (begin, max(begin, end)) if hit else (len(line), len(line))
        before, marked, after = line[: cut[0]], line[cut[0] : cut[1]], line[cut[1] :]
        yield SourceRow(number, drawn(before), drawn(marked), drawn(after), hit)
