"""Prose on a terminal: a line that is too long goes on below itself, indented; no word is cut.

Lines of source and flags to paste are never given to this, and a pipe has no width.
"""

from __future__ import annotations

import textwrap

MIN_ROOM = 20
"""Columns that a first row must have left; prose that would get fewer begins on the second."""


def rows(text: str, width: int | None, hang: int = 4, taken: int = 0) -> list[str]:
    """The rows of ``text``; ``taken`` columns of the first are used already, the others begin with ``hang`` blanks."""
    if width is None or taken + len(text) <= width:
        return [text]
    first = taken if width - taken >= MIN_ROOM else hang
    wrapped = textwrap.wrap(
        text,
        max(width, hang + MIN_ROOM),
        initial_indent=" " * first,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [wrapped[0][taken:], *wrapped[1:]] if first == taken else ["", *wrapped]
