"""The parameters through which a Triton kernel may write, read off its source.

The interpreter does not say what a kernel wrote. What is stored to comes from parameters by assignments; what was
loaded through a pointer is a value and no pointer any more. A call of anything but Triton's own language may write
through whatever it is given.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

LANGUAGE = "triton."
VALUES = ("load", "zeros", "full", "arange", "program_id", "num_programs", "cdiv")
"""Calls whose results are no pointers, whatever they are given."""


def stored_parameters(kernel: Callable[..., Any]) -> frozenset[str] | None:
    """Names of the parameters that may be written through; None if the source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel)))
    except (OSError, SyntaxError, TypeError):
        return None
    parameters = frozenset(inspect.signature(kernel).parameters)
    sources = flows(tree)
    reached = {name for expression in targets(tree, kernel) for name in pointers_in(expression)}
    pending = list(reached)
    while pending:
        for name in sources.get(pending.pop(), set()) - reached:
            reached.add(name)
            pending.append(name)
    return parameters & reached


def flows(tree: ast.AST) -> dict[str, set[str]]:
    """For each name that is bound, the names that it is made of."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                bound = targets
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                bound = [target]
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.For(target=target, iter=value):
                bound = [target]
            case _:
                continue
        for name in (each.id for one in bound for each in ast.walk(one) if isinstance(each, ast.Name)):
            found.setdefault(name, set()).update(pointers_in(value))
    return found


def pointers_in(expression: ast.expr) -> Iterator[str]:
    """The names in an expression that may be, or hold, the pointer that it stands for."""
    if isinstance(expression, ast.Call) and name_of(expression.func) in VALUES:
        return
    if isinstance(expression, ast.Name):
        yield expression.id
    for child in ast.iter_child_nodes(expression):
        if isinstance(child, ast.expr):
            yield from pointers_in(child)
        elif isinstance(child, ast.keyword):
            yield from pointers_in(child.value)


def targets(tree: ast.AST, kernel: Callable[..., Any]) -> Iterator[ast.expr]:
    """The expressions that calls of the kernel may write through."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = name_of(call.func)
        if name == "store" or name.startswith("atomic_"):
            yield from call.args[:1]
            yield from (keyword.value for keyword in call.keywords if keyword.arg == "pointer")
            if isinstance(call.func, ast.Attribute):
                yield call.func.value  # the method of a descriptor
        elif name == "inline_asm_elementwise" or not is_harmless(call.func, kernel):
            yield from call.args
            yield from (keyword.value for keyword in call.keywords)


def is_harmless(function: ast.expr, kernel: Callable[..., Any]) -> bool:
    """Whether a called name is Python's or of Triton's language, or a method of a value of that."""
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return isinstance(function, ast.Attribute)
    known = getattr(kernel, "__globals__", {}).get(root.id, getattr(builtins, root.id, None))
    if known is None:
        return isinstance(function, ast.Attribute)  # a local: `value.to(...)`
    module = known.__name__ if inspect.ismodule(known) else getattr(known, "__module__", "")
    return f"{module}.".startswith((LANGUAGE, "builtins."))


def name_of(function: ast.expr) -> str:
    """The last name of what is called."""
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
