"""Where a tensor lives: a mark on its storage, so that every view of it agrees and the mark dies with it.

Emulated device memory is ordinary host memory that carries a mark. The mark sits on the storage's Python object,
which torch keeps as long as the storage itself lives, so there is no table to clean up. The surprise is
``UNCLAIMED``: a composite operation that allocates scratch space asks for the real device, "cpu", of its real
arguments; such memory belongs to whichever side first uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ctypes import memmove, memset
from enum import Enum

import torch

HOST = torch.device("cpu")
untyped_storage = torch._C.TensorBase.untyped_storage
start_of = torch.UntypedStorage.data_ptr
"""Where a storage really begins; within a context ``data_ptr`` answers for the emulated device."""
MARK = "_capturelint_memory"
OWNER = "_capturelint_owner"
LEASE = "_capturelint_lease"
POOL = "_capturelint_pool"
ENTRY = "_capturelint_entry"


class Memory(Enum):
    """Which kind of memory a storage is."""

    HOST = "host"
    """Pageable: what every storage without a mark is."""
    PINNED = "pinned"
    DEVICE = "device"
    UNCLAIMED = "unclaimed"
    """Scratch space of a composite operation: takes the side of the first tensor that it meets."""


# Python 3.11 looks a member up by a call, and these are asked for at every operand.
ON_HOST, ON_DEVICE, UNCLAIMED = Memory.HOST, Memory.DEVICE, Memory.UNCLAIMED


class Storages:
    """The marks' defaults on ``torch.UntypedStorage``, present while a context is open.

    ``owner`` is the capture that allocated the storage outside its pool, ``lease`` the memory of a ``pool`` that it
    stands for, ``entry`` what the ledger knows of it.
    """

    defaults = ((MARK, Memory.HOST), (OWNER, None), (LEASE, None), (POOL, None), (ENTRY, None))

    @classmethod
    def install(cls) -> None:
        """Give every storage the defaults."""
        for name, value in cls.defaults:
            setattr(torch.UntypedStorage, name, value)

    @classmethod
    def remove(cls) -> None:
        """Take the defaults away again; marks on living storages become inert attributes."""
        for name, _ in cls.defaults:
            delattr(torch.UntypedStorage, name)


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor has one storage: sparse ones have several tensors instead."""
    return tensor.layout is torch.strided


def memory_of(tensor: torch.Tensor) -> Memory:
    """The memory that ``tensor`` lives in. Sparse tensors have no storage and carry the mark themselves."""
    try:
        return untyped_storage(tensor)._capturelint_memory  # type: ignore[attr-defined]
    except NotImplementedError:
        return getattr(tensor, MARK, Memory.HOST)


def place(tensor: torch.Tensor, memory: Memory) -> None:
    """Mark the storage of ``tensor`` as ``memory``."""
    try:
        untyped_storage(tensor)._capturelint_memory = memory  # type: ignore[attr-defined]
    except NotImplementedError:
        setattr(tensor, MARK, memory)


def tensors_in(values: object) -> Iterator[torch.Tensor]:
    """Every tensor in an argument or a result, through lists, tuples and dictionaries."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors_in(value)


def poison(tensor: torch.Tensor) -> None:
    """Fill ``tensor`` with what undefined memory reads as: NaN, or a small wrong integer.

    Integers stay small because the garbage that a GPU reads as an index is most often another index; a huge one
    would turn silent errors into crashes.
    """
    tensor.fill_(float("nan") if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 1)


def poison_storage(storage: torch.UntypedStorage, dtype: torch.dtype | None) -> None:
    """``poison`` of all of a storage that holds ``dtype``, without a call of torch; fresh memory (None) is zero."""
    start, nbytes = start_of(storage), storage.nbytes()
    if dtype is None:
        memset(start, 0, nbytes)
    elif dtype.is_floating_point or dtype.is_complex:
        memset(start, 0xFF, nbytes)  # NaN in each of torch's types
    else:
        memmove(start, (1).to_bytes(dtype.itemsize, sys.byteorder) * (nbytes // dtype.itemsize), nbytes)
