"""What a capture writes of memory from before it: kept when it is written, and put back when the capture ends.

Most calls that write into a large memory, a cache of keys and values, say which part of it: a view, or some rows. Only
that part is kept. What is kept whole is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import memmove, string_at
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from capturelint.emulator.memory import start_of, untyped_storage
from capturelint.emulator.replay import undispatched

if TYPE_CHECKING:
    from capturelint.emulator.operations import Operation
    from capturelint.emulator.pool import Lease

MIN_BYTES = 1 << 17  # less is copied faster than the part of it is picked
aten = torch.ops.aten
Part: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], int]
VIEW: Part = (aten.clone.default._op, aten.copy_.default._op, 1)
ROWS: Part = (aten.index_select.default._op, aten.index_copy_.default._op, 3)
PLACES: Part = (aten.index.Tensor._op, aten.index_put_.default._op, 2)
ITEMS: Part = (aten.gather.default._op, aten.scatter_.src._op, 3)
PARTS: Mapping[str, Part] = {
    "aten::index_copy_.default": ROWS,
    "aten::index_add_.default": ROWS,
    "aten::index_fill_.int_Scalar": ROWS,
    "aten::index_put_.default": PLACES,
    "aten::_index_put_impl_.default": PLACES,
    "aten::scatter_.src": ITEMS,
    "aten::scatter_.value": ITEMS,
    "aten::scatter_add_.default": ITEMS,
}
"""A call that writes a part of its first argument -> what reads the part, what writes it, and how many of its first
arguments say which one it is."""


class Before:
    """Memory from before a capture, as far as the capture has written it."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.whole: set[int] = set()
        self.kept: list[Callable[[], object]] = []

    def keep(self, tensor: torch.Tensor, operation: Operation, args: tuple[Any, ...]) -> None:
        """Keep what ``operation`` is about to write of ``tensor``, if the capture did not allocate it."""
        storage = untyped_storage(tensor)
        lease: Lease | None = storage._capturelint_lease  # type: ignore[attr-defined]
        owner = lease.owner if lease is not None else storage._capturelint_owner  # type: ignore[attr-defined]
        if owner is self.owner or storage._cdata in self.whole:
            return
        part, nbytes = None, storage.nbytes()
        if nbytes >= MIN_BYTES:
            part = PARTS.get(operation.name) if args and args[0] is tensor else None
            if part is None and 2 * tensor.nbytes <= nbytes:
                part, args = VIEW, (tensor,)
        if part is not None:
            read, write, count = part
            where = [tensor.detach(), *map(copied, args[1:count])]
            try:
                content = read(*where)
            except (IndexError, RuntimeError):
                pass  # the call itself is about to say what is wrong with its arguments
            else:
                self.kept.append(lambda: write(*where, content))
                return
        self.whole.add(storage._cdata)
        content = string_at(start_of(storage), nbytes)
        self.kept.append(lambda: memmove(start_of(storage), content, nbytes))

    def put_back(self) -> None:
        """Undo all writes, the last one first."""
        if self.kept:
            with undispatched():
                for undo in reversed(self.kept):
                    undo()
        self.kept.clear()
        self.whole.clear()


def copied(value: Any) -> Any:
    """The same with copies of the tensors, which the capture may write."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return value
