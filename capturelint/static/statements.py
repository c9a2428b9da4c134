"""Statements that neither branch, loop nor assign, and the table of all."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import assignment, attributes, calls, conditions, loops, managers, matching, narrowing, scopes
from capturelint.static.index import Import
from capturelint.static.state import RaisedError, State
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Class,
    Scope,
    Truth,
)
from capturelint.vocabulary import Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def run_expr(vm: Interpreter, node: ast.Expr, scope: Scope) -> None:
    """An expression statement."""
    vm.eval(node.value, scope)


def run_return(vm: Interpreter, node: ast.Return, scope: Scope) -> bool:
    """Leave the function; value and heap are joined with the other ways out."""
    value = vm.eval(node.value, scope) if node.value is not None else NONE
    vm.stack[-1].returns.append((value, vm.heap.snapshot()))
    return False


def run_raise(vm: Interpreter, node: ast.Raise, scope: Scope) -> bool:
    """An error path: what its message reads is read only when the program is failing anyway."""
    return False


def run_assert(vm: Interpreter, node: ast.Assert, scope: Scope) -> bool:
    """``assert``: a condition on the device is read; one that does not hold ends the path.

    In set-up it says that the configuration is another than the one by default.
    """
    truth = conditions.ask(vm, vm.eval(node.test, scope), node.test, "assert", report_step=False)
    narrowing.narrow(vm, node.test, scope, True)
    return truth is not Truth.FALSE or vm.phase is Phase.SET_UP


def run_try(vm: Interpreter, node: ast.Try, scope: Scope) -> bool:
    """The body, then each handler from before and after it."""
    before, mark = vm.save(scope), len(vm.stack[-1].returns)
    arrived: list[State] = []
    ended = attempt(vm, node, scope)
    if ended and vm.run(node.orelse, scope):
        arrived.append(vm.save(scope))
    for handler in node.handlers:
        if ended and not managers.handles_look_up(handler):
            continue  # what failed did not fail here
        vm.restore(scope, before)
        if handler.name:
            scope.names[handler.name] = UNKNOWN
        with vm.silent():  # a handler runs when the body failed: capture failed before it
            if vm.run(handler.body, scope):
                arrived.append(vm.save(scope))
    alive = vm.merge(scope, arrived)
    if not alive:
        vm.restore(scope, before)
    return leaving(vm, scope, mark, alive, lambda: vm.run(node.finalbody, scope))


def attempt(vm: Interpreter, node: ast.Try, scope: Scope) -> bool:
    """The body of a ``try``; ``False`` where control never reaches its end."""
    call = vm.stack[-1]
    breaks, continues, outer = len(call.breaks), len(call.continues), vm.trying
    vm.trying = vm.conditions() if node.handlers else outer
    try:
        return vm.run(node.body, scope)
    except RaisedError:
        del call.breaks[breaks:], call.continues[continues:]
        return False
    finally:
        vm.trying = outer


def leaving(vm: Interpreter, scope: Scope, mark: int, alive: bool, final: Callable[[], bool]) -> bool:
    """What runs when a block is left: at its end, and after each ``return`` in it, from the ``mark``-th on."""
    call = vm.stack[-1]
    added = call.returns[mark:]
    if not added:
        return final() and alive
    here = vm.save(scope)
    vm.heap.merge([objects for _, objects in added])
    final()
    after = vm.heap.snapshot()
    call.returns[mark:] = [(value, after) for value, _ in added]
    vm.restore(scope, here)
    return alive and final()


def run_functiondef(vm: Interpreter, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
    """A function inside a function closes over its names."""
    scope.names[node.name] = calls.nested_function(vm, node, scope)


def run_classdef(vm: Interpreter, node: ast.ClassDef, scope: Scope) -> None:
    """A class inside a function."""
    scope.names[node.name] = Class(scope.module.class_definition(node))


def run_import(vm: Interpreter, node: ast.Import, scope: Scope) -> None:
    """An import inside a function."""
    for alias in node.names:
        bound = alias.asname or alias.name.partition(".")[0]
        scope.names[bound] = scopes.imported(vm, Import(alias.name if alias.asname else bound), scope.module)


def run_importfrom(vm: Interpreter, node: ast.ImportFrom, scope: Scope) -> None:
    """A ``from`` import inside a function."""
    source = scope.module.absolute(node.module, node.level)
    for alias in node.names:
        scope.names[alias.asname or alias.name] = scopes.imported(vm, Import(source, alias.name), scope.module)


def run_delete(vm: Interpreter, node: ast.Delete, scope: Scope) -> None:
    """``del name``."""
    for target in node.targets:
        if isinstance(target, ast.Name):
            gone = scope.names.pop(target.id, UNKNOWN)
            if vm.driver is not None:
                vm.driver.on_let_go(vm, gone, target)
        elif isinstance(target, ast.Attribute) and vm.driver is not None:
            vm.driver.on_let_go(vm, vm.eval(target, scope), target)
            attributes.store(vm, vm.eval(target.value, scope), target.attr, NONE, target)


def run_global(vm: Interpreter, node: ast.Global, scope: Scope) -> None:
    """``global name``: later assignments go to the module."""
    for name in node.names:
        scope.names.pop(name, None)
        scope.globals.add(name)


def run_nonlocal(vm: Interpreter, node: ast.Nonlocal, scope: Scope) -> None:
    """``nonlocal name``: later assignments go to the enclosing call."""
    scope.nonlocals.update(node.names)


STATEMENTS: dict[type[ast.stmt], Callable[..., object]] = {
    ast.Expr: run_expr,
    ast.Assign: assignment.run_assign,
    ast.AnnAssign: assignment.run_annassign,
    ast.AugAssign: assignment.run_augassign,
    ast.Return: run_return,
    ast.Raise: run_raise,
    ast.Assert: run_assert,
    ast.For: loops.run_for,
    ast.AsyncFor: loops.run_for,
    ast.While: loops.run_while,
    ast.Break: loops.run_break,
    ast.Continue: loops.run_continue,
    ast.With: managers.run_with,
    ast.AsyncWith: managers.run_with,
    ast.Try: run_try,
    getattr(ast, "TryStar", ast.Try): run_try,  # Python 3.10 has none
    ast.FunctionDef: run_functiondef,
    ast.AsyncFunctionDef: run_functiondef,
    ast.ClassDef: run_classdef,
    ast.Import: run_import,
    ast.ImportFrom: run_importfrom,
    ast.Delete: run_delete,
    ast.Global: run_global,
    ast.Nonlocal: run_nonlocal,
    ast.Match: matching.run_match,
}
