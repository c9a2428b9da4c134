"""What equality of a quiet run can miss: a right replay is run again under worse conditions.

Each probe starts from where the captured step starts. It says what it tried, or gives observations; the first that
gives any ends the bucket's probing, since a replay that went wrong may write where it must not. A server does all of
this to a graph: its other graphs write into freed memory, its requests come in any order, its rows are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from capturelint.runtime.bucket import Reference, Session, bench_of, explanation, replayed
from capturelint.runtime.capture import Captured, can_check_liveness, capture, copy_inputs
from capturelint.runtime.compare import compare, has_nan, step_error
from capturelint.runtime.eager import make_inputs, run_eager
from capturelint.runtime.early import early_branches
from capturelint.runtime.explain import captured_trace, explain_moves
from capturelint.runtime.homes import homes
from capturelint.runtime.liveness import Liveness, freed_memory
from capturelint.runtime.observations import BucketResult, Observation, Spot
from capturelint.runtime.outputs import Leaf, keep, leaves
from capturelint.runtime.padding import find_leak, leak_observation
from capturelint.runtime.poison import FreeMemory, poison_outputs, poison_pool, storage
from capturelint.runtime.project import text_of
from capturelint.runtime.protocol import Stage
from capturelint.runtime.replay import run_replay
from capturelint.runtime.states import RandomState
from capturelint.runtime.target import Inputs, Target
from capturelint.runtime.trace import Call, Recorder
from capturelint.runtime.varied import can_scale, constants, far_order, moved_target, varied_target
from capturelint.runtime.witness import first_line, is_broken
from capturelint.vocabulary import ObservationKind, Verdict

REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AssertionError, AttributeError)
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_"}


@dataclass(frozen=True, slots=True)
class Kept:
    """A bucket that replays right, with what it takes to replay it again."""

    result: BucketResult
    captured: Captured
    reference: Reference

    @property
    def size(self) -> int:
        """The batch size."""
        return self.result.size

    def error(self, step: int, outputs: Sequence[Leaf]) -> float:
        """How far a replayed step is from eager."""
        return step_error(self.reference.run.outputs[step], outputs)

    def is_wrong(self, step: int, outputs: Sequence[Leaf]) -> bool:
        """Whether a replayed step is too far from eager; NaN is."""
        return not self.error(step, outputs) <= self.reference.tolerance


@dataclass(frozen=True, slots=True)
class Seen:
    """What one probe has to say: ``said`` is empty where it could not be run, ``found`` where all is well."""

    said: str
    found: tuple[Observation, ...] = ()


Probe = Callable[[Session, Kept], Seen]


def probed(session: Session, kept: Kept, device: str) -> BucketResult:
    """The result after the probes that need one bucket alone.

    The emulator overwrites freed memory by itself at every replay, so that is not probed again.
    """
    names: list[str] = []
    unsure: list[Observation] = []
    for name, probe in PROBES.items():
        if name in OVERWRITTEN and device != "cuda":
            continue
        session.channel.enter(Stage.PROBE, kept.size)
        try:
            seen = probe(session, kept)
        except torch.OutOfMemoryError:
            seen = Seen(f"{name}: not tried, no memory is left")
        if any(each.sure for each in seen.found):
            return failed(replace(kept.result, probes=tuple(names)), seen.said, seen.found)
        unsure += seen.found
        if seen.said:
            names.append(seen.said)
    return replace(kept.result, probes=tuple(names), observations=tuple(unsure))


def failed(result: BucketResult, message: str, found: tuple[Observation, ...]) -> BucketResult:
    """The result of a bucket that only a probe found wrong."""
    return replace(result, verdict=Verdict.REPLAY_DIFFERS, message=message, observations=found)


def outputs_overwritten(session: Session, kept: Kept) -> Seen:
    """Output buffers hold NaN when a replay starts."""
    return overwritten(session, kept, poison_outputs, "outputs overwritten", "the output buffers")


def pool_overwritten(session: Session, kept: Kept) -> Seen:
    """Free memory of the graph's pool holds NaN when a replay starts."""
    return overwritten(session, kept, poison_pool, "pool overwritten", "freed memory of the graph's pool")


