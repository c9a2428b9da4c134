"""Where a graph's tensors lie: noted while a stream captures, made into tensors before the first replay.

Noting a place takes half the time of making a tensor there, and most places are named by several calls, which one
tensor serves. The capture of a small step is nothing but such notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from capturelint.emulator.ledger import Entry

if TYPE_CHECKING:
    from capturelint.emulator.pool import Segment
    from capturelint.emulator.replay import RecordedCall


class Spot(tuple[Any, ...]):
    """(whose memory, dtype, size, stride, offset in elements) of one tensor of a graph."""

    __slots__ = ()

    def tensor(self) -> torch.Tensor:
        """A new tensor there."""
        home: Segment | Entry = self[0]
        return home.tensor(*self[1:])


Place: TypeAlias = "Spot | torch.Tensor"
"""A tensor of a graph, or where it is to be."""


class Settler:
    """Makes tensors at spots, one for all calls that name the spot."""

    def __init__(self) -> None:
        self.made: dict[Spot, torch.Tensor] = {}

    def at(self, spot: Spot) -> torch.Tensor:
        """The tensor at ``spot``."""
        found = self.made.get(spot)
        if found is None:
            found = self.made[spot] = spot.tensor()
        return found

    def entries(self) -> Iterator[Entry]:
        """Of memory from before the capture, once for each tensor there."""
        return (spot[0] for spot in self.made if isinstance(spot[0], Entry))

    def settled(self, value: Any) -> Any:
        """``value`` with tensors for spots."""
        if isinstance(value, Spot):
            return self.at(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self.settled(item) for item in value])
        if isinstance(value, dict):
            return {key: self.settled(item) for key, item in value.items()}
        return value

    def call(self, recorded: RecordedCall) -> RecordedCall:
        """``recorded`` with tensors for spots."""
        kernel, args, kwargs, results, is_random = recorded
        return type(recorded)(
            kernel,
            tuple([self.settled(value) for value in args]),
            self.settled(kwargs),
            [(position, self.settled(target)) for position, target in results],
            is_random,
        )
