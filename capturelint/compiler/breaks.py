"""Where Dynamo split the step, and why it compiled it again.

``graph_break_reasons`` has the user's stack but may give an internal text; the log has the text; ``counters`` has what
neither tells. A break that several of them tell is one event, at its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch._dynamo

from capturelint.compiler.listen import Ear
from capturelint.compiler.report import CompileEvent, CompileKind, once
from capturelint.logs.matcher import BREAK_PREAMBLES, FRAME, LogFinding
from capturelint.vocabulary import Severity

HINT = re.compile(r"^\s*Hint: *(?P<hint>.+)$", re.MULTILINE)
HEAD = re.compile(r"^(?:Graph break in user code at .*\n)?(?:Graph Break )?Reason: *", re.MULTILINE)
PREAMBLE = re.compile(r"(?:{})[^\n]*\n*(?:Graph break encountered:\n*)?".format("|".join(BREAK_PREAMBLES)))
ORIGINAL = "Original traceback:"
"""A failure of a backend is told at the function that is given up; the line that failed stands in its text."""
BACKEND = re.compile(r"Backend compiler `.*?` failed with (?P<error>[^\n]+)")
INTERNAL = re.compile(r"generic_jump|^\s*$")
"""Texts that say nothing to a user."""
UNTOLD = "control flow or a call that Dynamo cannot trace"
RECOMPILING = re.compile(r"Recompiling function \S+ in (?P<file>.+?):(?P<line>\d+)\s*$", re.MULTILINE)
GUARD = re.compile(r"^\s*- \d+/\d+: (?P<guard>.*?)(?P<comment>\s+# .*)?$", re.MULTILINE)
GUARDED_AT = re.compile(r"# (?P<tail>[^#]+?):(?P<line>\d+) in ")
LIMIT_COUNTED = "recompile limit exceeded"
LIMIT_REACHED = "the recompile limit is reached"
KEEP_CONSTANT = "Keep it constant, hold it in a tensor, or mark the dimension dynamic."
PACKAGE = str(Path(__file__).parents[1])
BREAK_IDS = {"dyn-graph-break", "dyn-graph-break-dup", "dyn-graph-break-skip-frame", "dyn-unsupported"}


def graph_breaks(ear: Ear, findings: Sequence[LogFinding], num_before: int) -> tuple[CompileEvent, ...]:
    """Every break once. ``num_before`` is the number of ``graph_break_reasons`` before the step was compiled."""
    told = [*breaks_logged(ear, findings), *breaks_listed(num_before)]
    located = once(event for event in told if event.line is not None)
    known = {UNTOLD, *(event.reason for event in located)} if located else set()
    unlocated = (event for event in chain(told, breaks_counted(ear)) if event.line is None)
    return once([*located, *(event for event in unlocated if event.reason not in known)])


def breaks_logged(ear: Ear, findings: Sequence[LogFinding]) -> Iterator[CompileEvent]:
    """From the log, with torch's own hint."""
    texts = [heard.text for heard in ear.records]
    for found in findings:
        if found.message.id not in BREAK_IDS or found.location is None:
            continue
        place = f"in user code at {found.location}"
        text = next((text for text in texts if place in text), found.reason or "")
        yield event_of(text, found.location.file, found.location.line)


def breaks_listed(num_before: int) -> Iterator[CompileEvent]:
    """From ``graph_break_reasons``: the innermost user frame."""
    for reason in torch._dynamo.utils.graph_break_reasons[num_before:]:
        if "step_unsupported" in reason.reason:  # the rest of a function that was given up for a break told already
            continue
        frame = reason.user_stack[-1] if reason.user_stack else None
        yield event_of(reason.reason, frame.filename if frame else None, frame.lineno if frame else None)


def event_of(text: str, file: str | None, line: int | None) -> CompileEvent:
    """A break as torch tells it. Our own lines, which call the step, are nobody's fault."""
    if ORIGINAL in text and (frames := FRAME.findall(text.split(ORIGINAL, 1)[1].split("\n\n", 1)[0])):
        file, line = frames[-1][0], int(frames[-1][1])
    if file is not None and file.startswith(PACKAGE):
        file = line = None
    return CompileEvent(CompileKind.GRAPH_BREAK, first_line(text), file, line, hint(text))


def breaks_counted(ear: Ear) -> Iterator[CompileEvent]:
    """From the counters: reasons without a place. ``unimplemented`` has the data-dependent branches."""
    for group in ("graph_break", "unimplemented"):
        for key, _ in torch._dynamo.utils.counters[group].items():
            count = ear.counted(group, str(key))
            if count and LIMIT_COUNTED not in str(key):  # told as a recompile, with its guard
                yield CompileEvent(CompileKind.GRAPH_BREAK, first_line(str(key)), detail=hint(str(key)), count=count)


def recompiles(ear: Ear, findings: Sequence[LogFinding]) -> tuple[CompileEvent, ...]:
    """Every guard that failed, at the line that relies on it, else at the function that was compiled again."""
    logged = once(filter(None, (recompile_of(heard.text) for heard in ear.records)))
    cause = logged[0] if logged else CompileEvent(CompileKind.RECOMPILE, "")
    limits = (
        replace(cause, reason=LIMIT_REACHED, detail=found.message.meaning, count=1)
        for found in findings
        if found.message.id == "dyn-recompile-limit"
    )
    raised = (
        CompileEvent(CompileKind.RECOMPILE, guard(found.reason) or found.message.meaning, detail=found.message.fix)
        for found in findings
        if found.message.id != "dyn-recompile" and found.message.severity is Severity.RECOMPILE
    )
    return once([*logged, *limits, *raised])


def recompile_of(text: str) -> CompileEvent | None:
    """``Recompiling function f in model.py:5`` and the guards that failed below; the first of them is told."""
    head = RECOMPILING.search(text)
    if head is None:
        return None
    failed = GUARD.search(text, head.end())
    reason = failed["guard"].strip() if failed else "a guard failed"
    path, line = head["file"], int(head["line"])
    if failed and (frames := FRAME.findall(next_stack(text[failed.end() :]))):
        path, line = frames[-1][0], int(frames[-1][1])
    elif failed and (at := GUARDED_AT.search(failed["comment"] or "")) and path.endswith(at["tail"]):
        # torch cuts the path short; a guard of the function's own file is told apart by its end.
        line = int(at["line"])
    if path.startswith(PACKAGE):
        return CompileEvent(CompileKind.RECOMPILE, reason, detail=KEEP_CONSTANT)
    return CompileEvent(CompileKind.RECOMPILE, reason, path, line, KEEP_CONSTANT)


def next_stack(text: str) -> str:
    """The stack of one guard: what stands above the next."""
    return GUARD.split(text, maxsplit=1)[0]


def guard(reason: str | None) -> str:
    """The guard that failed, without the compile id in front and the source line behind it."""
    return re.sub(r"^\d+/\d+: ", "", (reason or "").split("  #")[0]).strip()


def first_line(text: str) -> str:
    """The reason in one line, without what was being traced or given up."""
    reason = PREAMBLE.sub("", HEAD.sub("", text))
    if failed := BACKEND.search(reason):
        return f"the compiler fails with {failed['error']}"
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return UNTOLD if INTERNAL.search(line) else line


def hint(text: str) -> str:
    """torch's first hint."""
    found = HINT.search(text)
    return found["hint"].strip() if found else ""
