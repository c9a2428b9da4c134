"""Python's data model on instances of analysed classes: the method that an operator, a test or a conversion runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import attributes, inheritance, torch_calls
from capturelint.static.homes import Sort
from capturelint.static.index import ClassDef
from capturelint.static.values import Ref, Value

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("__eq__", "__eq__"),
    ast.NotEq: ("__ne__", "__ne__"),
    ast.Lt: ("__lt__", "__gt__"),
    ast.LtE: ("__le__", "__ge__"),
    ast.Gt: ("__gt__", "__lt__"),
    ast.GtE: ("__ge__", "__le__"),
}
"""The method of the left operand, and that of the right one where the left has none."""
UNARY: dict[type[ast.unaryop], str] = {ast.USub: "__neg__", ast.UAdd: "__pos__", ast.Invert: "__invert__"}
CONVERSIONS: dict[str, tuple[str, ...]] = {
    "bool": ("__bool__", "__len__"),
    "int": ("__int__", "__index__"),
    "float": ("__float__", "__index__"),
    "complex": ("__complex__", "__float__", "__index__"),
}


def run_method(vm: Interpreter, owner: Value, names: tuple[str, ...], args: list[Value], node: ast.AST) -> Value | None:
    """What the first of these methods that an instance's class defines gives; ``None`` where it defines none."""
    found = vm.heap.get(owner) if isinstance(owner, Ref) else None
    if found is None or found.sort is not Sort.INSTANCE or not isinstance(found.cls, ClassDef):
        return None
    for name in names:
        method = inheritance.find_method(vm, found.cls, name)
        if method is not None:
            return vm.call(attributes.bound(vm, owner, *method, node), args, {}, node)
    return None


def operated(vm: Interpreter, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value | None:
    """``left + right`` by ``__add__`` or ``__radd__``."""
    name = OPERATORS[type(op)]
    made = run_method(vm, left, (f"__{name}__",), [right], node)
    return made if made is not None else run_method(vm, right, (f"__r{name}__",), [left], node)


def updated(vm: Interpreter, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value | None:
    """``left += right`` by ``__iadd__`` or ``__add__``."""
    name = OPERATORS[type(op)]
    return run_method(vm, left, (f"__i{name}__", f"__{name}__"), [right], node)


def compared(vm: Interpreter, op: ast.cmpop, left: Value, right: Value, node: ast.AST) -> Value | None:
    """``left < right`` by ``__lt__``, or by ``__gt__`` of the right operand."""
    own, mirrored = COMPARISONS[type(op)]
    made = run_method(vm, left, (own,), [right], node)
    return made if made is not None else run_method(vm, right, (mirrored,), [left], node)


def written(vm: Interpreter, value: Ref, node: ast.AST) -> None:
    """The text of an object: what its class defines for that, or its items or fields, one by one.

    What a text says is not known to the analysis, so only the events of making it count, and there are some only where
    code is recorded or a driver waits.
    """
    if vm.driver is None and (vm.muted or not vm.recording):
        return
    found = vm.heap.get(value)
    if found is None or run_method(vm, value, ("__str__", "__repr__"), [], node) is not None:
        return
    if found.sort is not Sort.INSTANCE or (isinstance(found.cls, ClassDef) and shows_fields(found.cls)):
        for item in (*found.slots.values(), found.element):
            if item is not None and not isinstance(item, Ref):
                torch_calls.formatted(vm, item, node)


def shows_fields(definition: ClassDef) -> bool:
    """A dataclass whose text is that of its fields."""
    fields = [field.value for field in definition.fields.values() if field.value is not None]
    return definition.is_dataclass and not any(
        "repr=" in ast.unparse(node) for node in (*definition.node.decorator_list, *fields)
    )
