"""Bytes, shares and times, as they are written on a command line and in a table."""

from __future__ import annotations

import re

from capturelint.errors import HistogramError

SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) *([kmgt]?)(i?)b?\Z", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str, option: str) -> int:
    """``512MiB``, ``2 GB`` or a plain number. Raises ``HistogramError``."""
    match = SIZE.match(text.strip())
    if match is None or float(match[1]) == 0:
        raise HistogramError(f"{option} '{text}' is not a size; write bytes or a unit, as in 512MiB or 2GB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** POWERS[match[2].lower()])


def show_bytes(count: int | None) -> str:
    """In binary units, or ``-`` where nobody measured it."""
    if count is None:
        return "-"
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count} B"


def show_share(share: float) -> str:
    """In percent, one digit after the point."""
    return f"{share * 100:.1f} %"


def show_count(count: int, noun: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
