"""What a condition leaves of the alternatives of a name or an attribute, on either of its sides."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import classes, conditions
from capturelint.static.state import State
from capturelint.static.values import (
    Ref,
    Scope,
    Truth,
    Union,
    Value,
    is_none,
    union,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

NARROWING = frozenset([ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Attribute])


def narrow(vm: Interpreter, test: ast.expr, scope: Scope, outcome: bool) -> None:
    """Keep only the alternatives under which a condition has this outcome."""
    if type(test) not in NARROWING:
        return
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            narrow(vm, operand, scope, not outcome)
        case ast.BoolOp(op=ast.And(), values=values) if outcome:
            for value in values:
                narrow(vm, value, scope, True)
        case ast.BoolOp(op=ast.Or(), values=values) if not outcome:
            for value in values:
                narrow(vm, value, scope, False)
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            keep_none = isinstance(op, ast.Is) is outcome
            subject = left.id if isinstance(left, ast.Name) else ""
            for name, (asked, joined, none, given) in scope.links.items():
                if asked == subject and scope.names.get(name) is joined:
                    scope.names[name] = none if keep_none else given
            keep(vm, left, scope, lambda option: is_none(option) is keep_none)
        case ast.Call(func=ast.Name(id="isinstance"), args=[subject, wanted]):
            kind = vm.eval(wanted, scope)
            keep(vm, subject, scope, lambda option: classes.is_instance(vm, option, kind) in (None, outcome))
        case ast.Name(id=name) if name in scope.tests:
            narrow(vm, scope.tests[name][0], scope, outcome)
        case ast.Name() | ast.Attribute():
            falsy = not outcome
            keep(
                vm,
                test,
                scope,
                lambda option: conditions.truth_of(vm, option) is not (Truth.TRUE if falsy else Truth.FALSE),
            )
        case _:
            pass


def keep(vm: Interpreter, subject: ast.expr, scope: Scope, wanted: Callable[[Value], bool]) -> None:
    """Drop the alternatives of a name or attribute that are not wanted."""
    match subject:
        case ast.Name(id=name):
            value = scope.names.get(name)
            if isinstance(value, Union):
                scope.names[name] = filtered(value, wanted)
        case ast.Attribute(value=owner, attr=name):
            if not isinstance(owner, ast.Name):
                return
            holder = scope.names.get(owner.id)
            if isinstance(holder, Ref) and (found := vm.heap.get(holder)) is not None:
                value = found.slots.get(name)
                if isinstance(value, Union):
                    vm.heap.replace(holder, slots={**found.slots, name: filtered(value, wanted)})
        case _:
            pass


def filtered(value: Union, wanted: Callable[[Value], bool]) -> Value:
    """The union of the wanted alternatives, or all of them where none is."""
    kept = [option for option in value.options if wanted(option)]
    return union(kept) if kept else value


def link(test: ast.expr, scope: Scope, arrived: list[State]) -> None:
    """Remember what names hold on each side of ``x is None``, for whoever asks the same again."""
    match test:
        case ast.Compare(left=ast.Name(id=asked), ops=[op], comparators=[ast.Constant(value=None)]):
            none, given = arrived if isinstance(op, ast.Is) else reversed(arrived)
        case _:
            return
    links = {
        name: (asked, joined, none.names[name], given.names[name])
        for name, joined in scope.names.items()
        if type(joined) is Union and name != asked and name in none.names and name in given.names
    }
    scope.links = {**scope.links, **links} if links else scope.links
