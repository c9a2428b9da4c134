"""The number that cannot lie: which kernels of a steady-state step were launched by a graph.

A profiler's trace ties each kernel to the call that launched it. Kernels that a replay launches itself, to copy inputs
into static buffers and to move random generators on, are counted apart: they are the price of a graph, not a gap.
The surprise: Python frames in the trace carry the line where the function begins. The line that runs is known by the
profiler's event tree, as the caller's of whatever was called from there; an operator is no call, and leaves only the
function. Lines of code that Inductor has generated are told as the user's lines that they come from.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict

import torch
from torch.profiler import ProfilerActivity, profile

from capturelint.compiler.generated import Generated
from capturelint.compiler.report import Coverage, Milliseconds, OutsideKernel, Span, from_here
from capturelint.logs.matcher import LIBRARY

MIN_SAMPLES = 100
MAX_SECONDS = 2.0
GAP_US = 10.0
"""Kernels of a graph start a few microseconds after each other; a longer pause is worth seeing."""
GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch")
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
PYTHON_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
REPLAY_FRAMES = re.compile(r"torch/cuda/graphs\.py\(\d+\): replay|cudagraph_trees\.py\(\d+\): \w*copy_input\w*")


class TraceEvent(TypedDict, total=False):
    """The fields used of an event of a Chrome trace. Times are in microseconds."""

    ph: str
    cat: str
    name: str
    ts: float
    dur: float
    tid: int | str
    args: dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Caller:
    """A line that made a call; not ``exact`` if it is only the first line of the function."""

    file: str
    line: int
    function: str
    exact: bool = True


Callers: TypeAlias = Mapping[tuple[str, int], Caller]
"""By the name of a call and when it began, in nanoseconds of the trace."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of the CUDA API that launched kernels."""

    name: str
    thread: int | str
    at: float


