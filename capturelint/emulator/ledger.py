"""Memory from outside the captures that recordings point at: what of it the user has freed, and who gets it next.

A graph holds addresses, not references: memory that was freed after the capture is given to the next allocation of
its size, as CUDA's caching allocator does, and the graph goes on reading and writing it. The recordings here do hold
references, so a storage is free once nobody else does. What it held is overwritten then, once: an H200 may replay such
a graph right, by the luck of nobody having asked for the memory. What the graph itself writes there afterwards stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch

from capturelint.emulator.memory import ENTRY, HOST, Memory, memory_of, place, poison, untyped_storage, whole

use_count = torch._C._storage_Use_Count


@dataclass(slots=True, eq=False)
class Entry:
    """A storage that recordings point at. ``keeper`` keeps it, ``num_held`` counts the recordings' tensors on it."""

    keeper: torch.Tensor
    address: int
    nbytes: int
    num_held: int = 0
    was_free: bool = False

    def is_free(self) -> bool:
        """Whether only recordings, the keeper and the storage's own Python object hold the storage."""
        return use_count(self.address) <= self.num_held + 1 + references_of_wrapper()


class Ledger:
    """Every storage that a recording points at and that no capture allocated."""

    def __init__(self, poison_freed: bool) -> None:
        self.poison_freed = poison_freed
        self.entries: dict[int, Entry] = {}
        self.sizes: dict[int, list[Entry]] = {}

    def entry(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Entry:
        """The entry of the storage of ``tensor``, with one more of a recording's tensors on it."""
        entry = self.entries.get(storage._cdata)
        if entry is None:
            entry = self.entries[storage._cdata] = Entry(tensor.detach(), storage._cdata, storage.nbytes())
            storage._capturelint_entry = entry  # type: ignore[attr-defined]
            self.sizes.setdefault(entry.nbytes, []).append(entry)
        entry.num_held += 1
        return entry

    def release(self, entries: Iterable[Entry]) -> None:
        """Give back tensors of a recording that is dropped, and forget what no other points at."""
        for entry in entries:
            entry.num_held -= 1
            if not entry.num_held:
                del self.entries[entry.address]
                untyped_storage(entry.keeper)._capturelint_entry = None  # type: ignore[attr-defined]
                self.sizes[entry.nbytes].remove(entry)

    def refresh(self, entries: Iterable[Entry]) -> None:
        """Find out which of ``entries`` the user has freed, and overwrite them."""
        for entry in entries:
            is_free = entry.is_free()
            if is_free and not entry.was_free and self.poison_freed:
                poison(whole(entry.keeper))
            entry.was_free = is_free

    def reuse(self, made: torch.Tensor) -> None:
        """Move a fresh tensor on the device into freed memory of its size, if there is any.

        CUDA's allocator gives a freed block to any request that rounds to its size, first the lowest address. Which
        request that is depends on everything else; one of the very same size is the one sure to be served.
        """
        nbytes = untyped_storage(made).nbytes()
        entries = self.sizes.get(nbytes)
        if not entries or not nbytes:
            return
        self.refresh(entries)
        for entry in entries:
            if entry.was_free and memory_of(entry.keeper) is Memory.DEVICE:
                values = made.clone()
                made.set_(untyped_storage(entry.keeper), 0, made.shape, made.stride())
                made.copy_(values)
                place(made, Memory.DEVICE)
                entry.was_free = False
                return


def is_freed(storage: torch.UntypedStorage) -> bool:
    """Whether nobody but recordings holds a storage that is asked for by a weak reference."""
    entry: Entry | None = getattr(storage, ENTRY, None)
    return entry is not None and entry.is_free()


@cache
def references_of_wrapper() -> int:
    """References that a storage's Python object holds on it while unused: 0 or 1, by torch version."""
    probe = torch.zeros(1, device=HOST)
    address = untyped_storage(probe)._cdata
    return int(use_count(address)) - 1
