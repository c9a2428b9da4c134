"""Documents of an editor -> findings -> diagnostics. Text that is not saved yet is checked as it stands.

Only open documents are checked, with what they call in other files; ``scope`` ``workspace`` checks the folders of the
workspace too, for entries in files that nobody has opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types
from pygls.workspace import PositionCodec

from capturelint.catalog import add_rules, load_rules
from capturelint.cli.check import ANY_TORCH, report_of
from capturelint.config import declared_torch, is_in_project, load_config, require_rules
from capturelint.finding import Finding
from capturelint.static.check import Options, check
from capturelint.static.files import Sources
from capturelint.vocabulary import Confidence, Outcome

SOURCE = "capturelint"
GRAVE = frozenset({Outcome.CAPTURE_ERROR, Outcome.SILENT_WRONG})


@dataclass(frozen=True, slots=True)
class Documents:
    """What is open, by absolute path, and the folders to check besides."""

    texts: Mapping[Path, str]
    folders: tuple[Path, ...] = ()


def find(documents: Documents) -> dict[Path, list[Finding]]:
    """The findings that are shown, by absolute path. Raises ``CapturelintError`` for a broken configuration."""
    paths = [*documents.texts, *documents.folders]
    if not paths:
        return {}
    settings = load_config(paths[0])
    add_rules(settings.rules)
    require_rules(settings)
    version = settings.torch or declared_torch(paths[0])
    options = Options(
        entry=settings.entry,
        configured=True,
        bind=dict(settings.bind),
        follow=settings.follow,
        torch=ANY_TORCH if version is None and is_in_project(paths[0]) else version,
        exclude=settings.exclude,
        include=settings.include,
        root=settings.root,
        jobs=1,
        sources=Sources({path: text.encode("utf-8", "surrogatepass") for path, text in documents.texts.items()}),
    )
    level = settings.confidence or Confidence.LIKELY
    report = report_of(check(paths, options), version, level, settings.select, settings.ignore, settings)
    found: dict[Path, list[Finding]] = {}
    for finding in report.shown:
        if finding.place is not None and finding.place.cell is None:
            found.setdefault(Path(os.path.abspath(finding.place.path)), []).append(finding)
    return found


def diagnostic(finding: Finding, lines: Sequence[str], codec: PositionCodec) -> types.Diagnostic:
    """A finding as an editor shows it."""
    rule = load_rules().get(finding.rule)
    first = f"\n{finding.help[0]}" if finding.help else ""
    return types.Diagnostic(
        range=range_of(finding, lines, codec),
        message=f"{finding.message}{first}",
        severity=severity(finding),
        code=finding.rule,
        source=SOURCE,
        related_information=[
            types.DiagnosticRelatedInformation(
                location=types.Location(uri=Path(os.path.abspath(step.path)).as_uri(), range=whole_line(step.line)),
                message=f"via {step.name}",
            )
            for step in finding.trail
        ],
        tags=[types.DiagnosticTag.Unnecessary] if rule is None and finding.outcome is Outcome.NONE else None,
    )


def severity(finding: Finding) -> types.DiagnosticSeverity:
    """An error where it is certain that the graph fails or lies; what is inferred is a warning."""
    if finding.outcome in GRAVE and finding.confidence >= Confidence.CERTAIN:
        return types.DiagnosticSeverity.Error
    if finding.confidence >= Confidence.LIKELY:
        return types.DiagnosticSeverity.Warning
    return types.DiagnosticSeverity.Information


def range_of(finding: Finding, lines: Sequence[str], codec: PositionCodec) -> types.Range:
    """A place, counted as the editor counts: lines and columns from 0, columns in its own units."""
    place = finding.place
    assert place is not None
    end_line = max(place.end_line, place.line)
    at_end = len(lines[end_line - 1].rstrip("\r\n")) if end_line <= len(lines) else 0
    return types.Range(
        codec.position_to_client_units(lines, types.Position(place.line - 1, place.column - 1)),
        codec.position_to_client_units(
            lines, types.Position(end_line - 1, place.end_column - 1 if place.end_column else at_end)
        ),
    )


def whole_line(line: int) -> types.Range:
    """A line of a file that may not be open, so its length is not known."""
    return types.Range(types.Position(line - 1, 0), types.Position(line, 0))
