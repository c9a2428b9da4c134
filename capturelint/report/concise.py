"""A report of one line a finding, for editors' error lists and for ``grep``."""

from __future__ import annotations

from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.report.model import CheckReport, count_by_rule, entry_line, relative, summary_line


def render_concise(report: CheckReport, *, statistics: bool = False, quiet: bool = False) -> str:
    """``path:line:column: rule message`` for each finding, then the entries and the count."""
    shown = report.shown
    lines = [f"{number} {rule}" for rule, number in count_by_rule(shown)] if statistics else list(map(concise, shown))
    if not quiet:
        lines += [*report.notes, entry_line(report), summary_line(report)]
    return "".join(f"{visible(line)}\n" for line in lines)


def concise(finding: Finding) -> str:
    """One finding on one line."""
    place = finding.place
    where = "-"
    if place is not None:
        cell = f"cell {place.cell}:" if place.cell is not None else ""
        where = f"{relative(place.path)}:{cell}{place.line}:{place.column}"
    return f"{where}: {finding.rule} {finding.message}"