def overwritten(session: Session, kept: Kept, poison: Callable[[Captured], None], said: str, words: str) -> Seen:
    """Replays with ``poison`` in front of each; a step that gets another result reads what nobody wrote."""
    if not can_run(partial(poison, kept.captured)):
        return Seen("")
    step = first_wrong(session, kept, session.target, partial(poison, kept.captured))
    if step is None:
        return Seen(said)
    message = f"overwriting {words} before a replay changes step {step}"
    calls = captured_trace(bench_of(session, kept.size)).calls
    lines = list(dict.fromkeys(call.spots for call in calls if call.short in EMPTY and call.spots))
    found = [Observation(ObservationKind.MEMORY_UNDEFINED, message, spots, step=step) for spots in lines]
    return Seen(message, tuple(found) or (Observation(ObservationKind.VALUES_DIFFER, message, step=step),))


def free_memory_overwritten(session: Session, kept: Kept) -> Seen:
    """Memory that nobody holds has other values when a replay starts."""
    memory = FreeMemory()
    if not can_run(memory.overwrite):
        return Seen("")
    step = first_wrong(session, kept, session.target, memory.overwrite)
    if step is None:
        return Seen("free memory overwritten")
    message = (
        f"overwriting free memory before a replay changes step {step}: the graph reads what was freed, "
        "by a kernel that is no call of torch's"
    )
    return Seen(message, (Observation(ObservationKind.VALUES_DIFFER, message, step=step),))


def can_run(poison: Callable[[], None]) -> bool:
    """Whether the memory can be overwritten at all: an expanded output cannot, and torch's internals may change."""
    try:
        poison()
    except (RuntimeError, AttributeError, TypeError, KeyError):
        return False
    return True


def first_wrong(session: Session, kept: Kept, target: Target, before: Callable[[], None] = lambda: None) -> int | None:
    """The first step that a replay gets wrong if ``before`` runs in front of every launch."""
    kept.captured.rewind()
    steps = replayed(session.plan)
    run = run_replay(target, kept.captured, kept.size, steps, session.channel, kept.is_wrong, before, Stage.PROBE)
    return next((step for step, outputs in zip(steps, run.outputs, strict=False) if kept.is_wrong(step, outputs)), None)


def inputs_moved(session: Session, kept: Kept) -> Seen:
    """No input comes in memory that an earlier one had, as it does by luck while each is freed before the next."""
    held: list[Inputs] = []
    step = first_wrong(session, kept, moved_target(session.target, held))
    if step is None:
        return Seen("inputs reallocated")
    message = f"giving the inputs in other memory than at capture changes step {step}"
    found = [
        Observation(
            ObservationKind.INPUT_MOVED, f"{message}; `{name}` is read past its static buffer", spots, step=step
        )
        for name, spots in input_readers(session, kept.size)
    ]
    return Seen(message, tuple(found) or (Observation(ObservationKind.VALUES_DIFFER, message, step=step),))


def input_readers(session: Session, bucket: int) -> Iterator[tuple[str, tuple[Spot, ...]]]:
    """Inputs that an eager step reads in the memory in which ``inputs`` gave them, and the first line that does."""
    plan, state = session.plan, session.fresh(bucket)
    run_eager(session.target, state, bucket, range(plan.warm_up), session.channel)
    given = make_inputs(session.target, bucket, plan.warm_up)
    names = {storage(value): name for name, value in given.items() if isinstance(value, torch.Tensor)}
    static = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    recorder = Recorder(session.project)
    with torch.no_grad(), recorder:
        session.target.step(state, **static)
    said: set[str] = set()
    for call in recorder.calls:
        for tensor in call.tensors:
            name = names.get(tensor.address, "")
            if name and name not in said:
                said.add(name)
                yield name, call.spots


