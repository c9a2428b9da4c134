"""A report of ``check`` or ``verify`` -> one HTML file that needs nothing else: no script, no font, no request.

It follows the reader's light or dark setting, fits a phone and prints. Everything that comes from a source or a file
name is escaped twice: control characters become visible, and the template escapes HTML. The pictures are the one thing
that the template trusts; they are made of numbers and words of ours.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from capturelint.catalog import load_rules
from capturelint.compiler.report import CompileReport
from capturelint.errors import UsageError
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.report.charts import Picture, Timed, errors, floor_words, latency, memory, order, padding, timeline
from capturelint.report.cure import Cure, example, from_patch
from capturelint.report.frame import drawn, marked
from capturelint.report.listing import Listing, Listings, listings
from capturelint.report.model import CheckReport, ReadLines, counted, entry_line, relative, summary_line
from capturelint.report.verify_json import speedup
from capturelint.report.verify_text import COLUMNS, name_of, worth
from capturelint.runtime.observations import BucketResult
from capturelint.runtime.timeline import Stretch, Timeline, timeline_of
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

Cures = Mapping[Finding, str]
"""Findings that ``check --fix`` would answer, each with the patch."""

CONTEXT = 4
"""Lines of source shown above and below a finding."""
PACKAGES = ("triton", "transformers", "numpy")
"""Named in the environment where they are installed; torch names itself and its CUDA."""
NOT_MEASURED = "not measured"


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
class Step:
    """One step of the way from an entry. ``anchor`` is the id of its line on the page, empty where it is not shown."""

    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class FindingCard:
    """A finding as the page shows it."""

    rule: str
    message: str
    where: str
    anchor: str
    outcome: str
    confidence: str
    sure: bool
    rows: tuple[SourceRow, ...]
    trail: tuple[Step, ...]
    evidence: str
    why: str
    help: tuple[str, ...]
    cure: Cure | None


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
    path: tuple[Listing, ...]
    path_left_out: int
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    table: Table | None = None
    bucket_notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


def check_html(report: CheckReport, read: ReadLines, command: Sequence[str], cures: Cures | None = None) -> str:
    """The page of a ``check``; ``command`` is how to reproduce it. Raises ``UsageError`` without jinja2."""
    shown = report.shown
    hard = [f for f in shown if f.outcome is Outcome.CAPTURE_ERROR]
    silent = [f for f in shown if f.outcome is Outcome.SILENT_WRONG]
    path = listings(shown, [(entry.path, entry.line) for entry in report.entries], read)
    return write(
        View(
            title="capturelint check",
            verdict=visible(check_verdict(report)),
            subtitle=visible(entry_line(report)),
            mood="bad" if shown else "warn" if not report.entries else "good",
            figures=(
                Figure("files", str(report.files)),
                Figure("entries", str(len(report.entries)), mood="" if report.entries else "warn"),
                Figure("capture errors", str(len(hard)), mood="bad" if hard else ""),
                Figure("silently wrong", str(len(silent)), mood="bad" if silent else ""),
                Figure("suppressed", str(report.num_suppressed)),
            ),
            findings=tuple(card(finding, read, path, cures or {}) for finding in shown),
            path=path.shown,
            path_left_out=path.left_out,
            environment=(
                ("command", shown_command(command)),
                ("capturelint", report.version),
                ("torch assumed", report.torch or "every supported version"),
                ("python", platform.python_version()),
            ),
            notes=(*map(visible, report.notes), *(visible(str(error)) for error in report.errors)),
        )
    )


def check_verdict(report: CheckReport) -> str:
    """What was found, as one sentence."""
    if report.shown:
        return f"{summary_line(report)}."
    if not report.entries:
        return f"Nothing was checked: {counted(report.files, 'file')} without an entry."
    return f"Nothing to fix: {summary_line(report)}."


def verify_html(report: VerifyReport, read: ReadLines, command: Sequence[str], version: str) -> str:
    """The page of a ``verify``; ``command`` is how to reproduce it. Raises ``UsageError`` without jinja2."""
    machine = report.machine
    path = listings(report.findings, [], read)
    device = machine.gpu or "emulated on the CPU: verdicts and errors, no times"
    return write(
        View(
            title=f"capturelint verify {visible(report.target)}",
            verdict=visible(verify_verdict(report)),
            subtitle=visible(device),
            mood="good" if report.verdict == "safe" else "bad",
            figures=tuple(verify_figures(report)),
            findings=tuple(card(finding, read, path, {}) for finding in report.findings),
            path=path.shown,
            path_left_out=path.left_out,
            environment=(
                ("command", shown_command(command)),
                ("capturelint", version),
                ("device", visible(device)),
                *((("driver", visible(machine.driver)),) if machine.driver else ()),
                ("torch", machine.torch),
                ("python", platform.python_version()),
                *packages(),
                ("platform", platform.platform()),
            ),
            notes=tuple(map(visible, (*report.notes, *worth(report)))),
            table=bucket_table(report.buckets),
            bucket_notes=tuple(visible(f"batch {name_of(b)}: {b.message}") for b in report.buckets if b.message),
            pictures=tuple(pictures(report)),
        )
    )


def verify_verdict(report: VerifyReport) -> str:
    """Whether the step may be captured, as one sentence."""
    bad = [bucket for bucket in report.buckets if bucket.verdict is not Verdict.OK]
    sizes = counted(len(report.buckets), "batch size")
    if report.verdict == "fault":
        return f"{report.target} could not be verified: it fails without any capture."
    if not bad and report.verdict == "safe":
        return f"{report.target} is safe to capture: replay equals eager at {sizes}."
    if not bad:
        return f"{report.target} loses graphs when compiled; captured by hand it is right at {sizes}."
    return f"{report.target} is not safe to capture: {len(bad)} of {sizes} went wrong ({reasons(bad)})."


def reasons(bad: Iterable[BucketResult]) -> str:
    """``replay-differs at 1, 2; timeout at 8``."""
    by_verdict: dict[str, list[str]] = {}
    for bucket in bad:
        by_verdict.setdefault(bucket.verdict.value, []).append(name_of(bucket))
    return "; ".join(f"{verdict} at {', '.join(sizes)}" for verdict, sizes in by_verdict.items())


def packages() -> Iterator[tuple[str, str]]:
    """Versions that a compiled or a transformers step depends on."""
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


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
    """The five that matter: speed-up, coverage, worst error, memory, floor. What was not measured says so."""
    ratios = [(ratio, bucket.size) for bucket in report.buckets if (ratio := speedup(bucket)) is not None]
    gpu = "needs a GPU" if report.machine.device == "emulated" else ""
    if ratios:
        best, size = max(ratios)
        yield Figure("speed-up", f"{best:.1f}x", f"at batch {size}")
    else:
        yield Figure("speed-up", NOT_MEASURED, gpu)
    yield coverage_figure(report.compiled, gpu)
    wrong = any(bucket.verdict is Verdict.REPLAY_DIFFERS for bucket in report.buckets)
    found = [(b.max_error, b) for b in report.buckets if b.max_error is not None]
    if found:
        worst, bucket = max(found, key=lambda pair: pair[0])
        limit = f", allowed {bucket.tolerance:.2g}" if bucket.tolerance is not None else ""
        yield Figure("worst error", f"{worst:.2g}", f"batch {name_of(bucket)}{limit}", "bad" if wrong else "good")
    else:
        yield Figure("worst error", NOT_MEASURED, "nothing was replayed", "bad")
    pools = [bucket.pool_bytes for bucket in report.buckets if bucket.pool_bytes is not None]
    if pools:
        yield Figure("graph memory", f"{sum(pools) / 1e6:.1f} MB", counted(len(pools), "graph"))
    else:
        yield Figure("graph memory", NOT_MEASURED, gpu)
    if report.floor is not None:
        yield Figure("floor", floor_words(report.floor.ms), "to read its bytes once")
    else:
        yield Figure("floor", NOT_MEASURED, gpu)


def coverage_figure(compiled: CompileReport | None, gpu: str) -> Figure:
    """Kernels of the compiled step that run inside graphs."""
    if compiled is None:
        return Figure("coverage", NOT_MEASURED, "--compile measures it")
    if compiled.coverage is None:
        return Figure("coverage", NOT_MEASURED, gpu)
    percent = compiled.coverage.percent
    note = f"{compiled.coverage.kernels_in_graphs} of {counted(compiled.coverage.kernels, 'kernel')}"
    return Figure("coverage", f"{percent:.0f} %", note, "good" if percent == 100 else "warn")


def bucket_table(buckets: Sequence[BucketResult]) -> Table:
    """The table of the text report; columns without any value are left out, as there."""
    columns = [(title, [cell(bucket) for bucket in buckets]) for title, cell in COLUMNS]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    return Table(tuple(title for title, _ in kept), tuple(zip(*(cells for _, cells in kept), strict=True)))


def pictures(report: VerifyReport) -> Iterator[Picture]:
    """A chart for everything that was measured."""
    timed = {b.size: group for b in report.buckets if (group := tuple(times(b, report.compiled)))}
    if timed:
        yield latency(timed, report.floor.ms if report.floor else None)
    pools = {b.size: b.pool_bytes for b in report.buckets if b.pool_bytes is not None}
    if any(pools.values()):
        yield memory(pools)
    replayed = {b.size: (b.first_step, b.step_errors) for b in report.buckets if b.step_errors}
    tolerances = [b.tolerance for b in report.buckets if b.step_errors and b.tolerance]
    if replayed and tolerances:
        yield errors(replayed, max(tolerances))
    sizes = [bucket.size for bucket in report.buckets if bucket.size]
    if len(sizes) > 1:
        yield padding(sizes)
    yield from timelines(report)


def times(bucket: BucketResult, compiled: CompileReport | None) -> Iterator[Timed]:
    """Eager, captured, compiled, and compiled and captured, as far as they were measured."""
    if bucket.eager_ms is not None:
        yield Timed("eager", "eager", bucket.eager_ms.p50, bucket.eager_ms.p99)
    if bucket.replay_ms is not None:
        yield Timed("captured", "captured", bucket.replay_ms.p50, bucket.replay_ms.p99)
    both = compiled.bucket(bucket.size) if compiled is not None else None
    if both is not None and both.compiled_ms is not None:
        yield Timed("compiled", "compiled", both.compiled_ms.p50, both.compiled_ms.p99)
    if both is not None and both.compiled_captured_ms is not None:
        yield Timed("compiled, captured", "both", both.compiled_captured_ms.p50, both.compiled_captured_ms.p99)


def timelines(report: VerifyReport) -> Iterator[Picture]:
    """One step at the largest batch size that has any: in time where it was traced, else in order."""
    for bucket in sorted(report.buckets, key=lambda bucket: -bucket.size):
        lines = {
            "eager": bucket.eager_timeline,
            "captured": bucket.replay_timeline,
            "compiled": compiled_timeline(report.compiled, bucket.size),
        }
        medians = {timed.kind: timed.p50 for timed in times(bucket, report.compiled)}
        traced = {name: line for name, line in lines.items() if line is not None and name in medians}
        if traced:
            yield timeline(traced, medians, bucket.size)
            return
        if bucket.operations:
            yield order(bucket.operations, bucket.size)
            return


def compiled_timeline(compiled: CompileReport | None, size: int) -> Timeline | None:
    """A compiled step in time."""
    found = compiled.bucket(size) if compiled is not None else None
    spans = found.coverage.timeline if found is not None and found.coverage is not None else ()
    return timeline_of([Stretch(s.start_us, s.end_us, s.in_graph) for s in spans], sum(span.kernels for span in spans))


def card(finding: Finding, read: ReadLines, path: Listings, cures: Cures) -> FindingCard:
    """A finding with the source around it."""
    place = finding.place
    rule = load_rules().get(finding.rule)
    cell = f"cell {place.cell}, " if place and place.cell is not None else ""
    return FindingCard(
        rule=finding.rule,
        message=visible(finding.message),
        where=visible(f"{relative(place.path)}, {cell}line {place.line}") if place else "no line is known",
        anchor=path.anchors.get((place.path, place.cell, place.line), "") if place else "",
        outcome=finding.outcome.value,
        confidence=finding.confidence.word,
        sure=finding.confidence >= Confidence.CERTAIN,
        rows=tuple(source_rows(place, read(place.path, place.cell))) if place else (),
        trail=tuple(
            Step(
                visible(f"{step.name} ({relative(step.path)}:{step.line})"),
                path.anchors.get((step.path, None, step.line), ""),
            )
            for step in finding.trail
        ),
        evidence=visible(finding.evidence.text) if finding.evidence else "",
        why=" ".join(rule.why.split()) if rule else "",
        help=tuple(map(visible, finding.help)),
        cure=cure_of(finding, cures),
    )


def cure_of(finding: Finding, cures: Cures) -> Cure | None:
    """The user's own line rewritten where ``--fix`` can, else how the rule's example is repaired."""
    patch = cures.get(finding)
    if patch is not None:
        return from_patch(patch, "what --fix or --unsafe-fixes would write")
    return example(finding.rule)


def source_rows(place: Place, lines: Sequence[str]) -> Iterator[SourceRow]:
    """The lines around a place; those of the place are marked."""
    last = max(place.line, place.end_line)
    for number in range(max(1, place.line - CONTEXT), min(len(lines), last + CONTEXT) + 1):
        line = lines[number - 1]
        hit = place.line <= number <= last
        begin, end = marked(place, number, last, line) if hit else (len(line), len(line))
        yield SourceRow(number, drawn(line[:begin]), drawn(line[begin:end]), drawn(line[end:]), hit)
