"""Which sizes to capture for a histogram, exactly, and what any list of sizes costs on it.

The plan minimises padded rows, or the expected step time where ``verify`` measured times. A step is padded up to the
next captured size, as every engine does; a step above the largest runs eagerly. Only rounded-up live sizes are
candidates: lowering a bucket to the largest step that it holds never costs anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from capturelint.errors import HistogramError
from capturelint.planning.histogram import Histogram
from capturelint.planning.measured import Measured, Series, total
from capturelint.planning.partition import Frontier

WHOLE_CURVE = 300_000
"""Sizes times graphs up to which every number of graphs is planned, for the curve of marginal gains."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan may use. Bytes and seconds are for one graph, ``None`` where nobody measured them.

    ``pool_nbytes`` is memory that all graphs share.
    """

    max_graphs: int
    max_batch: int | None = None
    multiple_of: int = 1
    memory: int | None = None
    bytes_per_graph: int | None = None
    pool_nbytes: int = 0
    capture_s: float | None = None

    def memory_of(self, graphs: int) -> int | None:
        """What so many graphs take."""
        return None if self.bytes_per_graph is None else self.pool_nbytes + graphs * self.bytes_per_graph


@dataclass(frozen=True, slots=True)
class Usage:
    """What a list of captured sizes does with a histogram. ``steps`` and ``live_rows`` are by bucket."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    live_rows: tuple[int, ...]
    eager_steps: int
    step_ns: float | None = None

    @property
    def computed_rows(self) -> int:
        """Rows that graphs compute, padding included."""
        return sum(size * count for size, count in zip(self.sizes, self.steps, strict=True))

    @property
    def padded_rows(self) -> int:
        """Rows computed for nobody."""
        return self.computed_rows - sum(self.live_rows)

    @property
    def padding_waste(self) -> float:
        """Padded rows as a share of the rows that graphs compute."""
        return self.padded_rows / self.computed_rows if self.computed_rows else 0.0

    @property
    def covered(self) -> float:
        """The share of steps that a graph runs."""
        return sum(self.steps) / (sum(self.steps) + self.eager_steps)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best cost with so many graphs: padded share of computed rows, or nanoseconds a step."""

    graphs: int
    cost: float


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The chosen sizes. ``curve`` holds optimal points only, so it may skip numbers of graphs on huge histograms."""

    histogram: Histogram
    limits: Limits
    usage: Usage
    curve: tuple[CurvePoint, ...]
    by_time: bool
    rounded_rows: int
    """Padded rows that come from ``multiple_of`` alone: no number of graphs saves them."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The buckets, ascending."""
        return self.usage.sizes


def choose(histogram: Histogram, limits: Limits, measured: Measured | None = None) -> BucketPlan:
    """The best plan within ``limits``. Raises ``HistogramError`` where no graph fits."""
    graphs = affordable_graphs(limits)
    largest = limits.max_batch or histogram.sizes[-1]
    rounded: Counter[int] = Counter()
    rounded_rows = 0
    for size, count in zip(histogram.sizes, histogram.counts, strict=True):
        if size <= largest:
            bucket = round_up(size, limits.multiple_of)
            rounded[bucket] += count
            rounded_rows += (bucket - size) * count
    if not rounded:
        raise HistogramError(f"no batch is as small as --max-batch {largest}; the smallest is {histogram.sizes[0]}")
    candidates = list(rounded)
    by_time = measured is not None and measured.replay_ns is not None
    weights = [measured.replay_ns.at(size) for size in candidates] if measured and measured.replay_ns else candidates
    frontier = Frontier(list(rounded.values()), weights)
    cost, cuts = cheapest(frontier, graphs)
    usage = use(histogram, [candidates[cut] for cut in cuts], measured)
    live_rows, eager_ns, timed_steps = sum(usage.live_rows), 0.0, sum(usage.steps)
    if by_time and usage.step_ns is not None:
        eager_ns, timed_steps = usage.step_ns * histogram.steps - cost, histogram.steps
    curve = tuple(
        CurvePoint(number, (total_cost + eager_ns) / timed_steps if by_time else 1 - live_rows / total_cost)
        for number, total_cost in curve_costs(frontier, len(cuts))
    )
    if measured is not None and measured.replay_ns is not None:
        histogram = replace(histogram, notes=(*histogram.notes, time_note(measured, measured.replay_ns)))
    if measured is not None and measured.pool is not None:
        histogram = replace(histogram, notes=(*histogram.notes, POOL_NOTE))
    return BucketPlan(histogram, limits, usage, curve, by_time, rounded_rows)


POOL_NOTE = "memory is the pool that graphs share, as measured, and --bytes-per-graph for what the driver keeps outside"