def time_rows(row: Callable[[], Iterable[Callable[[], object]]]) -> Milliseconds | None:
    """Times of calls in their steady state, by CUDA events, over as many rows of them as it takes."""
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < MIN_SAMPLES and time.perf_counter() - started < MAX_SECONDS:
        for call in row():
            begin, end = new_event(), new_event()
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    times.sort()
    return Milliseconds(times[len(times) // 2], times[round(0.99 * (len(times) - 1))]) if times else None


def new_event() -> torch.cuda.Event:
    """An event that keeps the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def measure(call: Callable[[], object], generated: Generated) -> Coverage:
    """Profile one call, which must be in its steady state; ``generated`` is the code that it may run."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True) as profiler:
        call()
        torch.cuda.synchronize()
    trace = chrome_trace(profiler)
    callers = callers_of(event_tree(profiler), int(trace.get("baseTimeNanoseconds", 0)))
    return coverage_of(trace["traceEvents"], callers, generated)


def chrome_trace(profiler: profile) -> dict[str, Any]:
    """What a profiler recorded, as it exports it."""
    with tempfile.TemporaryDirectory(prefix="capturelint-") as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_bytes())
    return trace


def trace_of(call: Callable[[], object]) -> Sequence[TraceEvent]:
    """The events of one call on a GPU; what the host does beside its launches would slow them down."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events: Sequence[TraceEvent] = chrome_trace(profiler)["traceEvents"]
    return events


def device_work(trace: Iterable[TraceEvent]) -> Iterator[tuple[float, float, bool]]:
    """Start and end of every kernel and copy, in microseconds of the trace, and whether a graph launched it."""
    events = [event for event in trace if event.get("ph") == "X"]
    launches = launches_of(events)
    for event in events:
        if event.get("cat") in DEVICE_WORK:
            yield event["ts"], event["ts"] + event.get("dur", 0.0), launched_by_graph(event, launches)


def launches_of(events: Iterable[TraceEvent]) -> dict[int | str, Launch]:
    """Calls of the CUDA API by the number that ties what they launched to them."""
    return {
        event["args"]["correlation"]: Launch(event["name"], event.get("tid", 0), event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }


def event_tree(profiler: profile) -> Sequence[Any]:
    """The profiler's own tree; torch does not document it, so a version without it costs the exact lines only."""
    tree = getattr(getattr(profiler.profiler, "kineto_results", None), "experimental_event_tree", None)
    return tree() if tree is not None else ()


def callers_of(roots: Sequence[Any], base_ns: int) -> Callers:
    """The line that each Python call was made from. Times count from ``base_ns``, as the trace's do."""
    found: dict[tuple[str, int], Caller] = {}
    waiting = [*roots]
    while waiting:
        event = waiting.pop()
        waiting += event.children
        caller = getattr(event.extra_fields, "caller", None)
        if caller is not None:
            found[event.name, event.start_time_ns - base_ns] = Caller(
                caller.file_name, caller.line_number, caller.function_name
            )
    return found


def coverage_of(
    trace: Iterable[TraceEvent], callers: Callers = MappingProxyType({}), generated: Generated | None = None
) -> Coverage:
    """Kernels by who launched them."""
    events = [event for event in trace if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = launches_of(events)
    inside = [kernel for kernel in kernels if launched_by_graph(kernel, launches)]
    outside = [kernel for kernel in kernels if not launched_by_graph(kernel, launches)]
    frames = [event for event in events if event.get("cat") == "python_function"]
    stacks = [(kernel, stack_of(launches.get(correlation(kernel)), frames)) for kernel in outside]
    gaps = [(kernel, stack) for kernel, stack in stacks if not any(REPLAY_FRAMES.search(e["name"]) for e in stack)]
    return Coverage(
        kernels_in_graphs=len(inside),
        kernels=len(inside) + len(gaps),
        graph_launches=sum(bool(GRAPH_LAUNCH.match(launch.name)) for launch in launches.values()),
        replay_kernels=len(outside) - len(gaps),
        outside=summed(gaps, callers, generated or Generated()),
        timeline=timeline_of(kernels, launches),
    )


def timeline_of(kernels: Sequence[TraceEvent], launches: Mapping[int | str, Launch]) -> tuple[Span, ...]:
    """Kernels in time, those of one kind that are at most ``GAP_US`` apart as one span."""
    spans: list[Span] = []
    ordered = sorted(kernels, key=lambda kernel: kernel["ts"])
    for kernel in ordered:
        start = round(kernel["ts"] - ordered[0]["ts"], 1)
        end, inside = round(start + kernel.get("dur", 0.0), 1), launched_by_graph(kernel, launches)
        last = spans[-1] if spans else None
        if last is not None and last.in_graph is inside and start - last.end_us <= GAP_US:
            spans[-1] = Span(last.start_us, max(end, last.end_us), last.kernels + 1, inside)
        else:
            spans.append(Span(start, end, 1, inside))
    return tuple(spans)


def correlation(kernel: TraceEvent) -> int | str:
    """What ties a kernel to the call that launched it."""
    return kernel.get("args", {}).get("correlation", -1)


def launched_by_graph(kernel: TraceEvent, launches: Mapping[int | str, Launch]) -> bool:
    """The kernel is a node of a graph."""
    launch = launches.get(correlation(kernel))
    if launch is not None:
        return bool(GRAPH_LAUNCH.match(launch.name))
    return bool(kernel.get("args", {}).get("graph id"))


def stack_of(launch: Launch | None, frames: Sequence[TraceEvent]) -> list[TraceEvent]:
    """The Python calls that a launch happened in, outermost first."""
    if launch is None:
        return []
    around = [
        frame
        for frame in frames
        if frame.get("tid") == launch.thread and frame["ts"] <= launch.at <= frame["ts"] + frame.get("dur", 0.0)
    ]
    return sorted(around, key=lambda frame: frame["ts"])


def summed(
    gaps: Sequence[tuple[TraceEvent, list[TraceEvent]]], callers: Callers, generated: Generated
) -> tuple[OutsideKernel, ...]:
    """Kernels outside graphs by name and user line, most frequent first."""
    counts = Counter((kernel["name"], innermost_user_line(stack, callers, generated)) for kernel, stack in gaps)
    return tuple(
        OutsideKernel(name, count, from_here(at.file), at.line, at.function, at.exact)
        if at is not None
        else OutsideKernel(name, count, exact=False)
        for (name, at), count in counts.most_common()
    )


def innermost_user_line(stack: Sequence[TraceEvent], callers: Callers, generated: Generated) -> Caller | None:
    """The innermost line of user code that made the call, else the innermost function that is user code.

    A line that called code which Inductor generated stands for all that was fused there, so it is not exact.
    """
    through_generated = False
    for event in reversed(stack):
        found = PYTHON_FRAME.match(event["name"])
        if found is not None and (path := user_file(found["file"], generated)) is not None:
            return Caller(path, int(found["line"]), resumed(found["function"]), exact=False)
        if (caller := caller_of(event, callers)) is None:
            continue
        if caller.file in generated.files:
            if (source := source_of(caller, generated)) is not None:
                return source
            through_generated = True
        elif (path := user_file(caller.file, generated)) is not None:
            return Caller(path, caller.line, resumed(caller.function), exact=not through_generated)
    return None


def resumed(function: str) -> str:
    """The user's function of ``torch_dynamo_resume_in_step_at_8``, which runs what follows a graph break."""
    found = RESUMED.match(function)
    return found["function"] if found else function


def caller_of(event: TraceEvent, callers: Callers) -> Caller | None:
    """The line that a call of the trace was made from. A float of the trace may be off by a nanosecond."""
    start = round(event["ts"] * 1000)
    return next(
        (callers[event["name"], at] for at in range(start - 2, start + 3) if (event["name"], at) in callers), None
    )


def source_of(caller: Caller, generated: Generated) -> Caller | None:
    """The user's line that a line of Inductor's generated code comes from."""
    for file, line, function in generated.frames(caller.file, caller.line):
        if (path := user_file(file, generated)) is not None:
            return Caller(path, line, resumed(function))
    return None


def user_file(file: str, generated: Generated) -> str | None:
    """The path of a file that is user code, ``None`` for any other."""
    if file.startswith(("<", "torch/", "capturelint/", "contextlib.py")) or file in generated.files:
        return None
    path = absolute(file)
    return None if LIBRARY.search(path) else path


def absolute(file: str) -> str:
    """The profiler cuts the import path off; put it back where the file then exists."""
    if Path(file).is_absolute():
        return file
    roots = (Path(root or ".") for root in sys.path)
    return next((str(root / file) for root in roots if (root / file).is_file()), file)
