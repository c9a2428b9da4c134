"""A report as GitHub Actions' workflow commands, which become annotations on the lines of a pull request."""

from __future__ import annotations

from capturelint.errors import SourceError
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.report.model import CheckReport, relative
from capturelint.vocabulary import Confidence

LEVELS = {
    Confidence.PROVEN: "error",
    Confidence.CERTAIN: "error",
    Confidence.LIKELY: "warning",
    Confidence.POSSIBLE: "notice",
}


def render_github(report: CheckReport) -> str:
    """One command a finding, and one for each file that could not be checked."""
    commands = [*map(annotation, report.shown), *map(error_annotation, report.errors)]
    return "".join(f"{command}\n" for command in commands)


def annotation(finding: Finding) -> str:
    """``::error file=..,line=..::message`` for one finding."""
    properties = {"title": f"capturelint ({finding.rule})"}
    prefix = ""
    if finding.place is not None:
        place = finding.place
        properties |= {"file": relative(place.path), "line": str(place.line), "col": str(place.column)}
        properties["endLine"] = str(place.end_line or place.line)
        if place.end_column and place.end_line in (0, place.line):
            properties["endColumn"] = str(place.end_column)
        prefix = f"cell {place.cell}, line {place.line}: " if place.cell is not None else ""
    cure = "".join(f"; help: {text}" for text in finding.help[:1])
    return command(LEVELS[finding.confidence], properties, f"{prefix}{finding.message}{cure}")


def error_annotation(error: SourceError) -> str:
    """A file that could not be checked."""
    return command(
        "error",
        {"title": "capturelint", "file": relative(error.path), "line": str(error.line or 1)},
        f"not checked: {error.reason}",
    )


def command(level: str, properties: dict[str, str], message: str) -> str:
    """A workflow command; values are escaped as the runner's toolkit does it, so no name can start a command."""
    order = ("title", "file", "line", "endLine", "col", "endColumn")
    listed = ",".join(f"{key}={escaped_property(properties[key])}" for key in order if key in properties)
    return f"::{level} {listed}::{escaped(message)}"


def escaped(text: str) -> str:
    """Text after the last ``::``."""
    return visible(text).replace("%", "%25")


def escaped_property(text: str) -> str:
    """Text between ``=`` and ``,``."""
    return escaped(text).replace(":", "%3A").replace(",", "%2C")
