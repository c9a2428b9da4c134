"""The private memory pool of a graph: the caching allocator's blocks, on host memory.

A pool cuts blocks from segments as ``c10/cuda/CUDACachingAllocator.cpp`` does, with its sizes, its best fit, its
splitting and merging and its lists per stream. A block is free once the last reference to its storage dies, whenever
that is, and the next allocation of a capture with this pool may get it. The graph that pointed at it still does.

Which block that is matters to replays only. A capture notes what is allocated and freed, and in which order; blocks are
given out before the first replay, or when somebody asks for an address. The surprise: the program's tensors stay in
memory of their own, and only look as if they lay in the block. A replay takes their bytes into the blocks that it
touches first, and brings them back in the end.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable
from ctypes import memmove
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from capturelint.emulator.memory import ON_DEVICE, has_storage, start_of, untyped_storage

# Of CUDACachingAllocator.cpp, in bytes.
MIN_BLOCK = 512
SMALL_SIZE, SMALL_SEGMENT = 1 << 20, 2 << 20
MIN_LARGE_SEGMENT, LARGE_SEGMENT, ROUND_LARGE = 10 << 20, 20 << 20, 2 << 20

FreeList: TypeAlias = "list[tuple[int, int, Block]]"
"""Free blocks by (size, address): the first that is large enough fits best."""


class Segment:
    """Memory as it came from the system, zeroed."""

    __slots__ = ("content", "start", "typed")

    def __init__(self, nbytes: int) -> None:
        # The system hands such memory out page by page when it is touched: an unused rest costs nothing.
        self.content = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)
        self.typed: dict[torch.dtype, torch.Tensor] = {}
        self.start = self.content.data_ptr()

    def as_type(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole segment as one tensor of ``dtype``; kept in ``typed``."""
        found = self.typed.get(dtype)
        if found is None:
            found = self.typed[dtype] = self.content.view(dtype)
        return found

    def tensor(self, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int) -> torch.Tensor:
        """A graph's tensor in the segment; ``offset`` counts elements from its start."""
        return self.as_type(dtype).as_strided(size, stride, offset)


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, in the order of addresses with its neighbours."""

    segment: Segment
    address: int
    nbytes: int
    stream: Hashable
    free_list: FreeList
    before: Block | None = None
    after: Block | None = None
    is_free: bool = True


class Lease(weakref.ref[torch.UntypedStorage]):
    """One allocation of a capture: a weak reference to the storage that the program holds of it.

    ``owner`` stands for the capture; ``block`` is None until the pool has come to it; ``is_shared`` with other streams.
    """

    __slots__ = ("block", "is_freed", "is_shared", "nbytes", "owner", "stream")

    block: Block | None
    is_freed: bool
    is_shared: bool
    nbytes: int
    owner: object
    stream: Hashable

    @property
    def address(self) -> int:
        """Where the block begins. Raises RuntimeError before there is one."""
        if self.block is None:
            raise RuntimeError("an allocation of a capture has no block yet")
        return self.block.address

    def located(self, dtype: torch.dtype, offset: int) -> tuple[Segment, int]:
        """Where an element of it lies: the segment, and elements from its start."""
        if self.block is None:
            raise RuntimeError("an allocation of a capture has no block yet")
        segment = self.block.segment
        return segment, (self.block.address - segment.start) // dtype.itemsize + offset

    def living(self) -> torch.UntypedStorage | None:
        """The program's storage, if it still stands for the block."""
        storage = self()
        return storage if storage is not None and storage.nbytes() == self.nbytes else None

    def copy_in(self) -> None:
        """Take what the program sees into the block."""
        if (storage := self.living()) is not None:
            memmove(self.address, start_of(storage), self.nbytes)

    def copy_out(self) -> None:
        """Show the program what is in the block."""
        if (storage := self.living()) is not None:
            memmove(start_of(storage), self.address, self.nbytes)


