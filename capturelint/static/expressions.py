"""Expressions that are neither operators, conditions, names nor comprehensions, and the table of all."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import (
    assignment,
    conditions,
    indexing,
    loops,
    managers,
    operators,
    scopes,
    storage,
    torch_calls,
)
from capturelint.static.homes import Object, Sort
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Lambda,
    Scope,
    Sequence,
    Slice,
    Text,
    Value,
    constant,
    join,
    union,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def eval_constant(vm: Interpreter, node: ast.Constant, scope: Scope) -> Value:
    """A literal."""
    return Const(node.value)


def eval_attribute(vm: Interpreter, node: ast.Attribute, scope: Scope) -> Value:
    """``value.name``."""
    return vm.attribute(vm.eval(node.value, scope), node.attr, node)


def eval_subscript(vm: Interpreter, node: ast.Subscript, scope: Scope) -> Value:
    """``value[index]``."""
    owner = vm.eval(node.value, scope)
    return indexing.load(vm, owner, vm.eval(node.slice, scope), node)


def eval_slice(vm: Interpreter, node: ast.Slice, scope: Scope) -> Value:
    """``a:b:c``."""
    bounds = [vm.eval(bound, scope) if bound is not None else NONE for bound in (node.lower, node.upper, node.step)]
    return Slice(*bounds)


def eval_tuple(vm: Interpreter, node: ast.Tuple | ast.List, scope: Scope) -> Value:
    """A tuple; a list goes to the heap."""
    items: list[Value] = []
    exact = True
    for item in node.elts:
        if isinstance(item, ast.Starred):
            value = vm.eval(item.value, scope)
            inner = vm.items(value)
            exact = exact and inner is not None
            items += inner if inner is not None else [vm.element(value)]
        else:
            items.append(vm.eval(item, scope))
    return Sequence(tuple(items)) if exact else Sequence(None, union(items))


def eval_list(vm: Interpreter, node: ast.List, scope: Scope) -> Value:
    """A list."""
    return vm.new_list(eval_tuple(vm, node, scope))


def eval_set(vm: Interpreter, node: ast.Set, scope: Scope) -> Value:
    """A set."""
    return vm.heap.new(Object(Sort.SET, element=union([vm.eval(item, scope) for item in node.elts])))


def eval_dict(vm: Interpreter, node: ast.Dict, scope: Scope) -> Value:
    """A dict: exact keys become slots, others share one element."""
    slots: dict[object, Value] = {}
    element: Value | None = None
    for key, item in zip(node.keys, node.values, strict=True):
        value = vm.eval(item, scope)
        if key is None:
            for inner_key, inner in storage.entries(vm, value):
                slots[inner_key] = inner
            continue
        exact = constant(vm.eval(key, scope))
        if exact is not Const and isinstance(exact, (str, int, type(None))):
            slots[exact] = value
        else:
            element = value if element is None else join(element, value)
    return vm.heap.new(Object(Sort.DICT, slots=slots, element=element))


def eval_namedexpr(vm: Interpreter, node: ast.NamedExpr, scope: Scope) -> Value:
    """``(name := value)``."""
    value = vm.eval(node.value, scope)
    assignment.assign(vm, node.target, value, scope, node)
    return value


def eval_joinedstr(vm: Interpreter, node: ast.JoinedStr, scope: Scope) -> Value:
    """An f-string: formatting a device tensor reads it."""
    written: list[object] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = vm.eval(part.value, scope)
            torch_calls.formatted(vm, value, part.value)
            plain = part.format_spec is None and part.conversion == -1
            written.append(constant(value) if plain else Const)
        else:
            written.append(constant(vm.eval(part, scope)))
    return Text() if Const in written else Const("".join(map(str, written)))


def eval_lambda(vm: Interpreter, node: ast.Lambda, scope: Scope) -> Value:
    """A lambda."""
    return Lambda(node, scope.module, scope)


def eval_starred(vm: Interpreter, node: ast.Starred, scope: Scope) -> Value:
    """``*value`` outside a call or display."""
    return vm.eval(node.value, scope)


def eval_yield(vm: Interpreter, node: ast.Yield, scope: Scope) -> Value:
    """``yield value``."""
    value = vm.eval(node.value, scope) if node.value is not None else NONE
    vm.stack[-1].yields.append(value)
    if managers.at_yield(vm, value):
        return UNKNOWN
    if vm.driver is not None:
        vm.driver.on_keep(vm, value, node, "yield")
    return UNKNOWN


def eval_yieldfrom(vm: Interpreter, node: ast.YieldFrom, scope: Scope) -> Value:
    """``yield from value``."""
    vm.stack[-1].yields.append(vm.element(vm.eval(node.value, scope)))
    return UNKNOWN


def eval_await(vm: Interpreter, node: ast.Await, scope: Scope) -> Value:
    """``await value``."""
    return vm.eval(node.value, scope)


def eval_call(vm: Interpreter, node: ast.Call, scope: Scope) -> Value:
    """A call."""
    function = vm.eval(node.func, scope)
    args: list[Value] = []
    extra = False
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            value = vm.eval(argument.value, scope)
            items = vm.items(value)
            extra = extra or items is None
            args += items if items is not None and not extra else []
        else:
            value = vm.eval(argument, scope)
            args += [] if extra else [value]  # where it stands is not known behind any number of others
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = vm.eval(keyword.value, scope)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        else:
            exact, rest = storage.keywords(vm, value)
            kwargs.update(exact)
            extra = extra or rest
    value = vm.call(function, args, kwargs, node, extra=extra, scope=scope)
    if vm.watch is not None and vm.recording:
        vm.watch.note(vm, node, function, args, kwargs, value)
    return value


EVALUATORS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Constant: eval_constant,
    ast.Name: scopes.eval_name,
    ast.Attribute: eval_attribute,
    ast.Subscript: eval_subscript,
    ast.Slice: eval_slice,
    ast.Tuple: eval_tuple,
    ast.List: eval_list,
    ast.Set: eval_set,
    ast.Dict: eval_dict,
    ast.ListComp: loops.eval_comprehension,
    ast.GeneratorExp: loops.eval_comprehension,
    ast.SetComp: loops.eval_comprehension,
    ast.DictComp: loops.eval_dictcomp,
    ast.BinOp: operators.eval_binop,
    ast.UnaryOp: operators.eval_unaryop,
    ast.BoolOp: conditions.eval_boolop,
    ast.Compare: operators.eval_compare,
    ast.IfExp: conditions.eval_ifexp,
    ast.NamedExpr: eval_namedexpr,
    ast.JoinedStr: eval_joinedstr,
    ast.Lambda: eval_lambda,
    ast.Starred: eval_starred,
    ast.Yield: eval_yield,
    ast.YieldFrom: eval_yieldfrom,
    ast.Await: eval_await,
    ast.Call: eval_call,
}
