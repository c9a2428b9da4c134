"""The number that cannot lie: which kernels of a steady-state step were launched by a graph.

A profiler's trace ties each kernel to the call that launched it. Kernels that a replay launches itself, to copy inputs
into static buffers and to move random generators on, are counted apart: they are the price of a graph, not a gap.
The surprise: Python frames in the trace carry the line where the function begins, not the line that runs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

from capturelint.compiler.report import Coverage, Milliseconds, OutsideKernel, Span
from capturelint.logs.matcher import LIBRARY

NUM_TIMED = 50
GAP_US = 10.0
"""Kernels of a graph start a few microseconds after each other; a longer pause is worth seeing."""
GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch")
PYTHON_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
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
class Launch:
    """A call of the CUDA API that launched kernels."""

    name: str
    thread: int | str
    at: float


def time_calls(call: Callable[[], object]) -> Milliseconds:
    """Times of calls in their steady state, by CUDA events."""
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        for _ in range(NUM_TIMED)
    ]
    for begin, end in pairs:
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in pairs)
    return Milliseconds(times[len(times) // 2], times[round(0.99 * (len(times) - 1))])


def measure(call: Callable[[], object]) -> Coverage:
    """Profile one call, which must be in its steady state."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="capturelint-") as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return coverage_of(json.loads(path.read_bytes())["traceEvents"])


def coverage_of(trace: Iterable[TraceEvent]) -> Coverage:
    """Kernels by who launched them."""
    events = [event for event in trace if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = {
        event["args"]["correlation"]: Launch(event["name"], event.get("tid", 0), event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    inside = [kernel for kernel in kernels if launched_by_graph(kernel, launches)]
    outside = [kernel for kernel in kernels if not launched_by_graph(kernel, launches)]
    frames = [event for event in events if event.get("cat") == "python_function"]
    stacks = [(kernel, stack_of(launches.get(correlation(kernel)), frames)) for kernel in outside]
    gaps = [(kernel, stack) for kernel, stack in stacks if not any(REPLAY_FRAMES.search(name) for name in stack)]
    return Coverage(
        kernels_in_graphs=len(inside),
        kernels=len(inside) + len(gaps),
        graph_launches=sum(bool(GRAPH_LAUNCH.match(launch.name)) for launch in launches.values()),
        replay_kernels=len(outside) - len(gaps),
        outside=summed(gaps),
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


def stack_of(launch: Launch | None, frames: Sequence[TraceEvent]) -> list[str]:
    """The names of the Python frames that a launch happened in, outermost first."""
    if launch is None:
        return []
    around = [
        frame
        for frame in frames
        if frame.get("tid") == launch.thread and frame["ts"] <= launch.at <= frame["ts"] + frame.get("dur", 0.0)
    ]
    return [frame["name"] for frame in sorted(around, key=lambda frame: frame["ts"])]


def summed(gaps: Sequence[tuple[TraceEvent, list[str]]]) -> tuple[OutsideKernel, ...]:
    """Kernels outside graphs by name and user function, most frequent first."""
    counts = Counter((kernel["name"], innermost_user_frame(stack)) for kernel, stack in gaps)
    return tuple(
        OutsideKernel(name, count, *(place or (None, None, None))) for (name, place), count in counts.most_common()
    )


def innermost_user_frame(stack: Sequence[str]) -> tuple[str, int, str] | None:
    """File, first line and name of the innermost function that is user code."""
    for name in reversed(stack):
        found = PYTHON_FRAME.match(name)
        if found is None or found["file"].startswith(("<", "torch/", "capturelint/", "contextlib.py")):
            continue
        path = absolute(found["file"])
        if not LIBRARY.search(path):
            return path, int(found["line"]), found["function"]
    return None


def absolute(file: str) -> str:
    """The profiler cuts the import path off; put it back where the file then exists."""
    if Path(file).is_absolute():
        return file
    roots = (Path(root or ".") for root in sys.path)
    return next((str(root / file) for root in roots if (root / file).is_file()), file)
