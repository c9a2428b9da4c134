"""Loops and comprehensions: item by item where the items are few and known, else until nothing changes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import assignment, conditions, managers, steady, torch_calls
from capturelint.static.homes import Object, Sort
from capturelint.static.values import (
    UNKNOWN,
    Const,
    Number,
    Range,
    Ref,
    Scope,
    Sequence,
    Truth,
    Value,
    constant,
    join,
    union,
)
from capturelint.vocabulary import Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_UNROLL = 6


def run_for(vm: Interpreter, node: ast.For | ast.AsyncFor, scope: Scope) -> bool:
    """A loop: item by item where the items are few and known, else until nothing changes."""
    items, element = iterate(vm, vm.eval(node.iter, scope), node.iter)
    call = vm.stack[-1]
    call.breaks.append([])
    call.continues.append([])
    alive = True
    if items is not None:
        for item in items:
            assignment.assign(vm, node.target, item, scope, node)
            with managers.in_loop(vm):
                alive = vm.run(node.body, scope)
            alive = after_body(vm, scope, alive)
            if not alive:
                break
    else:
        # At least one iteration is assumed: a loop over layers or rows that never runs is not a decode step.
        outer, scope.rounds = scope.rounds, scope.rounds | counters(node)
        for again in (False, True):
            before = vm.save(scope)
            assignment.assign(vm, node.target, element, scope, node)
            with managers.in_loop(vm):
                alive = vm.run(node.body, scope)
            alive = after_body(vm, scope, alive)
            if again or not alive:
                vm.merge(scope, [before, vm.save(scope)] if alive else [before])
        alive, scope.rounds = True, outer
    if alive and node.orelse:
        alive = vm.run(node.orelse, scope)
    return after_loop(vm, scope, alive)


def counters(node: ast.For | ast.AsyncFor) -> frozenset[str]:
    """The name that counts the rounds of a loop: ``i`` of ``for i in range(n)`` and ``for i, x in enumerate(xs)``."""
    match node:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range" | "trange"))):
            return frozenset({name})
        case ast.For(target=ast.Tuple(elts=[ast.Name(id=name), *_]), iter=ast.Call(func=ast.Name(id="enumerate"))):
            return frozenset({name})
        case _:
            return frozenset()


def run_while(vm: Interpreter, node: ast.While, scope: Scope) -> bool:
    """A loop on a condition."""
    call = vm.stack[-1]
    call.breaks.append([])
    call.continues.append([])
    truth = Truth.HOST
    for _ in range(2):
        before = vm.save(scope)
        truth = conditions.ask(vm, vm.eval(node.test, scope), node.test, "while")
        if truth is Truth.HOST and vm.recording:
            truth = conditions.known(steady.long_enough(node.test, node.body, []))
        if truth is Truth.FALSE:
            break
        with conditions.uncertain(vm, truth), managers.in_loop(vm):
            alive = vm.run(node.body, scope)
        alive = after_body(vm, scope, alive)
        vm.merge(scope, [before, vm.save(scope)] if alive else [before])
    endless = truth is Truth.TRUE and isinstance(node.test, ast.Constant)
    return after_loop(vm, scope, not endless)


def after_body(vm: Interpreter, scope: Scope, alive: bool) -> bool:
    """Join the paths that ``continue``d."""
    states = vm.stack[-1].continues[-1]
    vm.stack[-1].continues[-1] = []
    return vm.merge(scope, [*([vm.save(scope)] if alive else []), *states])


def after_loop(vm: Interpreter, scope: Scope, alive: bool) -> bool:
    """Join the paths that left by ``break``."""
    vm.stack[-1].continues.pop()
    states = vm.stack[-1].breaks.pop()
    return vm.merge(scope, [*([vm.save(scope)] if alive else []), *states])


def run_break(vm: Interpreter, node: ast.Break, scope: Scope) -> bool:
    """Leave the loop."""
    if vm.stack[-1].breaks:
        vm.stack[-1].breaks[-1].append(vm.save(scope))
    return False


def run_continue(vm: Interpreter, node: ast.Continue, scope: Scope) -> bool:
    """Next iteration."""
    if vm.stack[-1].continues:
        vm.stack[-1].continues[-1].append(vm.save(scope))
    return False


def iterate(vm: Interpreter, value: Value, node: ast.AST, many: int = MAX_UNROLL) -> tuple[list[Value] | None, Value]:
    """The items that a loop visits: exact and few, or one value for all of them."""
    if isinstance(value, Range) and value.varies is Varies.PER_STEP:
        torch_calls.report_varying(vm, Number(Varies.PER_STEP), node, "loop")
        return None, Number()  # how often it runs is baked, and not what each round counts
    if isinstance(value, Ref) and vm.driver is not None:
        vm.driver.on_walk(vm, value, node)
    items = vm.items(value)
    if items is not None and len(items) <= many:
        return items, UNKNOWN
    return None, vm.element(value)


def eval_comprehension(vm: Interpreter, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Value:
    """A comprehension: item by item where the items are few and known."""
    inner = Scope(scope.module, scope)
    inner.owner, inner.this = scope.owner, scope.this
    results: list[Value] = []
    exact = comprehend(vm, node.generators, node.elt, inner, results)
    items = Sequence(tuple(results)) if exact else Sequence(None, union(results))
    return vm.new_list(items) if isinstance(node, ast.ListComp) else items


def comprehend(
    vm: Interpreter, generators: list[ast.comprehension], elt: ast.expr, scope: Scope, results: list[Value]
) -> bool:
    """Collect the values of ``elt``; ``True`` where they are exactly the items."""
    if not generators:
        results.append(vm.eval(elt, scope))
        if vm.driver is not None:
            results[-1] = vm.driver.on_keep(vm, results[-1], elt, "comprehension")
        return True
    first, rest = generators[0], generators[1:]
    source = vm.eval(first.iter, scope)
    items, element = iterate(vm, source, first.iter, MAX_UNROLL if rest else managers.MAX_CHEAP)
    if items is not None and len(items) > MAX_UNROLL and not managers.is_cheap(elt):
        items, element = None, vm.element(source)
    exact = items is not None
    # What a round finds that an earlier one left behind shows in the second.
    for item in items if items is not None else [element] * (2 if vm.driver is not None else 1):
        assignment.assign(vm, first.target, item, scope, elt)
        truths = [conditions.ask(vm, vm.eval(test, scope), test, "if") for test in first.ifs]
        if Truth.FALSE in truths:
            continue
        exact = exact and all(truth is Truth.TRUE for truth in truths)
        with managers.in_loop(vm):
            exact = comprehend(vm, rest, elt, scope, results) and exact
    return exact


def eval_dictcomp(vm: Interpreter, node: ast.DictComp, scope: Scope) -> Value:
    """A dict comprehension."""
    inner = Scope(scope.module, scope)
    inner.owner, inner.this = scope.owner, scope.this
    keys: list[Value] = []
    pairs = ast.Tuple([node.key, node.value], ast.Load())
    ast.copy_location(pairs, node)
    exact = comprehend(vm, node.generators, pairs, inner, keys)
    slots: dict[object, Value] = {}
    element: Value | None = None
    for pair in keys:
        key, value = assignment.split(vm, pair, 2)
        known = constant(key)
        if exact and known is not Const and isinstance(known, (str, int)):
            slots[known] = value
        else:
            element = value if element is None else join(element, value)
    return vm.heap.new(Object(Sort.DICT, slots=slots, element=element))
