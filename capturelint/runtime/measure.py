"""What a captured step costs and what it is worth, on a real GPU only.

Eager and replayed steps are timed over the same decode steps, from states that are reset in between, so that a cursor
which a step advances never leaves its cache. Device times come from CUDA events, host times from the clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from capturelint.runtime.bucket import Session
from capturelint.runtime.capture import Captured, copy_inputs
from capturelint.runtime.eager import make_inputs
from capturelint.runtime.observations import BucketResult, Floor, Times
from capturelint.runtime.profile import eager_activity, eager_timeline, replay_timeline

MIN_SAMPLES = 100
MAX_SECONDS = 2.0
COPY_NBYTES = 1 << 30
COPY_ROUNDS = 10


def measured(session: Session, result: BucketResult, captured: Captured, pool_before: int = 0) -> BucketResult:
    """A result with times and sizes; ``pool_before`` is what the shared pool had before its capture."""
    replays, hosts = time_replay(session, result.size, captured)
    eager, eager_hosts = time_eager(session, result.size)
    return replace(
        result,
        graph_nodes=num_nodes(captured.graph),
        pool_bytes=pool_nbytes(captured.graph) - pool_before,
        capture_s=captured.seconds,
        eager_ms=quantiles(eager),
        replay_ms=quantiles(replays),
        host_ms=quantiles(hosts),
        eager_host_ms=quantiles(eager_hosts),
    )


def profiled(session: Session, result: BucketResult) -> BucketResult:
    """A measured result with what the profiler saw of its eager step."""
    activity = eager_activity(session, result.size)
    if activity is None or result.eager_ms is None:
        return result
    return replace(result, kernels=activity.kernels, busy_share=min(1.0, activity.busy_ms / result.eager_ms.p50))


def timed_lines(session: Session, result: BucketResult, captured: Captured) -> BucketResult:
    """A measured result with one eager and one replayed step in time. Nothing is replayed after this."""
    return replace(
        result,
        eager_timeline=eager_timeline(session, result.size),
        replay_timeline=replay_timeline(session, result.size, captured),
    )


def time_replay(session: Session, bucket: int, captured: Captured) -> tuple[list[float], list[float]]:
    """Device and host milliseconds of a replay; host time counts the copy of the inputs and the launch."""
    steps = range(captured.first, session.plan.steps)
    given = [make_inputs(session.target, bucket, step) for step in steps]
    device: list[float] = []
    host: list[float] = []
    started = time.perf_counter()
    while len(device) < MIN_SAMPLES and time.perf_counter() - started < MAX_SECONDS:
        captured.rewind()
        for step, inputs in zip(steps, given, strict=True):
            torch.cuda.synchronize()
            before = time.perf_counter()
            copy_inputs(captured.static, inputs, step)
            device.append(timed(captured.graph.replay, host, before))
    return device, host


def time_eager(session: Session, bucket: int) -> tuple[list[float], list[float]]:
    """Device and host milliseconds of an eager step; warm-up steps left out.

    The device's include the launches that it waits for, the host's end with the last launch.
    """
    device: list[float] = []
    host: list[float] = []
    started = time.perf_counter()
    while len(device) < MIN_SAMPLES and time.perf_counter() - started < MAX_SECONDS:
        state = session.fresh(bucket)
        for step in range(session.plan.steps):
            inputs = make_inputs(session.target, bucket, step)
            torch.cuda.synchronize()
            hosts: list[float] = []
            with torch.no_grad():
                took = timed(partial(session.target.step, state, **inputs), hosts, time.perf_counter())
            if step >= session.plan.warm_up:
                device.append(took)
                host += hosts
    return device, host


def timed(run: Callable[[], object], host: list[float], before: float) -> float:
    """Milliseconds between two events around ``run``; adds the host's milliseconds since ``before``."""
    start, end = new_event(), new_event()
    start.record()
    run()
    end.record()
    host.append((time.perf_counter() - before) * 1000)
    end.synchronize()
    return float(start.elapsed_time(end))


def new_event() -> torch.cuda.Event:
    """An event that keeps the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def quantiles(samples: Sequence[float]) -> Times | None:
    """The median and the 99th percentile."""
    if not samples:
        return None
    ordered = sorted(samples)
    return Times(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))])


def num_nodes(graph: torch.cuda.CUDAGraph) -> int | None:
    """Nodes of a graph that torch kept (2.8 and later), asked of the driver."""
    try:
        handle = graph.raw_cuda_graph()
        count = ctypes.c_size_t(0)
        failed = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(handle), None, ctypes.byref(count))
    except (AttributeError, OSError, RuntimeError):
        return None
    return None if failed else int(count.value)


def pool_nbytes(graph: torch.cuda.CUDAGraph) -> int:
    """Device memory of the pool that the graph belongs to."""
    pool = tuple(graph.pool())
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(int(segment["total_size"]) for segment in segments if tuple(segment.get("segment_pool_id", ())) == pool)


def floor_of(nbytes: int) -> Floor | None:
    """The time to read ``nbytes`` at the bandwidth that a copy reaches here; ``None`` where no copy has room."""
    bandwidth = copy_bandwidth() if nbytes else None
    return None if bandwidth is None else Floor(nbytes, bandwidth)


def copy_bandwidth() -> float | None:
    """Bytes a second that a large device copy reads and writes; a smaller one where ``--memory-limit`` asks for it."""
    for nbytes in (COPY_NBYTES, COPY_NBYTES // 4, COPY_NBYTES // 16):
        with contextlib.suppress(torch.OutOfMemoryError):
            source = torch.empty(nbytes // 4, dtype=torch.int32, device="cuda")
            target = torch.empty_like(source)
            took = [timed(partial(target.copy_, source), [], 0.0) for _ in range(COPY_ROUNDS)]
            return 2 * nbytes / (min(took) / 1000)
    return None
