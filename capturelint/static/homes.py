"""Which attributes and items hold device tensors from one step to the next: the heap of the analysed program.

Objects are immutable records in a table, so a branch is a copy of the table and a merge joins the entries that differ.
At every step boundary ``carry`` stamps what the slots hold: a tensor with a ``home`` is one that the step inherited,
and that is what tells growth and rebinding from a harmless ``torch.cat`` and a harmless temporary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING

from capturelint.static.events import Site
from capturelint.static.index import ClassDef
from capturelint.static.records import quick, replace
from capturelint.static.values import (
    Const,
    Home,
    Number,
    Ref,
    Sequence,
    Tensor,
    Union,
    Value,
    join,
    varies_of,
)
from capturelint.vocabulary import Varies

if TYPE_CHECKING:
    from capturelint.static.summaries import Summary


class Sort(Enum):
    """What sort of mutable object it is."""

    INSTANCE = "instance"
    LIST = "list"
    DICT = "dict"
    SET = "set"


@quick
@dataclass(frozen=True, slots=True)
class Object:
    """One mutable object. ``slots`` are attributes, items by key, or items by index.

    ``element`` is any further item of a container (``None``: there are no others). ``born`` is the step that made it:
    an object is persistent for the steps after that. ``opaque`` objects have attributes that nobody saw assigned.
    """

    sort: Sort
    cls: ClassDef | str | None = None
    slots: Mapping[object, Value] = field(default_factory=dict)
    element: Value | None = None
    born: int = 0
    opaque: bool = False
    buffers: frozenset[str] = frozenset()
    factory: Value | None = None
    """What a dict calls for a key that it does not hold."""
    picked: bool = False
    """Made where it was one of many: picked by a name, or from a table."""


BLOCK = 32
"""Objects a block of the table: a branch copies the list of blocks, a write copies one block."""


class Objects:
    """Objects by number, cheap to copy and to compare: blocks are shared until one of their objects is written."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: dict[int, dict[int, Object]] | None = None) -> None:
        self.blocks = blocks if blocks is not None else {}

    def get(self, oid: int) -> Object | None:
        """The object of that number."""
        block = self.blocks.get(oid // BLOCK)
        return block.get(oid) if block is not None else None

    def __getitem__(self, oid: int) -> Object:
        return self.blocks[oid // BLOCK][oid]

    def __contains__(self, oid: int) -> bool:
        return self.get(oid) is not None

    def __setitem__(self, oid: int, found: Object) -> None:
        block = self.blocks.get(oid // BLOCK)
        self.blocks[oid // BLOCK] = {**block, oid: found} if block is not None else {oid: found}

    def items(self) -> Iterator[tuple[int, Object]]:
        """Every object with its number."""
        for block in list(self.blocks.values()):
            yield from block.items()

    def copy(self) -> Objects:
        """The same objects; blocks are shared."""
        return Objects(dict(self.blocks))

    def join(self, other: Objects) -> None:
        """Join another table that came from the same one into this one."""
        for number, theirs in other.blocks.items():
            ours = self.blocks.get(number)
            if ours is None:
                self.blocks[number] = theirs
            elif ours is not theirs:
                self.blocks[number] = join_blocks(ours, theirs)


def join_blocks(ours: dict[int, Object], theirs: dict[int, Object]) -> dict[int, Object]:
    """One block for two states of it."""
    merged = dict(ours)
    for oid, found in theirs.items():
        present = merged.get(oid)
        if present is None:
            merged[oid] = found
        elif present is not found:
            merged[oid] = join_objects(present, found)
    return merged


LENGTH = "#length"
"""The key of a list's length, as a home that a step may change."""


class Heap:
    """The mutable objects by number, and the step that is running."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.step = 0
        self.next_oid = 0
        self.per_step: set[Home] = set()
        self.measured: set[Home] = set()
        """The lists whose length the running step asked for, as ``LENGTH`` homes."""

    def new(self, made: Object) -> Ref:
        """Enter an object and point at it."""
        self.next_oid += 1
        self.objects[self.next_oid] = replace(made, born=self.step)
        return Ref(self.next_oid)

    def __getitem__(self, ref: Ref) -> Object:
        return self.objects[ref.oid]

    def get(self, ref: Ref) -> Object | None:
        """The object, or ``None`` on a path that never made it."""
        return self.objects.get(ref.oid)

    def persistent(self, ref: Ref) -> bool:
        """True where the object is older than the running step."""
        found = self.objects.get(ref.oid)
        return found is not None and found.born < self.step

    def read(self, ref: Ref, key: object) -> Value | None:
        """What a slot holds; a number that every step changes is no longer known exactly."""
        value = self.objects[ref.oid].slots.get(key)
        if isinstance(value, Number) or (isinstance(value, Const) and isinstance(value.value, (int, float))):
            home = Home(ref.oid, key)
            if home in self.per_step:
                return Number(Varies.PER_STEP, frozenset({home}))
            return replace(value, deps=value.deps | {home})
        if self.per_step and isinstance(value, Tensor) and value.on_host:
            home = Home(ref.oid, key)
            return replace(value, varies=Varies.PER_STEP, deps=value.deps | {home}) if home in self.per_step else value
        return value

    def write(self, ref: Ref, key: object, value: Value) -> None:
        """Put a value into a slot. A number computed from the slot's own old content changes at every step."""
        found = self.objects[ref.oid]
        if isinstance(value, (Const, Number)) and value.deps:
            home = Home(ref.oid, key)
            if home in value.deps and found.born < self.step and changes(found.slots.get(key), value):
                self.per_step.add(home)
            value = replace(value, deps=value.deps - {home})
        self.objects[ref.oid] = replace(found, slots={**found.slots, key: value})

    def replace(self, ref: Ref, **changes: object) -> None:
        """Change fields of an object's record."""
        self.objects[ref.oid] = replace(self.objects[ref.oid], **changes)  # type: ignore[arg-type]

    def snapshot(self) -> Objects:
        """The table as it is; objects are immutable, so sharing them is enough."""
        return self.objects.copy()

    def merge(self, others: list[Objects]) -> None:
        """Make the table the join of several that came from the same one."""
        if not others:
            return
        merged = others[0].copy()
        for other in others[1:]:
            merged.join(other)
        self.objects = merged

    def carry(self) -> None:
        """Begin the next step: every tensor in a slot gets that slot as its home."""
        self.step += 1
        for oid, found in list(self.objects.items()):
            slots = {key: stamp(value, Home(oid, key), self.per_step) for key, value in found.slots.items()}
            element = stamp(found.element, Home(oid, "[]"), self.per_step) if found.element is not None else None
            if element is not found.element or any(slots[key] is not value for key, value in found.slots.items()):
                self.objects[oid] = replace(found, slots=slots, element=element)

    def reach(self, value: Value) -> Iterator[tuple[Home | None, Value]]:
        """Every slot and value that can be reached from a value, each object once."""
        seen: set[int] = set()
        todo: list[tuple[Home | None, Value]] = [(None, value)]
        while todo:
            home, found = todo.pop()
            yield home, found
            match found:
                case Ref() if found.oid not in seen and found.oid in self.objects:
                    seen.add(found.oid)
                    target = self.objects[found.oid]
                    todo += [(Home(found.oid, key), item) for key, item in target.slots.items()]
                    if target.element is not None:
                        todo.append((Home(found.oid, "[]"), target.element))
                case Sequence():
                    inner = found.items if found.items is not None else (found.element,)
                    todo += [(home, item) for item in inner]
                case Union():
                    todo += [(home, option) for option in found.options]
                case _:
                    pass


def changes(old: Value | None, new: Value) -> bool:
    """False for ``self.n = self.n``: the same number goes back into its slot."""
    return not (isinstance(old, Const) and isinstance(new, Const) and old.value == new.value)


def as_slots(named: Mapping[str, Value]) -> dict[object, Value]:
    """Named values as the slots of an object."""
    slots: dict[object, Value] = {}
    slots.update(named.items())
    return slots


def join_objects(left: Object, right: Object) -> Object:
    """One record for two states of the same object."""
    slots: dict[object, Value] = {}
    for key in {**left.slots, **right.slots}:
        a, b = left.slots.get(key), right.slots.get(key)
        slots[key] = b if a is None else a if b is None else join(a, b)  # type: ignore[assignment]
    element = left.element if right.element is None else right.element if left.element is None else None
    if left.element is not None and right.element is not None:
        element = join(left.element, right.element)
    if left.sort is Sort.LIST and len(left.slots) != len(right.slots):
        for key in [key for key in slots if key not in left.slots or key not in right.slots]:
            moved = slots.pop(key)
            element = moved if element is None else join(element, moved)
    return replace(left, slots=slots, element=element, opaque=left.opaque or right.opaque)


def stamp(value: Value, home: Home, per_step: set[Home]) -> Value:
    """A slot's content as the next step finds it; the very same value where that is no different."""
    match value:
        case Tensor():
            fresh = value.home == home and not (value.view or value.extends or value.recorded or value.made)
            return value if fresh else replace(value, home=home, view=False, extends=None, recorded=False, made=None)
        case Sequence(items=items) if items is not None:
            parts = [stamp(item, Home(home.owner, (home.key, at)), per_step) for at, item in enumerate(items)]
            return value if alike(parts, items) else replace(value, items=tuple(parts))
        case Sequence():
            element = stamp(value.element, Home(home.owner, (home.key, "[]")), per_step)
            return value if element is value.element else replace(value, element=element)
        case Union():
            parts = [stamp(option, home, per_step) for option in value.options]
            return value if alike(parts, value.options) else Union(tuple(parts))
        case Const() | Number() if home in per_step:
            number = Number(Varies.PER_STEP, frozenset({home}))
            return value if value == number else number
        case Number() | Const():
            return replace(value, deps=frozenset()) if value.deps else value
        case _:
            return value


def alike(new: list[Value], old: tuple[Value, ...]) -> bool:
    """True where every value is the very one that it was."""
    return all(map(is_, new, old))


@dataclass(slots=True)
class Step:
    """What one run of the recorded code read, wrote and made, for the questions that only its end can answer."""

    used: set[Home] = field(default_factory=set)
    mutated: dict[Home, Site] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    grown: dict[Home, Site] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    forked: set[object] = field(default_factory=set)
    """Streams that waited for another one: what is put on them is part of the capture."""
    waits: set[tuple[Path, int]] = field(default_factory=set)
    """Lines that waited for one event, known which."""
    capturing: set[object] = field(default_factory=set)
    """The streams that the capture was begun on."""
    work: int = 0
    summaries: dict[tuple[object, ...], list[Summary]] = field(default_factory=dict)
    """The calls in it that others like them need not repeat."""


@quick
@dataclass(frozen=True, slots=True)
class Store:
    """A tensor put into a slot that outlives the step: what was there, what is there, under which conditions."""

    home: Home
    old: Value
    new: Value
    site: Site
    doubt: int
    hidden: bool
    outside: bool = False
    """True for a store by the capturing function itself: keeping an output is not building a buffer."""
    data: bool = False
    """True where the tensor in the slot is given other memory (``x.data = y``) and the slot is left alone."""


def tensors_of(heap: Heap, value: Value) -> list[Tensor]:
    """Every tensor that a value holds."""
    return [found for _, found in heap.reach(value) if isinstance(found, Tensor)]


def fresh_tensors(heap: Heap, value: Value) -> list[Tensor]:
    """The tensors in a value that this step made."""
    return [tensor for tensor in tensors_of(heap, value) if tensor.home is None]


def numbers_differ(old: Value, new: Value) -> bool:
    """True where two host values are surely not the same number or flag at every step."""
    if isinstance(old, Const) and isinstance(new, Const):
        return old.value != new.value
    return old != new or varies_of(new) is Varies.PER_STEP
