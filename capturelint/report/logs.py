"""What ``logs`` found, in every format. Text groups repeats; JSON lists each place, as the contract says.

A log can show a skip and never its absence, so a clean report says "no skip message found" and not "captured".
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from capturelint import __version__
from capturelint.errors import SourceError
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.logs.matcher import LogFinding
from capturelint.logs.report import LogReport
from capturelint.logs.tally import NUMBER
from capturelint.place import Place
from capturelint.report.github import command
from capturelint.report.junit import render_junit
from capturelint.report.model import CheckReport, Format, counted, relative
from capturelint.report.sarif import render_sarif
from capturelint.report.text import plain_console
from capturelint.report.wrapping import rows
from capturelint.vocabulary import Confidence, Outcome, Severity

OUTCOMES: Mapping[Severity, Outcome] = {
    Severity.SKIP: Outcome.SKIP,
    Severity.DISABLED: Outcome.SKIP,
    Severity.DOWNGRADE: Outcome.SKIP,
    Severity.FALLBACK: Outcome.SKIP,
    Severity.PARTITION: Outcome.SLOW,
    Severity.GRAPH_BREAK: Outcome.SLOW,
    Severity.RECOMPILE: Outcome.RECAPTURE,
    Severity.RERECORD: Outcome.RECAPTURE,
    Severity.OOM: Outcome.CAPTURE_ERROR,
    Severity.ERROR: Outcome.CAPTURE_ERROR,
    Severity.INFO: Outcome.SLOW,
}
NOTHING_SHOWN = "a log can show a skip, not that nothing was skipped: for that, run `capturelint verify --compile`"


def render_logs(
    report: LogReport, form: Format, *, colour: bool = False, quiet: bool = False, width: int | None = None
) -> str:
    """The whole report in one format. ``width`` is the terminal's; a pipe has none, and nothing is wrapped."""
    match form:
        case Format.TEXT:
            return render_text(report, colour=colour, quiet=quiet, width=width)
        case Format.CONCISE:
            return render_concise(report, quiet=quiet)
        case Format.JSON:
            return render_json(report)
        case Format.GITHUB:
            return "".join(f"{annotation(group, report)}\n" for group in groups(report.findings))
        case Format.SARIF:
            return render_sarif(as_check_report(report))
        case Format.JUNIT:
            return render_junit(as_check_report(report))


def render_json(report: LogReport) -> str:
    """The JSON of the contract, and which severities fail."""
    record = {
        "schema": 1,
        "version": __version__,
        "logs": report.num_logs,
        "lines": report.num_lines,
        "fail_on": sorted(severity.value for severity in report.fail_on),
        "findings": [finding_json(finding) for finding in report.findings],
        "errors": [str(error) for error in report.errors],
    }
    return json.dumps(record, indent=2) + "\n"


def finding_json(finding: LogFinding) -> dict[str, object]:
    """One place in a log. ``location_certain`` is false where interleaved lines may have swapped the location."""
    return {
        "id": finding.message.id,
        "rule": finding.message.rule,
        "severity": finding.message.severity.value,
        "path": finding.path.as_posix(),
        "line": finding.line,
        "reason": finding.reason,
        "location": str(finding.location) if finding.location else None,
        "location_certain": finding.location is not None and finding.location.certain,
        "count": finding.count,
        "ranks": [] if finding.rank is None else [finding.rank],
    }


@dataclass(frozen=True, slots=True)
class Group:
    """One message wherever it stands in one log: all its lines and ranks."""

    findings: tuple[LogFinding, ...]

    @property
    def first(self) -> LogFinding:
        """The first place."""
        return self.findings[0]

    @property
    def count(self) -> int:
        """How often the message stands in the log."""
        return sum(finding.count for finding in self.findings)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote it."""
        return tuple(sorted({finding.rank for finding in self.findings if finding.rank is not None}))

    @property
    def said(self) -> str:
        """The reason, or what the message means."""
        return self.first.reason or self.first.message.meaning.split(". ")[0].rstrip(".")

    @property
    def times(self) -> str:
        """``3 times, ranks 0, 1`` or nothing."""
        ranks = f"{'rank' if len(self.ranks) == 1 else 'ranks'} {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return ", ".join(filter(None, [f"{self.count} times" if self.count > 1 else "", ranks]))

    @property
    def place(self) -> str:
        """The user's line, marked where it is uncertain; empty if the log does not tell."""
        location = self.first.location
        if location is None:
            return ""
        return str(location) if location.certain else f"{location} (uncertain: lines of several processes interleave)"


def groups(findings: Sequence[LogFinding]) -> list[Group]:
    """Findings that say the same of the same line of code, in the order of their first place."""
    found: dict[tuple[object, ...], list[LogFinding]] = {}
    for finding in findings:
        identity = finding.message.duplicate_of or finding.message.id
        reason = NUMBER.sub("#", finding.reason or "")
        place = (finding.location.file, finding.location.line) if finding.location else None
        found.setdefault((finding.path, identity, place, reason), []).append(finding)
    return [Group(tuple(group)) for group in found.values()]


