"""What every half of capturelint says: one hazard, at one place, under one rule.

``check``, ``verify`` and ``logs`` meet only here. A ``Finding`` is complete: a reporter needs nothing else but the
source text to print it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from capturelint.place import Frame, Place
from capturelint.vocabulary import Confidence, Outcome


@dataclass(frozen=True, slots=True)
class Evidence:
    """What ``verify`` saw. ``step`` counts decode steps from 0, ``bucket`` is a batch size."""

    text: str
    bucket: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One hazard. ``place`` is ``None`` only for a run-time finding that no line can be blamed for."""

    rule: str
    place: Place | None
    message: str
    help: tuple[str, ...]
    outcome: Outcome
    confidence: Confidence
    trail: tuple[Frame, ...] = ()
    fingerprint: str = ""
    suppressed: bool = False
    evidence: Evidence | None = field(default=None)

    @property
    def order(self) -> tuple[str, int, int, str]:
        """Sort key: path, line, column, rule."""
        if self.place is None:
            return ("", 0, 0, self.rule)
        return (str(self.place.path), self.place.line, self.place.column, self.rule)
