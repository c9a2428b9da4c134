"""One bucket's step compiled, in this process: against eager, and against itself without graphs.

Fusion rounds elsewhere than eager does and draws its own random numbers, so a compiled step that is far from eager
proves nothing about graphs. Where it is, the same code is run without graphs: only a difference between those two is
a fault of the replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch._dynamo

from capturelint.compiler.collect import Program, collect
from capturelint.compiler.report import CompiledBucket, CompileReport, Milliseconds
from capturelint.runtime import states
from capturelint.runtime.bucket import Reference, Session, make_reference
from capturelint.runtime.capture import capture
from capturelint.runtime.channel import Channel
from capturelint.runtime.compare import compare, step_error, tolerance
from capturelint.runtime.eager import make_inputs, run_eager
from capturelint.runtime.homes import homes
from capturelint.runtime.measure import quantiles, time_replay
from capturelint.runtime.outputs import Leaf, keep, leaves
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Plan
from capturelint.runtime.replay import run_replay
from capturelint.runtime.rewind import Memory
from capturelint.runtime.service import load_target
from capturelint.runtime.target import Inputs, Target
from capturelint.runtime.witness import first_line

COMPILED_FACTOR = 4.0
"""Fused kernels keep what eager rounds between two of its own; their error may be this many times a replay's."""
NUM_STEPS_CPU = 4
NUM_NAMED = 2
"""Slots that a note names before it counts the rest."""
MIN_REPLAYED = 2
"""Steps behind the warm-up that a target must be able to make."""


def on_cpu(plan: Plan) -> CompileReport:
    """What a machine without a GPU can show."""
    bucket = plan.buckets[0]
    target = load_target(plan)

    def fresh() -> object:
        state = target.build("cpu")
        target.prepare(state, bucket)
        return state

    def inputs(number: int) -> Inputs:
        made = target.inputs(bucket, number, "cpu")
        return {name: value.to("cpu") if isinstance(value, torch.Tensor) else value for name, value in made.items()}

    made = made_on_cpu(target, fresh(), inputs)
    state = fresh()
    memory = Memory(state)
    num_eager = int(bool(made))
    program = Program(
        on_state(target, state),
        inputs,
        NUM_STEPS_CPU + num_eager,
        num_eager,
        num_eager,
        remember=memory.remember,
        rewind=memory.rewind,
    )
    return noted(collect(program, "cpu", bucket), made)


def made_on_cpu(target: Target, state: object, inputs: Callable[[int], Inputs]) -> list[str]:
    """What the first step makes in a state on the CPU; nothing where it cannot run there, which is told later."""
    try:
        with torch.no_grad():
            return made_by_first(state, lambda number: target.step(state, **inputs(number)))
    except Exception:  # noqa: BLE001  the compiled step raises the same, and that is reported
        return []


def made_by_first(state: object, run: Callable[[int], object]) -> list[str]:
    """The slots that the first step makes in a state, where the second makes none: what is built lazily, as caches are.

    ``run(n)`` runs step ``n``.
    """
    names = [[home.name for home in homes(state)]]
    for number in range(2):
        run(number)
        names.append([home.name for home in homes(state)])
    before, made, after = names
    return [name for name in made if name not in before] if set(after) <= set(made) else []


def noted(report: CompileReport, made: list[str]) -> CompileReport:
    """The report of a run whose first step was eager, if it was.

    Compiled, a step would build its state in the memory of its graphs, and the second would find that overwritten: the
    H200 of docs/measurements.md refuses transformers' ``StaticCache`` then. Programs run a prefill before.
    """
    if not made:
        return report
    more = f" and {len(made) - NUM_NAMED} more" if len(made) > NUM_NAMED else ""
    named = ", ".join(f"`{name}`" for name in made[:NUM_NAMED])
    note = (
        f"the first step builds {named}{more}, so it ran eager, as a prefill does: what compiled code builds lies in "
        "memory that its next step overwrites"
    )
    buckets = tuple(replace(bucket, notes=(*bucket.notes, note)) for bucket in report.buckets)
    return replace(report, buckets=buckets)


def on_state(target: Target, state: object) -> Callable[..., object]:
    """The target's step with its state given, as it is compiled."""

    def step(**inputs: object) -> object:
        return target.step(state, **inputs)

    return step


