"""A key and value cache that a graph can replay: preallocated, written at a position that lives on the device.

It answers ``update`` and ``get_seq_length`` as transformers' caches do, and holds no Python number that a step
changes: the cursor is a tensor, advanced in place when the last layer has been written. The surprise:
``get_seq_length`` gives that tensor, so a model that makes a host number of it is refused by the capture, rightly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One layer's keys and values, [batch, heads, positions, size]; a ``window`` keeps only the last positions."""

    num_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    window: int | None = None


class StaticCache:
    """Keys and values of every layer for ``batch`` rows and ``max_length`` positions."""

    def __init__(
        self, layers: Sequence[LayerGeometry], batch: int, max_length: int, device: str | torch.device = "cuda"
    ) -> None:
        self.max_length = max_length
        self.lengths = [min(layer.window or max_length, max_length) for layer in layers]
        self.keys = [
            torch.zeros(batch, layer.num_heads, length, layer.key_size, dtype=layer.dtype, device=device)
            for layer, length in zip(layers, self.lengths, strict=True)
        ]
        self.values = [
            torch.zeros(batch, layer.num_heads, length, layer.value_size, dtype=layer.dtype, device=device)
            for layer, length in zip(layers, self.lengths, strict=True)
        ]
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.slots = torch.arange(max_length, device=device)

    def update(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        layer_idx: int,
        cache_kwargs: Mapping[str, torch.Tensor] | None = None,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [batch, heads, t, size] at the cursor and return all positions of the layer.

        A sliding layer is a ring: position p lies in slot p modulo its window, so t must not exceed the window.
        """
        # Slicing a buffer by a host number that never changes records nothing.
        places = self.slots[: key.shape[2]] + self.cursor
        if self.lengths[layer_idx] < self.max_length:
            places = places % self.lengths[layer_idx]
        self.keys[layer_idx].index_copy_(2, places, key)
        self.values[layer_idx].index_copy_(2, places, value)
        if layer_idx == len(self.keys) - 1:
            self.cursor.add_(key.shape[2])
        return self.keys[layer_idx], self.values[layer_idx]

    def mask(self, position: torch.Tensor) -> torch.Tensor:
        """[1, 1, 1, max_length], true for the positions up to ``position``, a tensor [1]."""
        return (self.slots <= position)[None, None, None]

    def window_mask(self, position: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """As ``mask`` for a sliding layer's ring: every slot once the window is full."""
        return (self.slots[: self.lengths[layer_idx]] <= position)[None, None, None]

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        """How many positions are filled, a device tensor [1]."""
        return self.cursor

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """How many positions a layer has room for."""
        return self.lengths[layer_idx]

    def reset(self) -> None:
        """Forget everything, in place."""
        for tensor in (*self.keys, *self.values, self.cursor):
            tensor.zero_()


class WatchingCache:
    """A cache for one observed step, from which the layers' geometry is read."""

    def __init__(self) -> None:
        self.seen: dict[int, LayerGeometry] = {}

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the shapes and give back what came."""
        self.seen[layer_idx] = LayerGeometry(key.shape[1], key.shape[3], value.shape[3], key.dtype)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing is filled yet."""
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """One position."""
        return 1

    @property
    def layers(self) -> list[LayerGeometry]:
        """The geometry of every layer that was updated, in order."""
        return [self.seen[index] for index in sorted(self.seen)]
