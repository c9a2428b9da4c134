"""A ``CheckReport`` -> text, concise, JSON, SARIF, GitHub annotations or JUnit XML.

Each format is one module, imported when it is asked for.
"""

from __future__ import annotations

from capturelint.report.model import CheckReport, EntryRecord, Format, ReadLines

__all__ = ["CheckReport", "EntryRecord", "Format", "ReadLines", "render"]


def render(
    report: CheckReport,
    format: Format,
    *,
    read: ReadLines,
    colour: bool = False,
    width: int | None = None,
    statistics: bool = False,
    quiet: bool = False,
) -> str:
    """The report in one format, ready to be written.

    ``colour`` and ``width`` (columns, ``None`` for a pipe) matter to text only; ``quiet`` to text and concise.
    """
    match format:
        case Format.TEXT:
            from capturelint.report.text import render_text

            return render_text(report, read=read, colour=colour, width=width, statistics=statistics, quiet=quiet)
        case Format.CONCISE:
            from capturelint.report.concise import render_concise

            return render_concise(report, statistics=statistics, quiet=quiet)
        case Format.JSON:
            from capturelint.report.json import render_json

            return render_json(report, statistics=statistics)
        case Format.SARIF:
            from capturelint.report.sarif import render_sarif

            return render_sarif(report)
        case Format.GITHUB:
            from capturelint.report.github import render_github

            return render_github(report)
        case Format.JUNIT:
            from capturelint.report.junit import render_junit

            return render_junit(report)
