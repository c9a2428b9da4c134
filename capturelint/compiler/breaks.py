"""Where Dynamo split the step, and why it compiled it again.

``graph_break_reasons`` has the user's stack but may give an internal text; the log has the text; ``counters`` has what
neither tells. A break that several of them tell is one event, at its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import torch._dynamo

from capturelint.compiler.listen import Ear
from capturelint.compiler.report import CompileEvent, CompileKind, once
from capturelint.logs.matcher import LogFinding
from capturelint.vocabulary import Severity

HINT = re.compile(r"^\s*Hint: *(?P<hint>.+)$", re.MULTILINE)
PREAMBLE = re.compile(r"Encountered graph break when attempting to trace .*?:\n+", re.DOTALL)
INTERNAL = re.compile(r"generic_jump|^\s*$")
"""Texts that say nothing to a user."""
BREAK_IDS = {"dyn-graph-break", "dyn-graph-break-dup", "dyn-graph-break-skip-frame", "dyn-unsupported"}


def graph_breaks(ear: Ear, findings: Sequence[LogFinding], num_before: int) -> tuple[CompileEvent, ...]:
    """Every break once. ``num_before`` is the number of ``graph_break_reasons`` before the step was compiled."""
    told = [*breaks_logged(ear, findings), *breaks_listed(num_before)]
    located = once(event for event in told if event.line is not None)
    reasons = {event.reason for event in located}
    if located:
        return located
    unlocated = (event for event in chain(told, breaks_counted(ear)) if event.reason not in reasons)
    return once(unlocated)


def breaks_logged(ear: Ear, findings: Sequence[LogFinding]) -> Iterator[CompileEvent]:
    """From the log, with torch's own hint."""
    texts = [heard.text for heard in ear.records]
    for found in findings:
        if found.message.id not in BREAK_IDS or found.location is None:
            continue
        place = f"in user code at {found.location}"
        text = next((text for text in texts if place in text), "")
        yield CompileEvent(
            CompileKind.GRAPH_BREAK,
            found.reason or "graph break",
            found.location.file,
            found.location.line,
            hint(text),
        )


def breaks_listed(num_before: int) -> Iterator[CompileEvent]:
    """From ``graph_break_reasons``: the innermost user frame."""
    for reason in torch._dynamo.utils.graph_break_reasons[num_before:]:
        frame = reason.user_stack[-1] if reason.user_stack else None
        yield CompileEvent(
            CompileKind.GRAPH_BREAK,
            first_line(reason.reason),
            frame.filename if frame else None,
            frame.lineno if frame else None,
            hint(reason.reason),
        )


def breaks_counted(ear: Ear) -> Iterator[CompileEvent]:
    """From the counters: reasons without a place. ``unimplemented`` has the data-dependent branches."""
    for group in ("graph_break", "unimplemented"):
        for key, _ in torch._dynamo.utils.counters[group].items():
            count = ear.counted(group, str(key))
            if count:
                yield CompileEvent(CompileKind.GRAPH_BREAK, first_line(str(key)), detail=hint(str(key)), count=count)


def recompiles(findings: Sequence[LogFinding]) -> tuple[CompileEvent, ...]:
    """Every guard that failed, at the function that was compiled again."""
    return once(
        CompileEvent(
            CompileKind.RECOMPILE,
            guard(found.reason) or found.message.meaning,
            found.location.file if found.location else None,
            found.location.line if found.location else None,
            found.message.fix,
        )
        for found in findings
        if found.message.severity is Severity.RECOMPILE or found.message.id == "dyn-recompile-limit"
    )


def guard(reason: str | None) -> str:
    """The guard that failed, without the compile id in front and the source line behind it."""
    return re.sub(r"^\d+/\d+: ", "", (reason or "").split("  #")[0]).strip()


def first_line(text: str) -> str:
    """The reason in one line, without what was being traced."""
    line = next((line.strip() for line in PREAMBLE.sub("", text).splitlines() if line.strip()), "")
    return "data-dependent control flow" if INTERNAL.search(line) else line


def hint(text: str) -> str:
    """torch's first hint."""
    found = HINT.search(text)
    return found["hint"].strip() if found else ""