def time_note(measured: Measured, series: Series) -> str:
    """Where the step times come from."""
    spread = f"batch {series.sizes[0]:,} to {series.sizes[-1]:,}"
    return f"step times measured on {measured.device} at {spread}, interpolated between, extrapolated above"


def affordable_graphs(limits: Limits) -> int:
    """The number of graphs that the count and the memory allow. Raises ``HistogramError`` if it is none."""
    if limits.memory is None:
        return limits.max_graphs
    if limits.bytes_per_graph is None:
        raise HistogramError("--memory needs --bytes-per-graph, or --measured with pool bytes from a real GPU")
    left = limits.memory - limits.pool_nbytes
    affordable = left // limits.bytes_per_graph if limits.bytes_per_graph else (limits.max_graphs if left >= 0 else 0)
    if affordable < 1:
        raise HistogramError(f"--memory {limits.memory:,} fits no graph: one takes {limits.memory_of(1):,} bytes")
    return min(limits.max_graphs, affordable)


def cheapest(frontier: Frontier, graphs: int) -> tuple[int, tuple[int, ...]]:
    """The best cuts with at most ``graphs`` graphs, and of equally good ones the fewest."""
    cost, cuts = frontier.best(graphs)
    least, _ = frontier.known[len(frontier.counts)]
    if cost == least:
        fewest = frontier.probe(0)
        return frontier.known[fewest] if frontier.known[fewest][0] == least else (cost, cuts)
    return cost, cuts


def curve_costs(frontier: Frontier, graphs: int) -> list[tuple[int, int]]:
    """Number of graphs and optimal cost, up to one more than chosen: all if that is quick, else what is known."""
    last = min(graphs + 1, len(frontier.counts))
    if len(frontier.counts) * graphs <= WHOLE_CURVE:
        return [(number, frontier.best(number)[0]) for number in range(1, last + 1)]
    frontier.best(last)
    return [(number, frontier.known[number][0]) for number in sorted(frontier.known) if number <= last]


def use(histogram: Histogram, sizes: Sequence[int], measured: Measured | None = None, pads: bool = True) -> Usage:
    """What ``sizes``, ascending, do with the histogram; without ``pads`` only an exact size has a graph."""
    ends = [bisect_right(histogram.sizes, size) for size in sizes]
    begins = [0, *ends[:-1]] if pads else [bisect_left(histogram.sizes, size) for size in sizes]
    steps_before = [0, *accumulate(histogram.counts)]
    rows_before = [0, *accumulate(map(mul, histogram.sizes, histogram.counts))]
    steps = tuple(steps_before[end] - steps_before[begin] for begin, end in zip(begins, ends, strict=True))
    live = tuple(rows_before[end] - rows_before[begin] for begin, end in zip(begins, ends, strict=True))
    usage = Usage(tuple(sizes), steps, live, steps_before[-1] - sum(steps))
    return usage if measured is None else replace(usage, step_ns=expected_ns(histogram, usage, measured, pads))


def expected_ns(histogram: Histogram, usage: Usage, measured: Measured, pads: bool) -> float | None:
    """Nanoseconds a step, graphs and eager steps together, or ``None`` where a time was not measured."""
    if measured.replay_ns is None or (usage.eager_steps and measured.eager_ns is None):
        return None
    time = total(measured.replay_ns, usage.sizes, usage.steps)
    if measured.eager_ns is not None:
        exact = set(usage.sizes)
        eager = {
            size: count
            for size, count in zip(histogram.sizes, histogram.counts, strict=True)
            if (size > usage.sizes[-1] if pads else size not in exact)
        }
        time += total(measured.eager_ns, eager, list(eager.values()))
    return time / histogram.steps


def gain(plan: Usage, other: Usage, by_time: bool) -> float | None:
    """How much less the plan costs than ``other``, as a share of ``other``; ``None`` if they cover different steps.

    Costs are expected step times where both are known, else rows computed.
    """
    if by_time and plan.step_ns is not None and other.step_ns is not None:
        return 1 - plan.step_ns / other.step_ns
    if plan.eager_steps != other.eager_steps or not other.computed_rows:
        return None
    return 1 - plan.computed_rows / other.computed_rows


def round_up(size: int, multiple: int) -> int:
    """The next multiple at or above ``size``."""
    return -(-size // multiple) * multiple


def speculate(histogram: Histogram, draft_tokens: int) -> Histogram:
    """The histogram in tokens: each request runs its token and ``draft_tokens`` drafted ones in a step."""
    query_length = 1 + draft_tokens
    note = f"sizes are tokens: requests * {query_length}, one token and {draft_tokens} drafted ones"
    sizes = tuple(size * query_length for size in histogram.sizes)
    return Histogram(sizes, histogram.counts, histogram.source, (*histogram.notes, note))
