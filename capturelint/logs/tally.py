"""Findings -> a bounded list: the first places of each message are listed, further repeats are counted.

A serving log may say ``cuda graph: False`` a million times. Messages count as the same if log, rank, location and
reason agree, numbers in the reason aside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from capturelint.logs.matcher import LogFinding

MAX_LISTED = 8
NUMBER = re.compile(r"\d+")
Key = tuple[str, Path, int | None, str, str]


def tally(findings: Iterable[LogFinding]) -> list[LogFinding]:
    """At most ``MAX_LISTED`` findings of each message, in the order given; the last one's ``count`` has the rest."""
    num_listed = Counter[Key]()
    last: dict[Key, int] = {}
    more = Counter[int]()
    kept: list[LogFinding] = []
    for finding in findings:
        message = key(finding)
        if num_listed[message] < MAX_LISTED:
            num_listed[message] += 1
            last[message] = len(kept)
            kept.append(finding)
        else:
            more[last[message]] += 1
    return [replace(finding, count=1 + more[at]) for at, finding in enumerate(kept)]


def key(finding: LogFinding) -> Key:
    """What makes two findings the same message."""
    reason = NUMBER.sub("#", finding.reason or "")
    return (finding.message.id, finding.path, finding.rank, str(finding.location), reason)
