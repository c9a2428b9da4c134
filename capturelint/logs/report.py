"""Log files -> one ``LogReport``: what stands in them, what could not be read, and whether that fails a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from capturelint.catalog import load_messages
from capturelint.errors import LogError
from capturelint.logs.matcher import LogFinding, Matcher
from capturelint.logs.reader import Page, read_log
from capturelint.logs.tally import tally
from capturelint.vocabulary import Severity

STDIN = Path("-")
DEFAULT_FAIL_ON = frozenset({Severity.SKIP, Severity.DISABLED, Severity.OOM, Severity.ERROR})
"""Partitions and graph breaks are the normal state of many models; a project chooses to fail on them."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """Findings in the order of the logs. ``num_logs`` and ``num_lines`` count what was read to its end."""

    findings: tuple[LogFinding, ...]
    errors: tuple[LogError, ...]
    num_logs: int
    num_lines: int
    fail_on: frozenset[Severity]

    @property
    def failing(self) -> tuple[LogFinding, ...]:
        """The findings that fail a job."""
        return tuple(finding for finding in self.findings if finding.message.severity in self.fail_on)


@dataclass(slots=True)
class LineCount:
    """Counts the lines of the pages that pass through it."""

    num_lines: int = 0

    def counted(self, pages: Iterable[Page]) -> Iterator[Page]:
        """The same pages."""
        for page in pages:
            self.num_lines += page.content.count(b"\n", page.begin, page.end)
            self.num_lines += page.content[page.end - 1 : page.end] != b"\n"
            yield page


def read_logs(
    paths: Iterable[Path],
    *,
    keep: Callable[[LogFinding], bool] = lambda finding: True,
    fail_on: frozenset[Severity] = DEFAULT_FAIL_ON,
    advance: Callable[[int], None] = lambda size: None,
) -> LogReport:
    """Read every log; ``-`` is stdin. A log that cannot be read is left out whole and named in ``errors``.

    ``advance`` is told the size of each piece read from the disk, in bytes.
    """
    matcher = Matcher(load_messages())
    findings: list[LogFinding] = []
    errors: list[LogError] = []
    count, num_logs, num_lines = LineCount(), 0, 0
    for path in paths:
        try:
            with ExitStack() as opened:
                stream = open_log(path, opened)
                pages = count.counted(read_log(stream, path, advance))
                found = (finding for page in pages for finding in matcher.find(page, path))
                findings += tally(filter(keep, found))
        except LogError as error:
            errors.append(error)
        else:
            num_logs += 1
            num_lines = count.num_lines
        count.num_lines = num_lines
    return LogReport(tuple(findings), tuple(errors), num_logs, num_lines, fail_on)


def open_log(path: Path, opened: ExitStack) -> BinaryIO:
    """The log's bytes. Raises ``LogError``."""
    if path == STDIN:
        return sys.stdin.buffer
    try:
        return opened.enter_context(path.open("rb", buffering=0))
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
