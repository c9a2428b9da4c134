"""Padded rows: whether what they hold reaches the rows in front of them, and the line where it does.

The same graph replays the same steps twice, once with the rows that the target gives and once with other values
behind the live ones. Kernels compute a row whatever its neighbours hold, so live outputs and the live rows of the
state must be equal bit by bit. Rows that depend on each other by the model's own arithmetic (a mean over the batch)
do so without any graph too: that is said and not judged. A write that reaches live memory is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from capturelint.runtime.bucket import Session, replayed
from capturelint.runtime.capture import Captured
from capturelint.runtime.eager import make_inputs, run_eager
from capturelint.runtime.observations import Observation
from capturelint.runtime.outputs import Leaf
from capturelint.runtime.protocol import Stage
from capturelint.runtime.replay import run_replay
from capturelint.runtime.rows import Made, Results, depends_on_padding, is_other, mixing_calls
from capturelint.runtime.states import mutable
from capturelint.runtime.target import Target
from capturelint.runtime.trace import Call
from capturelint.runtime.varied import mixed_target
from capturelint.vocabulary import ObservationKind


@dataclass(frozen=True, slots=True)
class Leak:
    """Live values that the padding changed: ``what`` they are, with ``live`` live rows, in ``step``."""

    what: str
    live: int
    step: int


@dataclass(frozen=True, slots=True)
class Rows:
    """What a row of replays left: outputs a step, and the state's tensors at the end."""

    outputs: Sequence[Sequence[Leaf]]
    state: Mapping[str, torch.Tensor]


def live_batches(bucket: int) -> list[int]:
    """The live batches to try: one row, half of them, all but one."""
    return sorted({1, bucket // 2, bucket - 1} - {0, bucket})


def other_steps(steps: range) -> dict[int, int]:
    """For each step the one whose rows become its padding."""
    return {step: steps.start + (step + 1 - steps.start) % len(steps) for step in steps}


def find_leak(session: Session, bucket: int, captured: Captured) -> Leak | None:
    """The first change of live values by padded rows, for several live batches."""
    usual = replay_rows(session, session.target, bucket, captured)
    order = other_steps(replayed(session.plan))
    for live in live_batches(bucket):
        padded = replay_rows(session, mixed_target(session.target, bucket, live, order), bucket, captured)
        leak = first_leak(usual, padded, bucket, live, replayed(session.plan))
        # Kernels that add in any order are not equal to themselves either.
        if (
            leak
            and first_leak(
                usual, replay_rows(session, session.target, bucket, captured), bucket, live, replayed(session.plan)
            )
            is None
        ):
            return leak
    return None


def replay_rows(session: Session, target: Target, bucket: int, captured: Captured) -> Rows:
    """Replay all steps from where the captured one starts."""
    captured.rewind()
    run = run_replay(target, captured, bucket, replayed(session.plan), session.channel, stage=Stage.PROBE)
    return Rows(run.outputs, {name: tensor.clone() for name, tensor in mutable(captured.state).items()})


def first_leak(usual: Rows, padded: Rows, bucket: int, live: int, steps: range) -> Leak | None:
    """Where two rows of replays part in what is live."""
    for step, ours, theirs in zip(steps, usual.outputs, padded.outputs, strict=False):
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and rows_differ(a, b, bucket, live):
                return Leak("outputs", live, step)
    for name, tensor in usual.state.items():
        if reaches_live(tensor, padded.state[name], bucket, live):
            return Leak(f"`{name}`", live, steps.stop - 1)
    return None


def reaches_live(first: torch.Tensor, second: torch.Tensor, bucket: int, live: int) -> bool:
    """Whether a tensor of the state differs beyond the padded rows, whichever dimension may be the batch.

    The first dimension may be longer than the batch: caches are made for the largest one, and have a scratch row.
    """
    if first.shape != second.shape:
        return True
    changed = first.ne(second) & ~(first.isnan() & second.isnan()) if first.is_floating_point() else first.ne(second)
    places = changed.nonzero()
    if not len(places):
        return False
    for dim, size in enumerate(first.shape):
        at = places[:, dim]
        if size >= bucket and bool((at >= live).all()) and (dim == 0 or bool((at < bucket).all())):
            return False
    return True


def rows_differ(first: torch.Tensor, second: torch.Tensor, bucket: int, live: int) -> bool:
    """Whether live rows differ in a bit; of several dimensions as long as the batch, in each of them."""
    dims = [dim for dim, size in enumerate(first.shape) if size == bucket]
    return bool(dims) and all(is_other(first.narrow(dim, 0, live), second.narrow(dim, 0, live)) for dim in dims)


def leak_observation(session: Session, bucket: int, leak: Leak) -> Observation:
    """The leak with the line of the first call in which live rows depend on padded ones, run eagerly."""
    usual, padded = both_results(session, bucket, leak, leak.step)
    call = next(mixing_calls(usual, padded, bucket, leak.live), None)
    if call is not None and not call.short.endswith("_") and reads_older_memory(call, usual):
        call = earlier_write(session, bucket, leak) or call
    return Observation(
        ObservationKind.PADDING_LEAKED,
        f"with {leak.live} live of {bucket} rows, other values in the padded ones change live {leak.what} "
        f"in step {leak.step}",
        call.spots if call else (),
        step=leak.step,
        call=call.short if call else "",
        sure=call is None or call.short.endswith("_"),
    )


def both_results(session: Session, bucket: int, leak: Leak, step: int) -> tuple[list[Made], list[Made]]:
    """The calls of one eager step, with the rows that the target gives and with other ones behind the live ones."""
    mixed = mixed_target(session.target, bucket, leak.live, other_steps(replayed(session.plan)))
    return eager_results(session, session.target, bucket, step), eager_results(session, mixed, bucket, step)


def reads_older_memory(call: Call, made: Sequence[Made]) -> bool:
    """Whether a call reads what no call of its step made: padding got there in a step before."""
    fresh = set[int]()
    for other in (each.call for each in made if not each.in_place):
        fresh |= {each.address for each in other.outputs} - {each.address for each in other.tensors}
    return bool({each.address for each in call.tensors} - fresh)


def earlier_write(session: Session, bucket: int, leak: Leak) -> Call | None:
    """The first write before the leak's step that puts what padded rows hold where live ones are.

    Where the step mixes its rows before it writes, the call that mixes them: memory of a mean is no row's memory.
    """
    for step in range(replayed(session.plan).start, leak.step):
        for ours, theirs in zip(*both_results(session, bucket, leak, step), strict=False):
            pairs = zip(ours.results, theirs.results, strict=False)
            if any(depends_on_padding(a, b, bucket, leak.live) for a, b in pairs):
                return ours.call
    return None


def eager_results(session: Session, target: Target, bucket: int, step: int) -> list[Made]:
    """The calls of one eager step with their results, after the steps before it with the same inputs."""
    state = session.fresh(bucket)
    run_eager(target, state, bucket, range(step), session.channel)
    results = Results(session.project)
    given = make_inputs(target, bucket, step)
    with torch.no_grad(), results:
        target.step(state, **given)
    return results.made
