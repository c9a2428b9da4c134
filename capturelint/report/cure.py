"""A rule -> its cure as a small diff: from a case that the rule finds to the repaired one beside it.

The two programs are blocks of the rule's fixture, which tests hold to be found and to be silent: the one whose fence
says ``cure``, and the bad one above it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from capturelint.report.frame import drawn
from capturelint.report.page import MARKER, Block, page

MAX_LINES = 28


@dataclass(frozen=True, slots=True)
class DiffLine:
    """``kind`` is ``+``, ``-``, or a blank for a line that both have."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Cure:
    """A small change and what it is: the user's own line rewritten, or an example of the rule repaired."""

    title: str
    lines: tuple[DiffLine, ...]


def example(rule: str) -> Cure | None:
    """How the rule's own example is repaired; ``None`` where no block is marked as a cure."""
    subject = page(rule)
    pair = twins(rule, subject.blocks)
    if pair is None:
        return None
    bad, good = pair
    return Cure(f"{bad.title} → {good.title}", small_diff(MARKER.sub("", bad.code), good.code))


def twins(rule: str, blocks: Sequence[Block]) -> tuple[Block, Block] | None:
    """The block that is marked as a cure and the bad one above it."""
    bad: Block | None = None
    for block in blocks:
        if "cure" in block.words:
            return (bad, block) if bad is not None else None
        if block.marked(rule) or block.marked(rule, "missed"):
            bad = block
    return None


def small_diff(before: str, after: str) -> tuple[DiffLine, ...]:
    """The changed lines with one line around them."""
    old = [line.rstrip() for line in before.splitlines()]
    new = [line.rstrip() for line in after.splitlines()]
    lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
    kept = [line for line in lines if not line.startswith("@@")]
    return tuple(DiffLine(line[:1], line[1:]) for line in kept[:MAX_LINES])


def from_patch(patch: str, title: str) -> Cure:
    """A unified diff of the user's file as a cure."""
    lines = [line for line in patch.splitlines()[2:] if not line.startswith(("@@", "\\"))]
    return Cure(title, tuple(DiffLine(line[:1] or " ", drawn(line[1:])) for line in lines[:MAX_LINES]))
