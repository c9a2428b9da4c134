"""Where CUDA Graph Trees recorded nothing, recorded again, or lost an output.

A skip is told by a log line, a counter and the function that does both; what only one of them knows is still an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from capturelint.compiler.breaks import LIMIT_REACHED
from capturelint.compiler.listen import Ear
from capturelint.compiler.report import CompileEvent, CompileKind, once
from capturelint.logs.matcher import FRAME, LogFinding
from capturelint.vocabulary import Severity

RERECORDING = re.compile(r"Re-recording function=(?P<function>[^\s,]+),(?: mode=\w+,)? reason=(?P<reason>[^.\n]*)")
RECORDS = re.compile(r"\bRecording function=")
MOVED = re.compile(r"^input name: (?P<name>[^.\n]+)\. data pointer changed", re.MULTILINE)


def skips(ear: Ear, findings: Sequence[LogFinding]) -> tuple[CompileEvent, ...]:
    """Every reason for which no graph was used. For a GPU: without one, torch counts skips that nobody could lose."""
    told = list(events_of(findings, CompileKind.SKIP, Severity.SKIP))
    told += [event for event in emitted(ear) if not any(event.reason in known.reason for known in told)]
    found = once(told)
    missing = ear.counted("inductor", "cudagraph_skips") - sum(event.count for event in found)
    if missing > 0 and not found:
        reason = f"{missing} counted by torch without a reason"
        found = (CompileEvent(CompileKind.SKIP, reason, count=missing),)
    return found


def emitted(ear: Ear) -> Iterator[CompileEvent]:
    """Messages that reached the emitter; their logger may have been off."""
    for message in ear.skips_emitted:
        reason = message.split("Found from")[0].split(" due to ")[-1]
        yield CompileEvent(CompileKind.SKIP, reason.strip(" .\n"))


def rerecords(ear: Ear, findings: Sequence[LogFinding]) -> tuple[CompileEvent, ...]:
    """Graphs that were recorded again, and warm-ups that never end because outputs await a backward."""
    logged = rerecords_logged(ear)
    rest = [found for found in findings if found.message.id != "ind-rerecord"]
    pending = [found for found in rest if found.message.id == "ind-pending-backward"]
    return once(
        [
            *logged,
            *events_of(rest, CompileKind.RERECORD, Severity.RERECORD),
            *events_of(pending, CompileKind.RERECORD, Severity.FALLBACK),
        ]
    )


def rerecords_logged(ear: Ear) -> Iterator[CompileEvent]:
    """Recordings that a graph which did not fit led to.

    torch says "Re-recording" of every graph that does not fit, also where another one then does: only what is followed
    by a recording is one.
    """
    pending: CompileEvent | None = None
    for heard in ear.records:
        if (event := rerecord_of(heard.text)) is not None:
            pending = event
        elif pending is not None and RECORDS.search(heard.text):
            yield pending
            pending = None


def rerecord_of(text: str) -> CompileEvent | None:
    """torch 2.11+: which graph is recorded again, why, and a line that uses each input that moved."""
    found = RERECORDING.search(text)
    if found is None:
        return None
    frames = FRAME.findall(text, found.end())
    file, line = frames[-1] if frames else (None, None)
    moved = ", ".join(dict.fromkeys(MOVED.findall(text)))
    detail = f"input {moved}" if moved else found["function"]
    return CompileEvent(CompileKind.RERECORD, found["reason"].strip(), file, int(line) if line else None, detail)


def overwritten(findings: Sequence[LogFinding]) -> tuple[CompileEvent, ...]:
    """Outputs that were read after a later replay had written over them."""
    lost = [found for found in findings if found.message.rule == CompileKind.OVERWRITTEN_OUTPUT.value]
    return once(events_of(lost, CompileKind.OVERWRITTEN_OUTPUT, Severity.ERROR))


def events_of(findings: Sequence[LogFinding], kind: CompileKind, severity: Severity) -> Iterator[CompileEvent]:
    """Findings of one severity as events."""
    for found in findings:
        if found.message.severity is severity:
            yield CompileEvent(
                kind,
                found.reason or found.message.meaning,
                found.location.file if found.location else None,
                found.location.line if found.location else None,
                found.message.fix,
            )


def silent(recompiled: Sequence[CompileEvent]) -> CompileEvent:
    """No graph at all and no word of it: after too many recompiles, or because nothing in a function is capturable.

    torch 2.8 and later can drop all graphs of a function without a log line or a count.
    """
    for event in recompiled:
        if event.reason == LIMIT_REACHED:
            return replace(event, kind=CompileKind.SKIP)
    return CompileEvent(
        CompileKind.SKIP,
        "no CUDA graph was launched and torch gives no reason",
        detail="Look at the partitions: nothing in the step may be capturable.",
    )
