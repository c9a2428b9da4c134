"""What the GPU did during eager and replayed steps, from the profiler's (kineto's) record: kernels, and when it worked.

Kept to the end of a worker's life: tracing slows every later launch down, and is known to disturb graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from capturelint.compiler.coverage import device_work, trace_of
from capturelint.runtime.bucket import Session
from capturelint.runtime.capture import Captured, copy_inputs
from capturelint.runtime.eager import make_inputs, run_eager
from capturelint.runtime.timeline import Stretch, Timeline, timeline_of

STEPS = 3
COPIES = ("Memcpy", "Memset")


@dataclass(frozen=True, slots=True)
class Work:
    """Something that the GPU did, in nanoseconds."""

    name: str
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class Activity:
    """One step's part of what was traced."""

    kernels: int
    busy_ms: float


def eager_activity(session: Session, bucket: int) -> Activity | None:
    """Trace some eager steps; ``None`` where this machine has no tracing."""
    state, first = session.fresh(bucket), session.plan.warm_up
    run_eager(session.target, state, bucket, range(first), session.channel)
    steps = range(first, min(first + STEPS, session.plan.steps))
    given = [make_inputs(session.target, bucket, step) for step in steps]
    torch.cuda.synchronize()
    with contextlib.suppress(RuntimeError, AttributeError):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler, torch.no_grad():
            for inputs in given:
                session.target.step(state, **inputs)
            torch.cuda.synchronize()
        results = getattr(profiler.profiler, "kineto_results", None)
        return activity_of(
            (
                Work(event.name(), event.start_ns(), event.duration_ns())
                for event in (results.events() if results is not None else ())
                if str(event.device_type()).endswith("CUDA")
            ),
            len(steps),
        )
    return None


def eager_timeline(session: Session, bucket: int) -> Timeline | None:
    """When the GPU works in one eager step."""
    state, first = session.fresh(bucket), session.plan.warm_up
    run_eager(session.target, state, bucket, range(first), session.channel)
    inputs = make_inputs(session.target, bucket, first)
    return traced(lambda: session.target.step(state, **inputs))


def replay_timeline(session: Session, bucket: int, captured: Captured) -> Timeline | None:
    """When the GPU works in one replayed step: the copies of its inputs, then the graph."""
    inputs = make_inputs(session.target, bucket, captured.first)
    captured.rewind()

    def replayed() -> None:
        copy_inputs(captured.static, inputs, captured.first)
        captured.graph.replay()

    return traced(replayed)


def traced(step: Callable[[], object]) -> Timeline | None:
    """Profile one step; ``None`` where this machine has no tracing.

    The step is made twice, and the second one told: the first launch of a graph under a tracer takes milliseconds.
    """

    def twice() -> None:
        for _ in range(2):
            step()
            torch.cuda.synchronize()

    torch.cuda.synchronize()
    with contextlib.suppress(RuntimeError, AttributeError), torch.no_grad():
        work = sorted(device_work(trace_of(twice)))
        return timeline_of([Stretch(start, end, in_graph) for start, end, in_graph in work[len(work) // 2 :]])
    return None


def activity_of(work: Iterable[Work], steps: int) -> Activity | None:
    """Kernels a step, and milliseconds a step in which at least one kernel or copy ran; ``None`` for no work."""
    done = sorted(work, key=lambda each: each.start)
    kernels = sum(not each.name.startswith(COPIES) for each in done)
    if not kernels:
        return None
    busy = end = 0
    for each in done:
        stop = each.start + each.duration
        busy += max(0, stop - max(each.start, end))
        end = max(end, stop)
    return Activity(round(kernels / steps), busy / steps / 1e6)
