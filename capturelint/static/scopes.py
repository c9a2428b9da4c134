"""Names into values and back: local, enclosing, module-level, imported, built in.

A module-level name is evaluated on first use. Names that a function rebinds (``global``, ``nonlocal``) live in an
object of the heap, so that they have homes as slots of instances have.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import assignment, attributes, calls, registries, storage
from capturelint.static.homes import Object, Sort
from capturelint.static.index import ClassDef, Import, Module
from capturelint.static.state import Call
from capturelint.static.values import (
    UNKNOWN,
    Class,
    External,
    Function,
    ModuleValue,
    Ref,
    Scope,
    Value,
)
from capturelint.vocabulary import Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def eval_name(vm: Interpreter, node: ast.Name, scope: Scope) -> Value:
    """A name: local, enclosing, module, import, built-in."""
    own = node.id not in scope.globals
    if own and scope not in vm.rebound and (present := scope.names.get(node.id)) is not None:
        return present
    holder = scope.holder(node.id) if own else None
    if holder is None:
        return global_name(vm, node.id, scope.module)
    rebound = rebound_value(vm, holder, node.id)
    return rebound if rebound is not None else holder.names[node.id]


def global_name(vm: Interpreter, name: str, module: Module) -> Value:
    """A module-level name, evaluated on first use."""
    rebound = rebound_value(vm, module, name)
    if rebound is not None:
        return rebound
    present = module.globals.get(name)
    if present is not None and (type(present) is not Ref or vm.heap.get(present) is not None):
        return present  # type: ignore[return-value]
    # Evaluated now, or again: what a path made that was given up is gone with it.
    vm.untold += 1
    module.globals[name] = UNKNOWN  # a definition that needs itself finds nothing
    value = define(vm, name, module)
    module.globals[name] = value
    return value


def rebound_value(vm: Interpreter, holder: Module | ClassDef | Scope, name: str) -> Value | None:
    """What a function has put into a name of a module, a class or an enclosing call."""
    held = vm.rebound.get(holder) if vm.rebound else None
    return storage.read_slot(vm, held, name) if held is not None and vm.heap.get(held) is not None else None


def rebinding(vm: Interpreter, holder: Module | ClassDef | Scope, name: str, present: Value | None) -> Ref:
    """The object whose slots are the rebound names of ``holder``, so that they have homes like any other slot."""
    held = vm.rebound.get(holder)
    if held is None or vm.heap.get(held) is None:
        held = vm.heap.new(Object(Sort.INSTANCE, "#names"))
        if not isinstance(holder, Scope):
            vm.heap.replace(held, born=-1)
        vm.rebound[holder] = held
    if present not in (None, UNKNOWN) and name not in vm.heap[held].slots:
        vm.heap.write(held, name, present)
    return held


def globals_of(vm: Interpreter, module: Module, name: str) -> Ref:
    """The object that holds the module's rebound names."""
    return rebinding(vm, module, name, global_name(vm, name, module))


def define(vm: Interpreter, name: str, module: Module) -> Value:
    """The value of a module-level definition."""
    if (function := module.functions.get(name)) is not None:
        return calls.decorated(vm, Function(function, module), function.node, Scope(module))
    if (definition := module.classes.get(name)) is not None:
        return Class(definition)
    if (statement := module.assignments.get(name)) is not None:
        return top_level_value(vm, name, statement, module)
    if (target := module.imports.get(name)) is not None:
        return imported(vm, target, module)
    return External(f"builtins.{name}") if name in calls.BUILTINS else UNKNOWN


def top_level_value(vm: Interpreter, name: str, statement: ast.Assign | ast.AnnAssign, module: Module) -> Value:
    """What a top-level assignment gives one of its names."""
    scope = Scope(module)
    phase, vm.phase = vm.phase, Phase.SET_UP
    driver, vm.driver = vm.driver, None
    vm.stack.append(Call("<module>", module, None, None))
    try:
        value = vm.eval(statement.value, scope) if statement.value is not None else UNKNOWN
        registries.fill(vm, name, value, module)
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, (ast.Name, ast.Tuple, ast.List)):
                assignment.assign(vm, target, value, scope, statement)
    finally:
        vm.stack.pop()
        vm.phase, vm.driver = phase, driver
    return scope.names.get(name, UNKNOWN)


def imported(vm: Interpreter, target: Import, importer: Module) -> Value:
    """What an import binds: a module of the analysed code, one of its names, or an external name."""
    if target.attribute is None:
        found = vm.index.find(target.module, importer)
        return ModuleValue(found) if found is not None else External(target.module)
    inside = vm.index.find(f"{target.module}.{target.attribute}", importer)
    if inside is not None:
        return ModuleValue(inside)
    source = vm.index.find(target.module, importer)
    if source is not None:
        return global_name(vm, target.attribute, source)
    return attributes.external(f"{target.module}.{target.attribute}")


def bind(vm: Interpreter, name: str, value: Value, scope: Scope, node: ast.AST) -> None:
    """Bind a local, nonlocal or global name."""
    if scope.links:
        scope.links = {kept: link for kept, link in scope.links.items() if name not in (kept, link[0])}
    if scope.tests:
        scope.tests = {kept: test for kept, test in scope.tests.items() if kept != name and name not in test[1]}
    if vm.driver is not None:
        value = vm.driver.on_bind(vm, scope, name, vm.driver.grown(value, node), node)
    if name in scope.globals:
        storage.write_slot(vm, globals_of(vm, scope.module, name), name, value, node)
    elif name in scope.nonlocals and scope.parent is not None:
        holder = scope.parent.holder(name) or scope
        storage.write_slot(vm, rebinding(vm, holder, name, holder.names.get(name)), name, value, node)
    elif vm.rebound and rebound_value(vm, scope, name) is not None:
        storage.write_slot(vm, vm.rebound[scope], name, value, node)
    else:
        scope.names[name] = value
