"""A report for people: each finding with its frame, the way from the entry, what happens, and the cure.

The last line is a count and the line above it says which entries were found. Colour only where the caller says that
the output is a terminal. Text that comes from a source or a file name is shown with its control characters escaped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from capturelint.catalog import load_rules
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.report.frame import Row, frame
from capturelint.report.model import (
    OUTCOME_WORDS,
    CheckReport,
    ReadLines,
    count_by_rule,
    entry_line,
    relative,
    summary_line,
)
from capturelint.report.page import CONSEQUENCES
from capturelint.report.wrapping import rows
from capturelint.vocabulary import Confidence, Outcome

if TYPE_CHECKING:
    from rich.console import Console

Line = list[tuple[str, str]]
"""One line of a report as pieces of text, each with its style."""
MAX_TRAIL = 6
SENTENCE = re.compile(r"(?<=[a-z0-9`)\"'][.;:!?])\s")
STYLES = {
    Outcome.CAPTURE_ERROR: "bold red",
    Outcome.SILENT_WRONG: "bold magenta",
    Outcome.SKIP: "bold yellow",
    Outcome.RECAPTURE: "bold yellow",
    Outcome.SLOW: "bold yellow",
    Outcome.NONE: "bold cyan",
}


def plain_console(out: TextIO, colour: bool) -> Console:
    """A rich console that writes what it is given: no wrapping, markup or emoji of its own."""
    from rich.console import Console

    return Console(
        file=out,
        force_terminal=colour,
        color_system="standard" if colour else None,
        width=10_000,
        legacy_windows=False,
        emoji=False,
        markup=False,
        highlight=False,
    )


def render_text(
    report: CheckReport,
    *,
    read: ReadLines,
    colour: bool = False,
    width: int | None = None,
    statistics: bool = False,
    quiet: bool = False,
) -> str:
    """The whole report. ``width`` is the terminal's in columns, ``None`` for a pipe, where nothing is wrapped.

    ``statistics`` replaces the findings by a count per rule. ``quiet`` leaves only findings.
    """
    shown = report.shown
    lines = list(
        statistics_lines(report, width) if statistics else (t for f in shown for t in finding_lines(f, read, width))
    )
    if not quiet:
        said = (*report.notes, entry_line(report), summary_line(report))
        lines += [[(row, "")] for text in said for row in rows(visible(text), width)]
    written = coloured(lines) if colour else ["".join(text for text, _ in line) for line in lines]
    return "".join(f"{line.rstrip()}\n" for line in written)


def coloured(lines: Iterable[Line]) -> list[str]:
    """Lines with the codes of a terminal; only here is the library for it imported, which takes a while."""
    from rich.text import Text

    out = io.StringIO()
    console = plain_console(out, True)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    return out.getvalue().split("\n")[:-1]


def statistics_lines(report: CheckReport, width: int | None) -> Iterator[Line]:
    """One line for each rule: its count, its name, its summary."""
    rules = load_rules()
    counts = count_by_rule(report.shown)
    digits = max((len(str(number)) for _, number in counts), default=0)
    column = max((len(name) for name, _ in counts), default=0)
    before = digits + column + 4
    for name, number in counts:
        first, *rest = rows(rules[name].summary if name in rules else "", width, before, before)
        yield [(f"{number:>{digits}}", "bold"), (f"  {name:<{column}}  {first}", "")]
        yield from ([(row, "")] for row in rest)


def finding_lines(finding: Finding, read: ReadLines, width: int | None) -> Iterator[Line]:
    """One finding: head, frame, notes and an empty line."""
    yield from head(finding, width)
    gutter = 1
    if finding.place:
        lines = read(finding.place.path, finding.place.cell)
        drawn = list(frame(finding.place, lines, width))
        gutter = max((len(str(row.number)) for row in drawn if row.number), default=1)
        if drawn:
            yield bar(gutter)
            yield from (draw(row, gutter, STYLES[finding.outcome]) for row in drawn)
            yield bar(gutter)
    for label, text in notes(finding):
        yield from note(label, text, gutter, width)
    yield []


def head(finding: Finding, width: int | None) -> Iterator[Line]:
    """``path:line:column rule message``."""
    where = location(finding)
    first, *rest = rows(visible(finding.message), width, taken=len(where) + len(finding.rule) + 2)
    yield [(where, "bold"), (" ", ""), (finding.rule, STYLES[finding.outcome]), (f" {first}", "")]
    yield from ([(row, "")] for row in rest)


def location(finding: Finding) -> str:
    """``path:line:column``, ``path:cell 3:line:column`` in a notebook, ``-`` where no line is known."""
    place = finding.place
    if place is None:
        return "-"
    cell = f"cell {place.cell}:" if place.cell is not None else ""
    return f"{visible(relative(place.path))}:{cell}{place.line}:{place.column}"


def bar(gutter: int) -> Line:
    """The empty row above and below a frame."""
    return [(f"{' ' * gutter} |", "blue")]


def draw(row: Row, gutter: int, style: str) -> Line:
    """One row of a frame with its number in the gutter."""
    number = "" if row.number is None else str(row.number)
    return [(f"{number:>{gutter}} | ", "blue"), (row.text, style if row.carets else "")]


def notes(finding: Finding) -> Iterator[tuple[str, str]]:
    """What stands under the frame: the way there, the evidence, the outcome, the cure."""
    trail = [f"{step.name} ({relative(step.path)}:{step.line})" for step in finding.trail]
    if len(trail) > MAX_TRAIL:
        trail[3:-2] = [f"{len(trail) - 5} more calls"]
    if trail:
        yield "via", " -> ".join(trail)
    if finding.evidence:
        yield "seen", finding.evidence.text
    if finding.outcome is not Outcome.NONE:
        yield outcome_label(finding), consequence(finding)
    for text in finding.help:
        yield "help:", text


def outcome_label(finding: Finding) -> str:
    """``capture error:``; the confidence stands before it unless it is certain."""
    word = {Outcome.SILENT_WRONG: "silently wrong"}.get(finding.outcome, OUTCOME_WORDS[finding.outcome])
    sure = finding.confidence is Confidence.CERTAIN
    return f"{word}:" if sure else f"{finding.confidence.word} {word}:"


def consequence(finding: Finding) -> str:
    """The first sentence of the rule's ``why``, which speaks of the rule's own outcome; else the outcome's meaning."""
    rule = load_rules().get(finding.rule)
    if rule is None or finding.outcome is not rule.outcome:
        return CONSEQUENCES[finding.outcome]
    return SENTENCE.split(" ".join(rule.why.split()), maxsplit=1)[0].rstrip(".;:")


def note(label: str, text: str, gutter: int, width: int | None) -> Iterator[Line]:
    """``= label text``, wrapped under itself on a terminal."""
    lead = f"{' ' * gutter} = "
    first, *rest = rows(f"{label} {visible(text)}", width, len(lead) + 2, len(lead))
    yield [(lead, "blue"), (label, "bold"), (first.removeprefix(label), "")]
    yield from ([(row, "")] for row in rest)
