"""Bytes -> pages of whole lines that overlap, so that a log of any size is read in constant memory.

A page knows the lines around its own: what a message means often stands in the lines above or below it. Lines are
decoded only when asked for; most of a log is only ever searched as bytes.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from capturelint.errors import LogError
from capturelint.logs.record import MAX_LINE_BYTES, Record, read_records

PAGE_BYTES = 1024 * 1024
OVERLAP_BYTES = 256 * 1024
MAX_AROUND = 400
"""Physical lines looked at above or below a message: interleaved ranks put many lines between two of one stream."""
HEAD_BYTES = 8192
COMPRESSED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Page:
    """Whole lines: ``content[begin:end]`` is the page's own, the rest belongs to its neighbours.

    ``line`` is the number of the line at ``begin``, from 1.
    """

    content: bytes
    begin: int
    end: int
    line: int
    decoded: dict[int, tuple[Record, ...]] = field(default_factory=dict)

    def lines_with(self, literals: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Offset and number of every own line that contains one of ``literals``, in order."""
        starts = set[int]()
        for literal in literals:
            at = self.content.find(literal, self.begin, self.end)
            while at >= 0:
                starts.add(self.content.rfind(b"\n", 0, at) + 1)
                line_end = self.content.find(b"\n", at, self.end)
                at = self.content.find(literal, line_end, self.end) if line_end >= 0 else -1
        line, counted = self.line, self.begin
        for start in sorted(starts):
            line += self.content.count(b"\n", counted, start)
            counted = start
            yield start, line

    def records(self, start: int, line: int) -> tuple[Record, ...]:
        """The records of the line at ``start``."""
        known = self.decoded.get(start)
        if known is None:
            end = self.content.find(b"\n", start)
            known = read_records(self.content[start : end if end >= 0 else len(self.content)], line)
            self.decoded[start] = known
        return known

    def below(self, start: int, line: int, index: int) -> Iterator[Record]:
        """Records after number ``index`` of the line at ``start``, downwards."""
        yield from self.records(start, line)[index + 1 :]
        for _ in range(MAX_AROUND):
            start = self.content.find(b"\n", start) + 1
            line += 1
            if start == 0 or start >= len(self.content):
                return
            yield from self.records(start, line)

    def above(self, start: int, line: int, index: int) -> Iterator[Record]:
        """Records before number ``index`` of the line at ``start``, upwards."""
        yield from reversed(self.records(start, line)[:index])
        for _ in range(MAX_AROUND):
            if start == 0:
                return
            start = self.content.rfind(b"\n", 0, start - 1) + 1
            line -= 1
            yield from reversed(self.records(start, line))


def read_pages(stream: BinaryIO) -> Iterator[Page]:
    """Pages of a stream of log lines, in order."""
    behind, line = b"", 1
    blocks = read_blocks(stream)
    block = next(blocks, None)
    while block is not None:
        ahead = next(blocks, None)
        content = behind + block + first_lines(ahead or b"")
        yield Page(content, len(behind), len(behind) + len(block), line)
        line += block.count(b"\n")
        behind = last_lines(block)
        block = ahead


def read_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Pieces of about ``PAGE_BYTES`` that end where a line ends. An endless line keeps its head and its tail."""
    rest = b""
    while piece := stream.read(PAGE_BYTES):
        rest += piece
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
        elif len(rest) > 2 * MAX_LINE_BYTES:
            rest = rest[:MAX_LINE_BYTES] + rest[-MAX_LINE_BYTES:]
    if rest:
        yield rest


def first_lines(block: bytes) -> bytes:
    """The first ``OVERLAP_BYTES`` of a block, cut where a line ends."""
    return block if len(block) <= OVERLAP_BYTES else block[: block.rfind(b"\n", 0, OVERLAP_BYTES) + 1]


def last_lines(block: bytes) -> bytes:
    """The last ``OVERLAP_BYTES`` of a block, cut where a line begins."""
    return block if len(block) <= OVERLAP_BYTES else block[block.find(b"\n", len(block) - OVERLAP_BYTES) + 1 :]


class Counted(io.RawIOBase):
    """A binary stream that tells how many bytes were read from it."""

    def __init__(self, stream: BinaryIO, advance: Callable[[int], None]) -> None:
        self.stream = stream
        self.advance = advance

    def readable(self) -> bool:
        """A stream to read from."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` and report its size."""
        piece = self.stream.read(len(buffer))
        buffer[: len(piece)] = piece
        self.advance(len(piece))
        return len(piece)


class Transcoded(io.RawIOBase):
    """A UTF-16 stream read as UTF-8: what PowerShell writes with ``>``."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self.rest = b""

    def readable(self) -> bool:
        """A stream to read from."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with UTF-8."""
        while not self.rest and (piece := self.stream.read(HEAD_BYTES)):
            self.rest = self.decoder.decode(piece).encode("utf-8")
        piece, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def read_log(stream: BinaryIO, path: Path, advance: Callable[[int], None] = lambda size: None) -> Iterator[Page]:
    """Pages of a log: plain or gzip, UTF-8 or UTF-16. Raises ``LogError``, on the way too."""
    counted = io.BufferedReader(Counted(stream, advance), PAGE_BYTES)
    plain: BinaryIO = counted
    try:
        if counted.peek(2)[:2] == GZIP:
            plain = io.BufferedReader(gzip.GzipFile(fileobj=counted, mode="rb"), PAGE_BYTES)
        yield from read_pages(as_text(plain, path))
    except EOFError as error:
        raise LogError(f"{path}: the gzip file is cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise LogError(f"{path}: not a valid gzip file: {error}") from error
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error


def as_text(stream: BinaryIO, path: Path) -> BinaryIO:
    """The stream as UTF-8 lines. Raises ``LogError`` if it is not text."""
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES] if isinstance(stream, io.BufferedReader) else b""
    for magic, name in COMPRESSED.items():
        if head.startswith(magic):
            raise LogError(f"{path}: compressed with {name}; decompress it first")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return io.BufferedReader(Transcoded(stream), PAGE_BYTES)
    if b"\0" in head:
        raise LogError(f"{path}: a binary file, not a log")
    return stream
