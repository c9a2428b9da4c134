"""Code that is handed to a function or class of another file which captures it: ``CUDAGraphed(self.decode)``.

Such a wrapper is known by what it captures: a call of a parameter, or of an attribute that ``__init__`` was given.
Where a file calls one that it imports, what it hands over is recorded code. The one surprise: only names and files that
say "graph" are looked up, since a project has thousands of imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from capturelint.static.index import ClassDef, FunctionDef, Import, Index, Module
from capturelint.static.regions import Entry, EntryKind, begins_capture, called_names, functions, script_of

CALLS_GRAPH = re.compile(r"graph\w*\s*\(|\w*graph\w*\s+import\b|@[\w.]*graph", re.IGNORECASE)
MAX_EXPORTS = 3
"""Packages that a name may be imported through."""

LIBRARY = frozenset({"tensordict.nn.CudaGraphModule"})
"""Wrappers of packages that are not checked."""

Wrapper = FunctionDef | ClassDef | str


def may_hand_over(text: str) -> bool:
    """Whether ``handing_over`` could find something in this source."""
    return CALLS_GRAPH.search(text) is not None


def handing_over(module: Module, index: Index) -> Iterator[Entry]:
    """The functions that hand code to an imported wrapper, and those that are decorated with one."""
    if not may_hand_over(module.text):
        return
    names = {
        name: found for name, imported in module.imports.items() if (found := wrapper(name, imported, index, module))
    }
    script = script_of(module, lambda call: base(call) in names) if names else None
    for function in (*functions(module), *([script] if script is not None else [])) if names else ():
        decorating = {base(node) for node in function.node.decorator_list} & names.keys()
        called = called_names(function) & names.keys()
        where = module.path, function.node.lineno, function.qualified_name
        if decorating:
            why = f"captured by {min(decorating)}"
            yield Entry(*where, why, EntryKind.FUNCTION, module, function)
        elif called:
            why = f"hands code to {min(called)}, which captures it"
            wrappers = frozenset(names[name] for name in called)
            yield Entry(*where, why, EntryKind.HANDED, module, function, wrappers=wrappers)


def base(node: ast.expr) -> str:
    """The bare name of a decorator."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else ""


def wrapper(name: str, imported: Import, index: Index, module: Module, depth: int = 0) -> Wrapper | None:
    """The wrapper that an imported name stands for, in whichever file it is defined."""
    if imported.attribute is None or "graph" not in f"{name} {imported.module} {imported.attribute}".lower():
        return None
    target = index.find(imported.module, module)
    if target is None or depth > MAX_EXPORTS:
        path = f"{imported.module}.{imported.attribute}"
        return path if path in LIBRARY else None
    further = target.imports.get(imported.attribute)
    if further is not None:
        return wrapper(imported.attribute, further, index, target, depth + 1)
    return wrappers_of(target).get(imported.attribute)


def wrappers_of(module: Module) -> dict[str, Wrapper]:
    """The functions and classes of a module that capture what they are given, and those that hand it on to one."""
    if "graph" not in module.text:
        return {}
    found: dict[str, Wrapper] = {}
    for function in functions(module):
        if captures_given(function, module):
            defined = function.owner or function
            found[defined.name] = defined
    while True:
        handing = {
            f.name: f for f in module.functions.values() if f.name not in found and found.keys() & called_names(f)
        }
        if not handing:
            return found
        found |= handing


def captures_given(function: FunctionDef, module: Module) -> bool:
    """Whether a captured region of a function calls what somebody gave it."""
    inside = [
        call.func
        for node in ast.walk(function.node)
        if isinstance(node, ast.With) and any(opens_capture(item, module) for item in node.items)
        for statement in node.body
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
    ]
    if not inside:
        return False
    given = {a.arg for node in ast.walk(function.node) if isinstance(node, ast.arguments) for a in node.args} - {
        "self",
        "cls",
    }
    kept = kept_arguments(function.owner) if function.owner is not None else frozenset()
    return any(
        (isinstance(called, ast.Name) and called.id in given)
        or (isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self" and called.attr in kept)
        for called in inside
    )


def opens_capture(item: ast.withitem, module: Module) -> bool:
    """``with torch.cuda.graph(...)``."""
    return isinstance(item.context_expr, ast.Call) and begins_capture(item.context_expr, module)


def kept_arguments(definition: ClassDef) -> frozenset[str]:
    """The attributes that ``__init__`` sets to an argument of its own: ``self.function = function``."""
    initialiser = definition.methods.get("__init__")
    if initialiser is None:
        return frozenset()
    spec = initialiser.node.args
    given = {argument.arg for argument in (*spec.args, *spec.kwonlyargs)}
    return frozenset(
        target.attr
        for node in ast.walk(initialiser.node)
        for target, value in assigned(node)
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in given
    )


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with what it is given, item by item of a tuple."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            yield from zip(targets, values, strict=False)
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case _:
            pass