def on_gpu(plan: Plan, channel: Channel) -> CompileReport:
    """Everything: what became of the step, whether it replays right, and its times."""
    bucket = plan.buckets[0]
    target = load_target(plan)
    session = Session(plan, target, states.origin(lambda: target.build("cuda")), Project(target.roots), channel)
    session, reference = referenced(session, bucket)
    made = made_on_gpu(session, bucket)
    state = session.fresh(bucket)
    memory = Memory(state)
    seen = Seen(reference)
    num_eager = int(bool(made))
    program = Program(
        on_state(target, state),
        lambda number: make_inputs(target, bucket, number),
        session.plan.steps,
        num_eager,
        max(plan.warm_up, num_eager),
        memory.remember,
        memory.rewind,
        seen.observe,
    )
    report = collect(program, "cuda", bucket)
    result = replace(report.buckets[0], max_error=seen.worst, tolerance=seen.tolerance)
    if result.error is None:
        plain = compiled_plainly(session)
        result = without_graphs(plain, result, seen)
        result = compiled_and_captured(plain, result, seen)
    return noted(replace(report, buckets=(result,)), made)


def made_on_gpu(session: Session, bucket: int) -> list[str]:
    """What the first step makes in a state of its own, on the GPU."""
    state = session.fresh(bucket)
    return made_by_first(
        state, lambda number: run_eager(session.target, state, bucket, range(number, number + 1), session.channel)
    )


def referenced(session: Session, bucket: int) -> tuple[Session, Reference]:
    """Eager steps, from copies of the built state or else from builds of its own, as many of them as it can make."""
    plan = session.plan
    try:
        return session, make_reference(session, bucket)
    except Exception:
        failed = session.channel.now.step
        if session.origin.original is not None:
            return referenced(replace(session, origin=session.origin.rebuilt()), bucket)
        if failed is None or not plan.warm_up + MIN_REPLAYED <= failed < plan.steps:
            raise
    return referenced(replace(session, plan=replace(plan, steps=failed)), bucket)


@dataclass(slots=True)
class Seen:
    """The compiled outputs as they come, held against eager. ``outputs`` keeps those of the first row."""

    reference: Reference
    errors: list[float] = field(default_factory=list)
    outputs: list[list[Leaf]] = field(default_factory=list)

    @property
    def tolerance(self) -> float:
        """What fusion may differ by."""
        return COMPILED_FACTOR * tolerance(self.reference.run.outputs[0], self.reference.noise)

    @property
    def worst(self) -> float | None:
        """The largest error; ``None`` before the first output."""
        return max(self.errors, default=None)

    def observe(self, number: int, output: object) -> None:
        """Compare one step's output with eager's."""
        kept = keep(leaves(output))
        self.errors.append(step_error(self.reference.run.outputs[number], kept))
        if number == len(self.outputs):
            self.outputs.append(kept)


def without_graphs(plain: Session, result: CompiledBucket, seen: Seen) -> CompiledBucket:
    """Why a compiled step is far from eager: its graphs, or the compiled code itself."""
    if result.max_error is None or result.max_error <= seen.tolerance:
        return result
    steps = range(plain.plan.steps)
    runs = [
        run_eager(plain.target, plain.fresh(result.size), result.size, steps, plain.channel).outputs for _ in range(2)
    ]
    noise = compare(*runs).worst
    own = compare(runs[1], seen.outputs)
    allowed = tolerance(runs[1][0], noise)
    at = own.first_above(allowed)
    far = f"{result.max_error:.2g} of the largest value off eager"
    if at is None or not math.isfinite(noise):
        note = f"the compiled code is {far}, with and without graphs: its rounding, or its own random numbers"
        return replace(result, notes=(*result.notes, note))
    return replace(
        result,
        differs=f"the compiled step is {far}; from step {at} on its replay differs from the same code without graphs",
    )


def compiled_plainly(session: Session) -> Session:
    """The session with its step compiled without graphs."""
    torch._dynamo.reset()
    return replace(session, target=replace(session.target, step=torch.compile(session.target.step)))


def compiled_and_captured(plain: Session, result: CompiledBucket, seen: Seen) -> CompiledBucket:
    """Time the compiled step under a capture by hand. It is the last thing done: a refusal leaves the process unfit."""
    plan, size = plain.plan, result.size
    try:
        captured = capture(plain.target, plain.fresh(size), size, plan.warm_up, plain.channel)
        steps = range(plan.warm_up, plan.steps)
        replayed = run_replay(plain.target, captured, size, steps, plain.channel)
        error = compare(seen.outputs[plan.warm_up :], replayed.outputs).worst
        times = quantiles(time_replay(plain, size, captured)[0])
    except Exception as refusal:  # noqa: BLE001  the target's code runs here and may raise anything
        text = first_line(refusal)
        return replace(result, notes=(*result.notes, f"compiled and captured by hand: {text}"))
    if not error <= seen.tolerance:
        note = f"compiled and captured by hand: replay is {error:.2g} of the largest value off, so it is not timed"
        return replace(result, notes=(*result.notes, note))
    return replace(result, compiled_captured_ms=Milliseconds(times.p50, times.p99) if times else None)
