"""Where a graph's tensors lie: noted while a stream captures, made into tensors before the first replay.

Noting a place takes half the time of making a tensor there, and most places are named by several calls, which one
tensor serves. The capture of a small step is nothing but such notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from capturelint.emulator.ledger import Entry
from capturelint.emulator.replay import RecordedCall

if TYPE_CHECKING:
    from capturelint.emulator.kernels import Kernel
    from capturelint.emulator.pool import Lease, Segment

    Located: TypeAlias = tuple[Segment | Entry, int, torch.dtype, torch.Size, tuple[int, ...]]


class Spot(tuple[Any, ...]):
    """(whose memory, dtype, size, stride, offset in elements) of one tensor of a graph."""

    __slots__ = ()

    def located(self) -> Located:
        """The same from the start of a segment or of a storage from before the capture."""
        home: Lease | Entry = self[0]
        _, dtype, size, stride, offset = self
        return (*home.located(dtype, offset), dtype, size, stride)


def tensor_at(located: Located) -> torch.Tensor:
    """A new tensor there."""
    home, offset, dtype, size, stride = located
    return home.tensor(dtype, size, stride, offset)


Place: TypeAlias = "Spot | torch.Tensor"
"""A tensor of a graph, or where it is to be."""
Note: TypeAlias = "tuple[Kernel, Sequence[Any], dict[str, Any], Sequence[tuple[int, Place]], bool]"
"""A ``RecordedCall`` before its tensors are made."""


class Settler:
    """Makes tensors at spots, one for all calls that name the spot."""

    def __init__(self) -> None:
        self.made: dict[Located, torch.Tensor] = {}
        self.leases: dict[int, Lease] = {}
        """Memory of pools that tensors were made in, by ``id``."""

    def at(self, spot: Spot) -> torch.Tensor:
        """The tensor at ``spot``."""
        home = spot[0]
        if not isinstance(home, Entry):
            self.leases[id(home)] = home
        located = spot.located()
        found = self.made.get(located)
        if found is None:
            found = self.made[located] = tensor_at(located)
        return found

    def entries(self) -> Iterator[Entry]:
        """Of memory from before the capture, once for each tensor there."""
        return (home for home, *_ in self.made if isinstance(home, Entry))

    def clear(self) -> None:
        """Forget everything."""
        self.made.clear()
        self.leases.clear()

    def settled(self, value: Any) -> Any:
        """``value`` with tensors for spots."""
        if isinstance(value, Spot):
            return self.at(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self.settled(item) for item in value])
        if isinstance(value, dict):
            return {key: self.settled(item) for key, item in value.items()}
        return value

    def call(self, note: Note) -> RecordedCall:
        """``note`` with tensors for spots."""
        kernel, args, kwargs, results, is_random = note
        return RecordedCall(
            kernel,
            tuple([self.settled(value) for value in args]),
            self.settled(kwargs),
            [(position, self.settled(target)) for position, target in results],
            is_random,
        )
