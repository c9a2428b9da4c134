"""``match``: which cases a value can take, and what their patterns bind.

A case that surely fits ends the statement; one that may fit is run under a condition that nobody knows. Comparing a
device tensor with a literal pattern is a read, as in any comparison.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import classes, conditions, inheritance, operators, storage
from capturelint.static.homes import Sort
from capturelint.static.index import ClassDef
from capturelint.static.values import (
    UNKNOWN,
    Class,
    Const,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Truth,
    Value,
    constant,
    options,
    union,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter
    from capturelint.static.state import State

Bound = dict[str, Value]


def run_match(vm: Interpreter, node: ast.Match, scope: Scope) -> bool:
    """Run the cases that may fit, the first that surely does being the last."""
    subject = vm.eval(node.subject, scope)
    before = vm.save(scope)
    arrived: list[State] = []
    settled = False
    unsure = False
    for case in node.cases:
        vm.restore(scope, before)
        bound: Bound = {}
        truth = fits(vm, case.pattern, subject, scope, bound)
        if truth is Truth.FALSE:
            continue
        scope.names.update(bound)
        guard = (
            conditions.ask(vm, vm.eval(case.guard, scope), case.guard, "if") if case.guard is not None else Truth.TRUE
        )
        if guard is Truth.FALSE:
            continue
        taken = truth if guard is Truth.TRUE else guard
        with conditions.uncertain(vm, Truth.HOST if taken is Truth.TRUE and unsure else taken):
            if vm.run(case.body, scope):
                arrived.append(vm.save(scope))
        settled = taken is Truth.TRUE
        if settled:
            break
        unsure = True
    return vm.merge(scope, arrived if settled else [*arrived, before])


def fits(vm: Interpreter, pattern: ast.pattern, subject: Value, scope: Scope, bound: Bound) -> Truth:
    """Whether a value has a pattern's form; what the pattern names is put into ``bound``."""
    match pattern:
        case ast.MatchAs(pattern=inner, name=name):
            truth = fits(vm, inner, subject, scope, bound) if inner is not None else Truth.TRUE
            if name is not None:
                bound[name] = subject
            return truth
        case ast.MatchOr(patterns=patterns):
            return either([fits(vm, inner, subject, scope, bound) for inner in patterns])
        case ast.MatchValue(value=value):
            return equals(vm, subject, value, scope)
        case ast.MatchSingleton(value=value):
            same = {option == Const(value) for option in options(subject)}
            known = all(isinstance(o, (Const, Tensor, Ref, Sequence)) for o in options(subject)) and len(same) == 1
            return Truth.HOST if not known else Truth.TRUE if same.pop() else Truth.FALSE
        case ast.MatchSequence(patterns=patterns):
            return fits_sequence(vm, patterns, subject, scope, bound)
        case ast.MatchMapping():
            return fits_mapping(vm, pattern, subject, scope, bound)
        case ast.MatchClass():
            return fits_class(vm, pattern, subject, scope, bound)
        case _:
            return Truth.HOST


def equals(vm: Interpreter, subject: Value, value: ast.expr, scope: Scope) -> Truth:
    """``case 4:``, ``case Mode.GREEDY:``."""
    comparison = ast.copy_location(ast.Compare(value, [ast.Eq()], [value]), value)
    return conditions.ask(vm, operators.compare(vm, ast.Eq(), subject, vm.eval(value, scope), comparison), value, "if")


def either(truths: list[Truth]) -> Truth:
    """True where one of them is, false where all are."""
    if Truth.TRUE in truths:
        return Truth.TRUE
    return next((truth for truth in truths if truth is not Truth.FALSE), Truth.FALSE)


def every(truths: list[Truth]) -> Truth:
    """False where one of them is, true where all are."""
    if Truth.FALSE in truths:
        return Truth.FALSE
    return next((truth for truth in truths if truth is not Truth.TRUE), Truth.TRUE)


