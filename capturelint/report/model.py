"""What ``check`` found, complete: the record that every format is written from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.finding import Finding
from capturelint.vocabulary import Outcome

ReadLines = Callable[[Path, int | None], Sequence[str]]
"""Gives the lines of a file, or of one cell of a notebook; none where it cannot be read."""


class Format(Enum):
    """How a report is written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    JUNIT = "junit"


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Where recorded code starts, and why it is taken for an entry (``plain protocol``, ``named by --entry``)."""

    path: Path
    line: int
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """One run of ``check``. ``torch`` is the version or range that was assumed; ``None`` is every supported one.

    ``in_baseline`` counts findings that are known and not in ``findings``; ``notes`` are lines printed above the
    count. Findings that a comment suppresses are in ``findings``, marked.
    """

    version: str
    torch: str | None
    files: int
    entries: tuple[EntryRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    errors: tuple[SourceError, ...] = ()
    in_baseline: int = 0
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The findings that count, in order of place."""
        return tuple(sorted((f for f in self.findings if not f.suppressed), key=lambda finding: finding.order))

    @property
    def num_suppressed(self) -> int:
        """How many findings a comment suppresses."""
        return sum(finding.suppressed for finding in self.findings)


def relative(path: Path) -> str:
    """A path as reports print it: from the working directory, with forward slashes."""
    try:
        return Path(os.path.relpath(path)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


OUTCOME_WORDS: Mapping[Outcome, str] = {
    Outcome.CAPTURE_ERROR: "capture error",
    Outcome.SILENT_WRONG: "silent",
    Outcome.SKIP: "skip",
    Outcome.RECAPTURE: "recapture",
    Outcome.SLOW: "slow",
    Outcome.NONE: "suppression",
}


def counted(number: int, noun: str) -> str:
    """``1 file``, ``2 files``, ``2 entries``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def count_by_outcome(findings: Sequence[Finding]) -> str:
    """``1 capture error, 2 silent``, worst first."""
    counts = Counter(finding.outcome for finding in findings)
    return ", ".join(
        counted(counts[outcome], word) if " " in word or outcome is Outcome.NONE else f"{counts[outcome]} {word}"
        for outcome, word in OUTCOME_WORDS.items()
        if counts[outcome]
    )


def count_by_rule(findings: Sequence[Finding]) -> list[tuple[str, int]]:
    """Rules with their number of findings, most frequent first."""
    return sorted(Counter(finding.rule for finding in findings).items(), key=lambda item: (-item[1], item[0]))


def summary_line(report: CheckReport) -> str:
    """The last line of a report: ``3 findings in 2 files (1 capture error, 2 silent)``."""
    shown = report.shown
    if shown:
        places = len({finding.place.path for finding in shown if finding.place})
        line = f"{counted(len(shown), 'finding')} in {counted(places, 'file')} ({count_by_outcome(shown)})"
    else:
        line = f"no findings in {counted(report.files, 'file')}"
    extras = [
        f"{report.num_suppressed} suppressed" if report.num_suppressed else "",
        f"{report.in_baseline} in the baseline" if report.in_baseline else "",
        f"{counted(len(report.errors), 'file')} not checked" if report.errors else "",
    ]
    return ", ".join([line, *filter(None, extras)])


def entry_line(report: CheckReport) -> str:
    """How many entries were found and why; said aloud where there is none."""
    entries = report.entries
    if not report.files and report.errors:
        return "nothing was checked"
    if not entries:
        return (
            f"no entry found in {counted(report.files, 'file')}, so no recorded code was checked; "
            "name one with --entry MODULE:NAME"
        )
    if len(entries) <= 3:
        named = ", ".join(f"{e.name} ({relative(e.path)}:{e.line}, {e.why})" for e in entries)
        return f"{counted(len(entries), 'entry')}: {named}"
    reasons = Counter(entry.why for entry in entries)
    return f"{counted(len(entries), 'entry')}: {', '.join(f'{n} {why}' for why, n in reasons.most_common())}"
