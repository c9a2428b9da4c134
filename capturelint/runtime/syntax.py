"""Source files of the target, read for what stands at a line; a file that cannot be read has nothing."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: str) -> ast.Module:
    """A source file's tree; an empty one where it cannot be read."""
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def function_around(path: str, line: int) -> ast.FunctionDef | None:
    """The innermost function that a line stands in."""
    around = (
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)
    )
    return max(around, key=lambda node: node.lineno, default=None)


@cache
def source_lines(path: str) -> tuple[bytes, ...]:
    """A source file's lines; none where it cannot be read."""
    try:
        return tuple(Path(path).read_bytes().splitlines())
    except OSError:
        return ()