def fits_sequence(vm: Interpreter, patterns: list[ast.pattern], subject: Value, scope: Scope, bound: Bound) -> Truth:
    """``case (a, b, *rest):``."""
    starred = next((at for at, pattern in enumerate(patterns) if isinstance(pattern, ast.MatchStar)), None)
    items = vm.items(subject)
    if items is None:
        for pattern in patterns:
            name = pattern.name if isinstance(pattern, ast.MatchStar) else None
            if name is not None:
                bound[name] = vm.new_list(Sequence(None, vm.element(subject)))
            elif not isinstance(pattern, ast.MatchStar):
                fits(vm, pattern, vm.element(subject), scope, bound)
        return Truth.HOST
    num_plain = len(patterns) - (starred is not None)
    if len(items) < num_plain or (starred is None and len(items) != num_plain):
        return Truth.FALSE
    if starred is not None:
        after = len(patterns) - starred - 1
        rest = patterns[starred]
        if isinstance(rest, ast.MatchStar) and rest.name is not None:
            bound[rest.name] = vm.new_list(Sequence(tuple(items[starred : len(items) - after])))
        patterns = [*patterns[:starred], *patterns[starred + 1 :]]
        items = [*items[:starred], *items[len(items) - after :]]
    return every([fits(vm, *pair, scope, bound) for pair in zip(patterns, items, strict=True)])


def fits_mapping(vm: Interpreter, pattern: ast.MatchMapping, subject: Value, scope: Scope, bound: Bound) -> Truth:
    """``case {"mode": mode, **rest}:``."""
    found = vm.heap.get(subject) if isinstance(subject, Ref) else None
    truths = []
    for key, inner in zip(pattern.keys, pattern.patterns, strict=True):
        name = constant(vm.eval(key, scope))
        held = found.slots.get(name) if found is not None and found.sort is Sort.DICT else None
        closed = found is not None and found.sort is Sort.DICT and found.element is None and not found.opaque
        inside = fits(vm, inner, held if held is not None else UNKNOWN, scope, bound)
        truths.append(inside if held is not None else Truth.FALSE if closed else Truth.HOST)
    if pattern.rest is not None:
        bound[pattern.rest] = UNKNOWN
    return every(truths) if truths else Truth.HOST


def fits_class(vm: Interpreter, pattern: ast.MatchClass, subject: Value, scope: Scope, bound: Bound) -> Truth:
    """``case Greedy(k=k):``, ``case int(n):``."""
    kind = vm.eval(pattern.cls, scope)
    answers = {option: classes.is_instance(vm, option, kind) for option in options(subject)}
    if set(answers.values()) == {False}:
        return Truth.FALSE
    kept = union([option for option, answer in answers.items() if answer is not False])
    fields = list(kind.definition.fields) if isinstance(kind, Class) else []
    names = [*fields[: len(pattern.patterns)], *pattern.kwd_attrs]
    inner = [*pattern.patterns, *pattern.kwd_patterns]
    if not isinstance(kind, Class) and len(pattern.patterns) == 1:
        return every([Truth.TRUE if set(answers.values()) == {True} else Truth.HOST,
                      fits(vm, pattern.patterns[0], kept, scope, bound)])  # fmt: skip
    truths = [
        fits(vm, part, vm.attribute(kept, name, pattern.cls), scope, bound)
        for name, part in zip(names, inner, strict=False)
    ]
    return every([Truth.TRUE if set(answers.values()) == {True} else Truth.HOST, *truths])


def tuple_items(vm: Interpreter, ref: Ref) -> list[Value] | None:
    """The items of a named tuple; ``None`` for any other object."""
    found = vm.heap.get(ref)
    if found is None or not isinstance(found.cls, ClassDef) or not is_named_tuple(vm, found.cls):
        return None
    names = [name for name in found.cls.fields if name in found.slots]
    return [storage.read_slot(vm, ref, name) or UNKNOWN for name in names]


def is_named_tuple(vm: Interpreter, definition: ClassDef) -> bool:
    """A subclass of ``NamedTuple``."""
    return any(isinstance(base, str) and base.endswith("NamedTuple") for base in inheritance.bases(vm, definition))
