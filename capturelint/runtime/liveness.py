"""Memory that a captured step reads and that nobody holds any more: which, since when, and at which line.

A graph keeps addresses, not references. torch looks for such memory itself where it can
(``check_input_liveness``, 2.13), by an error at the replay; here it is an observation with a line, for every torch.
The surprise: under the emulator a recording does hold its memory, so the emulator is asked what the user has freed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from capturelint.emulator.ledger import is_freed, num_reuses
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.project import Project
from capturelint.runtime.trace import Watch, each_tensor, key_of, short_name
from capturelint.vocabulary import ObservationKind


@dataclass(slots=True)
class Watched:
    """A storage from before the capture. ``reader`` are the lines of the call that read it, ``freed`` of its end.

    ``reuses`` counts the tensors that had it before: the emulator gives a freed storage away as it is.
    """

    reference: weakref.ref[torch.UntypedStorage]
    address: int
    shape: tuple[int, ...]
    call: str
    reader: tuple[Spot, ...]
    freed: tuple[Spot, ...] = ()
    reuses: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether nobody but an emulated recording holds the memory, or somebody else does."""
        storage = self.reference()
        return storage is None or is_freed(storage) or num_reuses(storage) != self.reuses


class Liveness(Watch):  # type: ignore[no-untyped-call]
    """Notes what the calls made while it is entered read and did not make.

    Graphs that pass values on to one another share ``made``: the pool keeps what it lies in, whoever holds it.
    """

    def __init__(self, project: Project, made: set[int] | None = None) -> None:
        super().__init__(project)
        self.watched: dict[int, Watched] = {}
        self.made: set[int] = set() if made is None else made

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call, and note whose memory it took."""
        for tensor in each_tensor((args, kwargs or {})):
            if tensor.is_cuda:
                self.watch(tensor, str(func))
        result = func(*args, **(kwargs or {}))
        self.made.update(key for tensor in each_tensor(result) if (key := key_of(tensor)) not in self.watched)
        return result

    def watch(self, tensor: torch.Tensor, call: str) -> None:
        """Notice when the memory of ``tensor`` is freed."""
        key = key_of(tensor)
        if not key or key in self.watched or key in self.made:
            return
        storage = tensor.untyped_storage()
        spots = self.project.spots(sys._getframe(2))
        self.watched[key] = Watched(
            weakref.ref(storage, self.noted(key)),
            key,
            tuple(tensor.shape),
            short_name(call),
            spots,
            reuses=num_reuses(storage),
        )
        # The line is also noted when the tensor's own object dies: the emulator keeps the storage.
        weakref.finalize(tensor, self.noted(key), None).atexit = False

    def noted(self, key: int) -> Callable[[object], None]:
        """What a dying tensor or storage calls."""

        def note(_: object) -> None:
            if key in self.watched and (spots := self.project.spots(sys._getframe(1))):
                self.watched[key].freed = spots

        return note

    def dead(self) -> list[Watched]:
        """The memory that is free by now."""
        return [each for each in self.watched.values() if each.is_dead]


def freed_memory(dead: Sequence[Watched], step: int) -> list[Observation]:
    """One observation for each line that freed memory, else for each line that reads it."""
    found: dict[tuple[object, ...], Observation] = {}
    for each in dead:
        spots = each.freed or each.reader
        where = (spots[-1].path, spots[-1].line) if spots else ()
        found.setdefault(
            where,
            Observation(
                ObservationKind.MEMORY_FREED,
                f"memory of shape {list(each.shape)}, which `{each.call}`{line_of(each.reader)} reads, "
                f"is free when the graph is replayed",
                spots,
                step=step,
                call=each.call,
            ),
        )
    return list(found.values())


def line_of(spots: tuple[Spot, ...]) -> str:
    """`` (line 12)``."""
    return f" (line {spots[-1].line})" if spots else ""
