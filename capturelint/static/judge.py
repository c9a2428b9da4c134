"""Events -> findings, by the rules' records alone.

A rule selects a kind of event, may narrow it by fields, and says what it means. Anything that a record cannot say is a
small predicate in ``capturelint.predicates``, found by the rule's name with underscores.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Protocol

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from capturelint.catalog import Rule
from capturelint.finding import Finding
from capturelint.static.events import Event
from capturelint.vocabulary import Confidence

MAX_CODE = 48
SUPPORTED = tuple(Version(f"2.{minor}") for minor in range(6, 40))
OLDER = tuple(Version(f"{major}.{minor}") for major, minor in [(1, 13), *((2, minor) for minor in range(6))])
"""Releases before 2.6: a project that declares a range may include them."""


class Predicate(Protocol):
    """Whether a rule speaks of an event that its record selects."""

    def __call__(self, event: Event) -> bool:
        """True where it does."""
        ...


def judge(events: Iterable[Event], rules: Mapping[str, Rule], torch: str | None) -> list[Finding]:
    """One finding for each event and rule that selects it; the surest where several fall on one place."""
    best: dict[tuple[object, ...], Finding] = {}
    for event in events:
        for rule in rules.values():
            finding = apply(rule, event, torch)
            if finding is None:
                continue
            key = (rule.name, finding.place)
            present = best.get(key)
            if present is None or present.confidence < finding.confidence:
                best[key] = finding
    return sorted(drop_repeats(best.values()), key=lambda finding: finding.order)


def drop_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for a rule and a line: the same hazard twice on a line reads as noise."""
    best: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        assert finding.place is not None
        key = (finding.rule, finding.place.path, finding.place.line)
        present = best.get(key)
        if present is None or (present.confidence, -column(present)) < (finding.confidence, -column(finding)):
            best[key] = finding
    return list(best.values())


def column(finding: Finding) -> int:
    """Where a finding starts."""
    return finding.place.column if finding.place is not None else 0


def apply(rule: Rule, event: Event, torch: str | None) -> Finding | None:
    """The finding that a rule makes of an event, if it speaks of it."""
    if rule.event is not event.kind or rule.phase is not event.phase:
        return None
    fields = fields_of(event)
    if any(fields.get(name) not in wanted for name, wanted in rule.where):
        return None
    outcome = rule.compiled if event.compiled else rule.outcome
    predicate = predicate_for(rule.name)
    if outcome is None or (predicate is not None and not predicate(event)):
        return None
    confidence = event.confidence
    if event.torch and not declares(torch, event.torch):
        confidence = Confidence.POSSIBLE
    return Finding(
        rule=rule.name,
        place=event.site.place,
        message=rule.message.format_map(fields),
        help=tuple(text.format_map(fields) for text in rule.help),
        outcome=outcome,
        confidence=confidence,
        trail=event.site.trail,
    )


def fields_of(event: Event) -> dict[str, str]:
    """What a rule's ``where`` and its texts may use."""
    return {
        "code": shorten(event.site.code),
        "how": event.how,
        "name": event.name or shorten(event.site.code),
        "varies": event.varies.name.lower().replace("_", "-"),
        "torch": event.torch,
    }


def shorten(code: str) -> str:
    """The code of a message, cut in the middle where it is long."""
    return code if len(code) <= MAX_CODE else f"{code[: MAX_CODE - 14]} ... {code[-9:]}"


def declares(declared: str | None, affected: str) -> bool:
    """Whether a declared torch version or range includes a version that an effect is limited to.

    ``None`` is a loose file without a project: every supported version, which is 2.6 and later, and ``check`` says
    aloud what it then leaves out.
    """
    limit = SpecifierSet(affected)
    if declared is None:
        return any(version in limit for version in SUPPORTED)
    try:
        return Version(declared) in limit
    except InvalidVersion:
        pass
    try:
        wanted = SpecifierSet(declared)
    except InvalidSpecifier:
        return True
    return any(version in limit and version in wanted for version in (*OLDER, *SUPPORTED))


@cache
def predicate_for(name: str) -> Predicate | None:
    """``predicates/<rule with underscores>.py: accepts(event)``, where it exists."""
    module = f"capturelint.predicates.{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is None:
        return None
    accepts: Predicate = importlib.import_module(module).accepts
    return accepts
