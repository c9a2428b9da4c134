"""Where something is: a file, a line, a column, and the chain of calls that leads there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A range of source text. Lines and columns start at 1; ``end_column`` is exclusive.

    ``cell`` is the notebook cell, from 1, or ``None`` for a plain file.
    """

    path: Path
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0
    cell: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on the way from an entry to a finding: the calling line and the function it stands in."""

    path: Path
    line: int
    name: str
