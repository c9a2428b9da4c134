"""One bucket from reference to verdict: eager twice, capture, replay, compare, and why not.

A refused capture leaves the process unfit, so its result says ``unfit`` and the worker ends after sending it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from capturelint.errors import TargetError
from capturelint.runtime.capture import Captured, Pool, capture, own_memory
from capturelint.runtime.channel import Channel, silent_channel
from capturelint.runtime.compare import argmax_flips, argmax_margin, compare, has_nan, step_error, tolerance
from capturelint.runtime.distribution import ERROR_PROBABILITY, NUM_SAMPLES, draws, is_one_distribution
from capturelint.runtime.eager import Run, check_inputs, run_eager
from capturelint.runtime.explain import Bench, explain
from capturelint.runtime.forks import Forks
from capturelint.runtime.homes import Slot
from capturelint.runtime.observations import BucketResult, Observation
from capturelint.runtime.outputs import Leaf
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Plan, Stage
from capturelint.runtime.replay import run_replay
from capturelint.runtime.rewind import Memory
from capturelint.runtime.states import Origin, UnequalCopiesError, seeded
from capturelint.runtime.target import Target
from capturelint.runtime.timeline import Operations
from capturelint.runtime.trace import Call, Recorder
from capturelint.runtime.witness import aftermath, first_line, is_broken, is_out_of_memory, refusal
from capturelint.vocabulary import ObservationKind, Verdict

FROZEN = {
    ObservationKind.RANDOM_FROZEN,
    ObservationKind.SCALAR_CHANGED,
    ObservationKind.CALL_CHANGED,
    ObservationKind.BRANCH_CHANGED,
}
"""What a later eager step does otherwise than the captured one, whatever it computes."""


@dataclass(frozen=True, slots=True)
class Session:
    """What all buckets of a worker share. ``numbers`` are those of the target's modules, as ``build`` left them."""

    plan: Plan
    target: Target
    origin: Origin
    project: Project
    channel: Channel
    numbers: Sequence[Slot] = ()

    def fresh(self, bucket: int) -> object:
        """A state ready for a bucket's first step."""
        state = self.origin.fresh()
        self.target.prepare(state, bucket)
        return state


@dataclass(frozen=True, slots=True)
class Reference:
    """The eager truth: outputs, how far two eager runs are apart, and the calls of the step to be captured.

    ``leaks`` says that the step writes memory that is none of the state's own: globals, mostly, and parameters, which
    copies of a state share. ``nbytes`` is what the step reads of the memory that was there before it, each byte once.
    """

    run: Run
    noise: float
    tolerance: float
    calls: Sequence[Call]
    leaks: bool = False
    nbytes: int = 0

    @property
    def is_repeatable(self) -> bool:
        """Whether two eager runs from one start are no further apart than rounding."""
        return self.noise <= tolerance(self.run.outputs[0], 0.0)


@dataclass(frozen=True, slots=True)
class Judged:
    """A bucket's result, and the graph where there is one. ``unfit``: this process can verify nothing more.

    ``is_exact``: a right replay gives eager's numbers, and not only numbers as random as those.
    """

    result: BucketResult
    captured: Captured | None = None
    reference: Reference | None = None
    unfit: bool = False
    is_exact: bool = True

    @property
    def is_right(self) -> bool:
        """Whether the replay equals eager."""
        return self.result.verdict is Verdict.OK


def verify_bucket(session: Session, bucket: int, pool: Pool = None) -> Judged:
    """Capture and replay one bucket. Lets errors of the target's own eager steps through."""
    reference = make_reference(session, bucket)
    forks = Forks(session.project)
    recorder = Recorder(session.project)
    watching = watch(forks, recorder if session.plan.traced else None)
    try:
        captured = capture(
            session.target,
            session.fresh(bucket),
            bucket,
            session.plan.warm_up,
            session.channel,
            pool,
            watching,
            leaks=reference.leaks,
        )
    except BaseException as error:  # the target may raise anything, sys.exit included, while it is captured
        if session.channel.now.stage is not Stage.CAPTURE:
            raise
        return refused(session, bucket, reference, error, forks, recorder)
    return replay_and_judge(session, bucket, reference, captured)


