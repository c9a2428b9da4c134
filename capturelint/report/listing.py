"""Findings and entries -> the source of the decode path, function by function, with marks in the margin.

A function is shown once, whole, however many findings it has. What the trail goes through is shown too, so every step
of it is a line on the page. A file that cannot be parsed is shown by the lines around each place.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.report.frame import drawn, marked
from capturelint.report.model import ReadLines, relative
from capturelint.vocabulary import Confidence

MAX_FUNCTIONS = 60
MAX_LINES = 160
"""Lines of one function; a longer one is shown around what is marked in it."""
AROUND = 4

Spot = tuple[Path, int | None, int]
"""File, notebook cell, line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A finding in the margin: its number on the page, and whether it is proven or certain."""

    number: int
    sure: bool
    rule: str


@dataclass(frozen=True, slots=True)
class ListingRow:
    """One line of source. ``marked`` is the part that a finding is about; ``calls`` where the trail goes through."""

    number: int
    anchor: str
    before: str
    marked: str
    after: str
    marks: tuple[Mark, ...] = ()
    calls: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One function of the decode path."""

    where: str
    rows: tuple[ListingRow, ...]


@dataclass(frozen=True, slots=True)
class Listings:
    """The functions, the ids of their lines, and how many functions did not fit."""

    shown: tuple[Listing, ...]
    anchors: Mapping[Spot, str]
    left_out: int = 0


def listings(findings: Sequence[Finding], entries: Iterable[tuple[Path, int]], read: ReadLines) -> Listings:
    """The decode path: what the trails go through, where the findings are, and then the entries without any."""
    marks: dict[Spot, list[Mark]] = {}
    places: dict[Spot, Finding] = {}
    for number, finding in enumerate(findings, 1):
        if finding.place is not None:
            spot = (finding.place.path, finding.place.cell, finding.place.line)
            sure = finding.confidence >= Confidence.CERTAIN
            marks.setdefault(spot, []).append(Mark(number, sure, finding.rule))
            places.setdefault(spot, finding)
    calls: dict[Spot, None] = {(step.path, None, step.line): None for f in findings for step in f.trail}
    wanted: list[Spot] = []
    for finding in findings:
        wanted += [(step.path, None, step.line) for step in finding.trail]
        if finding.place is not None:
            wanted.append((finding.place.path, finding.place.cell, finding.place.line))
    wanted += [(path, None, line) for path, line in entries]
    blocks: dict[tuple[Path, int | None, int, int], list[int]] = {}
    for path, cell, line in wanted:
        lines = read(path, cell)
        if 1 <= line <= len(lines):
            blocks.setdefault((path, cell, *extent(lines, line)), []).append(line)
    shown = list(blocks.items())[:MAX_FUNCTIONS]
    anchors = {
        (path, cell, line): f"source-{index}-{line}"
        for index, ((path, cell, _, _), inside) in enumerate(shown)
        for line in inside
    }
    found = tuple(
        Listing(
            visible(f"{relative(path)}, {f'cell {cell}, ' if cell is not None else ''}from line {first}"),
            tuple(
                row(read(path, cell), number, f"source-{index}-{number}", (path, cell, number), marks, places, calls)
                for number in kept(first, last, inside)
            ),
        )
        for index, ((path, cell, first, last), inside) in enumerate(shown)
    )
    return Listings(found, anchors, len(blocks) - len(shown))


def row(
    lines: Sequence[str],
    number: int,
    anchor: str,
    spot: Spot,
    marks: Mapping[Spot, Sequence[Mark]],
    places: Mapping[Spot, Finding],
    calls: Mapping[Spot, None],
) -> ListingRow:
    """One line, cut at what the first finding on it is about."""
    line = lines[number - 1]
    finding = places.get(spot)
    begin = end = len(line)
    if finding is not None and finding.place is not None:
        begin, end = marked(finding.place, number, max(finding.place.line, finding.place.end_line), line)
    cut = (drawn(line[:begin]), drawn(line[begin:end]), drawn(line[end:]))
    return ListingRow(number, anchor, *cut, marks=tuple(marks.get(spot, ())), calls=spot in calls)


def kept(first: int, last: int, inside: Sequence[int]) -> Iterator[int]:
    """The lines of a function that are shown: all, or those around what is marked."""
    if last - first < MAX_LINES:
        yield from range(first, last + 1)
        return
    near = {number for line in inside for number in range(line - AROUND, line + AROUND + 1)}
    yield from sorted({first, *(number for number in near if first <= number <= last)})


def extent(lines: Sequence[str], line: int) -> tuple[int, int]:
    """First and last line of the innermost function around a line, decorators included."""
    best: tuple[int, int] | None = None
    for first, last in functions("\n".join(lines)):
        if first <= line <= last and (best is None or first >= best[0]):
            best = (first, last)
    return best or (max(1, line - AROUND), min(len(lines), line + AROUND))


def functions(text: str) -> list[tuple[int, int]]:
    """Line ranges of every function; none where the text is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        (min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
