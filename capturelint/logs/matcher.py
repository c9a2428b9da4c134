"""Pages -> findings: which messages stand in a log, why, and which line of user code each is about.

The patterns are data (``rules/messages.yaml``); here is only how a pattern is applied. Lines without one of their
literals are never decoded. A message is judged by the lines around it in its own stream, so that interleaved ranks do
not answer for each other. The surprise: bare lines have no stream, and where two of them interleave the place that is
told may be the other's; the finding says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from capturelint.catalog import Message
from capturelint.logs.reader import Page
from capturelint.logs.record import Record
from capturelint.vocabulary import Locate, ReasonFrom, Severity

FRAME = re.compile(r'File "(?P<file>[^"\r\n]{1,1000})", line (?P<line>\d{1,7})')
FRAME_LINE = re.compile(r'\s*File "[^"\r\n]{1,1000}", line \d{1,7}(?:, in .*)?$')
STACK_HEAD = re.compile(r"\s*(?:.*\bfrom user code(?: at)?:|.*\bFound from\s*:|.*\bStack trace:|User code traceback:)")
MESSAGE_HEAD = re.compile(
    r"\s*(?:Graph Break Reason|Reason|Explanation|Hint|Developer debug context|For more details)\b"
)
TRACEBACK_HEAD = re.compile(r"\s*(?:Exception Group )?Traceback \(most recent call last\)")
AWAITS_STACK = re.compile(r"Found from\s*:?\s*$")
FUNCTION_LINE = re.compile(r"function: '.{1,300}' \((?P<file>.{1,1000}?):(?P<line>\d{1,7})\)")
BREAK_REASON = re.compile(r"\s*(?:Graph Break )?Reason: *(?P<reason>.*)")
BREAK_PREAMBLES = (
    "Encountered graph break when attempting to trace",
    "Encountered graph break that we cannot resume from",
    "Failed to handle graph break gracefully",
)
GUARD_FAILURE = re.compile(r"\s*- (?P<reason>.*)")
LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|<frozen ")
STEMS = (
    "udagraph",
    "CUDA graph",
    "CUDA Graph",
    "CUDAGraph",
    "torch._dynamo",
    "torch.compile ",
    " user code at",
    "raph break",
    "ecompil",
    " captur",
    "Captur",
    "cuda graph for",
    "cuda graphs for",
)
"""Shared by many literals and rare in logs. ``cuda graph`` is not: SGLang says ``cuda graph: True`` for every batch."""
MAX_STACK = 200
"""Lines of its own stream in which a message's stack is looked for."""
MAX_TO_TRACEBACK = 20
"""Lines between an exception's last frame and a line that belongs to it: its message, and advice such as
``Compile with TORCH_USE_CUDA_DSA``."""
MAX_REASON = 12
MAX_KNOWN_TEXTS = 1024
MAX_STRAYS = 3
"""Unindented lines of an exception's text before ``from user code:``."""


@dataclass(frozen=True, slots=True)
class Location:
    """A line of user code. Not ``certain`` if interleaved lines without a prefix may have swapped it."""

    file: str
    line: int
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One message found. ``line`` is the log's line, ``location`` the user's; ``count`` includes repeats not listed."""

    message: Message
    path: Path
    line: int
    reason: str | None
    location: Location | None
    rank: int | None = None
    count: int = 1


class Matcher:
    """The messages to look for, prepared once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.literals = fewest_literals(messages)
        # Ranks repeat each other, and a log repeats itself.
        self.match_text = lru_cache(MAX_KNOWN_TEXTS)(self.match_new_text)

    def find(self, page: Page, path: Path) -> Iterator[LogFinding]:
        """Every finding of a page, in line order."""
        for start, line in page.lines_with(self.literals):
            for index, record in enumerate(page.records(start, line)):
                sighting = self.first_match(record)
                if sighting is None or sighting[0].severity is Severity.INFO:
                    continue
                message, match = sighting
                around = Around(self, page, start, line, index, record)
                if around.echoes_source() or not around.satisfies(message):
                    continue
                yield LogFinding(
                    message=message,
                    path=path,
                    line=line,
                    reason=around.reason(message, match),
                    location=around.location(message, match),
                    rank=record.rank,
                )

    def first_match(self, record: Record) -> tuple[Message, re.Match[str]] | None:
        """The first message, in the file's order, that stands in the record."""
        return self.match_text(record.text)

    def match_new_text(self, text: str) -> tuple[Message, re.Match[str]] | None:
        """The first message that stands in a text not seen lately."""
        for message in self.messages:
            if any(literal in text for literal in message.literals) and (match := message.pattern.search(text)):
                return message, match
        return None


def fewest_literals(messages: Iterable[Message]) -> tuple[bytes, ...]:
    """Few texts, one of which stands in every line that a message can match: a log is searched once for each."""
    every = {next((stem for stem in STEMS if stem in text), text) for m in messages for text in m.literals}
    fewest = {text for text in every if not any(other != text and other in text for other in every)}
    return tuple(sorted(text.encode() for text in fewest))


