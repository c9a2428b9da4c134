"""Memory from outside the captures that recordings point at: what of it the user has freed, and who gets it next.

A graph holds addresses, not references: memory that was freed after the capture is given to the next allocation of
its size, as CUDA's caching allocator does, and the graph goes on reading and writing it. The recordings here do hold
references, so a storage is free once nobody else does. What it held is overwritten then, once: an H200 may replay such
a graph right, by the luck of nobody having asked for the memory. What the graph itself writes there afterwards stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from capturelint.emulator.memory import ENTRY, HOST, ON_DEVICE, place, poison, untyped_storage

use_count = torch._C._storage_Use_Count


@dataclass(slots=True, eq=False)
class Entry:
    """A storage that recordings point at.

    ``num_recordings`` point at it, with ``num_held`` tensors on it; ``dtype`` is of the first of them. ``num_reuses``
    counts how often it was given to another tensor.
    """

    storage: torch.UntypedStorage
    dtype: torch.dtype
    num_recordings: int = 0
    num_held: int = 0
    was_free: bool = False
    num_reuses: int = 0

    def located(self, dtype: torch.dtype, offset: int) -> tuple[Entry, int]:
        """Where an element of this storage lies."""
        return self, offset

    def tensor(self, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int) -> torch.Tensor:
        """A recording's tensor on the storage."""
        self.num_held += 1
        made = torch.empty(0, dtype=dtype, device=HOST)
        return made.set_(self.storage, offset, size, stride)

    def content(self) -> torch.Tensor:
        """All of it."""
        count = self.storage.nbytes() // self.dtype.itemsize
        return torch.empty(0, dtype=self.dtype, device=HOST).set_(self.storage, 0, (count,), (1,))

    def is_free(self) -> bool:
        """Whether only recordings hold the storage, and the Python object of it that this is."""
        return use_count(self.storage._cdata) <= self.num_held + 1


class Ledger:
    """Every storage that a recording points at and that no capture allocated."""

    def __init__(self, poison_freed: bool) -> None:
        self.poison_freed = poison_freed
        self.entries: dict[int, Entry] = {}
        self.by_size: dict[int, list[Entry]] | None = None
        """Built when first asked for."""

    def entry(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Entry:
        """The entry of the storage of ``tensor``, at which one more recording points."""
        entry = self.entries.get(storage._cdata)
        if entry is None:
            entry = self.entries[storage._cdata] = Entry(storage, tensor.dtype)
            storage._capturelint_entry = entry  # type: ignore[attr-defined]
            self.by_size = None
        entry.num_recordings += 1
        return entry

    def release(self, entries: Iterable[Entry]) -> None:
        """A recording is dropped: forget what no other points at."""
        for entry in entries:
            entry.num_recordings -= 1
            if not entry.num_recordings:
                del self.entries[entry.storage._cdata]
                entry.storage._capturelint_entry = None  # type: ignore[attr-defined]
                self.by_size = None

    def refresh(self, entries: Iterable[Entry]) -> None:
        """Find out which of ``entries`` the user has freed, and overwrite them."""
        for entry in entries:
            is_free = entry.is_free()
            if is_free and not entry.was_free and self.poison_freed:
                poison(entry.content())
            entry.was_free = is_free

    def reuse(self, made: torch.Tensor) -> None:
        """Move a fresh tensor on the device into freed memory of its size, if there is any.

        CUDA's allocator gives a freed block to any request that rounds to its size, first the lowest address. Which
        request that is depends on everything else; one of the very same size is the one sure to be served.
        """
        nbytes = untyped_storage(made).nbytes()
        if self.by_size is None:
            self.by_size = {}
            for entry in self.entries.values():
                self.by_size.setdefault(entry.storage.nbytes(), []).append(entry)
        entries = self.by_size.get(nbytes)
        if not entries or not nbytes:
            return
        self.refresh(entries)
        for entry in entries:
            if entry.was_free and entry.storage._capturelint_memory is ON_DEVICE:  # type: ignore[attr-defined]
                values = made.clone()
                made.set_(entry.storage, 0, made.shape, made.stride())
                made.copy_(values)
                place(made, ON_DEVICE)
                entry.was_free = False
                entry.num_reuses += 1
                return


def is_freed(storage: torch.UntypedStorage) -> bool:
    """Whether nobody but recordings holds a storage that is asked for by a weak reference."""
    entry: Entry | None = getattr(storage, ENTRY, None)
    return entry is not None and entry.is_free()


def num_reuses(storage: torch.UntypedStorage) -> int:
    """How often a storage that recordings point at was freed and given to another tensor."""
    entry: Entry | None = getattr(storage, ENTRY, None)
    return 0 if entry is None else entry.num_reuses
