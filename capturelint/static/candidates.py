"""Sources without an entry -> what could be named as one: a module that is no part of another, by its ``forward``.

Only asked where nothing was found, so that a first run ends with a command that finds something and not with a riddle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.report.model import relative
from capturelint.static.files import read_source
from capturelint.static.index import parse

MAX_FILES = 200
MAX_SHOWN = 3
NAMES = ("model", "decoder", "transformer", "causal", "gpt")
"""What the class of a whole model is called, in part."""
METHODS = ("decode", "step", "forward")
"""In the order in which they are proposed."""


def candidates(files: Sequence[Path]) -> tuple[str, ...]:
    """``--entry`` values to try, at most three: what no class builds, then the parts that keep a cache."""
    found: list[tuple[ast.ClassDef, str]] = []
    parts: set[str] = set()
    for path in files[:MAX_FILES]:
        tree = parsed(path)
        parts |= {name for node in tree.body if isinstance(node, ast.ClassDef) for name in built_by(node)}
        found += [(node, f"{relative(path)}:{node.name}.{method}") for node, method in methods(tree)]

    def rank(each: tuple[ast.ClassDef, str]) -> tuple[bool, bool, bool]:
        node, _ = each
        return node.name in parts, not looks_whole(node.name), not keeps_a_cache(node)

    proposed = [each for each in found if each[0].name not in parts or keeps_a_cache(each[0])]
    return tuple(spec for _, spec in sorted(proposed, key=rank)[:MAX_SHOWN])


def built_by(node: ast.ClassDef) -> set[str]:
    """The last names of what a class calls, its own left out."""
    return {called(each) for each in ast.walk(node) if isinstance(each, ast.Call)} - {node.name}


def parsed(path: Path) -> ast.Module:
    """The syntax of a file; of one that cannot be read, nothing."""
    try:
        return parse(read_source(path).text, path)
    except SourceError:
        return ast.Module([], [])


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def methods(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, str]]:
    """Classes that derive from a module, each with the method that decode would go through."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Module" in ast.unparse(base) for base in node.bases):
            defined = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            method = next((name for name in METHODS if name in defined), None)
            if method is not None:
                yield node, method


def looks_whole(name: str) -> bool:
    """Whether a class is named like a whole model."""
    return name.endswith("LM") or any(word in name.lower() for word in NAMES)


def keeps_a_cache(node: ast.ClassDef) -> bool:
    """Whether some attribute or name in a class speaks of a cache."""
    return any(
        "cache" in (each.attr if isinstance(each, ast.Attribute) else each.arg).lower()
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.arg)
    )
