"""What is known of one compiled step: a record without torch, which a worker can send and a reporter can print.

Everything in it was seen. What this machine or this torch cannot show is said in ``partial``, never left to be guessed
from an empty list.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"\d+")
"""A guard on a counter fails with another number each time: one event."""


UNSETTLED = 3
"""Recompiles of one guard, or recordings for one reason, after which nothing settles: torch makes a size or a number
dynamic after one or two."""


class CompileKind(Enum):
    """What happened to a compiled step; the value is the name of the rule."""

    GRAPH_BREAK = "graph-break"
    SKIP = "cudagraph-skip"
    PARTITION = "cudagraph-partition"
    RECOMPILE = "recompile"
    RERECORD = "rerecord"
    OVERWRITTEN_OUTPUT = "overwritten-output"


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """One thing that torch did. ``path`` and ``line`` are user code, where torch tells it.

    ``detail`` is what torch adds: its hint, the operator, the guard. ``count`` is how often it was told at one batch
    size, ``bucket`` the batch size at which it was told first.
    """

    kind: CompileKind
    reason: str
    path: str | None = None
    line: int | None = None
    detail: str = ""
    count: int = 1
    bucket: int | None = None

    @property
    def identity(self) -> tuple[CompileKind, str | None, int | None, str]:
        """Events with one identity are one finding."""
        if self.line and self.kind is CompileKind.GRAPH_BREAK:
            return (self.kind, self.path, self.line, "")
        return (self.kind, self.path, self.line, NUMBER.sub("#", self.reason))


@dataclass(frozen=True, slots=True)
class OutsideKernel:
    """Kernels of one name that a steady-state step launched outside graphs, and the user's line that did.

    ``exact`` is false where only the function is known; ``line`` is then its first.
    """

    name: str
    count: int
    path: str | None = None
    line: int | None = None
    function: str | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one step in which kernels follow each other at once, all inside graphs or all outside.

    Microseconds from the start of the step's first kernel.
    """

    start_us: float
    end_us: float
    kernels: int
    in_graph: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """Kernels of one steady-state step. ``replay_kernels`` are launched by the replay itself, to copy inputs and to
    move random generators on; they are in neither of the other two counts. ``timeline`` has all of them, in time.
    """

    kernels_in_graphs: int
    kernels: int
    graph_launches: int
    replay_kernels: int = 0
    outside: tuple[OutsideKernel, ...] = ()
    timeline: tuple[Span, ...] = ()

    @property
    def percent(self) -> float:
        """Kernels inside graphs over all kernels; 0 where there are none."""
        return 100.0 * self.kernels_in_graphs / self.kernels if self.kernels else 0.0


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """Time of one steady-state step on the device."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Partitions:
    """What the scheduler made of one compiled graph."""

    num_partitions: int
    num_cudagraphable: int


@dataclass(frozen=True, slots=True)
class CompiledBucket:
    """One batch size, compiled on its own. What was not measured is ``None``.

    ``max_error`` and ``tolerance`` hold the compiled replay against eager, relative to the largest eager value;
    ``differs`` says why the graphs are at fault for a difference. ``error`` is the exception that ended the step.
    """

    size: int
    calls: int = 0
    coverage: Coverage | None = None
    compiled_ms: Milliseconds | None = None
    compiled_captured_ms: Milliseconds | None = None
    max_error: float | None = None
    tolerance: float | None = None
    differs: str = ""
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileReport:
    """One target's step, compiled at each batch size. An event that several batch sizes show stands here once."""

    device: str
    torch: str
    graph_breaks: tuple[CompileEvent, ...] = ()
    skips: tuple[CompileEvent, ...] = ()
    partitions: tuple[CompileEvent, ...] = ()
    recompiles: tuple[CompileEvent, ...] = ()
    rerecords: tuple[CompileEvent, ...] = ()
    overwritten: tuple[CompileEvent, ...] = ()
    partitioned: tuple[Partitions, ...] = ()
    buckets: tuple[CompiledBucket, ...] = ()
    partial: tuple[str, ...] = ()

    @property
    def events(self) -> tuple[CompileEvent, ...]:
        """Everything that happened, worst first."""
        return (
            *self.overwritten,
            *self.skips,
            *self.graph_breaks,
            *self.partitions,
            *self.rerecords,
            *self.recompiles,
        )

    @property
    def coverage(self) -> Coverage | None:
        """The lowest of the batch sizes; ``None`` unless it was measured at each of them."""
        measured = [bucket.coverage for bucket in self.buckets if bucket.coverage is not None]
        if not measured or len(measured) < len(self.buckets):
            return None
        return min(measured, key=lambda coverage: coverage.percent)

    @property
    def error(self) -> str | None:
        """The first exception that ended a step."""
        return next((bucket.error for bucket in self.buckets if bucket.error is not None), None)

    @property
    def failing(self) -> tuple[CompileEvent, ...]:
        """The events that cost a graph in every step. A guard or an address that settles costs the first steps only."""
        once_only = (CompileKind.RECOMPILE, CompileKind.RERECORD)
        return tuple(event for event in self.events if event.kind not in once_only or event.count >= UNSETTLED)

    @property
    def unwell(self) -> bool:
        """A step failed, or its graphs replay other values than its code computes."""
        return any(bucket.error is not None or bucket.differs for bucket in self.buckets)

    def bucket(self, size: int) -> CompiledBucket | None:
        """What is known of one batch size."""
        return next((bucket for bucket in self.buckets if bucket.size == size), None)

    def as_json(self) -> dict[str, object]:
        """The ``compile`` object of ``verify``'s JSON; ``from_json`` reads it back."""
        return {
            "device": self.device,
            "torch": self.torch,
            **{name: [event_json(event) for event in getattr(self, name)] for name in LISTS},
            "partitioned": [[split.num_partitions, split.num_cudagraphable] for split in self.partitioned],
            "coverage": asdict(self.coverage) if self.coverage else None,
            "buckets": [asdict(bucket) for bucket in self.buckets],
            "partial": list(self.partial),
            "error": self.error,
        }


