"""The cheapest way to cut ascending sizes into at most k groups, each padded to its largest member: exactly.

A group that ends at size j costs ``(steps up to j - steps before the group) * weight[j]``, which obeys the Monge
inequality. The cheapest cost is therefore convex in the number of groups, so a fixed price for each group (a Lagrange
multiplier) finds the optimum for some number of groups in one pass, and a search over whole-numbered prices finds the
optimum for a given number (Aggarwal, Schieber and Tokuyama 1994). One pass is O(n): under a fixed price the groups are
chosen by lines whose lower envelope is walked once. 100,000 sizes take a few passes instead of 64 of them.

The surprise: numbers of groups that no price yields lie on a straight piece of the convex curve. Their paths are
spliced from the two ends of the piece, at a pair of groups where one contains the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

COARSE = 2_000
"""Above ten times as many sizes, prices are first guessed on a thinned copy of this length."""

Cuts = tuple[int, ...]
"""Indexes of the sizes that end a group, ascending; the last size always does."""


def cheapest_cuts(cumulated: Sequence[int], weights: Sequence[int], price: int) -> Cuts:
    """The cuts that minimise cost plus ``price`` for each group.

    ``cumulated[j]`` counts the steps of the first j sizes; ``weights`` must not descend.
    """
    parents = [0]
    nodes, values, starts = [0], [0], [0]  # the envelope: line ``nodes[i]`` is lowest from weight ``starts[i]``
    head = 0
    for end, weight in enumerate(weights, 1):
        steps = cumulated[end]
        while head + 1 < len(nodes) and starts[head + 1] <= weight:
            head += 1
        parents.append(nodes[head])
        value = values[head] + (steps - cumulated[nodes[head]]) * weight + price
        while True:
            start = -((values[-1] - value) // (steps - cumulated[nodes[-1]]))  # rounded up: weights are whole
            if len(nodes) - 1 == head or start > starts[-1]:
                break
            del nodes[-1], values[-1], starts[-1]
        nodes.append(end)
        values.append(value)
        starts.append(start)
    cuts = []
    end = len(weights)
    while end:
        cuts.append(end - 1)
        end = parents[end]
    return tuple(reversed(cuts))


@dataclass(slots=True)
class Frontier:
    """The convex curve from number of groups to cheapest cost, computed where it is asked for."""

    counts: Sequence[int]
    weights: Sequence[int]
    cumulated: list[int] = field(init=False)
    known: dict[int, tuple[int, Cuts]] = field(init=False)

    def __post_init__(self) -> None:
        self.cumulated = [0, *accumulate(self.counts)]
        size = len(self.counts)
        self.known = {}
        self.remember((size - 1,))
        self.remember(tuple(range(size)))

    def cost(self, cuts: Cuts) -> int:
        """Sum of steps times the weight that they are padded to."""
        ends = [self.cumulated[cut + 1] for cut in cuts]
        begins = [0, *ends]
        return sum((end - begin) * self.weights[cut] for cut, begin, end in zip(cuts, begins, ends, strict=False))

    def best(self, groups: int) -> tuple[int, Cuts]:
        """The cheapest cost with at most ``groups`` groups, and its cuts. ``groups`` is at least 1."""
        groups = min(groups, len(self.counts))
        if groups not in self.known and len(self.counts) > 10 * COARSE:
            self.guess(groups)
        while groups not in self.known:
            fewer, more = self.bracket(groups)
            price = (self.known[fewer][0] - self.known[more][0]) // (more - fewer)
            if self.probe(price) <= fewer:  # a straight piece: every number of groups between is optimal at its slope
                self.remember(splice(self.known[fewer][1], self.known[more][1], groups))
        return self.known[groups]

    def bracket(self, groups: int) -> tuple[int, int]:
        """The nearest known numbers of groups below and above."""
        ordered = sorted(self.known)
        at = bisect_left(ordered, groups)
        return ordered[at - 1], ordered[at]

    def probe(self, price: int) -> int:
        """Remember the optimum at ``price`` and a half, which no two numbers of groups share; return its number."""
        return self.remember(cheapest_cuts(self.cumulated, [2 * weight for weight in self.weights], 2 * price + 1))

    def remember(self, cuts: Cuts) -> int:
        """Note the cost of optimal cuts."""
        self.known[len(cuts)] = (self.cost(cuts), cuts)
        return len(cuts)

    def guess(self, groups: int) -> None:
        """Probe at the gains of a thinned copy, whose every size stands for a run of sizes."""
        run = len(self.counts) // COARSE
        begins = range(0, len(self.counts), run)
        thinned = Frontier(
            [sum(self.counts[begin : begin + run]) for begin in begins],
            [self.weights[min(begin + run, len(self.weights)) - 1] for begin in begins],
        )
        price = float(thinned.best(groups)[0] - thinned.best(groups + 1)[0])
        for _ in range(4):
            found = self.probe(int(price))
            if found == groups or self.is_close(groups):
                return
            # Costs fall like 1 / groups, so prices like 1 / groups squared; 3 % further, to bracket the number.
            price *= (found / groups) ** 2 * (1.03 if found > groups else 0.97)

    def is_close(self, groups: int) -> bool:
        """Whether the known numbers of groups on both sides leave little to search."""
        fewer, more = self.bracket(groups)
        return more - fewer <= 2 + groups // 8


def splice(fewer: Cuts, more: Cuts, groups: int) -> Cuts:
    """Cuts of ``groups`` groups that begin like ``fewer`` and end like ``more``, both optimal at one price.

    Where a group of ``fewer`` contains one of ``more``, their tails may be exchanged at no cost (Monge).
    """
    extra = len(more) - groups
    begins, ends = (-1, *fewer), (-1, *more)
    for at in range(len(fewer)):
        other = at + extra
        if begins[at] <= ends[other] and ends[other + 1] <= fewer[at]:
            return fewer[:at] + more[other:]
    raise AssertionError("two optimal partitions always hold a group inside a group")
