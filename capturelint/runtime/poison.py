"""Memory that a replay must not depend on, overwritten in front of it: outputs, free blocks of the pool and others."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from capturelint.runtime.capture import Captured
from capturelint.runtime.outputs import leaves
from capturelint.runtime.states import mutable

ALL_ONES = 0xFF
"""The byte that makes NaN of every floating type and no valid index of any integer one."""


def poison_outputs(captured: Captured) -> None:
    """Overwrite the output buffers on the device, but those that are the state's or the inputs'.

    What a step makes in host memory is made once, at capture, and is nothing that a replay writes.
    """
    used = {storage(tensor) for tensor, _ in captured.start or ()} | {
        storage(value) for value in captured.static.values() if isinstance(value, torch.Tensor)
    }
    used |= {storage(tensor) for tensor in mutable(captured.state).values()}
    with torch.inference_mode():
        for leaf in leaves(captured.output):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda and leaf.numel() and storage(leaf) not in used:
                leaf.fill_(float("nan") if leaf.dtype.is_floating_point else poison_number(leaf.dtype))


def poison_number(dtype: torch.dtype) -> int | bool:
    """A number that no step returns."""
    return True if dtype is torch.bool else int(torch.iinfo(dtype).max)


def storage(tensor: torch.Tensor) -> int:
    """Where a tensor's memory starts."""
    return tensor.untyped_storage().data_ptr()


def poison_pool(captured: Captured) -> None:
    """Overwrite the free blocks of the graph's pool."""
    pool = tuple(captured.graph.pool())
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        if tuple(segment.get("segment_pool_id", ())) != pool:
            continue
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                overwrite(block["address"], block["size"], segment["device"])


def overwrite(address: int, nbytes: int, device: int) -> None:
    """Fill device memory that no tensor holds."""
    at(address, nbytes, device).fill_(ALL_ONES)


def at(address: int, nbytes: int, device: int) -> torch.Tensor:
    """The bytes of device memory, whoever has them."""
    where = torch.device("cuda", device)
    raw = torch._C._construct_storage_from_data_pointer(address, where, nbytes)
    return torch.empty(0, dtype=torch.uint8, device=where).set_(raw, 0, (nbytes,), (1,))


NO_POOL = (0, 0)
"""The pool of what belongs to no graph; a free block of a graph's pool may hand values to the next graph of it."""

SAMPLE_NBYTES = 1 << 16
SMALL = 1 << 20


@dataclass(slots=True)
class FreeMemory:
    """The free blocks of torch's allocator outside every pool, each overwritten once, in place, while it is free.

    Only a graph can still read them. What a graph itself writes there afterwards stays, as under the emulator.
    """

    known: set[tuple[int, int, int]] = field(default_factory=set)

    def overwrite(self) -> None:
        """Wait for the device, and overwrite what has become free."""
        torch.cuda.synchronize()
        free = {
            (block["address"], block["size"], segment["device"])
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment.get("segment_pool_id", ())) == NO_POOL
            for block in segment["blocks"]
            if block["state"] == "inactive"
        }
        for address, nbytes, device in free - self.known:
            spoil(at(address, nbytes, device))
        self.known = free


def spoil(memory: torch.Tensor) -> None:
    """Fill bytes with NaN; where they hold small integers, which most often index, with other small ones.

    A huge index would turn a silent error into an assertion that takes the device with it.
    """
    if holds_integers(memory[:SAMPLE_NBYTES].cpu()):
        memory[: memory.numel() // 8 * 8].view(torch.int64).fill_(1)
    else:
        memory.fill_(ALL_ONES)


def holds_integers(head: torch.Tensor) -> bool:
    """Whether bytes look like integers of 32 or 64 bits; floats of any use are large as integers, zeros are either."""
    numbers = head[: head.numel() // 4 * 4].view(torch.int32).long()
    return bool((numbers != 0).any()) and bool((numbers.abs() < SMALL).all())