@dataclass(frozen=True, slots=True)
class Around:
    """A record that a message stands in, and the lines around it."""

    matcher: Matcher
    page: Page
    start: int
    line: int
    index: int
    record: Record

    def below(self) -> Iterator[Record]:
        """The following records of the same stream."""
        following = self.page.below(self.start, self.line, self.index)
        return (record for record in following if record.stream == self.record.stream)

    def above(self) -> Iterator[Record]:
        """The preceding records of the same stream, nearest first."""
        preceding = self.page.above(self.start, self.line, self.index)
        return (record for record in preceding if record.stream == self.record.stream)

    def echoes_source(self) -> bool:
        """The record is the source line that a traceback prints below a frame, not a message."""
        if self.record.indent == 0:
            return False
        before = next(self.above(), None)
        return before is not None and self.record.indent > before.indent and bool(FRAME_LINE.match(before.text))

    def satisfies(self, message: Message) -> bool:
        """The message's context stands above and its veto does not stand below."""
        if message.veto is not None:
            following = islice(self.below(), message.veto.num_lines)
            if any(message.veto.pattern.search(record.text) for record in following):
                return False
        if message.context is not None:
            # Whatever the same process wrote counts, its loggers included.
            preceding = self.page.above(self.start, self.line, self.index)
            same = (record for record in preceding if record.writer == self.record.writer)
            return any(
                message.context.pattern.search(record.text) for record in islice(same, message.context.num_lines)
            )
        return True

    def reason(self, message: Message, match: re.Match[str]) -> str | None:
        """The short text of why, from the message or from the lines below it."""
        if message.reason_from is ReasonFrom.GRAPH_BREAK:
            return self.break_reason()
        if message.reason_from is ReasonFrom.RECOMPILE:
            return self.text_below(GUARD_FAILURE)
        reason = match.groupdict().get("reason")
        return reason.strip() if reason else None

    def break_reason(self) -> str | None:
        """``Graph Break Reason: x``; since torch 2.10 ``x`` may only say what happened next, and the reason follows."""
        lines = self.own_lines()
        for record in lines:
            if found := BREAK_REASON.match(record.text):
                reason = found["reason"].strip()
                if not reason.startswith(BREAK_PREAMBLES):
                    return reason or None
                return next((text for later in lines if (text := later.text.strip())), None)
        return None

    def text_below(self, pattern: re.Pattern[str]) -> str | None:
        """The ``reason`` of the first line below that ``pattern`` matches."""
        return next((found["reason"].strip() for r in self.own_lines() if (found := pattern.match(r.text))), None)

    def own_lines(self) -> Iterator[Record]:
        """The next few lines, up to the next message."""
        for record in islice(self.below(), MAX_REASON):
            if self.matcher.first_match(record):
                return
            yield record

    def location(self, message: Message, match: re.Match[str]) -> Location | None:
        """The line of user code that the message is about, if the log tells it."""
        match message.location:
            case Locate.INLINE:
                return Location(match["file"], int(match["line"]))
            case Locate.FUNCTION_LINE:
                following = next(self.below(), None)
                found = FUNCTION_LINE.search(following.text) if following else None
                return Location(found["file"], int(found["line"])) if found else None
            case Locate.BEFORE:
                return self.traceback_above()
            case Locate.AFTER:
                return self.stack_below(match)
            case None:
                return None

    def traceback_above(self) -> Location | None:
        """The innermost frame above that is user code, else the innermost."""
        innermost: Location | None = None
        since_frame = 0
        for record in self.above():
            if TRACEBACK_HEAD.match(record.text):
                return innermost
            if found := FRAME.search(record.text):
                since_frame = 0
                location = Location(found["file"], int(found["line"]))
                if not LIBRARY.search(location.file):
                    return location
                innermost = innermost or location
            elif innermost is not None and record.indent == 0:
                return innermost
            since_frame += 1
            if since_frame > MAX_TO_TRACEBACK:
                return innermost
        return innermost

    def stack_below(self, match: re.Match[str]) -> Location | None:
        """The last frame of the stack that the message prints, which is the innermost."""
        frames = [*FRAME.finditer(self.record.text, match.start()), *self.frames_below(match)]
        if not frames:
            return None
        return Location(frames[-1]["file"], int(frames[-1]["line"]), certain=not self.may_be_swapped())

    def frames_below(self, match: re.Match[str]) -> Iterator[re.Match[str]]:
        """Frames of the first stack below, as long as the lines belong to this message."""
        in_stack = FRAME.search(self.record.text, match.start()) is not None
        strays = 0
        for record in islice(self.below(), MAX_STACK):
            if self.matcher.first_match(record) or TRACEBACK_HEAD.match(record.text):
                return
            found = FRAME.search(record.text)
            if in_stack:
                if record.indent == 0 or not record.text.strip() or not self.continues(record, match):
                    return
            elif STACK_HEAD.match(record.text):
                strays = 0
            elif not self.continues(record, match):
                strays += 1
                if strays > MAX_STRAYS or record.message or self.record.message:
                    return
            elif found and strays:
                return
            if found:
                in_stack = True
                yield found

    def continues(self, record: Record, match: re.Match[str]) -> bool:
        """The record is a further line of this message, as far as one can tell from prefix and indentation."""
        if record.message and record.message == self.record.message:
            return True
        glued = bool(self.record.text[: match.start()].strip())
        if record.indent > (0 if glued else self.record.indent):
            return True
        return not record.message and (not record.text.strip() or bool(MESSAGE_HEAD.match(record.text)))

    def may_be_swapped(self) -> bool:
        """Another bare message directly above still waits for its stack."""
        before = next(self.page.above(self.start, self.line, self.index), None) if self.record.bare else None
        return before is not None and before.bare and bool(AWAITS_STACK.search(before.text))