def render_text(report: LogReport, *, colour: bool, quiet: bool, width: int | None = None) -> str:
    """For people: each message once, with what it means and the cure. The last line is a count."""
    out = io.StringIO()
    console = plain_console(out, colour)
    for group in groups(report.findings):
        for line in group_lines(group, width, failing=group.first.message.severity in report.fail_on):
            console.print(line, soft_wrap=True)
    if not quiet:
        for text in summary_lines(report):
            for row in rows(visible(text), width):
                console.print(Text(row), soft_wrap=True)
    return out.getvalue()


def group_lines(group: Group, width: int | None, *, failing: bool) -> list[Text]:
    """Head and notes of one message."""
    first = group.first
    style = "bold red" if failing else "bold yellow"
    times = f" ({group.times})" if group.times else ""
    where, severity = f"{visible(shown_path(first.path))}:{first.line}", first.message.severity.value
    said, *more = rows(f"{visible(group.said)}{times}", width, taken=len(where) + len(severity) + 2)
    lines = [Text.assemble((where, "bold"), " ", (severity, style), f" {said}"), *map(Text, more)]
    notes = [("at", group.place), ("means", first.message.meaning), ("help:", first.message.fix)]
    for label, text in notes:
        if text:
            first_row, *rest = rows(f"{label} {visible(text)}", width, 6, 4)
            lines.append(Text.assemble(("  = ", "blue"), (label, "bold"), first_row.removeprefix(label)))
            lines += map(Text, rest)
    return [*lines, Text()]


def render_concise(report: LogReport, *, quiet: bool) -> str:
    """One line a message: ``ci.log:12: skip [ind-skip-cpu-device] cpu device (arg0_1) at model.py:8``."""
    lines = [concise_line(group) for group in groups(report.findings)]
    if not quiet:
        lines += summary_lines(report)[-1:]
    return "".join(f"{visible(line)}\n" for line in lines)


def concise_line(group: Group) -> str:
    """One message on one line."""
    message = group.first.message
    where = f" at {group.place}" if group.place else ""
    times = f" ({group.times})" if group.times else ""
    head = f"{shown_path(group.first.path)}:{group.first.line}"
    return f"{head}: {message.severity.value} [{message.id}] {group.said}{where}{times}"


def summary_lines(report: LogReport) -> list[str]:
    """What was found, as a count by severity."""
    logs = f"{counted(report.num_logs, 'log')} ({counted(report.num_lines, 'line')})"
    unread = f", {counted(len(report.errors), 'log')} not read" if report.errors else ""
    if not report.findings:
        return [NOTHING_SHOWN, f"no skip message found in {logs}{unread}"]
    counts = Counter[Severity]()
    for finding in report.findings:
        counts[finding.message.severity] += finding.count
    words = ", ".join(f"{counts[severity]} {severity.value}" for severity in Severity if counts[severity])
    total = counted(sum(counts.values()), "finding")
    ignored = "" if report.failing else f", none of which fails (--fail-on {fail_on_words(report.fail_on)})"
    return [f"{total} in {logs}: {words}{ignored}{unread}"]


def fail_on_words(fail_on: frozenset[Severity]) -> str:
    """``skip,disabled,oom,error`` in the vocabulary's order."""
    return ",".join(severity.value for severity in Severity if severity in fail_on) or "none"


def annotation(group: Group, report: LogReport) -> str:
    """A workflow command that points at the user's line, where the log has one."""
    first = group.first
    level = "error" if first.message.severity in report.fail_on else "warning"
    properties = {"title": f"capturelint ({first.message.rule})"}
    if first.location is not None:
        properties |= {"file": near(first.location.file), "line": str(first.location.line)}
    cure = f"; help: {first.message.fix}" if first.message.fix else ""
    seen = f"{shown_path(first.path)}:{first.line}{', ' + group.times if group.times else ''}"
    return command(level, properties, f"{first.message.severity.value}: {group.said} ({seen}){cure}")


def near(file: str) -> str:
    """A path of a log, relative to the working directory if it lies below it, else as it is."""
    path = Path(file)
    return relative(path) if path.is_absolute() and path.is_relative_to(Path.cwd()) else file


def shown_path(path: Path) -> str:
    """A log's name; ``-`` is stdin."""
    return path.as_posix()


def as_check_report(report: LogReport) -> CheckReport:
    """The findings as ``check`` has them, for formats that know only files and lines."""
    return CheckReport(
        version=__version__,
        torch=None,
        files=report.num_logs,
        findings=tuple(as_finding(group) for group in groups(report.findings)),
        errors=tuple(SourceError(Path(str(error).split(": ")[0]), None, str(error)) for error in report.errors),
    )


def as_finding(group: Group) -> Finding:
    """At the user's line where the log tells it, else at the log's."""
    first = group.first
    place = Place(first.path, first.line)
    if first.location is not None and first.location.line > 0:
        place = Place(Path(near(first.location.file)), first.location.line)
    seen = f"{shown_path(first.path)}:{first.line}"
    return Finding(
        rule=first.message.rule,
        place=place,
        message=f"{group.said} ({', '.join(filter(None, [seen, group.times]))})",
        help=(first.message.fix,) if first.message.fix else (),
        outcome=OUTCOMES[first.message.severity],
        confidence=Confidence.PROVEN,
    )
