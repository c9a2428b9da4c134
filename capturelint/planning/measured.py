"""What ``verify`` measured, read back from its JSON: step times, capture times and pool bytes by bucket.

A plan asks for sizes that were not measured. Times between two measured sizes are interpolated, below the smallest
they are the smallest's, above the largest they follow the last slope; a larger bucket is never counted as faster.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from capturelint.errors import HistogramError

NANOSECONDS = 1_000_000
"""In a millisecond: times are whole nanoseconds, so that the search over plans stays exact."""


@dataclass(frozen=True, slots=True)
class Series:
    """Whole numbers measured at ascending batch sizes."""

    sizes: tuple[int, ...]
    values: tuple[int, ...]

    def at(self, size: int) -> int:
        """The value at ``size``, interpolated."""
        if size <= self.sizes[0] or len(self.sizes) == 1:
            return self.values[0]
        right = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[right - 1 : right + 1], self.values[right - 1 : right + 1]
        return y0 + (y1 - y0) * (size - x0) // (x1 - x0)


@dataclass(frozen=True, slots=True)
class Pool:
    """Device memory of the pool that all graphs share, captured largest first.

    ``nbytes`` is what the largest measured bucket took, ``growth_nbytes`` the most that a smaller one added. What the
    driver keeps for each graph outside of the pool is in neither.
    """

    nbytes: int
    growth_nbytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """``replay_ns`` and ``eager_ns`` are medians; each is ``None`` where the JSON has no times (an emulated run)."""

    source: str
    device: str
    replay_ns: Series | None
    eager_ns: Series | None
    capture_s: float | None
    pool: Pool | None


def read_measured(text: str, name: str) -> Measured:
    """The measurements in a JSON of ``verify``. Raises ``HistogramError``."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HistogramError(f"{name}: not JSON: {error}") from error
    buckets = loaded.get("buckets") if isinstance(loaded, dict) else None
    if not isinstance(buckets, list) or not all(isinstance(bucket, dict) for bucket in buckets):
        raise HistogramError(f"{name}: no `buckets`; expected what `capturelint verify --format json` writes")
    captured = [bucket for bucket in buckets if bucket.get("verdict") == "ok"]
    if not captured:
        raise HistogramError(f"{name}: no bucket with verdict `ok`, so nothing was measured to plan with")
    sizes = [whole(bucket.get("size"), "size", name) for bucket in captured]
    by_size = dict(sorted(zip(sizes, captured, strict=True)))
    captures = [number(bucket["capture_s"], "capture_s", name) for bucket in captured if bucket.get("capture_s")]
    return Measured(
        source=name,
        device=str(loaded.get("gpu") or loaded.get("device") or "an unnamed device"),
        replay_ns=medians(by_size, "replay_ms", name),
        eager_ns=medians(by_size, "eager_ms", name),
        capture_s=max(captures, default=None),
        pool=read_pool(by_size, name),
    )


def read_pool(by_size: Mapping[int, Mapping[str, object]], name: str) -> Pool | None:
    """The shared pool, or ``None`` where it was not measured."""
    if any(bucket.get("pool_bytes") is None for bucket in by_size.values()):
        return None
    *smaller, largest = (whole(bucket["pool_bytes"], "pool_bytes", name, 0) for bucket in by_size.values())
    return Pool(largest, max(smaller, default=0))


def medians(by_size: Mapping[int, Mapping[str, object]], key: str, name: str) -> Series | None:
    """The p50 of ``key`` by size, ascending in both, or ``None`` if a bucket has none."""
    if not by_size or not all(isinstance(bucket.get(key), dict) for bucket in by_size.values()):
        return None
    times = [number(p50(bucket[key]), f"{key}.p50", name) for bucket in by_size.values()]
    return Series(tuple(by_size), tuple(accumulate((round(time * NANOSECONDS) for time in times), max)))


def p50(times: object) -> object:
    """The median of a mapping of percentiles."""
    return times.get("p50") if isinstance(times, dict) else None


def whole(value: object, key: str, name: str, least: int = 1) -> int:
    """A whole number, at least ``least``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise HistogramError(f"{name}: `{key}` {json.dumps(value)} is not a whole number from {least}")


def number(value: object, key: str, name: str) -> float:
    """A positive number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    raise HistogramError(f"{name}: `{key}` {json.dumps(value)} is not a positive number")


def total(series: Series, sizes: Iterable[int], steps: Sequence[int]) -> int:
    """The time of ``steps[i]`` steps at each size, in nanoseconds."""
    return sum(series.at(size) * count for size, count in zip(sizes, steps, strict=True))
