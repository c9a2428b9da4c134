"""What Inductor's scheduler put outside graphs without a word.

torch 2.11 and later tell it at DEBUG level, a node a record and a stack line a record; 2.9 and 2.10 in one record a
node; 2.8 tells nothing, and before that a whole graph was skipped instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from capturelint.compiler.listen import Ear
from capturelint.compiler.report import CompileEvent, CompileKind, Partitions, once
from capturelint.logs.matcher import FRAME

CREATED = re.compile(r"Created (?P<all>\d+) graph partitions?: (?P<inside>\d+) cudagraphable")
NODE = re.compile(r"^\s+\w+: reason=(?P<reason>.+?), ir=(?P<ir>\w+)(?:, fx=(?P<fx>.+))?$")
DUE_TO = re.compile(r"cudagraph partition due to (?P<reason>[^.\n]+)")
DISABLED = "partition includes all ops when cudagraphs is disabled"


def partitioned(ear: Ear) -> tuple[Partitions, ...]:
    """How each compiled graph was split."""
    found = (CREATED.search(heard.text) for heard in ear.records)
    return tuple(Partitions(int(match["all"]), int(match["inside"])) for match in found if match)


def partitions(ear: Ear) -> tuple[CompileEvent, ...]:
    """Every node outside graphs: why, which operator, and the user's line where torch keeps it."""
    return once(event for event in [*nodes(ear), *nodes_in_one_record(ear)] if event.reason != DISABLED)


def nodes(ear: Ear) -> Iterator[CompileEvent]:
    """torch 2.11+: a node's record, then the lines of its stack, of which the last frame is the innermost."""
    current: CompileEvent | None = None
    for heard in ear.records:
        if not heard.logger.endswith("scheduler.__cudagraphs"):
            continue
        if node := NODE.match(heard.text):
            if current is not None:
                yield current
            current = CompileEvent(CompileKind.PARTITION, node["reason"], detail=operator(node))
        elif current is not None and (frame := FRAME.search(heard.text)):
            current = CompileEvent(
                CompileKind.PARTITION, current.reason, frame["file"], int(frame["line"]), current.detail
            )
        elif current is not None and heard.text.startswith("  Partition"):
            yield current
            current = None
    if current is not None:
        yield current


def operator(node: re.Match[str]) -> str:
    """``aten.nonzero.default`` of ``fx=aten.nonzero.default(gt)``, else the kind of IR node."""
    return node["fx"].split("(")[0] if node["fx"] else node["ir"]


def nodes_in_one_record(ear: Ear) -> Iterator[CompileEvent]:
    """torch 2.9 and 2.10."""
    for heard in ear.records:
        if found := DUE_TO.search(heard.text):
            frames = FRAME.findall(heard.text)
            file, line = frames[-1] if frames else (None, None)
            yield CompileEvent(CompileKind.PARTITION, found["reason"].strip(), file, int(line) if line else None)
