"""One step in time: in which share of each short interval the GPU works, inside graphs and outside them.

Shares and not kernels, because thousands of kernels of a few microseconds are no picture and much JSON. In an emulated
step nothing has a time: what is known there is which operations run, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

INTERVALS = 100


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time in which the GPU works, in microseconds. ``in_graph``: a graph launched what runs."""

    start: float
    end: float
    in_graph: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """``us`` microseconds in ``INTERVALS`` equal parts, from the start of the first kernel to the end of the last.

    ``in_graphs`` and ``outside`` are the busy share of each part, 0 to 1; ``kernels`` counts copies on the device too.
    """

    us: float
    kernels: int
    in_graphs: tuple[float, ...]
    outside: tuple[float, ...]

    @property
    def busy(self) -> tuple[float, float]:
        """Microseconds in which something runs: inside graphs, and outside."""
        inside, outside = (sum(shares) * self.us / INTERVALS for shares in (self.in_graphs, self.outside))
        return inside, outside


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one function of the target that follow each other in a step; views, which run nothing, left out."""

    function: str
    count: int
    in_graph: bool = True


def timeline_of(stretches: Sequence[Stretch], kernels: int | None = None) -> Timeline | None:
    """What ran, in shares of intervals; ``None`` for nothing. ``kernels`` where a stretch is more than one."""
    if not stretches:
        return None
    first = min(stretch.start for stretch in stretches)
    length = max(stretch.end for stretch in stretches) - first
    inside, outside = (
        shares(((s.start - first, s.end - first) for s in stretches if s.in_graph is in_graph), length)
        for in_graph in (True, False)
    )
    return Timeline(round(length, 1), len(stretches) if kernels is None else kernels, inside, outside)


def shares(busy: Iterable[tuple[float, float]], length: float) -> tuple[float, ...]:
    """Of each of ``INTERVALS`` parts of ``length`` the share that is covered."""
    part = length / INTERVALS
    found = [0.0] * INTERVALS
    for start, end in united(busy):
        for index in range(int(start / part) if part else 0, INTERVALS):
            covered = min(end, (index + 1) * part) - max(start, index * part)
            if covered <= 0:
                break
            found[index] += covered / part
    return tuple(round(min(share, 1.0), 3) for share in found)


def united(busy: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Stretches that overlap, on several streams, as one."""
    begun: tuple[float, float] | None = None
    for start, end in sorted(busy):
        if begun is not None and start <= begun[1]:
            begun = begun[0], max(end, begun[1])
            continue
        if begun is not None:
            yield begun
        begun = start, end
    if begun is not None:
        yield begun