def inputs_varied(session: Session, kept: Kept) -> Seen:
    """Inputs unlike the capture's: steps from the far end backwards, and other values of what never changes."""
    steps, bucket = replayed(session.plan), kept.size
    order = far_order(session.target, steps)
    same = constants(session.target, bucket, steps)
    scaled = frozenset(name for name, value in same.items() if can_scale(value))
    target = varied_target(session.target, steps, order, scaled)
    try:
        expected = run_eager(target, session.fresh(bucket), bucket, range(session.plan.steps), session.channel)
    except REFUSALS as error:
        if is_broken(error):
            raise
        return Seen(f"inputs in another order not tried: eager raises {type(error).__name__}")
    expected.outputs = expected.outputs[steps.start :]
    if any(map(has_nan, expected.outputs)):
        return Seen("inputs in another order not tried: eager gives NaN")
    session.channel.enter(Stage.PROBE, bucket)
    kept.captured.rewind()
    run = run_replay(target, kept.captured, bucket, steps, session.channel, stage=Stage.PROBE)
    at = compare(expected.outputs, run.outputs).first_above(kept.reference.tolerance)
    if at is None:
        never = sorted(same.keys() - scaled)
        return Seen(f"inputs varied{f' but for {words(never)}, which never change' if never else ''}")
    message = (
        f"with the inputs of step {order[at]} a replay differs from eager, as it does not with those of the capture"
    )
    # The capture had the usual inputs: what it froze shows against the first step that has others.
    found = explanation(session, bucket, varied_target(session.target, steps[1:], order[1:], scaled))
    return Seen(message, tuple(found) or (Observation(ObservationKind.VALUES_DIFFER, message, step=steps[at]),))


def words(names: Sequence[str]) -> str:
    """Names in backticks, and how many more there are."""
    return ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def inputs_alive(session: Session, kept: Kept) -> Seen:
    """What the graph reads is still held, and every home is where it was, when the captured step is over."""
    bucket, plan = kept.size, session.plan
    state = session.fresh(bucket)
    liveness, before = Liveness(session.project), {}

    @contextmanager
    def watching() -> Iterator[None]:
        before.update({home.name: home.tensor.data_ptr() for home in homes(state)})
        with liveness:
            yield

    captured = capture(
        session.target, state, bucket, plan.warm_up, session.channel, kept.captured.graph.pool(), watching, probing=True
    )
    session.channel.enter(Stage.PROBE, bucket)
    dead = liveness.dead()
    if dead:
        message = f"the graph reads memory that is free before its first replay, in step {plan.warm_up}"
        return Seen(message, tuple(freed_memory(dead, plan.warm_up)))
    try:
        captured.graph.replay()
    except RuntimeError as error:
        if "dead tensor" not in text_of(error):
            raise
        message = first_line(error)
        return Seen(message, (Observation(ObservationKind.MEMORY_FREED, message, step=plan.warm_up),))
    after = {home.name: home.tensor.data_ptr() for home in homes(captured.state)}
    moved = [name for name, address in before.items() if after.get(name) != address]
    if moved and (found := explain_moves(bench_of(session, bucket))):
        return Seen(
            f"the captured step leaves {words(moved)} at another address, which the next step reads", tuple(found)
        )
    return Seen("inputs alive" + (" (by torch too)" if can_check_liveness() else "") + ", homes at their addresses")


def numbers_as_before(session: Session, kept: Kept) -> Seen:
    """The captured step does what it did when the host numbers that it moves were those of the steps before."""
    found = tuple(early_branches(session, kept.size, kept.captured.graph.pool()))
    if not found:
        return Seen("")
    step = found[0].step
    return Seen(f"with the host's numbers of step {step}, to which no replay goes back, eager takes another way", found)


def padding_ignored(session: Session, kept: Kept) -> Seen:
    """What padded rows hold changes no live row, of outputs and of the state."""
    if kept.size == 1:
        return Seen("")
    leak = find_leak(session, kept.size, kept.captured)
    if leak is None:
        return Seen("padding ignored")
    seen = leak_observation(session, kept.size, leak)
    return Seen(seen.text if seen.sure else f"padding changes live rows in step {leak.step}", (seen,))


