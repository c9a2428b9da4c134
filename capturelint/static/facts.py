"""What the analyser knew, in a few words each: slots between steps, and the values at every recorded call.

For whoever writes a rule. Values at calls are noted only when they are asked for, so ``check`` pays nothing for them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from capturelint.place import Place
from capturelint.static.homes import Sort
from capturelint.static.index import ClassDef
from capturelint.static.values import (
    BoundExternal,
    Class,
    Const,
    External,
    Function,
    Home,
    Lambda,
    Method,
    Number,
    Partial,
    Ref,
    Sequence,
    Tensor,
    Union,
    Unknown,
    Value,
    options,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_ITEMS = 4
MAX_DEPTH = 2


@dataclass(frozen=True, slots=True)
class SlotFact:
    """What a slot of an object holds when a step begins: ``Decoder.cache`` and a short description."""

    owner: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class CallFact:
    """One call in recorded code, as it was seen last: what is called, with which values, and what it gives."""

    place: Place
    code: str
    callee: str
    arguments: tuple[str, ...]
    result: str


@dataclass(slots=True)
class Watch:
    """The calls that recorded code makes, by place and by what is called there."""

    calls: dict[tuple[Place, str], CallFact] = field(default_factory=dict)

    def note(
        self,
        vm: Interpreter,
        node: ast.Call,
        function: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        result: Value,
    ) -> None:
        """Remember a call."""
        arguments = [describe(value, vm) for value in args]
        arguments += [f"{name}={describe(value, vm)}" for name, value in kwargs.items()]
        place = vm.module.place(node)
        callee = " or ".join(dict.fromkeys(callee_name(option, vm) for option in options(function)))
        fact = CallFact(place, vm.module.code(node), callee, tuple(arguments), describe(result, vm))
        self.calls[place, callee] = fact


def slot_facts(vm: Interpreter) -> list[SlotFact]:
    """The tensors and the changing numbers that live in attributes and items."""
    facts: dict[SlotFact, None] = {}
    for oid, found in vm.heap.objects.items():
        for key, value in found.slots.items():
            changes = Home(oid, key) in vm.heap.per_step
            if isinstance(value, Tensor) or changes:
                facts[SlotFact(class_name(vm, Ref(oid)), str(key), describe(value, vm, changes))] = None
    return list(facts)


def callee_name(function: Value, vm: Interpreter) -> str:
    """``Attention.forward``, ``torch.cat``, ``tensor.view``."""
    match function:
        case Function(definition=definition):
            return definition.qualified_name
        case Method(function=inner):
            return callee_name(inner, vm)
        case Partial(function=inner):
            return f"partial {callee_name(inner, vm)}"
        case Class(definition=definition):
            return definition.name
        case External(path=path):
            return path.removeprefix("builtins.")
        case BoundExternal(owner=owner, name=name):
            return f"{'tensor' if isinstance(owner, Tensor) else describe(owner, vm)}.{name}"
        case Lambda():
            return "lambda"
        case Ref():
            return class_name(vm, function)
        case _:
            return "anything"


def class_name(vm: Interpreter, ref: Ref) -> str:
    """The class of an object, or what sort of container it is."""
    found = vm.heap.get(ref)
    if found is None:
        return "object"
    if isinstance(found.cls, ClassDef):
        return found.cls.name
    return found.cls or found.sort.value


def describe(value: Value, vm: Interpreter, changes: bool = False, depth: int = 0) -> str:
    """A value in a few words."""
    match value:
        case Unknown():
            return "anything"
        case Tensor():
            return tensor_words(value)
        case Number() | Const() if changes:
            return "host number, changes at every step"
        case Number():
            often = value.varies.name.lower().replace("_", " ")
            return f"host number, {'read from the device' if value.read else often}"
        case Const():
            return f"constant {value.value!r}"
        case Ref():
            return container_words(value, vm, depth)
        case Union():
            return " or ".join(sorted({describe(option, vm, depth=depth) for option in value.options}))
        case Sequence(items=items) if items is not None and len(items) <= MAX_ITEMS and depth < MAX_DEPTH:
            return f"({', '.join(describe(item, vm, depth=depth + 1) for item in items)})"
        case Sequence():
            return "sequence"
        case Function() | Method() | External() | Class() | Lambda() | Partial():
            return callee_name(value, vm)
        case _:
            return type(value).__name__.lower()


def tensor_words(tensor: Tensor) -> str:
    """``device tensor, rank 3, float, certain, view of cache``."""
    rank = "rank unknown" if tensor.rank is None else f"rank {tensor.rank}"
    sort = "array" if tensor.array else "tensor"
    words = [f"{tensor.memory.value} {sort}", rank, tensor.kind.value, tensor.sure.word]
    if tensor.home is not None:
        words.append(f"{'view of' if tensor.view else 'home'} {tensor.home}")
    if tensor.extends is not None:
        words.append(f"longer than {tensor.extends}")
    return ", ".join(words)


def container_words(ref: Ref, vm: Interpreter, depth: int) -> str:
    """An instance by its class, a container by its sort and what is in it."""
    found = vm.heap.get(ref)
    if found is None or found.sort is Sort.INSTANCE or depth >= MAX_DEPTH or len(found.slots) > MAX_ITEMS:
        return class_name(vm, ref)
    inner = [describe(item, vm, depth=depth + 1) for item in found.slots.values()]
    if found.element is not None:
        inner.append(f"any {describe(found.element, vm, depth=depth + 1)}")
    return f"{class_name(vm, ref)} of ({', '.join(inner)})" if inner else f"empty {class_name(vm, ref)}"
