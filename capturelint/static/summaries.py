"""What a call read, changed, made and returned, so that the same call in the same step costs a look-up.

Calls are run with their real arguments, which is exact, and exponential where a function calls another one twice, which
calls a third one twice. So the calls of functions that are called often are kept: what they read of the heap is the
condition, and what became of the heap, with the value, is the effect. A later call under the same condition gets the
effect and is not run. The one surprise: events and notes on the step are not kept with it. Summaries live as long as
the step whose notes they would repeat, and a note is there once, under the first chain of calls that led to it.

State of the machine that decides what a call does belongs into ``situation``; who notes something that depends on what
came before adds to ``vm.untold``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from capturelint.static.events import EventKey, least
from capturelint.static.homes import Object, Objects
from capturelint.static.records import replace
from capturelint.static.state import at_work
from capturelint.static.values import (
    BoundExternal,
    Const,
    Function,
    Home,
    Lambda,
    Method,
    Number,
    Partial,
    Ref,
    Sequence,
    Slice,
    Super,
    Tensor,
    Union,
    Value,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

OFTEN = 8
"""Runs of a function before its calls are kept: most are called once or twice, and keeping costs as much as running."""
SMALL = 30
"""Expressions below which running a call is cheaper than comparing it with others."""
PATIENCE = 8
"""Calls in a row that were like none before, after which those of a function are no longer kept."""
EVERYTHING = -1
"""Among the objects that were read: whoever walks over the whole table reads all of them."""


class UntoldError(Exception):
    """A value that another call cannot be given: a closure sees the names of the call that made it."""


@dataclass(slots=True)
class Tally:
    """The calls of one function: how many were run, the most expressions of one, and the last that were like none."""

    run: int = 0
    size: int = 0
    missed: int = 0

    def add(self, size: int) -> None:
        """A call was run, and evaluated so many expressions."""
        self.run += 1
        self.size = max(self.size, size)

    @property
    def pays(self) -> bool:
        """Whether to keep them."""
        return self.run >= OFTEN and self.size >= SMALL and self.missed < PATIENCE


class Watched(Objects):
    """A table that notes which of its objects are read, through all of its copies."""

    __slots__ = ("read",)

    def __init__(self, blocks: dict[int, dict[int, Object]], read: set[int]) -> None:
        super().__init__(blocks)
        self.read = read

    def get(self, oid: int) -> Object | None:
        """The object of that number."""
        self.read.add(oid)
        return super().get(oid)

    def __getitem__(self, oid: int) -> Object:
        self.read.add(oid)
        return super().__getitem__(oid)

    def items(self) -> Iterator[tuple[int, Object]]:
        """Every object with its number."""
        self.read.add(EVERYTHING)
        return super().items()

    def copy(self) -> Objects:
        """The same objects, watched as well."""
        return Watched(dict(self.blocks), self.read)


def rebuilt(value: Value, part: Callable[[Value], Value]) -> Value:
    """The same value with other tensors, numbers and pointers in it. Raises ``UntoldError`` for closures."""
    match value:
        case Sequence(items=items):
            inner = tuple([rebuilt(item, part) for item in items]) if items is not None else None
            return Sequence(inner, rebuilt(value.element, part), value.shape)
        case Union():
            return Union(tuple([rebuilt(option, part) for option in value.options]))
        case Slice():
            return Slice(rebuilt(value.start, part), rebuilt(value.stop, part), rebuilt(value.step, part))
        case Method():
            return Method(rebuilt(value.function, part), rebuilt(value.owner, part))
        case Partial():
            args = tuple([rebuilt(held, part) for held in value.args])
            kwargs = tuple([(name, rebuilt(held, part)) for name, held in value.kwargs])
            return Partial(rebuilt(value.function, part), args, kwargs)
        case BoundExternal():
            return BoundExternal(rebuilt(value.owner, part), value.name)
        case Super():
            return Super(rebuilt(value.owner, part), value.after)
        case Lambda():
            raise UntoldError
        case Function() if value.scope is not None:
            raise UntoldError
        case _:
            return part(value)


Key: TypeAlias = tuple[object, ...]


class Arguments:
    """Arguments without the numbers of their tensors, which are other ones at every call, and these numbers."""

    def __init__(self, vm: Interpreter, values: Iterable[Value]) -> None:
        self.vm = vm
        self.idents: dict[int, int] = {}
        """In which place each tensor comes first."""
        self.pattern: list[int] = []
        self.fixed: set[int] = set()
        """Tensors that were there before the recording: their addresses are in the graph, whichever they are."""
        self.values = tuple([rebuilt(value, self.keyed) for value in values])

    def keyed(self, value: Value) -> Value:
        """A part of an argument as one to be found under: 1, 1.0 and ``True`` are three values."""
        match value:
            case Const():
                return Const((type(value.value), value.value), value.deps)
            case Tensor():
                self.pattern.append(self.idents.setdefault(value.ident, len(self.idents)))
                if not self.is_any_one(value):
                    self.fixed.add(value.ident)
                return replace(value, ident=0)
            case _:
                return value

    def is_any_one(self, tensor: Tensor) -> bool:
        """Whether another tensor in its place would make no difference."""
        driver = self.vm.driver
        if tensor.ident <= 0 or driver is None:
            return tensor.ident > 0
        return tensor.recorded if self.vm.recording else not driver.knows(tensor.ident)

    @property
    def key(self) -> Key:
        """What a summary is found under."""
        return (*self.values, *self.pattern)


@dataclass(frozen=True)
class Summary:
    """One call: what it found, and what it left. Numbers above the marks are of what it made.

    Most are never asked for, so what an answer needs is worked out by the first that asks.
    """

    idents: tuple[int, ...]
    """The tensors of its arguments, in the order of their places."""
    before: Objects
    after: Objects
    read: set[int]
    last_oid: int
    last_ident: int
    value: Value
    written: frozenset[int]
    log: list[tuple[EventKey, int]]
    work: int

    @cached_property
    def changed(self) -> tuple[int, ...]:
        """The objects that were there and are other ones after it."""
        return tuple(changed_objects(self.before, self.after, self.last_oid))

    @cached_property
    def found(self) -> dict[int, Object | None]:
        """The objects that it read or changed, as they were."""
        return {oid: self.before.get(oid) for oid in (*self.read, *self.changed) if oid <= self.last_oid}

    @cached_property
    def held(self) -> frozenset[int]:
        """The tensors in these objects."""
        return frozenset(idents_in(found for found in self.found.values() if found is not None))

    @cached_property
    def sightings(self) -> list[tuple[EventKey, int]]:
        """The events in it, each under the fewest conditions."""
        return list(least(self.log).items())

    @cached_property
    def can_be_told(self) -> bool:
        """Whether all that it left can be given to another call."""
        todo = [self.value, *(value for oid in self.changed for value in values_of(self.after[oid]))]
        seen: set[int] = set()

        def part(value: Value) -> Value:
            for oid in owners_in(value) - seen:
                seen.add(oid)
                made = self.after.get(oid) if oid > self.last_oid else None
                todo.extend(values_of(made) if made is not None else ())
            return value

        try:
            while todo:
                rebuilt(todo.pop(), part)
        except UntoldError:
            return False
        return True

    def holds(self, vm: Interpreter, given: Arguments) -> bool:
        """Whether a call with such arguments finds the same."""
        objects = vm.heap.objects
        if not all(objects.get(oid) is found for oid, found in self.found.items()):
            return False
        for old, new in zip(self.idents, given.idents, strict=True):
            if old != new and (new in given.fixed or old in self.held or new in self.held):
                return False
        return self.can_be_told

    def apply(self, vm: Interpreter, given: Arguments) -> Value:
        """Do what the call did, and give what it gave."""
        placing = Placing(vm, self, dict(zip(self.idents, given.idents, strict=True)))
        value = rebuilt(self.value, placing.part)
        for oid in self.changed:
            vm.heap.objects[oid] = placing.record(self.after[oid])
        vm.step.written |= {placing.ident(ident) for ident in self.written}
        vm.step.work += self.work
        vm.log += self.sightings
        return value


@dataclass(slots=True)
class Placing:
    """What a summary speaks of, in the call that it stands for: what it made is made again."""

    vm: Interpreter
    summary: Summary
    idents: dict[int, int]
    oids: dict[int, int] = field(default_factory=dict)

    def ident(self, old: int) -> int:
        """The number of a tensor."""
        if old <= self.summary.last_ident:
            return self.idents.get(old, old)
        if old not in self.idents:
            made = self.idents[old] = self.vm.ident()
            driver = self.vm.driver
            if driver is not None and self.vm.recording:
                driver.outputs.on_made(made)
            elif driver is not None and old in driver.origins:
                driver.origins[made] = {self.idents.get(source, source) for source in driver.origins[old]}
        return self.idents[old]

    def oid(self, old: int) -> int:
        """The number of an object; one that the call made is entered where it is first met."""
        if old <= self.summary.last_oid:
            return old
        made = self.summary.after.get(old) if old not in self.oids else None
        if made is not None:
            self.oids[old] = self.vm.heap.new(Object(made.sort)).oid
            self.vm.heap.objects[self.oids[old]] = self.record(made)
        return self.oids.get(old, old)

    def record(self, found: Object) -> Object:
        """An object."""
        slots = {key: rebuilt(value, self.part) for key, value in found.slots.items()}
        element = rebuilt(found.element, self.part) if found.element is not None else None
        factory = rebuilt(found.factory, self.part) if found.factory is not None else None
        return replace(found, slots=slots, element=element, factory=factory)

    def part(self, value: Value) -> Value:
        """A part of a value."""
        match value:
            case Tensor():
                home, extends, deps = self.home(value.home), self.home(value.extends), self.homes(value.deps)
                return replace(value, ident=self.ident(value.ident), home=home, extends=extends, deps=deps)
            case Const() | Number() if value.deps:
                return replace(value, deps=self.homes(value.deps))
            case Ref():
                return Ref(self.oid(value.oid))
            case _:
                return value

    def home(self, home: Home | None) -> Home | None:
        """A slot."""
        return Home(self.oid(home.owner), home.key) if home is not None else None

    def homes(self, deps: frozenset[Home]) -> frozenset[Home]:
        """Slots."""
        return frozenset([Home(self.oid(home.owner), home.key) for home in deps]) if deps else deps


def owners_in(value: Value) -> set[int]:
    """The objects that a part of a value points at, or whose slots it says that it is from."""
    match value:
        case Ref():
            return {value.oid}
        case Tensor():
            homes = (value.home, value.extends, *value.deps)
            return {home.owner for home in homes if home is not None}
        case Const() | Number():
            return {home.owner for home in value.deps}
        case _:
            return set()


def can_keep(vm: Interpreter) -> bool:
    """Whether calls are kept here: who watches wants to see all of them, and work on side streams is followed."""
    return vm.watch is None and vm.inside is None and not vm.side_streams


def situation(vm: Interpreter) -> Key:
    """What of the machine decides what any call does; a call that changes it for those after it is not kept."""
    tried = None if vm.trying is None else vm.conditions() - vm.trying
    conditions = vm.doubt, vm.soft, vm.hidden, vm.muted, vm.tables, tried, any(map(at_work, vm.stack))
    modes = vm.phase, vm.compiled, vm.assuming, vm.default_memory, vm.module_memory, vm.autocast is None
    numbers = vm.heap.step, len(vm.heap.per_step), len(vm.stream_stack), len(vm.side_streams), len(vm.entered)
    # What is evaluated once and then is there for everybody.
    once = len(vm.rebound), len(vm.instances), len(vm.remembered), len(vm.replaced), len(vm.attribute_tables)
    around = vm.driver.situation if vm.driver is not None and not vm.recording else ()
    return (*conditions, *modes, *numbers, *once, *around, vm.driver is None)


def call(vm: Interpreter, tally: Tally, function: Key, args: list[Value], run: Callable[[], Value]) -> Value:
    """The value of a call: looked up where one like it was kept in this step, else by running it.

    ``function`` tells which it is, and how ``args`` are given to it. Raises what ``run`` raises.
    """
    try:
        given = Arguments(vm, args)
    except UntoldError:
        tally.missed += 1
        return run()
    before = situation(vm)
    kept = vm.step.summaries.setdefault((*function, *before, *given.key), [])
    for summary in reversed(kept):
        if summary.holds(vm, given):
            tally.missed = 0
            vm.fuel -= 1
            return summary.apply(vm, given)
    tally.missed += 1
    made, value = record(vm, given, before, run)
    if made is not None:
        kept.append(made)
    return value


def record(vm: Interpreter, given: Arguments, before: Key, run: Callable[[], Value]) -> tuple[Summary | None, Value]:
    """Run a call and see what it does; no summary where it did what nobody can do in its place."""
    outer, read = vm.heap.objects, set[int]()
    last_oid, last_ident, untold = vm.heap.next_oid, vm.idents, vm.untold
    written, work, seen = frozenset(vm.step.written), vm.step.work, len(vm.log)
    vm.heap.objects = Watched(dict(outer.blocks), read)
    try:
        value = run()
    finally:
        blocks = vm.heap.objects.blocks
        vm.heap.objects = Watched(blocks, outer.read) if isinstance(outer, Watched) else Objects(blocks)
        if isinstance(outer, Watched):
            outer.read |= read
    changes = frozenset(vm.step.written - written)
    told = vm.untold == untold and EVERYTHING not in read and changes.isdisjoint(given.idents)
    if not told or vm.fuel <= 0 or situation(vm) != before:
        return None, value
    summary = Summary(
        idents=tuple(given.idents),
        before=Objects(outer.blocks),
        after=Objects(dict(blocks)),
        read=read,
        last_oid=last_oid,
        last_ident=last_ident,
        value=value,
        written=changes,
        log=vm.log[seen:],
        work=vm.step.work - work,
    )
    return summary, value


def changed_objects(before: Objects, after: Objects, last_oid: int) -> Iterator[int]:
    """The objects that were there and are other ones now."""
    for number, block in after.blocks.items():
        old = before.blocks.get(number)
        if old is not None and old is not block:
            yield from (oid for oid, found in block.items() if oid <= last_oid and old.get(oid) is not found)


def values_of(found: Object) -> Iterator[Value]:
    """All that an object holds."""
    yield from found.slots.values()
    yield from (value for value in (found.element, found.factory) if value is not None)


def idents_in(records: Iterable[Object]) -> list[int]:
    """The tensors that objects hold themselves."""
    met: list[int] = []

    def part(value: Value) -> Value:
        if isinstance(value, Tensor):
            met.append(value.ident)
        return value

    for value in (value for found in records for value in values_of(found)):
        with suppress(UntoldError):
            rebuilt(value, part)
    return met