def replay_and_judge(session: Session, bucket: int, reference: Reference, captured: Captured) -> Judged:
    """Replay against the reference. A replay that raises is wrong whatever it computed before."""
    expected = reference.run.outputs

    def is_wrong(step: int, outputs: Sequence[Leaf]) -> bool:
        return not step_error(expected[step], outputs) <= reference.tolerance

    # A replay can take the device with it (an index beyond the cache), so the second attempt looks for causes first.
    causes = explanation(session, bucket) if session.plan.traced else []
    try:
        run = run_replay(session.target, captured, bucket, replayed(session.plan), session.channel, is_wrong)
    except (RuntimeError, IndexError) as error:
        if session.channel.now.stage is not Stage.REPLAY:
            raise
        text = first_line(error)
        message = f"replay fails in step {session.channel.now.step}, where eager does not: {text}"
        found = causes or ([] if is_broken(error) else explanation(session, bucket))
        seen = tuple(found) or (Observation(ObservationKind.VALUES_DIFFER, message, step=session.channel.now.step),)
        result = BucketResult(bucket, Verdict.REPLAY_DIFFERS, message=message, observations=seen, is_lost=True)
        return Judged(result, unfit=True)
    return judge(session, bucket, reference, captured, run)


def replayed(plan: Plan) -> range:
    """The steps that are replayed."""
    return range(plan.warm_up, plan.steps)


def watch(forks: Forks, recorder: Recorder | None) -> Callable[[], AbstractContextManager[object]]:
    """What looks on while a step is captured."""

    @contextmanager
    def watching() -> Iterator[None]:
        with forks.watching():
            if recorder is None:
                yield
                return
            with recorder:
                yield

    return watching


def make_reference(session: Session, bucket: int) -> Reference:
    """Two eager runs. Raises ``TargetError`` where they leave nothing to compare a replay with."""
    plan = session.plan
    run = run_eager(session.target, session.fresh(bucket), bucket, range(plan.steps), session.channel)
    check_inputs(session.target, bucket, plan.warm_up)
    for step, outputs in enumerate(run.outputs):
        if has_nan(outputs):
            raise TargetError(f"step returns NaN without any capture, in step {step} at batch {bucket}")
    again, recorder, leaks = run_again(session, bucket)
    noise = compare(run.outputs, again.outputs).worst
    if noise > tolerance(run.outputs[0], 0.0) and session.origin.original is not None:
        raise UnequalCopiesError
    if not math.isfinite(noise):
        raise TargetError(
            f"two eager runs from the same state return other shapes or infinities at batch {bucket}; "
            "nothing can be compared"
        )
    allowed = plan.tolerance if plan.tolerance is not None else tolerance(run.outputs[0], noise)
    return Reference(run, noise, allowed, recorder.calls, leaks, sum(recorder.reads.values()))


def run_again(session: Session, bucket: int) -> tuple[Run, Recorder, bool]:
    """The second eager run, with the calls of the step that will be captured, and whether it writes what it shares."""
    plan, state = session.plan, session.fresh(bucket)
    run = run_eager(session.target, state, bucket, range(plan.warm_up), session.channel)
    recorder = Recorder(session.project)
    at = range(plan.warm_up, plan.warm_up + 1)
    traced = run_eager(session.target, state, bucket, at, session.channel, watching=recorder)
    leaks = not recorder.written.keys() <= own_memory(state) | recorder.made
    rest = run_eager(session.target, state, bucket, range(plan.warm_up + 1, plan.steps), session.channel)
    run.outputs.extend(traced.outputs + rest.outputs)
    return run, recorder, leaks


def refused(
    session: Session, bucket: int, reference: Reference, error: BaseException, forks: Forks, recorder: Recorder
) -> Judged:
    """The result of a capture that raised."""
    if is_out_of_memory(error):
        message = first_line(error) or type(error).__name__
        return Judged(BucketResult(bucket, Verdict.OUT_OF_MEMORY, message=message), unfit=True)
    calls = [call for call in recorder.calls if call.failed] or reference.calls
    seen = refusal(error, session.project, calls, forks.unjoined, session.plan.warm_up)
    seen = aftermath(seen, recorder.calls, forks.queried)
    if not seen.spots and recorder.calls:
        seen = replace(seen, spots=next((call.spots for call in recorder.calls if call.failed), ()))
    result = BucketResult(
        bucket,
        Verdict.CAPTURE_ERROR,
        noise=reference.noise,
        tolerance=reference.tolerance,
        message=seen.text,
        observations=(seen,),
        is_lost=True,
    )
    return Judged(result, reference=reference, unfit=True)


