"""Memory that was made from other memory, and is left behind when that is written: ``as_float = mask.float()``.

A graph that reads the copy sees nothing of what is written to the original later, unless somebody makes the copy
again. Calls are noted as they come; only storages that still live count, so what a warm-up leaves behind does not.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from capturelint.runtime.observations import Spot
from capturelint.runtime.trace import Call, each_tensor, key_of

MAX_SOURCES = 8
"""What a mask, a table or a cast is made of; more are the work of a step."""

Reference = weakref.ref[torch.UntypedStorage]


@dataclass(frozen=True, slots=True)
class Copy:
    """A storage, the call that made or filled it last, and the storages that it was made of, however many calls ago.

    ``at`` counts the writes before it.
    """

    storage: Reference
    call: str
    sources: Mapping[int, Reference]
    at: int


@dataclass(frozen=True, slots=True)
class Behind:
    """A copy whose original was written since: by which call, at which lines."""

    copy: Copy
    call: str
    spots: tuple[Spot, ...]


@dataclass(slots=True)
class Copies:
    """Copies by the key of their storage, and which of them a write since the last capture has left behind."""

    made: dict[int, Copy] = field(default_factory=dict)
    behind: dict[int, Behind] = field(default_factory=dict)
    is_captured: bool = False

    def restored(self, call: Call, args: Sequence[object], at: int) -> int | None:
        """After how many writes memory was as this call puts it back; ``None`` where it is given anything else.

        Who saved a reference, and no copy, puts back what is there.
        """
        target, source, *_ = (*(key_of(each) for each in each_tensor(tuple(args))), 0, 0)
        if call.short != "copy_" or not source:
            return None
        if target == source:
            return at
        copy = self.made.get(source)
        return copy.at if copy is not None and target in copy.sources else None

    def note(self, call: Call, given: object, result: object, written: Sequence[torch.Tensor], at: int) -> None:
        """A call that ran: what it wrote in place, and what it made of what it was given."""
        references = {key_of(each): weakref.ref(each.untyped_storage()) for each in each_tensor(given) if key_of(each)}
        origins = self.origins(references)
        filled = [each for each in each_tensor(result) if key_of(each) not in references]
        for tensor in (*filled, *written):
            key = key_of(tensor)
            if not key:
                continue
            self.behind.pop(key, None)
            sources = {source: reference for source, reference in origins.items() if source != key}
            self.made[key] = Copy(weakref.ref(tensor.untyped_storage()), call.short, sources, at)
        for tensor in written if self.is_captured else ():
            self.leave_behind(key_of(tensor), call)

    def origins(self, given: Mapping[int, Reference]) -> Mapping[int, Reference]:
        """The living storages that ``given`` are and were made of; none where they are many, as a whole step's are."""
        found = dict(given)
        for key in given:
            if key in self.made and self.made[key].storage() is given[key]():
                found |= self.made[key].sources
        living = {key: reference for key, reference in found.items() if reference() is not None}
        return living if len(living) <= MAX_SOURCES else {}

    def leave_behind(self, written: int, call: Call) -> None:
        """Every living copy of a storage that was written."""
        for key, copy in self.made.items():
            source = copy.sources.get(written)
            if key not in self.behind and source is not None and source() is not None and copy.storage() is not None:
                self.behind[key] = Behind(copy, call.short, call.spots)

    def captured(self) -> None:
        """A capture begins: whatever is behind by now was so before it."""
        self.behind.clear()
        self.is_captured = True