@dataclass(eq=False)
class Pool:
    """The memory behind one ``graph_pool_handle``.

    ``events`` are what ``catch_up`` has not come to: an allocation, the same again when it was freed, which may happen
    at any moment and in any thread, and None where a capture ended. ``deferred`` are free blocks that another stream
    used. ``leases`` are those that are not freed, by ``id``, since a weak reference compares what it refers to.
    """

    segments: list[Segment] = field(default_factory=list)
    free_lists: dict[tuple[Hashable, bool], FreeList] = field(default_factory=dict)
    events: deque[Lease | None] = field(default_factory=deque)
    num_followed: int = 0
    leases: dict[int, Lease] = field(default_factory=dict)
    deferred: list[Block] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lend(self, storage: torch.UntypedStorage, stream: Hashable, owner: object) -> Lease:
        """Let a storage that a call allocated stand for memory of this pool."""
        lease = Lease(storage, self.events.append)
        lease.block, lease.is_freed, lease.is_shared = None, False, False
        lease.nbytes, lease.owner, lease.stream = storage.nbytes(), owner, stream
        storage._capturelint_lease = lease  # type: ignore[attr-defined]
        storage._capturelint_pool = self  # type: ignore[attr-defined]
        storage._capturelint_memory = ON_DEVICE  # type: ignore[attr-defined]
        self.events.append(lease)
        return lease

    def catch_up(self) -> None:
        """Give out and take back blocks, in the order in which the captures did."""
        with self.lock:
            while self.events:
                self.follow(self.events.popleft())
                self.num_followed += 1

    def follow(self, event: Lease | None) -> None:
        """One event."""
        if event is None:
            while self.deferred:
                release(self.deferred.pop())
        elif event.block is None:
            event.block = self.allocate(event.nbytes, event.stream)
            self.leases[id(event)] = event
        elif not event.is_freed:
            event.is_freed = True
            del self.leases[id(event)]
            if event.is_shared:
                self.deferred.append(event.block)
            else:
                release(event.block)

    def leases_within(self, spans: list[tuple[int, int]]) -> list[Lease]:
        """Memory that the program holds in these spans of addresses."""
        return [
            lease
            for lease in self.leases.values()
            if any(start < lease.address + lease.nbytes and lease.address < end for start, end in spans)
        ]

    def allocate(self, nbytes: int, stream: Hashable) -> Block:
        """The free block that fits best, cut to size, or one of a new segment."""
        size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
        is_small = size <= SMALL_SIZE
        free_list = self.free_lists.get((stream, is_small))
        if free_list is None:
            free_list = self.free_lists[stream, is_small] = []
        position = bisect_left(free_list, (size,))
        block = free_list.pop(position)[2] if position < len(free_list) else self.grow(size, stream, free_list)
        block.is_free = False
        left = block.nbytes - size
        if left >= MIN_BLOCK if is_small else left > SMALL_SIZE:
            split(block, size)
        return block

    def grow(self, size: int, stream: Hashable, free_list: FreeList) -> Block:
        """One block that is a whole new segment."""
        if size <= SMALL_SIZE:
            nbytes = SMALL_SEGMENT
        elif size < MIN_LARGE_SEGMENT:
            nbytes = LARGE_SEGMENT
        else:
            nbytes = -(-size // ROUND_LARGE) * ROUND_LARGE
        segment = Segment(nbytes)
        self.segments.append(segment)
        return Block(segment, segment.start, nbytes, stream, free_list)

    def __del__(self) -> None:
        # All is free, so each segment is one block that its list names: a cycle, which would keep the memory.
        if self.segments:
            self.catch_up()
        for free_list in self.free_lists.values():
            free_list.clear()


def outgrown(tensor: torch.Tensor) -> bool:
    """Whether the storage of a tensor has become larger than the block that it stood for."""
    if not has_storage(tensor):
        return False
    lease: Lease | None = untyped_storage(tensor)._capturelint_lease  # type: ignore[attr-defined]
    return lease is not None and lease() is not None and lease.living() is None


def give_back(storage: torch.UntypedStorage) -> Lease:
    """A storage no longer stands for its block."""
    lease: Lease = storage._capturelint_lease  # type: ignore[attr-defined]
    storage._capturelint_pool.events.append(lease)  # type: ignore[attr-defined]
    storage._capturelint_lease = None  # type: ignore[attr-defined]
    return lease


def split(block: Block, size: int) -> None:
    """Keep ``size`` bytes and free the rest."""
    address, nbytes = block.address + size, block.nbytes - size
    rest = Block(block.segment, address, nbytes, block.stream, block.free_list, block, block.after)
    if block.after is not None:
        block.after.before = rest
    block.after, block.nbytes = rest, size
    insort(rest.free_list, (rest.nbytes, rest.address, rest))


def release(block: Block) -> None:
    """Free a block and merge it with free neighbours."""
    free_list = block.free_list
    before, after = block.before, block.after
    block.is_free = True
    if before is not None and before.is_free:
        forget(before)
        before.nbytes += block.nbytes
        before.after = after
        if after is not None:
            after.before = before
        block = before
    if after is not None and after.is_free:
        forget(after)
        block.nbytes += after.nbytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block
    insort(free_list, (block.nbytes, block.address, block))


def forget(block: Block) -> None:
    """Take a free block off its list."""
    del block.free_list[bisect_left(block.free_list, (block.nbytes, block.address))]
