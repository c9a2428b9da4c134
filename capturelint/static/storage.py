"""Slots and items of objects in the heap: reading, writing, and what either means for a graph.

A store into an object that outlives the step is where rebinding, growth and lazy building show; it is noted here and
judged at the end of the step, when it is known whether the old content was used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capturelint.static import attributes, inheritance
from capturelint.static.homes import Sort, Store, fresh_tensors, tensors_of
from capturelint.static.index import ClassDef
from capturelint.static.records import replace
from capturelint.static.state import at_work
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Home,
    Number,
    Ref,
    Tensor,
    Truth,
    Value,
    join,
    options,
    union,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def fill_items(vm: Interpreter, owner: Ref, args: list[Value]) -> None:
    """What the initialiser of a class derived from a list does with its arguments."""
    found = vm.heap[owner]
    base = inheritance.list_base(vm, found)
    if base is None or not args:
        return
    items = list(args) if base.endswith(".Sequential") else vm.items(args[0])
    if items is None:
        put_element(vm, owner, vm.element(args[0]))
    else:
        slots: dict[object, Value] = {**found.slots}
        slots.update(enumerate(items))
        vm.heap.replace(owner, slots=slots)


def read_slot(vm: Interpreter, owner: Ref, key: object) -> Value | None:
    """What a slot holds; reading it in recorded code makes it part of what the graph was recorded with."""
    value = vm.heap.read(owner, key)
    if value is not None and vm.driver is not None:
        value = vm.driver.on_load(vm, owner, key, value)
    return value


def write_slot(vm: Interpreter, owner: Ref, key: object, value: Value, node: ast.AST, same: bool = False) -> None:
    """Write a slot and note what that means for a graph."""
    if (instance := vm.attribute_tables.get(owner.oid)) is not None:
        write_slot(vm, instance, key, value, node, same)
    found = vm.heap[owner]
    old = found.slots.get(key, found.element if found.sort is not Sort.INSTANCE else None)
    if vm.driver is not None and not same:
        value = vm.driver.alias_in_slot(vm, vm.driver.grown(value, node), node)
        vm.driver.on_output_slot(vm, owner, key, old, value, node)
        vm.driver.on_store(vm, owner, key, old, value, node)
    home = Home(owner.oid, key)
    if (vm.recording or vm.warms_compiled) and vm.heap.persistent(owner) and not same:
        tensors = tensors_of(vm.heap, value)
        if any(t.home is None or (t.home != home and not t.view) for t in tensors):
            record_store(vm, home, old if old is not None else NONE, value, node)
    if isinstance(value, Tensor) and value.on_host and not same and vm.heap.persistent(owner) and home in value.deps:
        vm.heap.per_step.add(home)
    if isinstance(value, (Const, Number)) and home in value.deps and any(map(at_work, vm.stack)):
        value = replace(value, deps=value.deps - {home})  # what it counts up, it counts down again
    if not isinstance(value, Tensor) or not same:
        vm.heap.write(owner, key, value)


def element(vm: Interpreter, owner: Ref) -> Value:
    """Any item of a container object; iterating a module container gives its children, a dict its keys."""
    found = vm.heap.get(owner)
    if found is None:
        return UNKNOWN
    if found.sort is Sort.DICT:
        keys: list[Value] = [Const(key) for key in found.slots]
        return union([*keys, *([UNKNOWN] if found.element is not None else [])]) if len(keys) <= 4 else UNKNOWN
    if found.sort is Sort.INSTANCE:
        method = inheritance.find_method(vm, found.cls, "__iter__") if isinstance(found.cls, ClassDef) else None
        if method is not None and isinstance(found.cls, ClassDef):
            node = found.cls.node
            return vm.element(vm.call(attributes.bound(vm, owner, *method, node), [], {}, node))
        children = [vm.heap.read(owner, key) or UNKNOWN for key in found.slots if isinstance(key, int)]
        if found.element is not None:
            children.append(found.element)
        return union(children)
    items = [vm.heap.read(owner, key) or UNKNOWN for key in found.slots]
    if found.element is not None:
        items.append(found.element)
    return union(items)


def values_of(vm: Interpreter, owner: Ref) -> list[Value]:
    """The values of a dict, exact ones first."""
    found = vm.heap[owner]
    inner = [read_slot(vm, owner, key) or UNKNOWN for key in found.slots]
    return [*inner, found.element] if found.element is not None else inner


def entries(vm: Interpreter, value: Value) -> Iterator[tuple[object, Value]]:
    """The exact items of a dict value."""
    for option in options(value):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None and found.sort is Sort.DICT:
            for key in found.slots:
                yield key, vm.heap.read(option, key) or UNKNOWN


def keywords(vm: Interpreter, value: Value) -> tuple[dict[str, Value], bool]:
    """The arguments that ``**value`` passes, and whether there may be more."""
    exact: dict[str, Value] = {}
    more = False
    for option in options(value):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None and found.sort is Sort.DICT:
            exact |= {str(key): read_slot(vm, option, key) or UNKNOWN for key in found.slots}
            more = more or found.element is not None or found.opaque
        else:
            more = True
    return exact, more


def truth(vm: Interpreter, value: Ref) -> Truth:
    """Instances are true; containers where they surely have an item."""
    found = vm.heap.get(value)
    if found is None:
        return Truth.HOST
    if found.sort is Sort.INSTANCE:
        if isinstance(found.cls, ClassDef):
            asked = any(inheritance.find_method(vm, found.cls, name) for name in ("__len__", "__bool__"))
            return Truth.HOST if asked or inheritance.is_open(vm, found.cls) else Truth.TRUE
        return Truth.HOST if found.slots or found.opaque else Truth.TRUE
    if found.slots:
        return Truth.TRUE if vm.heap.persistent(value) is False or found.element is None else Truth.HOST
    return Truth.HOST if found.element is not None or found.opaque else Truth.FALSE


def put_element(vm: Interpreter, owner: Ref, value: Value) -> None:
    """Add any further item to a container."""
    found = vm.heap[owner]
    vm.heap.replace(owner, element=value if found.element is None else join(found.element, value))


def note_element_store(vm: Interpreter, owner: Ref, value: Value, node: ast.AST) -> None:
    """A store under a key that is not known: like a slot write, on the container as a whole."""
    found = vm.heap[owner]
    if vm.recording and vm.heap.persistent(owner) and fresh_tensors(vm.heap, value):
        held = [*found.slots.values(), *([found.element] if found.element is not None else [])]
        old = union(held) if held else NONE
        record_store(vm, Home(owner.oid, "[]"), old, value, node)


def record_store(vm: Interpreter, home: Home, old: Value, value: Value, node: ast.AST) -> None:
    """Remember a tensor put into what outlives the step, to be judged when the step is over."""
    outside = vm.driver is not None and len(vm.stack) == vm.driver.depth
    vm.step.stores.append(Store(home, old, value, vm.site(node), vm.doubt, bool(vm.hidden), outside))