def judge(session: Session, bucket: int, reference: Reference, captured: Captured, run: Run) -> Judged:
    """Compare a replay with the reference, and explain a difference."""
    expected = reference.run.outputs[run.first :]
    comparison = compare(expected, run.outputs)
    at = comparison.first_above(reference.tolerance)
    result = BucketResult(
        bucket,
        Verdict.OK if at is None else Verdict.REPLAY_DIFFERS,
        steps=len(run.outputs),
        max_error=comparison.worst,
        noise=reference.noise,
        tolerance=reference.tolerance,
        argmax_flips=argmax_flips(expected, run.outputs),
        argmax_margin=argmax_margin(expected),
        step_errors=comparison.errors,
        first_step=run.first,
        operations=operations(captured, reference.calls),
    )
    if at is None:
        return Judged(result if reference.is_repeatable else doubted(session, result), captured, reference)
    step = run.first + at
    message = f"replay differs from eager from step {step} on, by {comparison.errors[at]:.2g} of the largest value"
    found = explanation(session, bucket)
    if not any(each.spots for each in found) and draws(reference.calls):
        if is_equal_in_distribution(session, bucket, captured, reference, step):
            said = f"draws other numbers than eager from step {step} on, {SAME_DISTRIBUTION}"
            return Judged(replace(result, verdict=Verdict.OK, probes=(said,)), captured, reference, is_exact=False)
        message += "; its random numbers are of another distribution too"
    unseen = f"{message}; the calls of a later eager step have the numbers, shapes and homes of the capture's"
    observations = tuple(found) or (Observation(ObservationKind.VALUES_DIFFER, unseen, step=step),)
    return Judged(replace(result, message=message, observations=observations), captured, reference)


SAMPLES_TOLD = 16
SAME_DISTRIBUTION = (
    f"of the same distribution in {NUM_SAMPLES} runs (a right replay is refused with probability "
    f"{ERROR_PROBABILITY:g} at most); the probes need equal numbers"
)


def is_equal_in_distribution(
    session: Session, bucket: int, captured: Captured, reference: Reference, last: int
) -> bool:
    """Whether replays up to step ``last`` are drawn as eager ones are, from the captured step's state."""
    steps = range(captured.first, last + 1)
    state = session.fresh(bucket)
    run_eager(session.target, state, bucket, range(captured.first), session.channel)
    memory = Memory(state)
    memory.remember()

    def eager(seed: int) -> Sequence[Leaf]:
        memory.rewind()
        with seeded(seed), told(session, bucket, seed) as channel:
            return run_eager(session.target, state, bucket, steps, channel).outputs[-1]

    def replay(seed: int) -> Sequence[Leaf]:
        captured.rewind()
        with seeded(seed), told(session, bucket, seed) as channel:
            return run_replay(session.target, captured, bucket, steps, channel).outputs[-1]

    return captured.start is not None and is_one_distribution(eager, replay, reference.tolerance)


@contextmanager
def told(session: Session, bucket: int, sample: int) -> Iterator[Channel]:
    """A channel for the steps of one sample, of which only some are told as progress."""
    if sample % SAMPLES_TOLD == 0:
        session.channel.enter(Stage.REPLAY, bucket, sample)
    with silent_channel() as channel:
        yield channel


def doubted(session: Session, result: BucketResult) -> BucketResult:
    """The result where eager does not repeat itself, so that equality within its noise says little.

    What makes eager differ may be what a capture freezes: a draw from a generator that no seed of torch reaches.
    """
    found = tuple(each for each in explanation(session, result.size) if each.kind in FROZEN and each.spots)
    if not found:
        return result
    message = f"two eager runs are {result.noise:.2g} of the largest value apart, by what a capture freezes"
    return replace(result, verdict=Verdict.REPLAY_DIFFERS, message=message, observations=found)


def operations(captured: Captured, calls: Sequence[Call]) -> tuple[Operations, ...]:
    """What one replayed step runs, in order: its inputs are copied in, then the graph runs what was captured.

    ``calls`` are those of the eager step.
    """
    inputs = sum(isinstance(value, torch.Tensor) for value in captured.static.values())
    step = (call for call in calls if call.spots and not call.is_view)
    grouped = [Operations(name, len(list(group))) for name, group in groupby(call.spots[-1].name for call in step)]
    return (Operations("the inputs", inputs, in_graph=False), *grouped) if inputs else tuple(grouped)


def explanation(session: Session, bucket: int, target: Target | None = None) -> list[Observation]:
    """The causes of a difference; the verdict stands where looking for them fails."""
    try:
        return explain(bench_of(session, bucket, target))
    except Exception as error:  # noqa: BLE001 - the target's code runs again here and may raise anything
        return [Observation(ObservationKind.VALUES_DIFFER, f"looking for the cause failed: {first_line(error)}")]


def bench_of(session: Session, bucket: int, target: Target | None = None) -> Bench:
    """What the explaining runs of a bucket need; ``target`` stands in for the session's, with other inputs."""
    plan = session.plan
    return Bench(
        target or session.target,
        lambda: session.fresh(bucket),
        bucket,
        plan.warm_up,
        plan.steps,
        session.channel,
        session.project,
    )
