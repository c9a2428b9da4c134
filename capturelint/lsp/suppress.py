"""A finding -> the edits of its text that suppress it with a reason.

The reason is the user's to choose: two that are often true, or one of their own, for which the comment is written
without a reason. Such a comment suppresses nothing, and is reported until the reason is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from capturelint.static.ignores import read_ignores, scan

REASONS = ("not part of the captured step", "runs before the capture only")
OWN = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """Text to insert. ``line`` from 1, ``column`` from 1 and in characters."""

    line: int
    column: int
    text: str

    @property
    def end(self) -> tuple[int, int]:
        """Where the inserted text ends, as line and column, before its line break."""
        return self.line, self.column + len(self.text.rstrip("\n"))


def suppression(text: str, line: int, rule: str, reason: str) -> Edit | None:
    """The comment for one rule on the statement at ``line``; ``None`` where the statement has one for it already."""
    lines = text.split("\n")
    first, last = statement(text, line)
    for ignore in read_ignores(text):
        if ignore.word == "ignore" and ignore.covers(line) and ignore.rules:
            if rule in ignore.rules:
                return None
            row = lines[ignore.line - 1]
            return Edit(ignore.line, row.index("]", ignore.column - 1) + 1, f", {rule}")
    comment = f"# capturelint: ignore[{rule}] {reason}".rstrip()
    row = lines[first - 1]
    if first == last and not row.endswith("\\"):
        return Edit(first, len(row.rstrip()) + 1, f"  {comment}")
    indent = re.match(r"\s*", row)
    return Edit(first, 1, f"{indent[0] if indent else ''}{comment}\n")


def statement(text: str, line: int) -> tuple[int, int]:
    """First and last line of the statement that a line belongs to."""
    _, statements = scan(text)
    return next(((first, last) for first, last, _ in statements if first <= line <= last), (line, line))
