"""The running analysis at one point: function calls in progress, saved names and objects, work on side streams."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from capturelint.static.events import Site
from capturelint.static.homes import Objects
from capturelint.static.index import FunctionDef, Module
from capturelint.static.records import quick
from capturelint.static.values import Scope, Test, Value

Line: TypeAlias = tuple[Path, int]


@dataclass(slots=True)
class Call:
    """One function call in progress: what it returns, yields, and where its loops leave."""

    name: str
    module: Module
    node: ast.AST | None
    definition: object
    returns: list[tuple[Value, Objects]] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    body: Callable[[Value], None] | None = None
    """The body of the ``with`` statement whose manager this call is: it runs where the call yields."""
    breaks: list[list[State]] = field(default_factory=list)
    continues: list[list[State]] = field(default_factory=list)
    scope: Scope | None = None
    """Its names; of a call of an analysed function."""


class RaisedError(Exception):
    """A call that surely raises, inside a ``try`` of the analysed code."""


@quick
@dataclass(frozen=True, slots=True)
class State:
    """The local names, what they say of each other, and the heap at one point."""

    names: dict[str, Value]
    objects: Objects
    tests: dict[str, Test]


@dataclass(slots=True)
class Stream:
    """Device work put on a side stream while recording, until the recording stream waits for it."""

    site: Site
    joined: bool = False
    forked: bool = True
    """False where work was put on it before it waited for anything."""
    waits: bool = False
    """True where the code under it waits for something that nobody knows."""
    doubt: int = 0
    """Conditions that nobody knows around the work put on it last."""
    rejoined: bool = False
    """True where somebody waited for earlier work of the same step."""
    waits_elsewhere: set[Line] = field(default_factory=set)
    """Lines that wait for an event that outlives the step and was recorded after the work."""


def at_work(call: Call) -> bool:
    """A context manager at work: the flag that it sets is a mode, and it takes it back."""
    definition = call.definition
    if not isinstance(definition, FunctionDef):
        return False
    decorators = definition.node.decorator_list
    named = definition.name in ("__enter__", "__exit__")
    return named or any("contextmanager" in ast.unparse(decorator) for decorator in decorators)