LISTS = {
    "graph_breaks": CompileKind.GRAPH_BREAK,
    "skips": CompileKind.SKIP,
    "partitions": CompileKind.PARTITION,
    "recompiles": CompileKind.RECOMPILE,
    "rerecords": CompileKind.RERECORD,
    "overwritten": CompileKind.OVERWRITTEN_OUTPUT,
}


def from_json(record: Mapping[str, Any]) -> CompileReport:
    """The inverse of ``CompileReport.as_json``."""
    return CompileReport(
        device=record["device"],
        torch=record["torch"],
        **{name: tuple(CompileEvent(kind, **event) for event in record[name]) for name, kind in LISTS.items()},
        partitioned=tuple(Partitions(*split) for split in record["partitioned"]),
        buckets=tuple(bucket_of(bucket) for bucket in record["buckets"]),
        partial=tuple(record["partial"]),
    )


def bucket_of(record: Mapping[str, Any]) -> CompiledBucket:
    """One batch size from its JSON."""
    times = {
        name: Milliseconds(**record[name]) if record[name] else None for name in ("compiled_ms", "compiled_captured_ms")
    }
    coverage = coverage_of_json(record["coverage"]) if record["coverage"] else None
    return CompiledBucket(**{**record, **times, "coverage": coverage, "notes": tuple(record["notes"])})


def coverage_of_json(record: Mapping[str, Any]) -> Coverage:
    """A coverage from its JSON."""
    outside = tuple(OutsideKernel(**kernel) for kernel in record["outside"])
    timeline = tuple(Span(**span) for span in record["timeline"])
    return Coverage(**{**record, "outside": outside, "timeline": timeline})


def merged(reports: Sequence[CompileReport]) -> CompileReport:
    """Reports of several batch sizes as one; the first one's machine."""
    events = {name: once((event for report in reports for event in getattr(report, name)), max) for name in LISTS}
    return replace(
        reports[0],
        **events,  # type: ignore[arg-type]
        partitioned=tuple(dict.fromkeys(split for report in reports for split in report.partitioned)),
        buckets=tuple(bucket for report in reports for bucket in report.buckets),
        partial=tuple(dict.fromkeys(text for report in reports for text in report.partial)),
    )


def event_json(event: CompileEvent) -> dict[str, object]:
    """One event; its kind is the name of the list that it stands in."""
    path = event.path if event.path is None else from_here(event.path)
    return {
        "reason": event.reason,
        "path": path,
        "line": event.line,
        "detail": event.detail,
        "count": event.count,
        "bucket": event.bucket,
    }


def from_here(path: str) -> str:
    """A path below the working directory as one starts it from there; any other as it is."""
    try:
        return Path(path).relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path


def once(events: Iterable[CompileEvent], combine: Callable[[int, int], int] = operator.add) -> tuple[CompileEvent, ...]:
    """Each event once, in the order of its first sighting; its counts are added."""
    found: dict[object, CompileEvent] = {}
    for event in events:
        first = found.get(event.identity)
        if first is None:
            found[event.identity] = event
        else:
            count = combine(first.count, event.count)
            found[event.identity] = replace(first, count=count, detail=first.detail or event.detail)
    return tuple(found.values())
