"""What a graph keeps of a call's arguments: where its tensors lie, and the values of its numbers.

Memory from before the capture is held by the ledger's entry of its storage, memory of a pool by its lease. Neither
counts as the program's, so what the program frees is free. Most arguments are plain tensors of the device and numbers:
``keep_all`` walks them once, and gives way to ``freeze_all`` where it meets anything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from capturelint.emulator.memory import ON_DEVICE, ON_HOST, untyped_storage
from capturelint.emulator.spots import Place, Spot, tensor_at

if TYPE_CHECKING:
    from capturelint.emulator.ledger import Entry, Ledger
    from capturelint.emulator.pool import Lease, Pool

Tensor = torch.Tensor
COMPOUND = (Tensor, list, tuple, dict)
"""What may be or hold a tensor."""


class Pointers:
    """What one capture, for which ``owner`` stands, points at.

    ``froze_values`` says whether values of host tensors were frozen since somebody set it to False.
    """

    def __init__(self, ledger: Ledger, pool: Pool, owner: object) -> None:
        self.ledger = ledger
        self.owner = owner
        self.pools = {pool}
        self.held: dict[int, Entry] = {}
        self.aliased: list[Entry] = []
        self.leases: dict[int, Lease] = {}
        self.froze_values = False

    def keep_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
        """What the graph keeps of a call's arguments, if all tensors among them are plain ones on the device."""
        first = args[0] if args else None
        if isinstance(first, (list, tuple)):
            first = first[0] if first else None
        if not isinstance(first, Tensor) or (kept_args := self.keep(args)) is None:
            return None
        if not kwargs:
            return kept_args, kwargs
        if "device" in kwargs or "pin_memory" in kwargs or (kept_values := self.keep(kwargs.values())) is None:
            return None
        return kept_args, dict(zip(kwargs, kept_values, strict=True))

    def keep(self, values: Iterable[Any]) -> list[Any] | None:
        """``keep_all`` of some values."""
        kept: list[Any] = []
        for value in values:
            if isinstance(value, Tensor):
                try:
                    storage = untyped_storage(value)
                except NotImplementedError:  # sparse
                    return None
                if storage._capturelint_memory is not ON_DEVICE or (spot := self.spot(value, storage)) is None:  # type: ignore[attr-defined]
                    return None
                kept.append(spot)
            elif isinstance(value, (list, tuple)):
                # Numbers are the common case, and a list of them holds nothing else.
                inner = value if value and isinstance(value[0], int) else self.keep(value)
                if inner is None:
                    return None
                kept.append(inner)
            else:
                kept.append(value)
        return kept

    def freeze_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """A call's arguments as the graph keeps them, whatever they are."""
        frozen = [self.freeze(value) if isinstance(value, COMPOUND) else value for value in args]
        if not kwargs:
            return frozen, kwargs
        return frozen, {
            name: self.freeze(value) if isinstance(value, COMPOUND) else value for name, value in kwargs.items()
        }

    def freeze(self, value: Any) -> Any:
        """``value`` with its tensors replaced by the graph's own: what becomes of the objects does not matter."""
        if isinstance(value, torch.Tensor):
            return self.point_at(value)
        if isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, (torch.Tensor, list, tuple)):
                    return type(value)([self.freeze(item) for item in value])
        elif isinstance(value, dict):
            return {key: self.freeze(item) for key, item in value.items()}
        return value

    def point_at(self, tensor: torch.Tensor) -> Place:
        """Where the same memory is seen by a tensor that does not count as the program's."""
        try:
            storage = untyped_storage(tensor)
        except NotImplementedError:  # sparse
            return tensor
        if storage._capturelint_memory is ON_HOST:  # type: ignore[attr-defined]
            return self.frozen(tensor)
        return self.spot(tensor, storage) or self.alias(tensor, storage)

    def spot(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Spot | None:
        """Where ``tensor`` lies; None if it is more than a type and a place, or this capture's outside its pool."""
        if tensor.is_nested or tensor.is_neg() or tensor.is_conj():
            return None
        lease: Lease | None = storage._capturelint_lease  # type: ignore[attr-defined]
        home: Lease | Entry
        if lease is not None:
            home = lease
            if lease.owner is not self.owner:
                self.pools.add(storage._capturelint_pool)  # type: ignore[attr-defined]
        elif storage._capturelint_owner is self.owner:  # type: ignore[attr-defined]
            return None
        else:
            home = self.held.get(storage._cdata) or self.hold(tensor, storage)
        return Spot((home, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()))

    def hold(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Entry:
        """Point at memory from before the capture."""
        entry = self.held[storage._cdata] = self.ledger.entry(tensor, storage)
        return entry

    def alias(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
        """The graph's own for a tensor without a spot: nested, conjugated, negated, or outside the pool."""
        if storage._capturelint_owner is self.owner:  # type: ignore[attr-defined]
            return tensor.detach()
        lease: Lease | None = storage._capturelint_lease  # type: ignore[attr-defined]
        if lease is not None and not tensor.is_nested:
            storage._capturelint_pool.catch_up()  # type: ignore[attr-defined]
            self.pools.add(storage._capturelint_pool)  # type: ignore[attr-defined]
            spot = Spot((lease, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()))
            self.leases[id(lease)] = lease
            made = tensor_at(spot.located())
        else:
            entry = self.held.get(storage._cdata) or self.hold(tensor, storage)
            entry.num_held += 1
            self.aliased.append(entry)
            return tensor.detach()
        if tensor.is_conj():
            made = made.conj()
        return torch._neg_view(made) if tensor.is_neg() else made

    def frozen(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host scalar becomes a launch argument: its value is frozen, not its address."""
        self.froze_values = True
        return tensor.detach().clone()

    def release(self) -> None:
        """Let go of everything."""
        for entry in self.aliased:
            entry.num_held -= 1
        self.aliased.clear()
        self.leases.clear()
        self.ledger.release(self.held.values())
        self.held.clear()
