"""Memory that recordings point at: which of it the user has freed, and who gets it next.

A graph holds addresses, not references: memory that was freed after the capture is given to the next allocation of
its size, as CUDA's caching allocator does, and the graph goes on reading and writing it. The recordings here do hold
references, so a storage is free once nobody else does. Until it is reused, freed memory keeps what it held: an H200
replays such a graph right, by luck; ``poison_freed`` takes the luck away.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from capturelint.emulator.memory import Memory, memory_of, place, poison, untyped_storage

use_count = torch._C._storage_Use_Count


@dataclass(slots=True)
class Entry:
    """A storage that a recording points at; ``alias`` keeps it, ``pool`` is where CUDA would have allocated it."""

    alias: torch.Tensor
    address: int
    pool: object
    is_free: bool = False


class Ledger:
    """Every storage that a recording points at and did not allocate itself."""

    def __init__(self, poison_freed: bool) -> None:
        self.poison_freed = poison_freed
        self.entries: dict[int, Entry] = {}
        self.references: dict[int, weakref.ref[torch.Tensor]] = {}
        self.is_stale = False
        self.has_free = False
        self.own = references_of_wrapper()

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a recording's own over the same storage, counted as its reference."""
        untyped_storage(tensor)._capturelint_held += 1  # type: ignore[attr-defined]
        return tensor.detach()

    def release(self, aliases: Iterable[torch.Tensor]) -> None:
        """Give back references of a recording that is dropped, and forget what no other points at."""
        for alias in aliases:
            storage = untyped_storage(alias)
            storage._capturelint_held -= 1  # type: ignore[attr-defined]
            if storage._capturelint_held == 1 and self.entries.pop(storage._cdata, None):  # type: ignore[attr-defined]
                storage._capturelint_held = 0  # type: ignore[attr-defined]

    def watch(self, tensor: torch.Tensor, pool: object) -> None:
        """Notice when the storage of ``tensor`` is freed."""
        address = untyped_storage(tensor)._cdata
        if address not in self.entries:
            self.entries[address] = Entry(self.alias(tensor), address, pool)
        self.watch_reference(tensor)

    def watch_reference(self, tensor: torch.Tensor) -> None:
        """Look again when this tensor dies: it may have been the last that knew its storage."""
        if id(tensor) not in self.references:
            self.references[id(tensor)] = weakref.ref(tensor, self.stale(id(tensor)))

    def stale(self, key: int) -> Callable[[object], None]:
        """What a dying tensor calls."""

        def call(_: object) -> None:
            self.references.pop(key, None)
            self.is_stale = True

        return call

    def refresh(self) -> None:
        """Find out what the user has freed since the last look."""
        self.is_stale = False
        for entry in self.entries.values():
            held = untyped_storage(entry.alias)._capturelint_held  # type: ignore[attr-defined]
            is_free = use_count(entry.address) <= held + self.own
            if is_free and not entry.is_free:
                self.has_free = True
                if self.poison_freed:
                    poison(entry.alias)
            entry.is_free = is_free

    def reuse(self, made: torch.Tensor, pool: object) -> bool:
        """Move a fresh tensor into freed memory that fits it, if there is any in ``pool``."""
        wanted = untyped_storage(made).nbytes()
        # CUDA's allocator gives a freed block to any request that rounds to its size, first the lowest address. Which
        # request that is depends on everything else; a request of the very same size is the one sure to be served.
        fitting = [
            entry
            for entry in self.entries.values()
            if entry.is_free and entry.pool == pool and memory_of(entry.alias) is Memory.DEVICE
            if untyped_storage(entry.alias).nbytes() == wanted > 0
        ]
        self.has_free = any(entry.is_free for entry in self.entries.values())
        if not fitting:
            return False
        entry = fitting[0]
        values = made.clone()
        made.set_(untyped_storage(entry.alias), 0, made.shape, made.stride())
        made.copy_(values)
        place(made, Memory.DEVICE)
        entry.is_free = False
        self.watch_reference(made)
        return True


def references_of_wrapper() -> int:
    """References that a storage's Python object holds on it while unused: 0 or 1, by torch version."""
    probe = torch.zeros(1)
    address = untyped_storage(probe)._cdata
    return int(use_count(address)) - 1
