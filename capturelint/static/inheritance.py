"""The classes behind a class, in their order, and what they give a name.

Classes of analysed code are known whole; one that comes from elsewhere may define anything, and says so (``is_open``).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import classes
from capturelint.static.homes import Object
from capturelint.static.index import ClassDef, FunctionDef
from capturelint.static.values import (
    UNKNOWN,
    Class,
    External,
    Scope,
    Sequence,
    Value,
    options,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def bases(vm: Interpreter, definition: ClassDef) -> list[ClassDef | str]:
    """The method resolution order: analysed classes, and external ones by dotted path."""
    cached = vm.orders.get(definition)
    if cached is not None:
        return cached
    vm.orders[definition] = [definition]
    order: list[ClassDef | str] = [definition]
    scope = Scope(definition.module)
    for base in definition.node.bases:
        value = vm.quiet_eval(base, scope)
        for option in options(value):
            if isinstance(option, Class):
                order += bases(vm, option.definition)
            elif isinstance(option, External):
                order.append(option.path)
            elif not isinstance(base, ast.Subscript):
                order.append("?")
    # A class that several bases share comes after all of them, as in Python's own linearisation.
    unique = [found for at, found in enumerate(order) if found not in order[at + 1 :]]
    vm.orders[definition] = unique
    return unique


def direct_bases(vm: Interpreter, definition: ClassDef) -> Value:
    """``Class.__bases__``, where every one of them is known."""
    found = [vm.quiet_eval(base, Scope(definition.module)) for base in definition.node.bases]
    known = all(isinstance(base, (Class, External)) for base in found)
    return Sequence(tuple(found or [External("builtins.object")])) if known else UNKNOWN


def has_metaclass(vm: Interpreter, definition: ClassDef) -> bool:
    """Whether a class, or one that it is derived from, may be made by something else than ``type``."""
    own = [base for base in bases(vm, definition) if isinstance(base, ClassDef)]
    return enumeration(vm, definition) is not None or any(base.node.keywords for base in own)


def is_module(vm: Interpreter, definition: ClassDef) -> bool:
    """True for subclasses of ``nn.Module``."""
    return any(isinstance(base, str) and base.startswith("torch.nn.") for base in bases(vm, definition))


def layer_base(vm: Interpreter, definition: ClassDef) -> str | None:
    """The class of ``torch.nn`` that computes something from which a class is derived."""
    outside = [base for base in bases(vm, definition) if isinstance(base, str) and base.startswith("torch.nn.")]
    return next((base for base in outside if base.rpartition(".")[2] not in PLAIN_BASES), None)


PLAIN_BASES = frozenset({"Module", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})


def is_open(vm: Interpreter, definition: ClassDef) -> bool:
    """True where a base class outside the analysed code may define anything."""
    closed = (
        "builtins.",
        "typing.",
        "abc.",
        "torch.nn.",
        "enum.",
        "collections.",
        "dataclasses.",
        "transformers.utils.",
    )
    return any(isinstance(base, str) and not base.startswith(closed) for base in bases(vm, definition))


def find_method(
    vm: Interpreter, definition: ClassDef, name: str, after: ClassDef | None = None
) -> tuple[object, ClassDef] | None:
    """The method or class-level assignment that a class or its bases give a name, and the class that has it."""
    order = bases(vm, definition)
    known = vm.members.get(definition)
    if known is None or known[0] is not order:  # while its bases are looked for, a class has another order
        known = vm.members[definition] = order, {}
    key = name, after
    if key not in known[1]:
        known[1][key] = find_member(order, name, after)
    return known[1][key]


def find_member(order: list[ClassDef | str], name: str, after: ClassDef | None) -> tuple[object, ClassDef] | None:
    """The same, looked for in an order of classes."""
    skipping = after is not None
    for base in order:
        if skipping:
            skipping = base is not after
            continue
        if isinstance(base, ClassDef):
            if (method := base.methods.get(name)) is not None:
                return method, base
            if (assigned := base.fields.get(name)) is not None:
                return assigned, base
    return None


def is_declared(vm: Interpreter, found: Object) -> bool:
    """Whether all that an object has stands in its class: true of dataclasses, which configurations are."""
    if not isinstance(found.cls, ClassDef) or found.element is not None or not classes.makes_fields(vm, found.cls):
        return False
    return not is_open(vm, found.cls) and find_method(vm, found.cls, "__getattr__") is None


def list_base(vm: Interpreter, found: Object) -> str | None:
    """The class outside the analysed code that keeps an object's items as slots by number: a list, a module list."""
    if not isinstance(found.cls, ClassDef):
        return found.cls if found.cls is not None and is_list(found.cls) else None
    if find_method(vm, found.cls, "__iter__") or find_method(vm, found.cls, "__getitem__"):
        return None
    return next((base for base in bases(vm, found.cls) if isinstance(base, str) and is_list(base)), None)


def is_list(path: str) -> bool:
    """``list`` and its like, ``nn.ModuleList``, ``nn.Sequential``, ``nn.ParameterList``."""
    if path.startswith("torch.nn."):
        return path.endswith((".ModuleList", ".Sequential", ".ParameterList"))
    return path in ("builtins.list", "builtins.tuple", "collections.UserList")


def decorator_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """The decorators of a function as written, without arguments."""
    return frozenset(
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in node.decorator_list
    )


def enumeration(vm: Interpreter, definition: ClassDef) -> str | None:
    """The class of ``enum`` from which a class is derived."""
    return next((base for base in bases(vm, definition) if isinstance(base, str) and base.startswith("enum.")), None)


def find_setter(vm: Interpreter, definition: ClassDef, name: object) -> FunctionDef | None:
    """What runs instead of a store: the setter of the property that a class or its bases have under a name."""
    for base in bases(vm, definition):
        if isinstance(base, ClassDef) and isinstance(name, str) and (name in base.setters or name in base.methods):
            return base.setters.get(name)
    return None
