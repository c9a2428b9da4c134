"""Text from file names and sources -> text that is safe to show in a terminal, a log or an XML file.

A file may be named ``a\\n::error::b`` or hold the codes that clear a screen. What moves the cursor, reorders text or
is no character at all is written as an escape; everything else, accents and ideographs included, stays.
"""

from __future__ import annotations

import re

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators and marks that reorder text
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"  # not characters; a name that is not UTF-8 arrives as these
)


def visible(text: str) -> str:
    """``text`` with every unsafe character written as Python would write it."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
