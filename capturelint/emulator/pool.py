"""The private memory pool of a graph: the caching allocator's blocks, on host memory.

A pool cuts blocks from segments as ``c10/cuda/CUDACachingAllocator.cpp`` does, with its sizes, its best fit, its
splitting and merging and its lists per stream. A block is free once the last reference to its storage dies, whenever
that is, and the next allocation of a capture with this pool may get it. The graph that pointed at it still does.

The surprise: two storages stand on every block. The program's ends with its last reference, which frees the block;
the graph's own tensors are views of the segment, which see the same bytes and do not count.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left, insort
from collections.abc import Hashable
from ctypes import memmove, string_at
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from capturelint.emulator.memory import ON_DEVICE, poison
from capturelint.emulator.spots import Spot

HOST = torch.device("cpu")
storage_at = torch._C._construct_storage_from_data_pointer

# Of CUDACachingAllocator.cpp, in bytes.
MIN_BLOCK = 512
SMALL_SIZE, SMALL_SEGMENT = 1 << 20, 2 << 20
MIN_LARGE_SEGMENT, LARGE_SEGMENT, ROUND_LARGE = 10 << 20, 20 << 20, 2 << 20

FreeList: TypeAlias = "list[tuple[int, int, Block]]"
"""Free blocks by (size, address): the first that is large enough fits best."""


class Segment:
    """Memory as it came from the system, zeroed. Above ``high`` nothing has been allocated yet."""

    __slots__ = ("content", "high", "start", "typed")

    def __init__(self, nbytes: int) -> None:
        # The system hands such memory out page by page when it is touched: an unused rest costs nothing.
        self.content = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)
        self.typed: dict[torch.dtype, torch.Tensor] = {}
        self.start = self.content.data_ptr()
        self.high = 0

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

    def located(self, dtype: torch.dtype, offset: int) -> tuple[Segment, int]:
        """Where an element of this block lies: the segment, and elements from its start."""
        return self.segment, (self.address - self.segment.start) // dtype.itemsize + offset

    def poison(self, dtype: torch.dtype) -> None:
        """Overwrite what lies here, of ``dtype``, with what undefined memory reads as."""
        start = self.address - self.segment.start
        content = self.segment.content[start : start + self.nbytes]
        if dtype.is_floating_point or dtype.is_complex:
            content.fill_(0xFF)  # NaN in each of torch's types
        else:
            poison(content.view(dtype))


class Allocation:
    """Hangs on the storage that the program holds of a block, and frees the block when that dies."""

    __slots__ = ("block", "owner", "pool")

    def __init__(self, pool: Pool, block: Block, owner: object) -> None:
        self.pool = pool
        self.block = block
        self.owner = owner

    def __del__(self) -> None:
        # The collector may come here from the middle of an allocation.
        self.pool.dropped.append(self.block)


@dataclass(eq=False)
class Pool:
    """The memory behind one ``graph_pool_handle``.

    ``dropped`` are blocks whose storages have died, at any moment and in any thread; they are free from the next
    allocation on. ``deferred`` are those of them that another stream still used.
    """

    segments: list[Segment] = field(default_factory=list)
    free_lists: dict[tuple[Hashable, bool], FreeList] = field(default_factory=dict)
    used_elsewhere: set[Block] = field(default_factory=set)
    deferred: list[Block] = field(default_factory=list)
    dropped: list[Block] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def place(self, made: torch.Tensor, filled: torch.UntypedStorage, stream: Hashable, owner: object) -> Spot:
        """Move a fresh, dense tensor from its storage into a block; gives where the graph's own one will be.

        Others that share the tensor's storage stay where they are.
        """
        nbytes = filled.nbytes()
        with self.lock:
            if self.dropped:
                self.collect()
            block = self.allocate(nbytes, stream)
        address = block.address
        storage = storage_at(address, HOST, nbytes)
        storage._capturelint_allocation = Allocation(self, block, owner)  # type: ignore[attr-defined]
        storage._capturelint_memory = ON_DEVICE  # type: ignore[attr-defined]
        memmove(address, filled.data_ptr(), nbytes)
        dtype, size, stride, offset = made.dtype, made.size(), made.stride(), made.storage_offset()
        made.set_(storage, offset, size, stride)
        return Spot((block, dtype, size, stride, offset))

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
        segment = block.segment
        end = block.address + block.nbytes - segment.start
        if end > segment.high:
            segment.high = end
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

    def collect(self) -> None:
        """Take back what was dropped; what another stream used, when the capture has ended."""
        while self.dropped:
            block = self.dropped.pop()
            if block in self.used_elsewhere:
                self.used_elsewhere.discard(block)
                self.deferred.append(block)
            else:
                release(block)

    def settle(self) -> None:
        """A capture ends: what other streams used can be given away."""
        with self.lock:
            self.collect()
            while self.deferred:
                release(self.deferred.pop())

    def __del__(self) -> None:
        # All is free, so each segment is one block that its list names: a cycle, which would keep the memory.
        self.settle()
        for free_list in self.free_lists.values():
            free_list.clear()

    def contents(self) -> list[tuple[Segment, bytes]]:
        """A copy of everything that was ever allocated, by segment."""
        return [(segment, string_at(segment.start, segment.high)) for segment in self.segments]


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
