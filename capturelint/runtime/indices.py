"""The indices that a step writes by: negative ones, which wrap around, and ones that several rows share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from capturelint.runtime.observations import Spot
from capturelint.runtime.project import Project
from capturelint.runtime.trace import Recorder, each_tensor, short_name

WRITES = ("index_put_", "_index_put_impl_", "index_copy_", "index_add_", "scatter_", "scatter_add_")


class Indices(Recorder):  # type: ignore[no-untyped-call]
    """A recorder that also looks at the indices that a call writes by; only for steps that nobody captures."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.wrapped: list[tuple[Spot, ...]] = []
        self.collided: list[tuple[Spot, ...]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call, and note a negative index and a row that another one wrote over."""
        if short_name(str(func)) in WRITES:
            indices = [each for each in each_tensor(args[1:]) if each.dtype in (torch.int64, torch.int32)]
            if any(bool((each < 0).any()) for each in indices):
                self.wrapped.append(self.project.spots(sys._getframe(1)))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if any(is_lost(there, values) for there, values in rows_written(short_name(str(func)), args)):
            self.collided.append(self.project.spots(sys._getframe(1)))
        return result


def rows_written(name: str, args: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What is found by the indices of a write that has run, and what it was to write there; not of one that adds."""
    match name, args:
        case "index_put_" | "_index_put_impl_", (written, indices, values, *accumulate) if not any(accumulate[:1]):
            yield torch.ops.aten.index.Tensor(written, indices), values
        case "index_copy_", (written, dim, index, source, *_):
            yield written.index_select(dim, index), source
        case "scatter_", (written, dim, index, torch.Tensor() as source, *_):
            yield written.gather(dim, index), source[tuple(map(slice, index.shape))]


def is_lost(there: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether some of ``values`` is not there; NaN is NaN."""
    return not bool(((there == values) | ((there != there) & (values != values))).all())
