"""Memory that a replay must not depend on, overwritten in front of it: output buffers, free blocks of the pool."""

from __future__ import annotations

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
    where = torch.device("cuda", device)
    raw = torch._C._construct_storage_from_data_pointer(address, where, nbytes)
    torch.empty(0, dtype=torch.uint8, device=where).set_(raw, 0, (nbytes,), (1,)).fill_(ALL_ONES)
