"""What the interpreter saw recorded code do, before any rule has an opinion on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from capturelint.place import Frame, Place
from capturelint.static.records import quick
from capturelint.vocabulary import Confidence, EventKind, Phase, Varies

EventKey: TypeAlias = tuple[object, ...]
"""What tells sightings of one event from those of another."""


@quick
@dataclass(frozen=True, slots=True)
class Site:
    """A piece of source text and the chain of calls that led to it. ``code`` is the text, on one line."""

    place: Place
    code: str
    trail: tuple[Frame, ...] = field(default=(), compare=False)


@quick
@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened at one place.

    ``how`` tells events of one kind apart (``item``, ``cpu``, ``slice-bound``); a rule's ``where`` selects on it.
    ``name`` is the operation, attribute or variable that the message speaks of. ``torch`` is the version range that
    the event is limited to, as a PEP 440 specifier, or empty. ``compiled`` marks code that ``torch.compile`` records.
    """

    kind: EventKind
    site: Site
    how: str
    confidence: Confidence
    phase: Phase = Phase.RECORDED
    name: str = ""
    varies: Varies = Varies.NEVER
    torch: str = ""
    compiled: bool = False


def least(log: list[tuple[EventKey, int]]) -> dict[EventKey, int]:
    """The fewest doubts under which each event was seen."""
    seen: dict[EventKey, int] = {}
    for key, doubt in log:
        seen[key] = min(doubt, seen.get(key, doubt))
    return seen
