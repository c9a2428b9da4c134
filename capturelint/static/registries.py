"""Containers at the top of a module that other top-level code fills: decorators that register, items that are assigned.

Importing a module runs its decorators. The analyser evaluates a module's names when they are needed, so a registry
would be found empty; here the code that fills it is run when the registry is first looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from capturelint.static import inheritance
from capturelint.static.index import ClassDef, FunctionDef, FunctionNode, Module, top_level
from capturelint.static.steady import names_in
from capturelint.static.values import UNKNOWN, Class, Function, Ref, Scope, Value

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_REGISTERED = 64


def fill(vm: Interpreter, name: str, value: Value, module: Module) -> None:
    """Run what a module's top level, and decorators everywhere, put into one of its containers or registries."""
    if not isinstance(value, Ref) or (found := vm.heap.get(value)) is None or isinstance(found.cls, str):
        return
    module.globals[name] = value
    with vm.silent():
        for statement in top_level(module.tree.body):
            if fills(statement, name):
                vm.run([statement], Scope(module))
        functions = {f.name for f in mentioning(module, name) if decorates(f)}
        keeps = found.cls is not None and any(map(decorates, found.cls.methods.values()))
        decorators = functions if found.cls is None else {name} if keeps else set()
        for decorator, definition in registered(vm, decorators, module)[:MAX_REGISTERED]:
            wrapper = vm.quiet_eval(decorator, Scope(definition.module))
            vm.quiet_call(wrapper, [as_value(definition)], definition.node)


def replaced_methods(vm: Interpreter, definition: ClassDef) -> Mapping[str, Value]:
    """What decorators of a class put in place of its methods (``cls.forward = ...``); unknown where nobody sees it."""
    known = vm.replaced.get(definition)
    if known is None:
        if not definition.node.decorator_list:
            return {}
        known = vm.replaced[definition] = {}
        decorators = [(d, names) for d in definition.node.decorator_list if (names := replaces(vm, d, definition))]
        found: dict[str, Value] = {name: UNKNOWN for _, names in decorators for name in names}
        for decorator, _ in reversed(decorators):
            vm.quiet_call(vm.quiet_eval(decorator, Scope(definition.module)), [Class(definition)], definition.node)
        known.update({name: known.get(name, UNKNOWN) for name in found})
    return known


def replacement(vm: Interpreter, definition: ClassDef, name: str) -> Value | None:
    """What runs for a method of a class in its place, where a decorator of the class or of a base put it there."""
    for base in inheritance.bases(vm, definition):
        if isinstance(base, ClassDef):
            found = replaced_methods(vm, base).get(name, UNKNOWN)
            if found is not UNKNOWN:
                return found
            if name in base.methods:
                return None
    return None


def replace_method(vm: Interpreter, definition: ClassDef, name: str, value: Value) -> None:
    """``cls.name = function``: in a decorator that is run on the class, or by any other code."""
    replaced_methods(vm, definition)
    vm.replaced.setdefault(definition, {})[name] = value


def replaces(vm: Interpreter, decorator: ast.expr, definition: ClassDef) -> set[str]:
    """The attributes that a decorator assigns on what it decorates."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    function = vm.quiet_eval(called, Scope(definition.module))
    if not isinstance(function, Function):
        return set()
    targets = [t for n in ast.walk(function.definition.node) if isinstance(n, ast.Assign) for t in n.targets]
    return {t.attr for t in targets if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name)}


def fills(statement: ast.stmt, name: str) -> bool:
    """``NAME[key] = value``, ``NAME.update(...)``, ``NAME.append(...)``."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=found))]):
            return found == name
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=found)))):
            return found == name
        case _:
            return False


def decorates(function: FunctionDef) -> bool:
    """Whether a function gives back one of its parameters or a function made in it, as decorators do."""
    known = function.module.decorating
    if function not in known:
        known[function] = gives_back(function.node)
    return known[function]


def gives_back(node: FunctionNode) -> bool:
    """Whether code returns one of its parameters or a function made in it."""
    inner = {n.name for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n is not node}
    known = inner | {argument.arg for argument in node.args.args if argument.arg != "self"}
    returned = {n.value.id for n in ast.walk(node) if isinstance(n, ast.Return) and isinstance(n.value, ast.Name)}
    return bool(returned & known)


def imported_modules(vm: Interpreter, importer: Module, but: Module) -> list[Module]:
    """The modules that a module imports, each once."""
    found: dict[Module, None] = {}
    for target in importer.imports.values():
        inside = vm.index.find(f"{target.module}.{target.attribute}", importer) if target.attribute else None
        module = inside or vm.index.find(target.module, importer)
        if module is not None and module is not but:
            found[module] = None
    return list(found)


def mentioning(module: Module, name: str) -> list[FunctionDef]:
    """The functions of a module that read or write one of its names."""
    if name not in module.mentioning:
        module.mentioning[name] = [function for function in module.functions.values() if mentions(function, name)]
    return module.mentioning[name]


def mentions(function: FunctionDef, name: str) -> bool:
    """Whether a function reads or writes a name."""
    node = function.node
    lines = function.module.lines[node.lineno - 1 : node.end_lineno]
    # The text first: a walk over every function of a module for each of its loggers was a tenth of an analysis.
    if not any(name in line for line in lines):
        return False
    return name in names_in(node)


def registered(vm: Interpreter, names: set[str], module: Module) -> list[tuple[ast.expr, ClassDef | FunctionDef]]:
    """The classes and functions under a decorator of one of these names, in this module and those that import it."""
    if not names:
        return []
    found: list[tuple[ast.expr, ClassDef | FunctionDef]] = []
    for other in [module, *imported_modules(vm, vm.stack[0].module, module), *imported_modules(vm, module, module)]:
        known = names if other is module else imported_from(other, module, names)
        for definition in definitions(other) if known else ():
            found += [(d, definition) for d in definition.node.decorator_list if root_name(d) in known]
    return found


def root_name(decorator: ast.expr) -> str | None:
    """``register`` of ``@register("rms")``, ``NORMS`` of ``@NORMS.register("rms")``."""
    while isinstance(decorator, (ast.Call, ast.Attribute)):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    return decorator.id if isinstance(decorator, ast.Name) else None


def imported_from(other: Module, module: Module, names: set[str]) -> set[str]:
    """The local names under which another module imports some of a module's names."""
    return {
        local
        for local, found in other.imports.items()
        if found.attribute in names and (found.module == module.name or module.name.endswith(f".{found.module}"))
    }


def definitions(module: Module) -> Iterator[ClassDef | FunctionDef]:
    """Everything at a module's top level that can be decorated."""
    yield from module.classes.values()
    yield from module.functions.values()


def as_value(definition: ClassDef | FunctionDef) -> Value:
    """The class or function as its decorator receives it."""
    return Class(definition) if isinstance(definition, ClassDef) else Function(definition, definition.module)
