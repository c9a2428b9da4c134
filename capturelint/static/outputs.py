"""Which graph writes a tensor, and when each graph was replayed last: only its own next replay overwrites an output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from capturelint.static.records import replace
from capturelint.static.values import Home, Ref, Sequence, Tensor, Value, options

ANY = 0
"""The number of a graph that nobody knows: it may be each of them."""


@dataclass(slots=True)
class Outputs:
    """``clock`` counts replays; graphs are numbered as objects in the heap."""

    clock: int = 0
    graph: int = ANY
    """The graph that is captured now, or was captured last."""
    last: dict[int, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    """Tensors that recorded code made, and for which graph."""
    writers: dict[Home, set[int]] = field(default_factory=dict)
    """Slots whose tensors recorded code fills, and in which graphs."""

    def begin(self, graph: Value) -> None:
        """A graph is captured."""
        known = [option.oid for option in options(graph) if isinstance(option, Ref)]
        self.graph = known[0] if len(known) == 1 == len(options(graph)) else ANY

    def on_made(self, ident: int) -> None:
        """Recorded code made a tensor."""
        self.made[ident] = self.graph

    def end(self, mutated: Iterable[Home]) -> None:
        """The capture is over."""
        for home in mutated:
            self.writers.setdefault(home, set()).add(self.graph)

    def on_replay(self, graph: Value) -> None:
        """One graph, or one of several, is replayed."""
        self.clock += 1
        for option in options(graph):
            self.last[option.oid if isinstance(option, Ref) else ANY] = self.clock

    def written(self, tensor: Tensor) -> int:
        """The last replay that may have written a tensor."""
        graphs = (
            {self.made.get(tensor.ident, ANY)} if tensor.output else self.writers.get(tensor.home or HOMELESS, {ANY})
        )
        return self.clock if ANY in graphs else max(self.last.get(graph, 0) for graph in {*graphs, ANY})


HOMELESS = Home(-2, None)
"""The home of what has none."""


def torch_tensors(value: Value) -> Iterator[Tensor]:
    """The tensors in one slot, none of other objects."""
    for option in options(value):
        if isinstance(option, Tensor):
            yield option
        elif isinstance(option, Sequence):
            for item in option.items if option.items is not None else (option.element,):
                yield from torch_tensors(item)


def without_names(value: Value) -> Value:
    """A value whose being kept has been said: later uses say no more."""
    return with_tensors(value, lambda tensor: replace(tensor, kept=None))


def as_output(value: Value, given: frozenset[int]) -> Value:
    """The tensors of a value, as outputs of a graph; but for those that it was given."""
    return with_tensors(value, lambda tensor: tensor if tensor.ident in given else replace(tensor, output=True))


def with_tensors(value: Value, changed: Callable[[Tensor], Tensor]) -> Value:
    """A tensor, or the items of a tuple, with other facts about each tensor."""
    match value:
        case Tensor():
            return changed(value)
        case Sequence(items=items) if items is not None:
            return replace(value, items=tuple([with_tensors(item, changed) for item in items]))
        case _:
            return value
