"""Operators into values: kernels on tensors, host numbers on numbers, folded constants, text and sequences."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import attributes, conditions, loops, protocols, results, steady, torch_calls
from capturelint.static.homes import Sort
from capturelint.static.records import replace
from capturelint.static.values import (
    UNKNOWN,
    BoundExternal,
    Class,
    Const,
    Device,
    Dtype,
    Function,
    Member,
    Memory,
    Number,
    Range,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Text,
    Value,
    constant,
    deps_of,
    int_constant,
    is_none,
    is_number,
    join,
    options,
    tensor_in,
    varies_of,
)
from capturelint.vocabulary import Confidence, EventKind, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

CONTAINS = ("__contains__",)


def power(base: object, exponent: object) -> object:
    """``base ** exponent``, where the result is a number of reasonable size."""
    if isinstance(exponent, int) and abs(exponent) > 64:
        raise ArithmeticError
    return operator.pow(base, exponent)


BINARY: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Pow: power,
}
COMPARE: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
DEFINITE = (Const, Number, Text, Tensor, Ref, Function, Class, Sequence, Device)


def eval_binop(vm: Interpreter, node: ast.BinOp, scope: Scope) -> Value:
    """Arithmetic."""
    return binary(vm, node.op, vm.eval(node.left, scope), vm.eval(node.right, scope), node)


def binary(vm: Interpreter, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
    """Arithmetic on any values: a tensor operand makes it a kernel, two host numbers make a host number."""
    if isinstance(op, ast.Mod) and is_text(left):
        for value in vm.items(right) or [right]:
            torch_calls.formatted(vm, value, node)
        return Text()
    query = conditions.capture_query(left) or conditions.capture_query(right)
    if query is not None:
        return query
    if isinstance(left, Ref) or isinstance(right, Ref):
        made = protocols.operated(vm, op, left, right, node)
        if made is not None:
            return made
    if tensor_in(left) is not None or tensor_in(right) is not None:
        return results.operate(vm, node, [left, right], matmul=isinstance(op, ast.MatMult), op=op)
    a, b = constant(left), constant(right)
    if a is not Const and b is not Const:
        return fold(BINARY.get(type(op)), a, b, deps_of(left) | deps_of(right))
    if isinstance(op, ast.Add):
        joined = concatenate(vm, left, right)
        if joined is not None:
            return joined
    if isinstance(op, ast.Mult) and (inner := repeated(vm, left, right)) is not None:
        return inner
    if is_text(left) or is_text(right):
        return Text()
    if all(is_number(v) or isinstance(v, (Number, Const)) for v in (left, right)):
        return arithmetic(left, right)
    if any(isinstance(option, Number) for value in (left, right) for option in options(value)):
        return replace(arithmetic(left, right), sure=Confidence.LIKELY)
    return UNKNOWN


def fold(op: Callable[..., object] | None, a: object, b: object, deps: frozenset[object]) -> Value:
    """A constant result, where Python gives one of reasonable size."""
    if op is None or (isinstance(b, int) and b > 1 << 20 and isinstance(a, str)):
        return UNKNOWN if op is None else Text()
    if op in (operator.lshift, operator.mul) and isinstance(a, int) and isinstance(b, int) and b > 4096 and a > 1 << 40:
        return Number(deps=deps)  # type: ignore[arg-type]
    try:
        return Const(op(a, b), deps)  # type: ignore[arg-type]
    except (TypeError, ValueError, ArithmeticError, MemoryError):
        return UNKNOWN


def is_text(value: Value) -> bool:
    """True for host strings."""
    return isinstance(value, Text) or isinstance(constant(value), str)


def concatenate(vm: Interpreter, left: Value, right: Value) -> Value | None:
    """``list + list``, ``tuple + tuple``."""
    if not all(isinstance(value, (Sequence, Ref)) for value in (left, right)):
        return None
    first, second = vm.items(left), vm.items(right)
    if first is not None and second is not None:
        joined = Sequence((*first, *second))
    else:
        joined = Sequence(None, join(vm.element(left), vm.element(right)))
    return vm.new_list(joined) if isinstance(left, Ref) else joined


def repeated(vm: Interpreter, left: Value, right: Value) -> Value | None:
    """``[x] * n``."""
    holder = left if isinstance(left, (Sequence, Ref)) else right if isinstance(right, (Sequence, Ref)) else None
    if holder is None or (isinstance(holder, Ref) and vm.heap[holder].sort is not Sort.LIST):
        return None
    count = int_constant(right if holder is left else left)
    items = vm.items(holder)
    if items is not None and count is not None and len(items) * count <= loops.MAX_UNROLL:
        repeated: Sequence = Sequence(tuple(items * count))
    else:
        repeated = Sequence(None, vm.element(holder))
    return vm.new_list(repeated) if isinstance(holder, Ref) else repeated


def eval_unaryop(vm: Interpreter, node: ast.UnaryOp, scope: Scope) -> Value:
    """``-x``, ``~x``, ``not x``."""
    value = vm.eval(node.operand, scope)
    if isinstance(node.op, ast.Not):
        return conditions.negate(vm, value, node.operand)
    made = protocols.run_method(vm, value, (protocols.UNARY[type(node.op)],), [], node)
    if made is not None:
        return made
    if tensor_in(value) is not None:
        return results.operate(vm, node, [value], op=node.op)
    known = constant(value)
    if isinstance(known, (int, float)):
        if isinstance(node.op, ast.Invert):
            return Const(~known, deps_of(value)) if isinstance(known, int) else UNKNOWN
        return Const(-known if isinstance(node.op, ast.USub) else known, deps_of(value))
    return value


def eval_compare(vm: Interpreter, node: ast.Compare, scope: Scope) -> Value:
    """Comparisons; a chain tests every link but the last."""
    left = vm.eval(node.left, scope)
    results: list[Value] = []
    for at, (op, operand) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = vm.eval(operand, scope)
        if vm.decoding and is_none(right) and steady.is_filled(node.left, left, scope):
            return Const(not isinstance(op, (ast.Is, ast.Eq)))
        result = compare(vm, op, left, right, node)
        if at < len(node.ops) - 1:
            conditions.ask(vm, result, node, "chain", report_step=False)
        results.append(result)
        left = right
    return results[-1] if len(results) == 1 else conditions.boolean(results)


def compare(vm: Interpreter, op: ast.cmpop, left: Value, right: Value, node: ast.Compare) -> Value:
    """One comparison."""
    match op:
        case ast.Eq() | ast.NotEq() if is_none(right) and all(is_none(o) or is_number(o) for o in options(left)):
            return identical(left, right, isinstance(op, ast.NotEq))
        case ast.Is() | ast.IsNot():
            return identical(left, right, isinstance(op, ast.IsNot))
        case ast.In() | ast.NotIn():
            return contains(vm, left, right, node, isinstance(op, ast.NotIn))
        case _:
            pass
    if isinstance(left, Ref) or isinstance(right, Ref):
        answer = protocols.compared(vm, op, left, right, node)
        if answer is not None:
            return answer
    if tensor_in(left) is not None or tensor_in(right) is not None:
        return results.operate(vm, node, [left, right], compare=True)
    a, b = constant(left), constant(right)
    if a is not Const and b is not Const:
        folded = fold(COMPARE.get(type(op)), a, b, deps_of(left) | deps_of(right))
        return folded if folded is not UNKNOWN else Number()
    if isinstance(left, (Device, Dtype)) and type(left) is type(right):
        same = left == right
        known = isinstance(left, Dtype) or Memory.EITHER not in (left.memory, right.memory)  # type: ignore[union-attr]
        if known and not (isinstance(left, Dtype) and same):
            return Const(same if isinstance(op, ast.Eq) else not same)
        return Number()
    compared = COMPARE.get(type(op))
    if vm.decoding and compared is not None:
        settled = steady.settled(compared, node, left, right)
        return Const(settled) if settled is not None else arithmetic(left, right)
    return arithmetic(left, right)


def contains(vm: Interpreter, left: Value, right: Value, node: ast.AST, negated: bool) -> Value:
    """``x in y``: over a device tensor it is a read; over a dict of known keys it is known."""
    answer = protocols.run_method(vm, right, CONTAINS, [left], node) if isinstance(right, Ref) else None
    if answer is not None:
        return answer
    tensor = tensor_in(right) or (tensor_in(left) if compares_items(vm, right) else None)
    if tensor is not None and tensor.on_device:
        vm.emit(EventKind.SYNC, node, "contains", tensor.sure)
        return Number(Varies.PER_STEP, read=True)
    key, text = constant(left), constant(right)
    if isinstance(key, str) and isinstance(text, str):
        return Const((key in text) is not negated)
    if isinstance(right, BoundExternal) and isinstance(right.owner, Ref) and isinstance(key, str):
        known = attributes.assigned(vm, right.owner, key) if right.name == "__dict__" else UNKNOWN
        return Const((known is not None) is not negated) if known is not UNKNOWN else Number()
    inside = vm.items(right)
    if inside is not None and key is not Const and all(isinstance(item, Const) for item in inside):
        found = any(isinstance(item, Const) and item.value == key for item in inside)
        return Const(found is not negated)
    holder = vm.heap.get(right) if isinstance(right, Ref) else None
    if holder is not None and holder.sort is not Sort.INSTANCE:
        empty = not holder.slots and holder.element is None
        if empty and not holder.opaque:
            return Const(negated)
        if holder.sort is Sort.DICT and key is Const:
            return Number()
    return Number()


def compares_items(vm: Interpreter, holder: Value) -> bool:
    """True for a list, a tuple or a range with items: ``in`` tests whether one is equal. Dicts and sets hash."""
    if isinstance(holder, Ref):
        found = vm.heap.get(holder)
        return found is not None and found.sort is Sort.LIST and bool(found.slots or found.element is not None)
    return isinstance(holder, Range) or (isinstance(holder, Sequence) and holder.items != ())


def identical(left: Value, right: Value, negated: bool) -> Value:
    """``is``: known where the alternatives settle it."""
    alternatives, others = options(left), options(right)
    if not all(isinstance(option, DEFINITE) for option in alternatives):
        return Number()
    if is_none(right):
        same = set(map(is_none, alternatives))
    elif any(map(is_single, alternatives)) or any(map(is_single, others)) or are_classes((*alternatives, *others)):
        same = {option == other for option in alternatives for other in others}
    else:
        return Number()
    return Const(same.pop() is not negated) if len(same) == 1 else Number()


def is_single(value: Value) -> bool:
    """``None``, or a member of an enumeration: there is one of it."""
    return is_none(value) or isinstance(constant(value), Member)


def are_classes(values: tuple[Value, ...]) -> bool:
    """Whether all of several values are classes."""
    return all(isinstance(value, Class) for value in values)


def arithmetic(left: Value, right: Value) -> Number:
    """A host number computed from two values."""
    numbers = [o for v in (left, right) for o in options(v) if isinstance(o, Number)]
    varying = [n for n in numbers if n.varies is Varies.PER_STEP]
    return Number(
        max(varies_of(left), varies_of(right)),
        deps_of(left) | deps_of(right),
        next((n.drawn for n in numbers if n.drawn), None),
        bool(varying) and all(n.read for n in varying),
        min((n.sure for n in varying), default=Confidence.CERTAIN),
    )
