"""Host numbers that a driver hands to the function that captures: does the graph's key tell them apart?

A function that captures once and is called again with another number replays what the first one recorded. A driver's
first run finds the parameters that differ while nothing is captured; where there are any, a second one follows them and
learns which of them a condition or the key of a graph depends on. In the last run the others change at every step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from capturelint.static.homes import Object, numbers_differ
from capturelint.static.index import ClassDef, FunctionDef
from capturelint.static.records import replace
from capturelint.static.state import Call
from capturelint.static.steady import names_in
from capturelint.static.values import Const, Home, Number, Ref, Scope, Sequence, Value, deps_of
from capturelint.vocabulary import Confidence, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

ARGUMENT = -1
"""The owner of the homes that stand for parameters, by name: one that is handed on keeps its name or is both."""
RECORD = "#record"
"""The part of a path that says which record was given."""
Path: TypeAlias = "tuple[str, int | str | None]"
"""A parameter, and the item of ``*args`` or the field of a record that is meant."""
Numbers: TypeAlias = "dict[Path, Const | Number]"
Callee: TypeAlias = tuple[object, int]
"""A function, and the object that it is a method of."""


@dataclass(slots=True)
class Activation:
    """One call outside the recording, of a function that may capture."""

    callee: Callee
    frame: Call
    conditions: int
    given: Numbers
    captured: bool = False
    surely: bool = False
    """True where it captured under no condition that nobody knows."""


@dataclass(slots=True)
class KeptArguments:
    """The hooks. ``offered`` and ``keyed`` outlast a run: parameters that differ, and those that choose the graph."""

    keyed: set[Home]
    offered: set[tuple[Callee, Path]] = field(default_factory=set)
    following: bool = False
    last: bool = False
    active: list[Activation] = field(default_factory=list)
    first: dict[Callee, Numbers] = field(default_factory=dict)

    def start(self, final: bool) -> None:
        """A run begins."""
        self.following, self.last = bool(self.offered), final
        self.active.clear()
        self.first.clear()

    def on_call(self, vm: Interpreter, definition: object, scope: Scope, recorded: bool) -> None:
        """A function is entered with its arguments bound."""
        given: Numbers = {}
        callee = definition, scope.this.oid if isinstance(scope.this, Ref) else 0
        if not (recorded or vm.recording) and isinstance(definition, FunctionDef):
            given = dict(numbers_of(vm, definition, scope))
            if self.following:
                self.follow(vm, callee, scope, given)
        self.active.append(Activation(callee, vm.stack[-1], vm.conditions(), given))

    def follow(self, vm: Interpreter, callee: Callee, scope: Scope, given: Numbers) -> None:
        """Mark the offered parameters, or in the last run take those that choose no graph as changing."""
        chosen = chosen_by_caller(vm)
        for path, value in given.items():
            home = Home(ARGUMENT, path)
            if chosen or decides(callee[0], path[0]):
                self.keyed |= {dep for dep in deps_of(value) if dep.owner == ARGUMENT} | {home}
            elif (callee, path) in self.offered and not self.last:
                put(vm, scope, path, replace(value, deps=value.deps | {home}))
            elif (callee, path) in self.offered and home not in self.keyed:
                put(vm, scope, path, Number(Varies.PER_STEP, frozenset({home}), sure=Confidence.LIKELY))

    def on_begin(self, vm: Interpreter) -> None:
        """A capture begins, on behalf of every running function; a manager around it is none of these."""
        for call in self.active:
            if not any(call.frame is frame for frame in vm.stack):
                continue
            call.captured = True
            call.surely = call.surely or vm.conditions() <= call.conditions

    def on_return(self) -> None:
        """A function is left: was it given other numbers than when it captured, and kept the graph?"""
        call = self.active.pop()
        first = self.first.get(call.callee)
        if first is None and call.captured:
            self.first[call.callee] = call.given
        elif first is not None and not call.surely:
            self.offered |= {
                (call.callee, path)
                for path, value in call.given.items()
                if path in first and path[1] != RECORD and numbers_differ(first[path], value)
                if not (isinstance(path[1], str) and first.get((path[0], RECORD)) == call.given.get((path[0], RECORD)))
            }


def numbers_of(vm: Interpreter, definition: FunctionDef, scope: Scope) -> Iterator[tuple[Path, Const | Number]]:
    """The host values among the arguments: by themselves, in ``*args``, and in records that are made for the call."""
    rest = definition.node.args.vararg
    for name, value in scope.names.items():
        if is_host_value(value):
            yield (name, None), value
        elif rest is not None and name == rest.arg and isinstance(value, Sequence):
            parts = enumerate(value.items or ())
            yield from (((name, at), item) for at, item in parts if is_host_value(item))
        elif isinstance(value, Ref) and value != scope.this and is_record(found := vm.heap.get(value)):
            yield (name, RECORD), Const(value.oid)
            yield from (((name, str(key)), item) for key, item in found.slots.items() if is_host_value(item))


def is_record(found: Object | None) -> TypeGuard[Object]:
    """An instance of a dataclass."""
    return found is not None and isinstance(found.cls, ClassDef) and found.cls.is_dataclass


def put(vm: Interpreter, scope: Scope, path: Path, value: Value) -> None:
    """Give a parameter, one item of ``*args`` or one field of a record another value."""
    name, part = path
    held = scope.names[name]
    if isinstance(part, int) and isinstance(held, Sequence) and held.items is not None:
        scope.names[name] = replace(held, items=(*held.items[:part], value, *held.items[part + 1 :]))
    elif isinstance(part, str) and isinstance(held, Ref):
        vm.heap.write(held, part, value)
    elif part is None:
        scope.names[name] = value


def is_host_value(value: Value) -> TypeGuard[Const | Number]:
    """A host number, flag or text."""
    return isinstance(value, Number) or (isinstance(value, Const) and isinstance(value.value, (bool, int, float, str)))


def chosen_by_caller(vm: Interpreter) -> bool:
    """Whether the running function's caller looks something up by an argument: ``runners[size].run(x, size)``."""
    caller, node = vm.stack[-2].definition, vm.stack[-1].node
    if not (isinstance(caller, FunctionDef) and isinstance(node, ast.Call)):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(isinstance(value, ast.Name) and decides(caller, value.id) for value in given)


