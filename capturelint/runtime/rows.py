"""The calls of a step with what they made, and which of them let the rows of a batch depend on one another.

Two runs that differ in the padded rows alone are held against each other, call by call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from capturelint.runtime.project import Project
from capturelint.runtime.trace import Call, Watch, describe, each_tensor


@dataclass(frozen=True, slots=True)
class Made:
    """A call with copies of what it made or wrote."""

    call: Call
    results: tuple[torch.Tensor, ...]
    in_place: bool


class Results(Watch):  # type: ignore[no-untyped-call]
    """Records the calls made while it is entered, with copies of their results."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.made: list[Made] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call and keep what came of it."""
        tensors, scalars = describe(args, kwargs or {})
        spots = self.project.spots(sys._getframe(1))
        result = func(*args, **(kwargs or {}))
        outputs, _ = describe((result,), {})
        call = Call(str(func), tensors, scalars, spots, 0, outputs)
        kept = tuple(tensor.detach().clone() for tensor in each_tensor(result))
        self.made.append(Made(call, kept, call.short.endswith("_")))
        return result


def mixing_calls(usual: Sequence[Made], padded: Sequence[Made], bucket: int, live: int) -> Iterator[Call]:
    """Calls whose live results the padding changed; of a read of shared memory, the call that wrote it."""
    written: dict[int, Call] = {}
    for ours, theirs in zip(usual, padded, strict=False):
        if ours.call.name != theirs.call.name:
            return
        pairs = list(zip(ours.results, theirs.results, strict=False))
        if ours.in_place and not any(has_rows(a, bucket) for a, _ in pairs):
            if any(is_other(a, b) for a, b in pairs):
                written |= {each.address: ours.call for each in ours.call.tensors[:1]}
            continue
        if any(depends_on_padding(a, b, bucket, live) for a, b in pairs):
            source = next((written[each.address] for each in ours.call.tensors if each.address in written), None)
            yield source or ours.call


def has_rows(tensor: torch.Tensor, bucket: int) -> bool:
    """Whether a dimension may be the batch, alone or folded with another."""
    return any(size and size % bucket == 0 for size in tensor.shape)


def depends_on_padding(first: torch.Tensor, second: torch.Tensor, bucket: int, live: int) -> bool:
    """Whether what is live differs, whichever dimension is the batch; a tensor without rows is live."""
    if first.shape != second.shape:
        return True
    dims = [dim for dim, size in enumerate(first.shape) if size and size % bucket == 0]
    lengths = [first.shape[dim] // bucket * live for dim in dims]
    if not dims:
        return is_other(first, second)
    return all(
        is_other(first.narrow(dim, 0, length), second.narrow(dim, 0, length))
        for dim, length in zip(dims, lengths, strict=True)
    )


def is_other(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors differ in a bit; NaN equals NaN."""
    if first.shape != second.shape:
        return True
    if first.dtype.is_floating_point:
        first, second = first.nan_to_num(nan=1.5e9), second.nan_to_num(nan=1.5e9)
    return not torch.equal(first, second)
