"""A place in a source -> the lines around it with carets underneath, as rustc and ruff draw them.

Columns are cells of the terminal, not characters: tabs are drawn four wide, ideographs two, escapes are written out.
A line that is too long is cropped around the carets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from capturelint.escape import visible
from capturelint.place import Place

TAB = "    "
MAX_WIDTH = 200
"""Width of a frame in cells where the output has none of its own."""
MAX_LINES = 4
"""Lines of a long statement that are drawn."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a frame: the line's number (``None`` under it), the text, and whether it is carets."""

    number: int | None
    text: str
    carets: bool = False


def frame(place: Place, lines: Sequence[str], width: int | None) -> Iterator[Row]:
    """The rows for a place: the line before, the lines of the place, carets under each. None where the line is gone."""
    if not 1 <= place.line <= len(lines):
        return
    room = (width or MAX_WIDTH) - len(str(place.end_line or place.line)) - 4
    last = min(max(place.end_line, place.line), len(lines))
    before = lines[place.line - 2] if place.line >= 2 else ""
    if before.strip():
        yield Row(place.line - 1, crop(drawn(before), 0, room)[0])
    for number in range(place.line, min(last, place.line + MAX_LINES - 1) + 1):
        line = lines[number - 1]
        begin, end = marked(place, number, last, line)
        start, length = cell_len(drawn(line[:begin])), cell_len(drawn(line[begin:end]))
        text, shift = crop(drawn(line), start, room)
        yield Row(number, text)
        at = start - shift
        yield Row(None, " " * at + "^" * max(1, min(length, room - at)), carets=True)
    if last >= place.line + MAX_LINES:
        yield Row(None, "...")


def marked(place: Place, number: int, last: int, line: str) -> tuple[int, int]:
    """Which characters of a line belong to the place, from 0; indentation and what follows the code do not."""
    indent = len(line) - len(line.lstrip())
    begin = max(place.column - 1, indent) if number == place.line else indent
    whole = len(line.rstrip())
    end = place.end_column - 1 if number == last and place.end_column else whole
    begin = min(begin, whole)
    return begin, max(min(end, len(line)), begin)


def cell_len(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def drawn(text: str) -> str:
    """Source text as it can be shown: tabs as blanks, control characters as escapes."""
    return visible(text.replace("\t", TAB))


def crop(text: str, start: int, room: int) -> tuple[str, int]:
    """At most ``room`` cells of ``text`` with cell ``start`` in view, and how many cells further left it lies."""
    room = max(room, 20)
    if cell_len(text) <= room:
        return text, 0
    skip = max(0, start - room // 3) if start > room * 2 // 3 else 0
    hidden, index = 0, 0
    while hidden < skip:
        hidden += cell_len(text[index])
        index += 1
    kept, cells = [], 0
    for character in text[index:]:
        cells += cell_len(character)
        if cells > room - 2:
            break
        kept.append(character)
    head = "…" if index else ""
    tail = "…" if index + len(kept) < len(text) else ""
    return head + "".join(kept) + tail, hidden - len(head)