@cache
def decides(definition: object, name: str) -> bool:
    """Whether a parameter, or what is computed from it, is looked at by a condition or looks something up."""
    nodes = list(ast.walk(definition.node)) if isinstance(definition, FunctionDef) else []
    names, known = {name}, 0
    while known < len(names):
        known = len(names)
        names |= {target for node in nodes for target in assigned_from(node, names)}
    deciding = [part for node in nodes for part in deciding_parts(node)]
    return any(not names.isdisjoint(names_in(part)) for part in deciding)


def assigned_from(node: ast.AST, names: set[str]) -> Iterator[str]:
    """The names that a statement gives values computed from some names."""
    match node:
        case ast.Assign(targets=targets, value=value) if not names.isdisjoint(names_in(value)):
            parts = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            yield from (part.id for part in parts if isinstance(part.ctx, ast.Store))
        case (
            ast.AnnAssign(target=ast.Name(id=target), value=value)
            | ast.NamedExpr(target=ast.Name(id=target), value=value)
        ) if value is not None and not names.isdisjoint(names_in(value)):
            yield target
        case _:
            pass


def deciding_parts(node: ast.AST) -> Iterator[ast.AST]:
    """What a condition tests, or a look-up looks for."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            yield test
        case ast.Subscript(slice=index) if not any(isinstance(part, ast.Slice) for part in ast.walk(index)):
            yield index
        case ast.Call(func=ast.Attribute(attr="get" | "setdefault" | "pop"), args=[key, *_]):
            yield key
        case ast.Match(subject=subject):
            yield subject
        case _:
            pass
