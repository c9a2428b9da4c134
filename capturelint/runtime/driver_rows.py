"""Rows that a driver fills of longer static buffers, and the call by which the others reach them.

Which rows are live is seen from what the driver writes: the first ones of a buffer that the graph reads. What the step
makes of the others is then multiplied, in an eager run that leaves nothing behind. Numbers alone are changed so, for a
token or a slot of another value may be one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from capturelint.runtime.observations import Observation
from capturelint.runtime.project import Project
from capturelint.runtime.rows import Results, mixing_calls
from capturelint.runtime.trace import each_tensor, is_view, key_of
from capturelint.runtime.varied import HOSTILE
from capturelint.vocabulary import ObservationKind

Rows = tuple[int, int]
"""How many rows are live, and of how many."""


@dataclass(slots=True)
class Filled:
    """Storages of which the first rows were written since the last replay."""

    rows: dict[int, Rows] = field(default_factory=dict)

    def note(self, written: Sequence[torch.Tensor]) -> None:
        """Memory that a call outside any capture wrote."""
        for tensor in written:
            live, size = rows_of(tensor)
            if 0 < live < size:
                self.rows[key_of(tensor)] = live, size

    def of(self, read: Set[int]) -> dict[int, Rows]:
        """Those of the storages that a graph reads which have the longest live part, one batch size only."""
        found = {key: rows for key, rows in self.rows.items() if key in read}
        most = max(found.values(), default=(0, 0))
        return {key: rows for key, rows in found.items() if rows == most}


def rows_of(tensor: torch.Tensor) -> Rows:
    """The rows that a tensor covers from the first one on, and those that its memory has."""
    if tensor.layout is not torch.strided or not tensor.dim() or tensor.storage_offset() or not tensor.stride(0):
        return 0, 0
    return tensor.shape[0], tensor.untyped_storage().nbytes() // tensor.element_size() // tensor.stride(0)


class Multiplied(Results):  # type: ignore[no-untyped-call]
    """Records calls, and multiplies the padded rows of the numbers that are made of the rows of ``keys``."""

    def __init__(self, project: Project, keys: Set[int], rows: Rows) -> None:
        super().__init__(project)
        self.keys, (self.live, self.size) = keys, rows

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call, and change what it made of padded rows."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if is_view(func) or not self.keys & {key_of(each) for each in each_tensor((args, kwargs or {}))}:
            return result
        for made in each_tensor(result):
            if made.dtype.is_floating_point and made.dim() and made.shape[0] == self.size:
                made[self.live :].mul_(HOSTILE)
        return result


def mixed_rows(usual: Results, other: Multiplied) -> list[Observation]:
    """The first call whose live rows are others, where the padded ones are."""
    call = next(mixing_calls(usual.made, other.made, other.size, other.live), None)
    if call is None or not call.spots:
        return []
    text = f"with {other.live} live of {other.size} rows, other values in the padded ones change the live ones"
    return [Observation(ObservationKind.PADDING_LEAKED, text, call.spots, call=call.short, sure=False)]
