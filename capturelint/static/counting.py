"""Counts that stop: ``if self.seen < 2: self.seen += 1`` stands still once a warm-up has run, as lazy building does."""

from __future__ import annotations

import ast
from functools import lru_cache

from capturelint.static.index import FunctionDef

WARM_UPS = 3
"""Steps before a capture: what ``verify`` runs, and torch's own example (docs.pytorch.org, notes/cuda, CUDA Graphs)."""


@lru_cache(256)
def stops_at(definition: object, node: ast.AugAssign) -> int | None:
    """Where the count of an attribute stops within a warm-up; ``None`` for any other count.

    Only the function under the bound moves it, and nobody but an initialiser sets it: what is set back counts again.
    """
    target = node.target
    if not isinstance(definition, FunctionDef) or not isinstance(target, ast.Attribute):
        return None
    if not isinstance(node.op, ast.Add) or ast.unparse(node.value) != "1" or is_set_elsewhere(definition, node):
        return None
    ends = (bound(test, ast.unparse(target)) for test in tests_around(definition, node))
    return next((end for end in ends if end is not None and end <= WARM_UPS), None)


def tests_around(definition: FunctionDef, node: ast.stmt) -> list[ast.expr]:
    """The conditions of the ``if`` statements whose bodies hold a statement."""
    held = (each for each in ast.walk(definition.node) if isinstance(each, ast.If))
    return [each.test for each in held if any(inner is node for part in each.body for inner in ast.walk(part))]


def bound(test: ast.expr, name: str) -> int | None:
    """The first number for which ``name < 2`` does not hold."""
    match test:
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() as op], comparators=[ast.Constant(value=int() as limit)]):
            return limit + isinstance(op, ast.LtE) if ast.unparse(left) == name else None
        case _:
            return None


def is_set_elsewhere(definition: FunctionDef, node: ast.AugAssign) -> bool:
    """Whether other code of the file stores an attribute of that name, initialisers aside."""
    name = node.target.attr if isinstance(node.target, ast.Attribute) else ""
    initial = {
        id(inner)
        for each in ast.walk(definition.module.tree)
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        for inner in ast.walk(each)
    }
    return any(
        isinstance(each, ast.Attribute)
        and each.attr == name
        and isinstance(each.ctx, ast.Store)
        and each is not node.target
        and id(each) not in initial
        for each in ast.walk(definition.module.tree)
    )
