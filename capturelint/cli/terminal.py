"""What a stream can show: colour, a width, a line that changes.

A pipe gets none of them, nor does a terminal that says it is dumb. ``NO_COLOR`` and ``FORCE_COLOR`` are the reader's
word (no-color.org, force-color.org), and the first one counts; a CI system keeps every state of a line that changes.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks; a stream that was closed before the start is ``None``."""
    return stream is not None and stream.isatty()


def has_colour(stream: TextIO) -> bool:
    """Whether to write colour to a stream."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (is_terminal(stream) and os.environ.get("TERM") != "dumb")


def width_of(stream: TextIO) -> int | None:
    """Columns of a terminal; ``None`` for what has no width."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def colour_and_width(output: Path | None) -> tuple[bool, int | None]:
    """For a report on standard output; one in a file has neither."""
    return (has_colour(sys.stdout), width_of(sys.stdout)) if output is None else (False, None)


def shows_progress(stream: TextIO) -> bool:
    """Whether a line may be written over on a stream."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return is_terminal(stream) and os.environ.get("TERM") != "dumb" and not in_ci
