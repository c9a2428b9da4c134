"""Findings -> a bounded list: the first places of each message are listed, further repeats are counted.

A serving log may say ``cuda graph: False`` a million times. Messages count as the same if log, rank, location and
reason agree, numbers in the reason aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from capturelint.logs.matcher import LogFinding

MAX_LISTED = 8
NUMBER = re.compile(r"\d+")
Key = tuple[str, Path, int | None, str, str]


def tally(findings: Iterable[LogFinding]) -> list[LogFinding]:
    """At most ``MAX_LISTED`` findings of each message, in the order given; the last one's ``count`` has the rest."""
    listed: dict[Key, list[int]] = {}
    kept: list[LogFinding] = []
    for finding in findings:
        places = listed.setdefault(key(finding), [])
        if len(places) < MAX_LISTED:
            places.append(len(kept))
            kept.append(finding)
        else:
            last = places[-1]
            kept[last] = replace(kept[last], count=kept[last].count + 1)
    return kept


def key(finding: LogFinding) -> Key:
    """What makes two findings the same message."""
    reason = NUMBER.sub("#", finding.reason or "")
    return (finding.message.id, finding.path, finding.rank, str(finding.location), reason)