POOL, FREE = "pool", "free memory"
OVERWRITTEN = (POOL, FREE)
PROBES: Mapping[str, Probe] = {
    "other memory": inputs_moved,
    "memory alive": inputs_alive,
    "outputs": outputs_overwritten,
    POOL: pool_overwritten,
    FREE: free_memory_overwritten,
    "other inputs": inputs_varied,
    "early numbers": numbers_as_before,
    "padding": padding_ignored,
}
"""A step that reads memory which it does not own goes wrong under every probe, by luck, so that is looked for first."""


def interleaved(session: Session, kept: Sequence[Kept]) -> list[BucketResult]:
    """Replay all buckets in turns, step by step, and hold every output while the others run.

    Each bucket draws from generators of its own, as it did in the reference. Gives the results that this changes.
    """
    for each in kept:
        each.captured.rewind()
    randomness = {each.size: each.captured.randomness for each in kept}
    wrong: dict[int, int] = {}
    held: dict[int, int] = {}
    for step in replayed(session.plan):
        for each in kept:
            session.channel.enter(Stage.PROBE, each.size, step)
            copy_inputs(each.captured.static, make_inputs(session.target, each.size, step), step)
            randomness[each.size].restore()
            each.captured.graph.replay()
            randomness[each.size] = RandomState.now()
            if each.size not in wrong and each.is_wrong(step, keep(leaves(each.captured.output))):
                wrong[each.size] = step
        for each in kept:
            if each.size not in {**wrong, **held} and each.is_wrong(step, keep(leaves(each.captured.output))):
                held[each.size] = step
    if not wrong and not held:
        said = ("buckets in turns", "outputs held while others run")
        return [replace(each.result, probes=(*each.result.probes, *said)) for each in kept]
    return [
        *(in_turns(session, each, wrong[each.size]) for each in kept if each.size in wrong),
        *(while_held(each, held[each.size]) for each in kept if each.size in held),
    ]


def in_turns(session: Session, kept: Kept, step: int) -> BucketResult:
    """A bucket that another one's replays disturb: both write memory that neither state holds."""
    message = f"replaying the buckets in turns changes step {step}"
    lines = list(dict.fromkeys(call.spots for call in shared_writes(session, kept.size)))
    found = [Observation(ObservationKind.STATE_ADVANCED, message, spots, step=step) for spots in lines]
    return failed(
        kept.result, message, tuple(found) or (Observation(ObservationKind.VALUES_DIFFER, message, step=step),)
    )


def shared_writes(session: Session, bucket: int) -> Iterator[Call]:
    """Calls of an eager step that write memory from before it which the state does not hold."""
    plan, state = session.plan, session.fresh(bucket)
    run_eager(session.target, state, bucket, range(plan.warm_up), session.channel)
    held = {storage(home.tensor) for home in homes(state)}
    recorder = Recorder(session.project)
    given = make_inputs(session.target, bucket, plan.warm_up)
    held |= {storage(value) for value in given.values() if isinstance(value, torch.Tensor)}
    with torch.no_grad(), recorder:
        session.target.step(state, **given)
    made: set[int] = set()
    for call in recorder.calls:
        if call.short.endswith("_") and call.spots and call.tensors and call.tensors[0].address not in held | made:
            yield call
        made |= {each.address for each in call.outputs} - {each.address for each in call.tensors}


def while_held(kept: Kept, step: int) -> BucketResult:
    """A bucket whose output another one's replay overwrites."""
    message = f"an output of step {step} that is held is overwritten by another bucket's replay"
    spots = next((call.spots for call in reversed(kept.reference.calls) if call.spots), ())
    return failed(kept.result, message, (Observation(ObservationKind.OUTPUT_OVERWRITTEN, message, spots, step=step),))
