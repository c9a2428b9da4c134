"""What equality of a quiet run can miss: a right replay is run again under worse conditions.

Each probe starts from where the captured step starts and must end in the reference's outputs. Output buffers and freed
pool memory are overwritten first, since a server's other graphs will do so; buckets are replayed in turns; padded
rows get other values. Rows that depend on each other are said and not judged: a model may want that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from capturelint.runtime.bucket import Reference, Session, replayed
from capturelint.runtime.capture import Captured, copy_inputs
from capturelint.runtime.compare import step_error
from capturelint.runtime.eager import make_inputs
from capturelint.runtime.observations import BucketResult, Observation
from capturelint.runtime.outputs import Leaf, keep, leaves
from capturelint.runtime.protocol import Stage
from capturelint.runtime.replay import run_replay
from capturelint.runtime.states import RandomState, mutable
from capturelint.runtime.target import Inputs
from capturelint.vocabulary import ObservationKind, Verdict

ALL_ONES = 0xFF
"""The byte that makes NaN of every floating type and no valid index of any integer one."""


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


def probed(session: Session, kept: Kept, device: str) -> BucketResult:
    """The result after the probes that need one bucket alone.

    The emulator overwrites freed memory by itself at every replay, so its pool is not probed again.
    """
    names = []
    poisons: dict[str, Callable[[Captured], None]] = {"outputs": poison_outputs}
    if device == "cuda":
        poisons["pool"] = poison_pool
    for name, poison in poisons.items():
        if not can_run(partial(poison, kept.captured)):
            continue
        step = first_wrong(session, kept, partial(poison, kept.captured))
        if step is not None:
            return failed(kept.result, f"overwriting {WORDS[name]} before a replay changes step {step}", step)
        names.append(f"{name} overwritten")
    if kept.size > 1:
        leaks = leaking_step(session, kept)
        names.append("padding ignored" if leaks is None else f"padding changes live rows in step {leaks}")
    return replace(kept.result, probes=tuple(names))


def can_run(poison: Callable[[], None]) -> bool:
    """Whether the memory can be overwritten at all: an expanded output cannot, and torch's internals may change."""
    try:
        poison()
    except (RuntimeError, AttributeError, TypeError, KeyError):
        return False
    return True


WORDS = {"outputs": "the output buffers", "pool": "freed memory of the graph's pool"}


def first_wrong(session: Session, kept: Kept, before: Callable[[], None]) -> int | None:
    """The first step that a replay gets wrong if ``before`` runs in front of every launch."""
    session.channel.enter(Stage.PROBE, kept.size)
    kept.captured.rewind()
    steps = replayed(session.plan)
    run = run_replay(
        session.target, kept.captured, kept.size, steps, session.channel, kept.is_wrong, before, Stage.PROBE
    )
    return next((step for step, outputs in zip(steps, run.outputs, strict=False) if kept.is_wrong(step, outputs)), None)


def failed(result: BucketResult, message: str, step: int) -> BucketResult:
    """The result of a bucket that only a probe found wrong."""
    seen = Observation(ObservationKind.VALUES_DIFFER, message, step=step)
    return replace(result, verdict=Verdict.REPLAY_DIFFERS, message=message, observations=(seen,))


def poison_outputs(captured: Captured) -> None:
    """Overwrite the output buffers, but those that are the state's or the inputs'."""
    used = {storage(tensor) for tensor, _ in captured.start or ()} | {
        storage(value) for value in captured.static.values() if isinstance(value, torch.Tensor)
    }
    used |= {storage(tensor) for tensor in mutable(captured.state).values()}
    with torch.inference_mode():
        for leaf in leaves(captured.output):
            if isinstance(leaf, torch.Tensor) and leaf.numel() and storage(leaf) not in used:
                leaf.fill_(float("nan") if leaf.dtype.is_floating_point else poison_number(leaf.dtype))


def poison_number(dtype: torch.dtype) -> int | bool:
    """A number that no step returns."""
    return True if dtype is torch.bool else int(torch.iinfo(dtype).max)


def storage(tensor: torch.Tensor) -> int:
    """Where a tensor's memory starts."""
    return tensor.untyped_storage().data_ptr()


def poison_pool(captured: Captured) -> None:
    """Overwrite the free blocks of the graph's pool."""
    pool = tuple(captured.graph.pool())
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        if tuple(segment.get("segment_pool_id", ())) != pool:
            continue
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                overwrite(block["address"], block["size"], segment["device"])


def overwrite(address: int, nbytes: int, device: int) -> None:
    """Fill device memory that no tensor holds."""
    where = torch.device("cuda", device)
    raw = torch._C._construct_storage_from_data_pointer(address, where, nbytes)
    torch.empty(0, dtype=torch.uint8, device=where).set_(raw, 0, (nbytes,), (1,)).fill_(ALL_ONES)


def leaking_step(session: Session, kept: Kept) -> int | None:
    """The first step in which other values in the last row change the rows before it."""
    session.channel.enter(Stage.PROBE, kept.size)
    kept.captured.rewind()
    steps = replayed(session.plan)
    for step in steps:
        usual = make_inputs(session.target, kept.size, step)
        other = make_inputs(session.target, kept.size, steps.start + (step + 1 - steps.start) % len(steps))
        copy_inputs(kept.captured.static, with_last_row(usual, other, kept.size), step)
        kept.captured.graph.replay()
        got = [live(leaf, kept.size) for leaf in leaves(kept.captured.output)]
        expected = [live(leaf, kept.size) for leaf in kept.reference.run.outputs[step]]
        if not step_error(expected, got) <= kept.reference.tolerance:
            return step
    return None


def with_last_row(usual: Inputs, other: Inputs, batch: int) -> Inputs:
    """Inputs whose last row is that of another step, where they have a row for each of the batch."""
    mixed = dict(usual)
    for name, value in usual.items():
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == batch:
            replaced = value.clone()
            replaced[-1:].copy_(other[name][-1:])  # type: ignore[index]
            mixed[name] = replaced
    return mixed


def live(leaf: Leaf, batch: int) -> Leaf:
    """All rows but the last, of an output with a row for each of the batch."""
    if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch:
        return leaf[:-1]
    return 0.0


def interleaved(session: Session, kept: Sequence[Kept]) -> list[BucketResult]:
    """Replay all buckets in turns, step by step; gives the results that this changes.

    Each bucket draws from generators of its own, as it did in the reference.
    """
    for each in kept:
        each.captured.rewind()
    randomness = {each.size: each.captured.randomness for each in kept}
    wrong: dict[int, int] = {}
    for step in replayed(session.plan):
        for each in kept:
            session.channel.enter(Stage.PROBE, each.size, step)
            copy_inputs(each.captured.static, make_inputs(session.target, each.size, step), step)
            randomness[each.size].restore()
            each.captured.graph.replay()
            randomness[each.size] = RandomState.now()
            if each.size not in wrong and each.is_wrong(step, keep(leaves(each.captured.output))):
                wrong[each.size] = step
    if not wrong:
        return [replace(each.result, probes=(*each.result.probes, "buckets in turns")) for each in kept]
    return [
        failed(each.result, f"replaying the buckets in turns changes step {wrong[each.size]}", wrong[each.size])
        for each in kept
        if each.size in wrong
    ]
