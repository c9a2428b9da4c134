"""Values into what they are assigned to: names, slots, items, and the parts of tuples."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import attributes, indexing, narrowing, operators, protocols, results, scopes, steady
from capturelint.static.counting import stops_at
from capturelint.static.values import (
    BoundExternal,
    Const,
    Ref,
    Scope,
    Sequence,
    Value,
    options,
    tensor_in,
    union,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def run_assign(vm: Interpreter, node: ast.Assign, scope: Scope) -> None:
    """``a = b = value``."""
    value = vm.eval(node.value, scope)
    if vm.decoding and steady.base_name(node.value) in steady.CARRIED:
        scope.carried |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for target in node.targets:
        assign(vm, target, value, scope, node)
    if type(node.value) in narrowing.NARROWING and type(node.targets[0]) is ast.Name and steady.is_test(node.value):
        test = node.value, frozenset(steady.names_in(node.value))
        scope.tests = {**scope.tests, node.targets[0].id: test}


def run_annassign(vm: Interpreter, node: ast.AnnAssign, scope: Scope) -> None:
    """``a: T = value``."""
    if node.value is not None:
        assign(vm, node.target, vm.eval(node.value, scope), scope, node)


def run_augassign(vm: Interpreter, node: ast.AugAssign, scope: Scope) -> None:
    """``a += b``: in place for tensors and lists, a new number otherwise."""
    load = as_load(node.target)
    left, right = vm.eval(load, scope), vm.eval(node.value, scope)
    tensor = tensor_in(left)
    if tensor is not None:
        results.operate(vm, node, [left, right], in_place=tensor)
        if not isinstance(node.target, ast.Subscript):
            assign(vm, node.target, left, scope, node, same=True)
        else:
            indexing.store(vm, vm.eval(node.target.value, scope), node.target, left, scope)
        return
    if isinstance(left, Ref):
        updated = protocols.updated(vm, node.op, left, right, node)
        if updated is not None:
            assign(vm, node.target, updated, scope, node)
            return
        if isinstance(node.op, (ast.Add, ast.BitOr)):
            vm.call(BoundExternal(left, "extend" if isinstance(node.op, ast.Add) else "update"), [right], {}, node)
            return
    end = stops_at(vm.stack[-1].definition, node) if type(node.target) is ast.Attribute else None
    value = operators.binary(vm, node.op, left, right, node) if end is None else Const(end)
    assign(vm, node.target, value, scope, node)


def as_load(target: ast.expr) -> ast.expr:
    """The same target, to be read."""
    match target:
        case ast.Name():
            return ast.copy_location(ast.Name(target.id, ast.Load()), target)
        case ast.Attribute():
            return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
        case ast.Subscript():
            return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
        case _:
            return target


def assign(vm: Interpreter, target: ast.expr, value: Value, scope: Scope, node: ast.AST, same: bool = False) -> None:
    """Bind a value to a target."""
    match target:
        case ast.Name():
            scopes.bind(vm, target.id, value, scope, node)
        case ast.Attribute():
            attributes.store(vm, vm.eval(target.value, scope), target.attr, value, node, same=same)
        case ast.Subscript():
            indexing.store(vm, vm.eval(target.value, scope), target, value, scope)
        case ast.Tuple() | ast.List():
            unpack(vm, target.elts, value, scope, node)
        case ast.Starred():
            assign(vm, target.value, vm.new_list(value), scope, node)
        case _:
            pass


def unpack(vm: Interpreter, targets: list[ast.expr], value: Value, scope: Scope, node: ast.AST) -> None:
    """``a, b = value``."""
    starred = next((at for at, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
    items = vm.items(value) if starred is not None else None
    if starred is None:
        parts = split(vm, value, len(targets))
    elif items is not None and len(items) >= len(targets) - 1:
        after = len(items) - (len(targets) - starred - 1)
        parts = [*items[:starred], Sequence(tuple(items[starred:after])), *items[after:]]
    else:
        parts = [vm.element(value)] * len(targets)
        parts[starred] = Sequence(None, parts[starred])
    for target, part in zip(targets, parts, strict=True):
        assign(vm, target, part, scope, node)


def split(vm: Interpreter, value: Value, count: int) -> list[Value]:
    """The items of a value that is unpacked into ``count`` names."""
    columns: list[list[Value]] = [[] for _ in range(count)]
    for option in options(value):
        items = vm.items(option)
        for at, column in enumerate(columns):
            if items is not None and len(items) == count:
                column.append(items[at])
            else:
                column.append(vm.element(option))
    return [union(column) for column in columns]
