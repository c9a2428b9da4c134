"""Methods of lists, dicts, sets and tuples. An append to a list that outlives the step happens at capture only."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import storage
from capturelint.static.homes import LENGTH, Object, Sort, fresh_tensors
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Home,
    Number,
    Ref,
    Sequence,
    Value,
    constant,
    options,
    union,
)
from capturelint.vocabulary import Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def call_sequence(vm: Interpreter, owner: Sequence, name: str, args: list[Value], node: ast.AST) -> Value:
    """``shape.numel()``, ``tuple.index``."""
    if name in ("numel", "index", "count"):
        return Number(Varies.PER_BUCKET if owner.shape else Varies.NEVER)
    return UNKNOWN


def call_dict(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods of dicts."""
    key = constant(args[0]) if args else Const
    default = args[1] if len(args) > 1 else NONE
    match name:
        case "get" | "pop" | "setdefault":
            if key is not Const and key in found.slots:
                return storage.read_slot(vm, owner, key) or UNKNOWN
            if name == "setdefault":
                if key is not Const:
                    storage.write_slot(vm, owner, key, default, node)
                    return default
                if found.element is None:
                    storage.put_element(vm, owner, default)
                return vm.heap[owner].element or UNKNOWN
            # Under a key that is known and not there it is not one of the others.
            held = (
                storage.values_of(vm, owner) if key is Const else [found.element] if found.element is not None else []
            )
            return union([*held, default, *([UNKNOWN] if found.opaque and default == NONE else [])])
        case "values":
            held = storage.values_of(vm, owner)
            return Sequence(tuple(held)) if found.element is None else Sequence(None, union(held))
        case "items":
            pairs: list[Value] = [Sequence((Const(k), storage.read_slot(vm, owner, k) or UNKNOWN)) for k in found.slots]
            if found.element is None:
                return Sequence(tuple(pairs))
            return Sequence(None, union([*pairs, Sequence((UNKNOWN, found.element))]))
        case "keys":
            keys: list[Value] = [Const(k) for k in found.slots]
            return Sequence(tuple(keys)) if found.element is None else Sequence(None, UNKNOWN)
        case "update":
            for value in args:
                for inner_key, inner in storage.entries(vm, value):
                    storage.write_slot(vm, owner, inner_key, inner, node)
            for inner_key, inner in kwargs.items():
                storage.write_slot(vm, owner, inner_key, inner, node)
            return NONE
        case "copy":
            return vm.heap.new(replace(found))
        case "clear":
            vm.heap.replace(owner, slots={}, element=None)
            return NONE
        case _:
            return UNKNOWN


RESIZING = frozenset(["append", "add", "appendleft", "insert", "extend", "update", "pop", "popleft", "remove", "clear"])
"""Methods after which a list or set has more or fewer items."""


def call_list(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods of lists and sets."""
    if vm.driver is not None and name in RESIZING:
        vm.driver.on_resize(vm, owner)
    match name:
        case "append" | "add" | "appendleft" | "insert":
            if args:
                keep(vm, owner, args[-1], node)
            return NONE
        case "extend" | "update" if name == "extend" or found.sort is Sort.SET:
            items = vm.items(args[0]) if args else None
            for value in items if items is not None else [vm.element(args[0])] if args else []:
                keep(vm, owner, value, node, exact=items is not None)
            return NONE
        case "pop" if not args and found.sort is Sort.LIST and found.slots and found.element is None:
            return pop_last(vm, owner, found)
        case "pop" | "popleft":
            return taken(vm, owner)
        case "copy":
            return vm.heap.new(replace(found))
        case "clear":
            vm.heap.replace(owner, slots={}, element=None)
            return NONE
        case "index" | "count":
            return Number()
        case _:
            return NONE


def pop_last(vm: Interpreter, owner: Ref, found: Object) -> Value:
    """Take the last item off a list: what the step put there itself was never kept."""
    last = len(found.slots) - 1
    value = storage.read_slot(vm, owner, last) or UNKNOWN
    vm.heap.replace(owner, slots={key: item for key, item in found.slots.items() if key != last})
    own = [at for at, store in enumerate(vm.step.stores) if store.home == Home(owner.oid, "append")]
    if own and vm.recording:
        del vm.step.stores[own[-1]]
    vm.heap.per_step.discard(Home(owner.oid, LENGTH))
    return value


def taken(vm: Interpreter, owner: Ref) -> Value:
    """An item taken off a container: of one that outlives the step, another one at each."""
    item = storage.element(vm, owner)
    numbers = all(isinstance(option, (Const, Number)) and option != NONE for option in options(item))
    if vm.recording and vm.heap.persistent(owner) and numbers and not isinstance(item, Const):
        return Number(Varies.PER_STEP, frozenset({Home(owner.oid, "taken")}))
    return item


def keep(vm: Interpreter, owner: Ref, value: Value, node: ast.AST, exact: bool = True) -> None:
    """Append to a list. In recorded code, on a list that outlives the step, it happens at capture only."""
    found = vm.heap[owner]
    if vm.recording and vm.heap.persistent(owner) and vm.driver is None and not vm.doubt:
        vm.heap.per_step.add(Home(owner.oid, LENGTH))
    if vm.driver is not None:
        value = vm.driver.on_keep(vm, value, node, "append")
    if vm.recording and vm.heap.persistent(owner) and fresh_tensors(vm.heap, value):
        storage.record_store(vm, Home(owner.oid, "append"), NONE, value, node)
    looping = vm.driver is not None and vm.driver.loops > 0
    if (
        found.sort is Sort.LIST
        and found.element is None
        and len(found.slots) < 8
        and exact
        and not vm.doubt
        and not looping
    ):
        vm.heap.replace(owner, slots={**found.slots, len(found.slots): value})
    else:
        storage.put_element(vm, owner, value)
