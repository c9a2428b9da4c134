"""Runs recorded code on abstract values and reports what it does to a capture, as events.

Statements and expressions are walked once per call, with real call contexts: a model is built by interpreting its
``__init__``, a step is run on what that left. Branches on unknown host values run both sides and join them; code that
only an unknown condition reaches is less sure, code behind a data-dependent branch is not reported (the branch is).
The one surprise: nothing here knows a rule. Rules see the events.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from capturelint.catalog import Operations
from capturelint.place import Frame
from capturelint.static import (
    attributes,
    calls,
    classes,
    indexing,
    managers,
    matching,
    protocols,
    registries,
    results,
    steady,
    torch_calls,
)
from capturelint.static.driver import Driver
from capturelint.static.events import Event, Site
from capturelint.static.facts import Watch
from capturelint.static.homes import Heap, Object, Sort, Step
from capturelint.static.index import ClassDef, FunctionDef, Import, Index, Module
from capturelint.static.records import replace
from capturelint.static.state import Call, RaisedError, State, Stream
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    BoundExternal,
    CaptureQuery,
    Class,
    Const,
    Device,
    Dtype,
    External,
    Function,
    Lambda,
    Member,
    Memory,
    Method,
    ModuleValue,
    Number,
    Partial,
    Range,
    Ref,
    Scope,
    Sequence,
    Slice,
    Super,
    Tensor,
    Text,
    Truth,
    Union,
    Value,
    constant,
    deps_of,
    element_of,
    int_constant,
    is_none,
    is_number,
    join,
    options,
    tensor_in,
    union,
    varies_of,
)
from capturelint.vocabulary import Confidence, EventKind, Phase, Varies

EventKey: TypeAlias = tuple[object, ...]
MAX_UNROLL = 6
MAX_DOUBT = 2
"""Nested unknown host conditions from which on a finding is only possible: one switch may well be on, two rarely."""
GUESSED_FUEL = 80_000
"""The same for an entry that is a guess from a signature: a library has hundreds of them."""
FUEL = 400_000
"""Expressions that one entry may evaluate; what is not reached by then is not analysed, and the report says so."""

CONTAINS = ("__contains__",)
BINARY: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
COMPARE: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(slots=True)
class Doubted:
    """Conditions on the way to the code in a ``with`` statement. A class, since there are millions of these."""

    vm: Interpreter
    doubt: int = 0
    hidden: int = 0
    soft: int = 0
    muted: int = 0

    def __enter__(self) -> None:
        self.add(1)

    def __exit__(self, *fault: object) -> None:
        self.add(-1)

    def add(self, sign: int) -> None:
        """Enter or leave the code."""
        vm = self.vm
        vm.doubt += sign * self.doubt
        vm.hidden += sign * self.hidden
        vm.soft += sign * self.soft
        vm.muted += sign * self.muted


class Interpreter:
    """The machine: heap, phase, call stack, and the events so far."""

    def __init__(self, index: Index, catalog: Operations) -> None:
        self.index = index
        self.catalog = catalog
        self.heap: Heap = Heap()
        self.phase = Phase.SET_UP
        self.step = Step()
        self.noted: dict[EventKey, tuple[Event, int]] = {}
        self.log: list[tuple[EventKey, int]] = []
        self.stack: list[Call] = []
        self.cap = Confidence.CERTAIN
        self.doubt = 0
        self.soft = 0
        self.assuming = False
        """True where an instance is built that somebody else built: arguments that nobody saw may have been given."""
        self.decoding = False
        """True where the entry is a decode step: what is so in every such step is known."""
        self.hidden = 0
        self.tables = 0
        """Calls of one of many variants: what one does only perhaps is not said of all."""
        self.trying: int | None = None
        """The conditions around the innermost ``try`` that handles errors; ``None`` outside any."""
        self.muted = 0
        self.compiled: bool = False
        self.fuel = FUEL
        self.idents = 0
        self.default_memory = Memory.HOST
        self.module_memory = Memory.DEVICE
        self.orders: dict[ClassDef, list[ClassDef | str]] = {}
        self.members: dict[ClassDef, tuple[object, dict[object, tuple[object, ClassDef] | None]]] = {}
        """What ``attributes.find_method`` found, by class: its bases in their order, and what they give a name."""
        self.checking: set[object] = set()
        """The ``__getattribute__`` methods that only name and whose events the running step has."""
        self.renamed: dict[tuple[ClassDef, str], str] = {}
        """The name that such a method of a class took instead of one that an object has not."""
        self.asked = ""
        """The name that such a method asked for last."""
        self.instances: dict[object, Value] = {}
        self.remembered: dict[object, Value] = {}
        """What functions that keep their answers gave, by function and arguments."""
        self.records: dict[ast.AST, ClassDef] = {}
        """Classes that calls like ``namedtuple`` made."""
        self.rebound: dict[Module | ClassDef | Scope, Ref] = {}
        """Where names of modules, classes and enclosing calls are kept once a function has rebound them."""
        self.replaced: dict[ClassDef, dict[str, Value]] = {}
        self.unlisted: set[str] = set()
        self.reached: dict[FunctionDef, None] = {}
        self.side_streams: dict[object, Stream] = {}
        self.stream_stack: list[Value] = []
        self.autocast: Site | None = None
        self.inside: tuple[ast.expr, Callable[[Value], None]] | None = None
        """The call that makes a manager, and the body to run where it yields."""
        self.driver: Driver | None = None
        self.watch: Watch | None = None

    # ---------------------------------------------------------------- places and events

    @property
    def module(self) -> Module:
        """The module of the running function."""
        return self.stack[-1].module

    def site(self, node: ast.AST) -> Site:
        """Where a node is, with the calls that led there."""
        module = self.module
        trail = tuple(
            Frame(outer.module.path, getattr(inner.node, "lineno", 1), outer.name)
            for outer, inner in zip(self.stack, self.stack[1:], strict=False)
            if inner.node is not None and not outer.name.startswith("<entry>")
        )
        return Site(module.place(node), module.code(node), trail)

    def emit(
        self,
        kind: EventKind,
        node: ast.AST | Site,
        how: str,
        sure: Confidence = Confidence.CERTAIN,
        *,
        name: str = "",
        varies: Varies = Varies.NEVER,
        torch: str = "",
        phase: Phase | None = None,
    ) -> None:
        """Note that something happened. Nothing is noted outside recorded code unless ``phase`` says so."""
        if self.driver is not None and kind is EventKind.SYNC:
            self.driver.blocks.on_wait()
        if self.muted or (phase or self.phase) is not (phase or Phase.RECORDED):
            return
        sure = min(sure, Confidence.LIKELY) if self.soft else sure
        guess = self.hidden or (self.tables and sure is not Confidence.CERTAIN)
        sure = Confidence.POSSIBLE if guess else min(sure, self.cap)
        site = node if isinstance(node, Site) else self.site(node)
        event = Event(kind, site, how, sure, phase or self.phase, name, varies, torch, self.compiled)
        self.note(event, self.doubt)

    def note(self, event: Event, doubt: int) -> None:
        """Keep the surest sighting of an event: the fewest unknown conditions on the way, then the confidence."""
        key = (event.kind, event.how, event.site.place, event.torch, event.compiled)
        self.log.append((key, doubt))
        present = self.noted.get(key)
        if present is None or (-present[1], present[0].confidence) < (-doubt, event.confidence):
            self.noted[key] = (event, doubt)

    def found(self) -> list[Event]:
        """The events, each as sure as the conditions on its way allow."""
        return [
            replace(event, confidence=min(event.confidence, doubted(doubt))) for event, doubt in self.noted.values()
        ]

    def settle_sides(self, marks: list[int], doubts: list[int]) -> None:
        """What both sides of an unknown condition do does not depend on it."""
        first, second = least(self.log[marks[0] : marks[1]]), least(self.log[marks[1] :])
        for key in first.keys() & second.keys():
            event, doubt = self.noted[key]
            settled = max(first[key] - doubts[0], second[key] - doubts[1])
            if settled < doubt:
                self.noted[key] = (event, settled)
            self.log.append((key, settled))

    @property
    def recording(self) -> bool:
        """True while the code that runs ends up in a graph."""
        return self.phase is Phase.RECORDED

    @property
    def warms_compiled(self) -> bool:
        """True in the first run of compiled code: what it makes is in the memory of CUDAGraph Trees already."""
        return self.compiled and self.phase is Phase.WARM_UP and self.driver is None

    def ident(self) -> int:
        """A number for a new tensor."""
        self.idents += 1
        return self.idents

    # ---------------------------------------------------------------- states

    def save(self, scope: Scope) -> State:
        """The state as it is."""
        return State(dict(scope.names), self.heap.snapshot(), scope.tests)

    def restore(self, scope: Scope, state: State) -> None:
        """Go back to a state."""
        scope.names = dict(state.names)
        scope.tests = state.tests
        self.heap.objects = state.objects.copy()

    def merge(self, scope: Scope, states: list[State]) -> bool:
        """Join states that came from the same one; ``False`` where no path arrives."""
        if not states:
            return False
        names = dict(states[0].names)
        for state in states[1:]:
            for name, value in state.names.items():
                names[name] = join(names[name], value) if name in names else value
        scope.names = names
        scope.tests = {k: v for k, v in states[0].tests.items() if all(state.tests.get(k) is v for state in states)}
        self.heap.merge([state.objects for state in states])
        return True

    def uncertain(self, truth: Truth, test: ast.expr | None = None, outcome: bool = True) -> Doubted:
        """Code that runs only under a condition nobody knows, and where it has this ``outcome``.

        Whether an optional argument is there is a condition that a step can take: less sure, but no doubt. That a text
        or a dtype is this one of the many that it may be (a mode, an implementation) is as doubtful as two switches.
        """
        soft = int(truth is Truth.HOST and test is not None and asks_for_none(test))
        doubt, hidden = int(truth in (Truth.HOST, Truth.STEP)) - soft, int(truth is Truth.DEVICE)
        if truth is Truth.HOST and test is not None and picks_one(test, outcome):
            doubt = MAX_DOUBT
        return Doubted(self, doubt, hidden, soft)

    def silent(self) -> Doubted:
        """Code whose events do not count: error paths, shadow runs."""
        return Doubted(self, muted=1)

    # ---------------------------------------------------------------- statements

    def run(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Execute statements; ``False`` where control never reaches the end."""
        for at, statement in enumerate(body):
            if self.fuel <= 0:
                return True
            sort = type(statement)
            if sort is ast.If:
                if not self.run_if(statement, scope, body[at + 1 :]):  # type: ignore[arg-type]
                    return False
                continue
            execute = STATEMENTS.get(sort)
            if execute is not None and execute(self, statement, scope) is False:
                return False
        return True

    def run_expr(self, node: ast.Expr, scope: Scope) -> None:
        """An expression statement."""
        self.eval(node.value, scope)

    def run_assign(self, node: ast.Assign, scope: Scope) -> None:
        """``a = b = value``."""
        value = self.eval(node.value, scope)
        if self.decoding and steady.base_name(node.value) in steady.CARRIED:
            scope.carried |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for target in node.targets:
            self.assign(target, value, scope, node)
        if type(node.value) in NARROWING and type(node.targets[0]) is ast.Name and steady.is_test(node.value):
            test = node.value, frozenset(steady.names_in(node.value))
            scope.tests = {**scope.tests, node.targets[0].id: test}

    def run_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        """``a: T = value``."""
        if node.value is not None:
            self.assign(node.target, self.eval(node.value, scope), scope, node)

    def run_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        """``a += b``: in place for tensors and lists, a new number otherwise."""
        load = as_load(node.target)
        left, right = self.eval(load, scope), self.eval(node.value, scope)
        tensor = tensor_in(left)
        if tensor is not None:
            results.operate(self, node, [left, right], in_place=tensor)
            if not isinstance(node.target, ast.Subscript):
                self.assign(node.target, left, scope, node, same=True)
            else:
                indexing.store(self, self.eval(node.target.value, scope), node.target, left, scope)
            return
        if isinstance(left, Ref):
            updated = protocols.updated(self, node.op, left, right, node)
            if updated is not None:
                self.assign(node.target, updated, scope, node)
                return
            if isinstance(node.op, (ast.Add, ast.BitOr)):
                self.call(
                    BoundExternal(left, "extend" if isinstance(node.op, ast.Add) else "update"), [right], {}, node
                )
                return
        self.assign(node.target, self.binary(node.op, left, right, node), scope, node)

    def run_return(self, node: ast.Return, scope: Scope) -> bool:
        """Leave the function; value and heap are joined with the other ways out."""
        value = self.eval(node.value, scope) if node.value is not None else NONE
        self.stack[-1].returns.append((value, self.heap.snapshot()))
        return False

    def run_raise(self, node: ast.Raise, scope: Scope) -> bool:
        """An error path: what its message reads is read only when the program is failing anyway."""
        return False

    def run_assert(self, node: ast.Assert, scope: Scope) -> bool:
        """``assert``: a condition on the device is read; one that does not hold ends the path.

        In set-up it says that the configuration is another than the one by default.
        """
        truth = self.truth(self.eval(node.test, scope), node.test, "assert", report_step=False)
        self.narrow(node.test, scope, True)
        return truth is not Truth.FALSE or self.phase is Phase.SET_UP

    def run_if(self, node: ast.If, scope: Scope, rest: list[ast.stmt]) -> bool:
        """Both sides where the condition is not known, one where it is."""
        value = self.eval(node.test, scope)
        if capture_query(value) is not None and self.recording:
            return managers.run_capture_query(self, node, value, scope, rest)
        work = self.step.work
        truth = self.truth(value, node.test, "if", report_step=False)
        if truth is Truth.HOST and self.recording:
            truth = known(self.settled(node, rest))
        if truth is Truth.TRUE:
            self.narrow(node.test, scope, True)
            return self.run(node.body, scope)
        if truth is Truth.FALSE:
            self.narrow(node.test, scope, False)
            return self.run(node.orelse, scope)
        if truth is Truth.HOST and self.deep():
            # A switch that nobody knows is off, unless that is an error.
            on = bool(node.orelse) and isinstance(node.orelse[-1], ast.Raise)
            self.narrow(node.test, scope, on)
            return self.run(node.body if on else node.orelse, scope)
        before = self.save(scope)
        arrived: list[State] = []
        marks: list[int] = []
        doubts: list[int] = []
        leaving, outside = self.num_exits(), self.doubt
        for side, outcome in ((node.body, True), (node.orelse, False)):
            marks.append(len(self.log))
            self.restore(scope, before)
            self.narrow(node.test, scope, outcome)
            with self.uncertain(truth, node.test, outcome):
                doubts.append(self.doubt - outside)
                if self.run(side, scope):
                    arrived.append(self.save(scope))
        if truth is Truth.HOST:
            self.settle_sides(marks, doubts)
        if truth is Truth.STEP:
            left = self.num_exits() > leaving  # a side that only raises records nothing else
            if left or self.step.work > work or self.tensors_differ(arrived):
                self.report_varying(value, node.test, "branch")
        alive = self.merge(scope, arrived)
        if truth is Truth.HOST and len(arrived) == 2:
            self.link(node.test, scope, arrived)
        return alive

    def link(self, test: ast.expr, scope: Scope, arrived: list[State]) -> None:
        """Remember what names hold on each side of ``x is None``, for whoever asks the same again."""
        match test:
            case ast.Compare(left=ast.Name(id=asked), ops=[op], comparators=[ast.Constant(value=None)]):
                none, given = arrived if isinstance(op, ast.Is) else reversed(arrived)
            case _:
                return
        links = {
            name: (asked, joined, none.names[name], given.names[name])
            for name, joined in scope.names.items()
            if type(joined) is Union and name != asked and name in none.names and name in given.names
        }
        scope.links = {**scope.links, **links} if links else scope.links

    def settled(self, node: ast.If, rest: list[ast.stmt]) -> bool | None:
        """What a condition asks that warm-up has settled: the same for every analysis of the module."""
        answers = self.module.settled
        if node not in answers:
            answers[node] = steady.settled_by_warm_up(node.test, node.body, node.orelse, rest)
        return answers[node]

    def num_exits(self) -> int:
        """How many returns, breaks and continues the running call has seen."""
        call = self.stack[-1]
        return len(call.returns) + sum(map(len, call.breaks)) + sum(map(len, call.continues))

    def deep(self) -> bool:
        """True behind so many unknown conditions that one side has to do for the next one.

        Both sides of ten nested switches are a thousand paths, and nothing that is found there is shown. A switch that
        nobody knows is taken to be off.
        """
        return self.doubt >= (1 if self.phase is Phase.SET_UP else MAX_DOUBT)

    def tensors_differ(self, states: list[State]) -> bool:
        """True where two paths leave different tensors in local names."""
        if len(states) < 2:
            return False
        first, second = states[0].names, states[1].names
        return any(tensor_in(value) and second.get(name) != value for name, value in first.items())

    def run_for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> bool:
        """A loop: item by item where the items are few and known, else until nothing changes."""
        items, element = self.iterate(self.eval(node.iter, scope), node.iter)
        call = self.stack[-1]
        call.breaks.append([])
        call.continues.append([])
        alive = True
        if items is not None:
            for item in items:
                self.assign(node.target, item, scope, node)
                with managers.in_loop(self):
                    alive = self.run(node.body, scope)
                alive = self.after_body(scope, alive)
                if not alive:
                    break
        else:
            # At least one iteration is assumed: a loop over layers or rows that never runs is not a decode step.
            for again in (False, True):
                before = self.save(scope)
                self.assign(node.target, element, scope, node)
                with managers.in_loop(self):
                    alive = self.run(node.body, scope)
                alive = self.after_body(scope, alive)
                if again or not alive:
                    self.merge(scope, [before, self.save(scope)] if alive else [before])
            alive = True
        if alive and node.orelse:
            alive = self.run(node.orelse, scope)
        return self.after_loop(scope, alive)

    def run_while(self, node: ast.While, scope: Scope) -> bool:
        """A loop on a condition."""
        call = self.stack[-1]
        call.breaks.append([])
        call.continues.append([])
        truth = Truth.HOST
        for _ in range(2):
            before = self.save(scope)
            truth = self.truth(self.eval(node.test, scope), node.test, "while")
            if truth is Truth.HOST and self.recording:
                truth = known(steady.long_enough(node.test, node.body, []))
            if truth is Truth.FALSE:
                break
            with self.uncertain(truth), managers.in_loop(self):
                alive = self.run(node.body, scope)
            alive = self.after_body(scope, alive)
            self.merge(scope, [before, self.save(scope)] if alive else [before])
        endless = truth is Truth.TRUE and isinstance(node.test, ast.Constant)
        return self.after_loop(scope, not endless)

    def after_body(self, scope: Scope, alive: bool) -> bool:
        """Join the paths that ``continue``d."""
        states = self.stack[-1].continues[-1]
        self.stack[-1].continues[-1] = []
        return self.merge(scope, [*([self.save(scope)] if alive else []), *states])

    def after_loop(self, scope: Scope, alive: bool) -> bool:
        """Join the paths that left by ``break``."""
        self.stack[-1].continues.pop()
        states = self.stack[-1].breaks.pop()
        return self.merge(scope, [*([self.save(scope)] if alive else []), *states])

    def run_break(self, node: ast.Break, scope: Scope) -> bool:
        """Leave the loop."""
        if self.stack[-1].breaks:
            self.stack[-1].breaks[-1].append(self.save(scope))
        return False

    def run_continue(self, node: ast.Continue, scope: Scope) -> bool:
        """Next iteration."""
        if self.stack[-1].continues:
            self.stack[-1].continues[-1].append(self.save(scope))
        return False

    def run_with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> bool:
        """Context managers: capture regions, streams, devices, and the ones that change nothing."""
        return managers.run_with(self, node, scope)

    def run_try(self, node: ast.Try, scope: Scope) -> bool:
        """The body, then each handler from before and after it."""
        before, mark = self.save(scope), len(self.stack[-1].returns)
        arrived: list[State] = []
        ended = self.attempt(node, scope)
        if ended and self.run(node.orelse, scope):
            arrived.append(self.save(scope))
        for handler in node.handlers:
            if ended and not managers.handles_look_up(handler):
                continue  # what failed did not fail here
            self.restore(scope, before)
            if handler.name:
                scope.names[handler.name] = UNKNOWN
            with self.silent():  # a handler runs when the body failed: capture failed before it
                if self.run(handler.body, scope):
                    arrived.append(self.save(scope))
        alive = self.merge(scope, arrived)
        if not alive:
            self.restore(scope, before)
        return self.leaving(scope, mark, alive, lambda: self.run(node.finalbody, scope))

    def leaving(self, scope: Scope, mark: int, alive: bool, final: Callable[[], bool]) -> bool:
        """What runs when a block is left: at its end, and after each ``return`` in it, from the ``mark``-th on."""
        call = self.stack[-1]
        added = call.returns[mark:]
        if not added:
            return final() and alive
        here = self.save(scope)
        self.heap.merge([objects for _, objects in added])
        final()
        after = self.heap.snapshot()
        call.returns[mark:] = [(value, after) for value, _ in added]
        self.restore(scope, here)
        return alive and final()

    def attempt(self, node: ast.Try, scope: Scope) -> bool:
        """The body of a ``try``; ``False`` where control never reaches its end."""
        call = self.stack[-1]
        breaks, continues, outer = len(call.breaks), len(call.continues), self.trying
        self.trying = self.conditions() if node.handlers else outer
        try:
            return self.run(node.body, scope)
        except RaisedError:
            del call.breaks[breaks:], call.continues[continues:]
            return False
        finally:
            self.trying = outer

    def conditions(self) -> int:
        """How many conditions that nobody knows the running code is under."""
        return self.doubt + self.soft + self.hidden

    def run_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        """A function inside a function closes over its names."""
        scope.names[node.name] = calls.nested_function(self, node, scope)

    def run_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        """A class inside a function."""
        scope.names[node.name] = Class(scope.module.class_definition(node))

    def run_import(self, node: ast.Import, scope: Scope) -> None:
        """An import inside a function."""
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            scope.names[bound] = self.imported(Import(alias.name if alias.asname else bound), scope.module)

    def run_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        """A ``from`` import inside a function."""
        source = scope.module.absolute(node.module, node.level)
        for alias in node.names:
            scope.names[alias.asname or alias.name] = self.imported(Import(source, alias.name), scope.module)

    def run_delete(self, node: ast.Delete, scope: Scope) -> None:
        """``del name``."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)

    def run_global(self, node: ast.Global, scope: Scope) -> None:
        """``global name``: later assignments go to the module."""
        for name in node.names:
            scope.names.pop(name, None)
            scope.globals.add(name)

    def run_nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        """``nonlocal name``: later assignments go to the enclosing call."""
        scope.nonlocals.update(node.names)

    def run_match(self, node: ast.Match, scope: Scope) -> bool:
        """``match``: the cases that the value may take."""
        return matching.run_match(self, node, scope)

    # ---------------------------------------------------------------- assignment

    def assign(self, target: ast.expr, value: Value, scope: Scope, node: ast.AST, same: bool = False) -> None:
        """Bind a value to a target."""
        match target:
            case ast.Name():
                self.bind(target.id, value, scope, node)
            case ast.Attribute():
                attributes.store(self, self.eval(target.value, scope), target.attr, value, node, same=same)
            case ast.Subscript():
                indexing.store(self, self.eval(target.value, scope), target, value, scope)
            case ast.Tuple() | ast.List():
                self.unpack(target.elts, value, scope, node)
            case ast.Starred():
                self.assign(target.value, self.new_list(value), scope, node)
            case _:
                pass

    def bind(self, name: str, value: Value, scope: Scope, node: ast.AST) -> None:
        """Bind a local, nonlocal or global name."""
        if scope.links:
            scope.links = {kept: link for kept, link in scope.links.items() if name not in (kept, link[0])}
        if scope.tests:
            scope.tests = {kept: test for kept, test in scope.tests.items() if kept != name and name not in test[1]}
        if self.driver is not None:
            value = self.driver.on_bind(self, scope, name, self.driver.grown(value, node), node)
        if name in scope.globals:
            attributes.write_slot(self, self.globals_of(scope.module, name), name, value, node)
        elif name in scope.nonlocals and scope.parent is not None:
            holder = scope.parent.holder(name) or scope
            attributes.write_slot(self, self.rebinding(holder, name, holder.names.get(name)), name, value, node)
        elif self.rebound and self.rebound_value(scope, name) is not None:
            attributes.write_slot(self, self.rebound[scope], name, value, node)
        else:
            scope.names[name] = value

    def unpack(self, targets: list[ast.expr], value: Value, scope: Scope, node: ast.AST) -> None:
        """``a, b = value``."""
        starred = next((at for at, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        items = self.items(value) if starred is not None else None
        if starred is None:
            parts = self.parts(value, len(targets))
        elif items is not None and len(items) >= len(targets) - 1:
            after = len(items) - (len(targets) - starred - 1)
            parts = [*items[:starred], Sequence(tuple(items[starred:after])), *items[after:]]
        else:
            parts = [self.element(value)] * len(targets)
            parts[starred] = Sequence(None, parts[starred])
        for target, part in zip(targets, parts, strict=True):
            self.assign(target, part, scope, node)

    def parts(self, value: Value, count: int) -> list[Value]:
        """The items of a value that is unpacked into ``count`` names."""
        columns: list[list[Value]] = [[] for _ in range(count)]
        for option in options(value):
            items = self.items(option)
            for at, column in enumerate(columns):
                if items is not None and len(items) == count:
                    column.append(items[at])
                else:
                    column.append(self.element(option))
        return [union(column) for column in columns]

    def items(self, value: Value) -> list[Value] | None:
        """The exact items of a sequence, or ``None``."""
        match value:
            case Sequence(items=items) if items is not None:
                return list(items)
            case Range(items=items) if items is not None:
                return [Const(item) for item in items]
            case Const(value=str() as text):
                return [Const(letter) for letter in text]
            case Ref():
                found = self.heap.get(value)
                if found is not None and found.sort is Sort.LIST and found.element is None:
                    return [attributes.read_slot(self, value, key) or UNKNOWN for key in in_order(found.slots)]
                if found is not None and found.sort is Sort.DICT and found.element is None:
                    return [Const(key) for key in found.slots]
                if found is not None and found.element is None and attributes.list_base(self, found):
                    return [self.heap.read(value, key) or UNKNOWN for key in found.slots if isinstance(key, int)]
                return matching.tuple_items(self, value)
            case _:
                return None

    def element(self, value: Value) -> Value:
        """Any item of an iterable value."""
        match value:
            case Union():
                return union([self.element(option) for option in value.options])
            case Sequence():
                return element_of(value)
            case Range():
                return Number(value.varies)
            case Ref():
                return attributes.element(self, value)
            case Tensor():
                return results.row(self, value)
            case _:
                return UNKNOWN

    def iterate(self, value: Value, node: ast.AST, many: int = MAX_UNROLL) -> tuple[list[Value] | None, Value]:
        """The items that a loop visits: exact and few, or one value for all of them."""
        if isinstance(value, Range) and value.varies is Varies.PER_STEP:
            self.report_varying(Number(Varies.PER_STEP), node, "loop")
            return None, Number()  # how often it runs is baked, and not what each round counts
        items = self.items(value)
        if items is not None and len(items) <= many:
            return items, UNKNOWN
        return None, self.element(value)

    # ---------------------------------------------------------------- expressions

    def eval(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""
        self.fuel -= 1
        if self.fuel <= 0:
            return UNKNOWN
        evaluate = EVALUATORS.get(type(node))
        return evaluate(self, node, scope) if evaluate is not None else UNKNOWN

    def quiet_eval(self, node: ast.expr, scope: Scope) -> Value:
        """The value of a set-up expression (a base class, a default, a field), without events."""
        phase, self.phase = self.phase, Phase.SET_UP
        self.stack.append(Call("<set-up>", scope.module, None, None))
        try:
            with self.silent():
                return self.eval(node, scope)
        finally:
            self.stack.pop()
            self.phase = phase

    def quiet_call(self, function: Value, args: list[Value], node: ast.AST) -> Value:
        """Call a set-up function (a decorator, a default factory), without events."""
        phase, self.phase = self.phase, Phase.SET_UP
        try:
            with self.silent():
                return self.call(function, args, {}, node)
        finally:
            self.phase = phase

    def eval_constant(self, node: ast.Constant, scope: Scope) -> Value:
        """A literal."""
        return Const(node.value)

    def eval_name(self, node: ast.Name, scope: Scope) -> Value:
        """A name: local, enclosing, module, import, built-in."""
        if not self.rebound and node.id not in scope.globals and (present := scope.names.get(node.id)) is not None:
            return present
        holder = scope.holder(node.id) if node.id not in scope.globals else None
        if holder is None:
            return self.global_name(node.id, scope.module)
        rebound = self.rebound_value(holder, node.id)
        return rebound if rebound is not None else holder.names[node.id]

    def global_name(self, name: str, module: Module) -> Value:
        """A module-level name, evaluated on first use."""
        rebound = self.rebound_value(module, name)
        if rebound is not None:
            return rebound
        present = module.globals.get(name)
        if present is not None and (type(present) is not Ref or self.heap.get(present) is not None):
            return present  # type: ignore[return-value]
        # Evaluated now, or again: what a path made that was given up is gone with it.
        module.globals[name] = UNKNOWN  # a definition that needs itself finds nothing
        value = self.define(name, module)
        module.globals[name] = value
        return value

    def rebound_value(self, holder: Module | ClassDef | Scope, name: str) -> Value | None:
        """What a function has put into a name of a module, a class or an enclosing call."""
        held = self.rebound.get(holder) if self.rebound else None
        return attributes.read_slot(self, held, name) if held is not None and self.heap.get(held) is not None else None

    def rebinding(self, holder: Module | ClassDef | Scope, name: str, present: Value | None) -> Ref:
        """The object whose slots are the rebound names of ``holder``, so that they have homes like any other slot."""
        held = self.rebound.get(holder)
        if held is None or self.heap.get(held) is None:
            held = self.heap.new(Object(Sort.INSTANCE, "#names"))
            if not isinstance(holder, Scope):
                self.heap.replace(held, born=-1)
            self.rebound[holder] = held
        if present not in (None, UNKNOWN) and name not in self.heap[held].slots:
            self.heap.write(held, name, present)
        return held

    def globals_of(self, module: Module, name: str) -> Ref:
        """The object that holds the module's rebound names."""
        return self.rebinding(module, name, self.global_name(name, module))

    def define(self, name: str, module: Module) -> Value:
        """The value of a module-level definition."""
        if (function := module.functions.get(name)) is not None:
            return calls.decorated(self, Function(function, module), function.node, Scope(module))
        if (definition := module.classes.get(name)) is not None:
            return Class(definition)
        if (statement := module.assignments.get(name)) is not None:
            return self.top_level_value(name, statement, module)
        if (imported := module.imports.get(name)) is not None:
            return self.imported(imported, module)
        return External(f"builtins.{name}") if name in calls.BUILTINS else UNKNOWN

    def top_level_value(self, name: str, statement: ast.Assign | ast.AnnAssign, module: Module) -> Value:
        """What a top-level assignment gives one of its names."""
        scope = Scope(module)
        phase, self.phase = self.phase, Phase.SET_UP
        driver, self.driver = self.driver, None
        self.stack.append(Call("<module>", module, None, None))
        try:
            value = self.eval(statement.value, scope) if statement.value is not None else UNKNOWN
            registries.fill(self, name, value, module)
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, (ast.Name, ast.Tuple, ast.List)):
                    self.assign(target, value, scope, statement)
        finally:
            self.stack.pop()
            self.phase, self.driver = phase, driver
        return scope.names.get(name, UNKNOWN)

    def imported(self, target: Import, importer: Module) -> Value:
        """What an import binds: a module of the analysed code, one of its names, or an external name."""
        if target.attribute is None:
            found = self.index.find(target.module, importer)
            return ModuleValue(found) if found is not None else External(target.module)
        inside = self.index.find(f"{target.module}.{target.attribute}", importer)
        if inside is not None:
            return ModuleValue(inside)
        source = self.index.find(target.module, importer)
        if source is not None:
            return self.global_name(target.attribute, source)
        return attributes.external(f"{target.module}.{target.attribute}")

    def eval_attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        """``value.name``."""
        return self.attribute(self.eval(node.value, scope), node.attr, node)

    def attribute(self, owner: Value, name: str, node: ast.AST) -> Value:
        """The attribute of a value, of each of its alternatives."""
        if not isinstance(owner, Union):
            return UNKNOWN if is_none(owner) else attributes.load(self, owner, name, node)
        return union([attributes.load(self, option, name, node) for option in owner.options if not is_none(option)])

    def eval_subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        """``value[index]``."""
        owner = self.eval(node.value, scope)
        return indexing.load(self, owner, self.eval(node.slice, scope), node)

    def eval_slice(self, node: ast.Slice, scope: Scope) -> Value:
        """``a:b:c``."""
        bounds = [
            self.eval(bound, scope) if bound is not None else NONE for bound in (node.lower, node.upper, node.step)
        ]
        return Slice(*bounds)

    def eval_tuple(self, node: ast.Tuple | ast.List, scope: Scope) -> Value:
        """A tuple; a list goes to the heap."""
        items: list[Value] = []
        exact = True
        for item in node.elts:
            if isinstance(item, ast.Starred):
                value = self.eval(item.value, scope)
                inner = self.items(value)
                exact = exact and inner is not None
                items += inner if inner is not None else [self.element(value)]
            else:
                items.append(self.eval(item, scope))
        return Sequence(tuple(items)) if exact else Sequence(None, union(items))

    def eval_list(self, node: ast.List, scope: Scope) -> Value:
        """A list."""
        return self.new_list(self.eval_tuple(node, scope))

    def new_list(self, items: Value) -> Ref:
        """A list in the heap with these items."""
        exact = self.items(items)
        if exact is not None:
            return self.heap.new(Object(Sort.LIST, slots=dict(enumerate(exact))))
        return self.heap.new(Object(Sort.LIST, element=self.element(items)))

    def eval_set(self, node: ast.Set, scope: Scope) -> Value:
        """A set."""
        return self.heap.new(Object(Sort.SET, element=union([self.eval(item, scope) for item in node.elts])))

    def eval_dict(self, node: ast.Dict, scope: Scope) -> Value:
        """A dict: exact keys become slots, others share one element."""
        slots: dict[object, Value] = {}
        element: Value | None = None
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.eval(item, scope)
            if key is None:
                for inner_key, inner in attributes.entries(self, value):
                    slots[inner_key] = inner
                continue
            exact = constant(self.eval(key, scope))
            if exact is not Const and isinstance(exact, (str, int, type(None))):
                slots[exact] = value
            else:
                element = value if element is None else join(element, value)
        return self.heap.new(Object(Sort.DICT, slots=slots, element=element))

    def eval_comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Value:
        """A comprehension: item by item where the items are few and known."""
        inner = Scope(scope.module, scope)
        inner.owner, inner.this = scope.owner, scope.this
        results: list[Value] = []
        exact = self.comprehend(node.generators, node.elt, inner, results)
        items = Sequence(tuple(results)) if exact else Sequence(None, union(results))
        return self.new_list(items) if isinstance(node, ast.ListComp) else items

    def comprehend(
        self, generators: list[ast.comprehension], elt: ast.expr, scope: Scope, results: list[Value]
    ) -> bool:
        """Collect the values of ``elt``; ``True`` where they are exactly the items."""
        if not generators:
            results.append(self.eval(elt, scope))
            if self.driver is not None:
                results[-1] = self.driver.on_keep(self, results[-1], elt, "comprehension")
            return True
        first, rest = generators[0], generators[1:]
        source = self.eval(first.iter, scope)
        items, element = self.iterate(source, first.iter, MAX_UNROLL if rest else managers.MAX_CHEAP)
        if items is not None and len(items) > MAX_UNROLL and not managers.is_cheap(elt):
            items, element = None, self.element(source)
        exact = items is not None
        for item in items if items is not None else [element]:
            self.assign(first.target, item, scope, elt)
            truths = [self.truth(self.eval(test, scope), test, "if") for test in first.ifs]
            if Truth.FALSE in truths:
                continue
            exact = exact and all(truth is Truth.TRUE for truth in truths)
            with managers.in_loop(self):
                exact = self.comprehend(rest, elt, scope, results) and exact
        return exact

    def eval_dictcomp(self, node: ast.DictComp, scope: Scope) -> Value:
        """A dict comprehension."""
        inner = Scope(scope.module, scope)
        inner.owner, inner.this = scope.owner, scope.this
        keys: list[Value] = []
        pairs = ast.Tuple([node.key, node.value], ast.Load())
        ast.copy_location(pairs, node)
        exact = self.comprehend(node.generators, pairs, inner, keys)
        slots: dict[object, Value] = {}
        element: Value | None = None
        for pair in keys:
            key, value = self.parts(pair, 2)
            known = constant(key)
            if exact and known is not Const and isinstance(known, (str, int)):
                slots[known] = value
            else:
                element = value if element is None else join(element, value)
        return self.heap.new(Object(Sort.DICT, slots=slots, element=element))

    def eval_binop(self, node: ast.BinOp, scope: Scope) -> Value:
        """Arithmetic."""
        return self.binary(node.op, self.eval(node.left, scope), self.eval(node.right, scope), node)

    def binary(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        """Arithmetic on any values: a tensor operand makes it a kernel, two host numbers make a host number."""
        if isinstance(op, ast.Mod) and self.is_text(left):
            for value in self.items(right) or [right]:
                torch_calls.formatted(self, value, node)
            return Text()
        query = capture_query(left) or capture_query(right)
        if query is not None:
            return query
        if isinstance(left, Ref) or isinstance(right, Ref):
            made = protocols.operated(self, op, left, right, node)
            if made is not None:
                return made
        if tensor_in(left) is not None or tensor_in(right) is not None:
            return results.operate(self, node, [left, right], matmul=isinstance(op, ast.MatMult), op=op)
        a, b = constant(left), constant(right)
        if a is not Const and b is not Const:
            return self.fold(BINARY.get(type(op)), a, b, deps_of(left) | deps_of(right))
        if isinstance(op, ast.Add):
            joined = self.concatenate(left, right)
            if joined is not None:
                return joined
        if isinstance(op, ast.Mult) and (inner := self.repeated(left, right)) is not None:
            return inner
        if self.is_text(left) or self.is_text(right):
            return Text()
        if all(is_number(v) or isinstance(v, (Number, Const)) for v in (left, right)):
            return arithmetic(left, right)
        if any(isinstance(option, Number) for value in (left, right) for option in options(value)):
            return Number(
                max(varies_of(left), varies_of(right)), deps_of(left) | deps_of(right), sure=Confidence.LIKELY
            )
        return UNKNOWN

    def fold(self, op: Callable[..., object] | None, a: object, b: object, deps: frozenset[object]) -> Value:
        """A constant result, where Python gives one of reasonable size."""
        if op is None or (isinstance(b, int) and b > 1 << 20 and isinstance(a, str)):
            return UNKNOWN if op is None else Text()
        if (
            op in (operator.lshift, operator.mul)
            and isinstance(a, int)
            and isinstance(b, int)
            and b > 4096
            and a > 1 << 40
        ):
            return Number(deps=deps)  # type: ignore[arg-type]
        try:
            return Const(op(a, b), deps)  # type: ignore[arg-type]
        except (TypeError, ValueError, ArithmeticError, MemoryError):
            return UNKNOWN

    @staticmethod
    def is_text(value: Value) -> bool:
        """True for host strings."""
        return isinstance(value, Text) or isinstance(constant(value), str)

    def concatenate(self, left: Value, right: Value) -> Value | None:
        """``list + list``, ``tuple + tuple``."""
        if not all(isinstance(value, (Sequence, Ref)) for value in (left, right)):
            return None
        first, second = self.items(left), self.items(right)
        if first is not None and second is not None:
            joined = Sequence((*first, *second))
        else:
            joined = Sequence(None, join(self.element(left), self.element(right)))
        return self.new_list(joined) if isinstance(left, Ref) else joined

    def repeated(self, left: Value, right: Value) -> Value | None:
        """``[x] * n``."""
        holder = left if isinstance(left, (Sequence, Ref)) else right if isinstance(right, (Sequence, Ref)) else None
        if holder is None or (isinstance(holder, Ref) and self.heap[holder].sort is not Sort.LIST):
            return None
        count = int_constant(right if holder is left else left)
        items = self.items(holder)
        if items is not None and count is not None and len(items) * count <= MAX_UNROLL:
            repeated: Sequence = Sequence(tuple(items * count))
        else:
            repeated = Sequence(None, self.element(holder))
        return self.new_list(repeated) if isinstance(holder, Ref) else repeated

    def eval_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Value:
        """``-x``, ``~x``, ``not x``."""
        value = self.eval(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return self.negate(value, node.operand)
        made = protocols.run_method(self, value, (protocols.UNARY[type(node.op)],), [], node)
        if made is not None:
            return made
        if tensor_in(value) is not None:
            return results.operate(self, node, [value], op=node.op)
        known = constant(value)
        if isinstance(known, (int, float)):
            if isinstance(node.op, ast.Invert):
                return Const(~known, deps_of(value)) if isinstance(known, int) else UNKNOWN
            return Const(-known if isinstance(node.op, ast.USub) else known, deps_of(value))
        return value

    def negate(self, value: Value, node: ast.expr) -> Value:
        """``not value``."""
        query = capture_query(value)
        if query is not None:
            return CaptureQuery(not query.negated)
        truth = self.truth(value, node, "not", report_step=False)
        if truth in (Truth.TRUE, Truth.FALSE):
            return Const(truth is Truth.FALSE, deps_of(value))
        return self.flag(truth, value)

    def flag(self, truth: Truth, value: Value) -> Value:
        """A host flag whose answer is not known."""
        varies = Varies.PER_STEP if truth is Truth.STEP else Varies.NEVER
        drawn = next((o.drawn for o in options(value) if isinstance(o, Number) and o.drawn), None)
        return Number(varies, deps_of(value) if truth is Truth.STEP else frozenset(), drawn, truth is Truth.DEVICE)

    def eval_boolop(self, node: ast.BoolOp, scope: Scope) -> Value:
        """``and``/``or``: every operand but the last is tested; evaluation stops where Python stops."""
        stop = Truth.FALSE if isinstance(node.op, ast.And) else Truth.TRUE
        seen: list[Value] = []
        saved = dict(scope.names)
        entered = 0
        try:
            for at, operand in enumerate(node.values):
                value = self.eval(operand, scope)
                last = at == len(node.values) - 1
                if last and isinstance(value, Const) and self.truth_of(value) is stop:
                    return value  # whatever the unknown operands are, the condition is settled
                query = capture_query(value)
                if query is not None and self.recording:
                    if last or (Truth.FALSE if query.negated else Truth.TRUE) is stop:
                        return query
                    continue
                truth = Truth.HOST if last else self.truth(value, operand, "bool-op", report_step=False)
                seen.append(value)
                if truth is stop:
                    return value
                if not last:
                    if truth is not (Truth.TRUE if stop is Truth.FALSE else Truth.FALSE) and not asks_for_none(operand):
                        doubts = MAX_DOUBT if picks_one(operand, stop is Truth.FALSE) else 1
                        self.doubt += doubts
                        entered += doubts
                    else:
                        seen.pop()
                    self.narrow(operand, scope, stop is Truth.FALSE)
        finally:
            self.doubt -= entered
            scope.names = saved | {k: v for k, v in scope.names.items() if k not in saved}
        return self.boolean(seen)

    def boolean(self, seen: list[Value]) -> Value:
        """The value of ``and``/``or`` whose operands do not settle it."""
        if len(seen) == 1:
            return seen[0]
        numbers = [option for value in seen for option in options(value)]
        tensors = [option for option in numbers if isinstance(option, Tensor)]
        if tensors and isinstance(seen[-1], Tensor) and len(tensors) == 1 and len(seen) > 1:
            return union(seen)
        if any(varies_of(value) is Varies.PER_STEP for value in seen):
            deps = frozenset().union(*map(deps_of, seen))
            drawn = next((o.drawn for o in numbers if isinstance(o, Number) and o.drawn), None)
            read = all(o.read for o in numbers if isinstance(o, Number) and o.varies is Varies.PER_STEP)
            return Number(Varies.PER_STEP, deps, drawn, read)
        return union(seen)

    def eval_compare(self, node: ast.Compare, scope: Scope) -> Value:
        """Comparisons; a chain tests every link but the last."""
        left = self.eval(node.left, scope)
        results: list[Value] = []
        for at, (op, operand) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.eval(operand, scope)
            if self.decoding and is_none(right) and steady.is_filled(node.left, left, scope):
                return Const(not isinstance(op, (ast.Is, ast.Eq)))
            result = self.compare(op, left, right, node)
            if at < len(node.ops) - 1:
                self.truth(result, node, "chain", report_step=False)
            results.append(result)
            left = right
        return results[-1] if len(results) == 1 else self.boolean(results)

    def compare(self, op: ast.cmpop, left: Value, right: Value, node: ast.Compare) -> Value:
        """One comparison."""
        match op:
            case ast.Eq() | ast.NotEq() if is_none(right) and all(is_none(o) or is_number(o) for o in options(left)):
                return identical(left, right, isinstance(op, ast.NotEq))
            case ast.Is() | ast.IsNot():
                return identical(left, right, isinstance(op, ast.IsNot))
            case ast.In() | ast.NotIn():
                return self.contains(left, right, node, isinstance(op, ast.NotIn))
            case _:
                pass
        if isinstance(left, Ref) or isinstance(right, Ref):
            answer = protocols.compared(self, op, left, right, node)
            if answer is not None:
                return answer
        if tensor_in(left) is not None or tensor_in(right) is not None:
            return results.operate(self, node, [left, right], compare=True)
        a, b = constant(left), constant(right)
        if a is not Const and b is not Const:
            folded = self.fold(COMPARE.get(type(op)), a, b, deps_of(left) | deps_of(right))
            return folded if folded is not UNKNOWN else Number()
        if isinstance(left, (Device, Dtype)) and type(left) is type(right):
            same = left == right
            known = isinstance(left, Dtype) or Memory.EITHER not in (left.memory, right.memory)  # type: ignore[union-attr]
            if known and not (isinstance(left, Dtype) and same):
                return Const(same if isinstance(op, ast.Eq) else not same)
            return Number()
        compared = COMPARE.get(type(op))
        if self.decoding and compared is not None:
            settled = steady.settled(compared, node, left, right)
            return Const(settled) if settled is not None else arithmetic(left, right)
        return arithmetic(left, right)

    def contains(self, left: Value, right: Value, node: ast.AST, negated: bool) -> Value:
        """``x in y``: over a device tensor it is a read; over a dict of known keys it is known."""
        answer = protocols.run_method(self, right, CONTAINS, [left], node) if isinstance(right, Ref) else None
        if answer is not None:
            return answer
        tensor = tensor_in(right) or (tensor_in(left) if self.compares_items(right) else None)
        if tensor is not None and tensor.on_device:
            self.emit(EventKind.SYNC, node, "contains", tensor.sure)
            return Number(Varies.PER_STEP, read=True)
        key, text = constant(left), constant(right)
        if isinstance(key, str) and isinstance(text, str):
            return Const((key in text) is not negated)
        if isinstance(right, BoundExternal) and isinstance(right.owner, Ref) and isinstance(key, str):
            known = attributes.assigned(self, right.owner, key) if right.name == "__dict__" else UNKNOWN
            return Const((known is not None) is not negated) if known is not UNKNOWN else Number()
        inside = self.items(right)
        if inside is not None and key is not Const and all(isinstance(item, Const) for item in inside):
            found = any(isinstance(item, Const) and item.value == key for item in inside)
            return Const(found is not negated)
        holder = self.heap.get(right) if isinstance(right, Ref) else None
        if holder is not None and holder.sort is not Sort.INSTANCE:
            empty = not holder.slots and holder.element is None
            if empty and not holder.opaque:
                return Const(negated)
            if holder.sort is Sort.DICT and key is Const:
                return Number()
        return Number()

    def compares_items(self, holder: Value) -> bool:
        """True for a list, a tuple or a range with items: ``in`` tests whether one is equal. Dicts and sets hash."""
        if isinstance(holder, Ref):
            found = self.heap.get(holder)
            return found is not None and found.sort is Sort.LIST and bool(found.slots or found.element is not None)
        return isinstance(holder, Range) or (isinstance(holder, Sequence) and holder.items != ())

    def eval_ifexp(self, node: ast.IfExp, scope: Scope) -> Value:
        """``a if test else b``."""
        test = self.eval(node.test, scope)
        query = capture_query(test)
        if query is not None and self.recording:
            return managers.eval_capture_query(self, node, query, scope)
        truth = self.truth(test, node.test, "ternary", report_step=False)
        if truth in (Truth.TRUE, Truth.FALSE):
            return self.eval(node.body if truth is Truth.TRUE else node.orelse, scope)
        values: list[Value] = []
        saved = dict(scope.names)
        for side, outcome in ((node.body, True), (node.orelse, False)):
            self.narrow(node.test, scope, outcome)
            with self.uncertain(truth, node.test, outcome):
                values.append(self.eval(side, scope))
            scope.names = dict(saved)
        joined = union(values)
        if truth is Truth.STEP and tensor_in(joined) is not None and values[0] != values[1]:
            self.report_varying(test, node.test, "branch")
        if truth in (Truth.STEP, Truth.DEVICE) and is_number(joined):
            return replace(arithmetic(joined, joined), varies=Varies.PER_STEP, read=truth is Truth.DEVICE)
        return joined

    def eval_namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        """``(name := value)``."""
        value = self.eval(node.value, scope)
        self.assign(node.target, value, scope, node)
        return value

    def eval_joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        """An f-string: formatting a device tensor reads it."""
        written: list[object] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.eval(part.value, scope)
                torch_calls.formatted(self, value, part.value)
                plain = part.format_spec is None and part.conversion == -1
                written.append(constant(value) if plain else Const)
            else:
                written.append(constant(self.eval(part, scope)))
        return Text() if Const in written else Const("".join(map(str, written)))

    def eval_lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        """A lambda."""
        return Lambda(node, scope.module, scope)

    def eval_starred(self, node: ast.Starred, scope: Scope) -> Value:
        """``*value`` outside a call or display."""
        return self.eval(node.value, scope)

    def eval_yield(self, node: ast.Yield, scope: Scope) -> Value:
        """``yield value``."""
        value = self.eval(node.value, scope) if node.value is not None else NONE
        self.stack[-1].yields.append(value)
        if managers.at_yield(self, value):
            return UNKNOWN
        if self.driver is not None:
            self.driver.on_keep(self, value, node, "yield")
        return UNKNOWN

    def eval_yieldfrom(self, node: ast.YieldFrom, scope: Scope) -> Value:
        """``yield from value``."""
        self.stack[-1].yields.append(self.element(self.eval(node.value, scope)))
        return UNKNOWN

    def eval_await(self, node: ast.Await, scope: Scope) -> Value:
        """``await value``."""
        return self.eval(node.value, scope)

    def eval_call(self, node: ast.Call, scope: Scope) -> Value:
        """A call."""
        function = self.eval(node.func, scope)
        args: list[Value] = []
        extra = False
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                value = self.eval(argument.value, scope)
                items = self.items(value)
                extra = extra or items is None
                args += items if items is not None and not extra else []
            else:
                value = self.eval(argument, scope)
                args += [] if extra else [value]  # where it stands is not known behind any number of others
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value, scope)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            else:
                exact, rest = attributes.keywords(self, value)
                kwargs.update(exact)
                extra = extra or rest
        value = self.call(function, args, kwargs, node, extra=extra, scope=scope)
        if self.watch is not None and self.recording:
            self.watch.note(self, node, function, args, kwargs, value)
        return value

    def call(
        self,
        function: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST,
        *,
        extra: bool = False,
        scope: Scope | None = None,
    ) -> Value:
        """Call each alternative of a value; ``extra`` says that more arguments were passed than are known."""
        if not isinstance(function, Union):
            return UNKNOWN if is_none(function) else calls.call_one(self, function, args, kwargs, node, extra, scope)
        chosen = [option for option in function.options if not is_none(option)]
        # Which of several functions is called is a condition nobody knows.
        callees = {option.function if isinstance(option, Method) else option for option in chosen}
        variants = sum(isinstance(callee, (Function, Lambda, Class)) for callee in callees)
        if variants > 2 and (self.hidden or self.deep()) and not any(isinstance(callee, Class) for callee in callees):
            return calls.call_one(self, chosen[0], args, kwargs, node, extra, scope)  # nothing there is shown
        self.doubt += variants > 1
        self.tables += variants > 2
        try:
            return union([calls.call_one(self, option, args, kwargs, node, extra, scope) for option in chosen])
        finally:
            self.doubt -= variants > 1
            self.tables -= variants > 2

    # ---------------------------------------------------------------- truth

    def truth(self, value: Value, node: ast.expr, how: str, report_step: bool = True) -> Truth:
        """What a condition says. A tensor on the device is read to find out, and that is an event."""
        if isinstance(value, Ref):
            asked = protocols.run_method(self, value, protocols.CONVERSIONS["bool"], [], node)
            value = asked if asked is not None else value
        if isinstance(value, Const):
            return Truth.TRUE if value.value else Truth.FALSE
        answers = {self.truth_of(option) for option in options(value)}
        tensor = tensor_in(value)
        if self.driver is not None and tensor is not None and tensor.on_device:
            self.driver.blocks.on_wait()
        if tensor is not None and Truth.DEVICE in answers and tensor.sure is Confidence.POSSIBLE:
            return Truth.HOST  # one of many things that a table may hold
        if tensor is not None and tensor.argument and self.decoding and steady.has_many(node):
            return Truth.HOST  # the truth of several items is an error
        if tensor is not None and Truth.DEVICE in answers:
            settled = doubts_before_last(node) if isinstance(value, Union) else 0
            self.doubt += settled
            self.emit(EventKind.BRANCH, node, how, tensor.sure, name=how)
            self.doubt -= settled
            return Truth.DEVICE
        if Truth.STEP in answers:
            if report_step:
                self.report_varying(value, node, "branch")
            return Truth.STEP
        answer = answers.pop() if len(answers) == 1 else Truth.HOST
        return known(steady.flag(node)) if answer is Truth.HOST and self.decoding else answer

    def truth_of(self, value: Value) -> Truth:
        """The truth of one alternative."""
        match value:
            case Const():
                return Truth.TRUE if value.value else Truth.FALSE
            case Tensor():
                if value.on_device and self.recording:
                    return Truth.DEVICE
                return Truth.STEP if varies_of(value) is Varies.PER_STEP else Truth.HOST
            case Number(varies=Varies.PER_STEP, read=False):
                return Truth.STEP
            case Sequence(items=items) if items is not None:
                return Truth.TRUE if items else Truth.FALSE
            case Function() | Lambda() | Method() | Class() | ModuleValue() | Partial() | Device() | Dtype() | Super():
                return Truth.TRUE
            case Ref():
                return attributes.truth(self, value)
            case _:
                return Truth.HOST

    def report_varying(self, value: Value, node: ast.AST, how: str) -> None:
        """A host value that changes at every step reached recorded code: it is baked."""
        torch_calls.report_varying(self, value, node, how)

    def narrow(self, test: ast.expr, scope: Scope, outcome: bool) -> None:
        """Keep only the alternatives under which a condition has this outcome."""
        if type(test) not in NARROWING:
            return
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.narrow(operand, scope, not outcome)
            case ast.BoolOp(op=ast.And(), values=values) if outcome:
                for value in values:
                    self.narrow(value, scope, True)
            case ast.BoolOp(op=ast.Or(), values=values) if not outcome:
                for value in values:
                    self.narrow(value, scope, False)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                keep_none = isinstance(op, ast.Is) is outcome
                subject = left.id if isinstance(left, ast.Name) else ""
                for name, (asked, joined, none, given) in scope.links.items():
                    if asked == subject and scope.names.get(name) is joined:
                        scope.names[name] = none if keep_none else given
                self.keep(left, scope, lambda option: is_none(option) is keep_none)
            case ast.Call(func=ast.Name(id="isinstance"), args=[subject, wanted]):
                kind = self.eval(wanted, scope)
                self.keep(subject, scope, lambda option: classes.is_instance(self, option, kind) in (None, outcome))
            case ast.Name(id=name) if name in scope.tests:
                self.narrow(scope.tests[name][0], scope, outcome)
            case ast.Name() | ast.Attribute():
                falsy = not outcome
                self.keep(
                    test, scope, lambda option: self.truth_of(option) is not (Truth.TRUE if falsy else Truth.FALSE)
                )
            case _:
                pass

    def keep(self, subject: ast.expr, scope: Scope, wanted: Callable[[Value], bool]) -> None:
        """Drop the alternatives of a name or attribute that are not wanted."""
        match subject:
            case ast.Name(id=name):
                value = scope.names.get(name)
                if isinstance(value, Union):
                    scope.names[name] = filtered(value, wanted)
            case ast.Attribute(value=owner, attr=name):
                if not isinstance(owner, ast.Name):
                    return
                holder = scope.names.get(owner.id)
                if isinstance(holder, Ref) and (found := self.heap.get(holder)) is not None:
                    value = found.slots.get(name)
                    if isinstance(value, Union):
                        self.heap.replace(holder, slots={**found.slots, name: filtered(value, wanted)})
            case _:
                pass


def known(answer: bool | None) -> Truth:
    """What a condition says whose answer may be known."""
    return Truth.HOST if answer is None else Truth.TRUE if answer else Truth.FALSE


def in_order(keys: Iterable[object]) -> list[object]:
    """The keys of a list, by position."""
    return sorted(keys, key=lambda key: (key if isinstance(key, int) else -1, str(key)))


def doubted(doubt: int) -> Confidence:
    """The most that can be said behind so many unknown conditions."""
    return Confidence.CERTAIN if doubt == 0 else Confidence.LIKELY if doubt < MAX_DOUBT else Confidence.POSSIBLE


def least(log: list[tuple[EventKey, int]]) -> dict[EventKey, int]:
    """The fewest doubts under which each event was seen."""
    seen: dict[EventKey, int] = {}
    for key, doubt in log:
        seen[key] = min(doubt, seen.get(key, doubt))
    return seen


def asks_for_none(test: ast.expr) -> bool:
    """``x is None``, ``x is not None``, ``not (...)`` of one, or a bare name."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return asks_for_none(operand)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case _:
            return False


def capture_query(value: Value) -> CaptureQuery | None:
    """The capture query that a value may be: what a guard around the query gives instead is no capture."""
    if isinstance(value, CaptureQuery):
        return value
    return next((o for o in value.options if isinstance(o, CaptureQuery)), None) if isinstance(value, Union) else None


def picks_one(test: ast.expr, outcome: bool) -> bool:
    """True where this outcome means one of many: ``mode == "a"``, ``"a" in kind``, ``x.dtype == torch.half``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return picks_one(operand, not outcome)
        case ast.BoolOp(op=ast.And(), values=values):
            return outcome and any(picks_one(value, True) for value in values)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return any(map(is_choice, (left, right))) and isinstance(
                op, (ast.Eq, ast.In) if outcome else (ast.NotEq, ast.NotIn)
            )
        case _:
            return False


def doubts_before_last(test: ast.expr) -> int:
    """The doubt that a tensor at the end of an ``and`` or ``or`` is tested: what stands before may settle it."""
    if not isinstance(test, ast.BoolOp):
        return 0
    return MAX_DOUBT if any(picks_one(value, isinstance(test.op, ast.And)) for value in test.values[:-1]) else 1


def is_choice(side: ast.expr) -> bool:
    """A text, or a ``torch.dtype`` by its name."""
    match side:
        case ast.Constant(value=str()):
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return name in attributes.DTYPES
        case _:
            return False


def filtered(value: Union, wanted: Callable[[Value], bool]) -> Value:
    """The union of the wanted alternatives, or all of them where none is."""
    kept = [option for option in value.options if wanted(option)]
    return union(kept) if kept else value


DEFINITE = (Const, Number, Text, Tensor, Ref, Function, Class, Sequence, Device)


def identical(left: Value, right: Value, negated: bool) -> Value:
    """``is``: known where the alternatives settle it."""
    alternatives, others = options(left), options(right)
    if not all(isinstance(option, DEFINITE) for option in alternatives):
        return Number()
    if is_none(right):
        same = set(map(is_none, alternatives))
    elif any(map(is_single, alternatives)) or any(map(is_single, others)) or are_classes((*alternatives, *others)):
        same = {option == other for option in alternatives for other in others}
    else:
        return Number()
    return Const(same.pop() is not negated) if len(same) == 1 else Number()


def is_single(value: Value) -> bool:
    """``None``, or a member of an enumeration: there is one of it."""
    return is_none(value) or isinstance(constant(value), Member)


def are_classes(values: tuple[Value, ...]) -> bool:
    """Whether all of several values are classes."""
    return all(isinstance(value, Class) for value in values)


def arithmetic(left: Value, right: Value) -> Number:
    """A host number computed from two values."""
    numbers = [o for v in (left, right) for o in options(v) if isinstance(o, Number)]
    varying = [n for n in numbers if n.varies is Varies.PER_STEP]
    return Number(
        max(varies_of(left), varies_of(right)),
        deps_of(left) | deps_of(right),
        next((n.drawn for n in numbers if n.drawn), None),
        bool(varying) and all(n.read for n in varying),
        min((n.sure for n in varying), default=Confidence.CERTAIN),
    )


def as_load(target: ast.expr) -> ast.expr:
    """The same target, to be read."""
    match target:
        case ast.Name():
            return ast.copy_location(ast.Name(target.id, ast.Load()), target)
        case ast.Attribute():
            return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
        case ast.Subscript():
            return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
        case _:
            return target


EVALUATORS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Constant: Interpreter.eval_constant,
    ast.Name: Interpreter.eval_name,
    ast.Attribute: Interpreter.eval_attribute,
    ast.Subscript: Interpreter.eval_subscript,
    ast.Slice: Interpreter.eval_slice,
    ast.Tuple: Interpreter.eval_tuple,
    ast.List: Interpreter.eval_list,
    ast.Set: Interpreter.eval_set,
    ast.Dict: Interpreter.eval_dict,
    ast.ListComp: Interpreter.eval_comprehension,
    ast.GeneratorExp: Interpreter.eval_comprehension,
    ast.SetComp: Interpreter.eval_comprehension,
    ast.DictComp: Interpreter.eval_dictcomp,
    ast.BinOp: Interpreter.eval_binop,
    ast.UnaryOp: Interpreter.eval_unaryop,
    ast.BoolOp: Interpreter.eval_boolop,
    ast.Compare: Interpreter.eval_compare,
    ast.IfExp: Interpreter.eval_ifexp,
    ast.NamedExpr: Interpreter.eval_namedexpr,
    ast.JoinedStr: Interpreter.eval_joinedstr,
    ast.Lambda: Interpreter.eval_lambda,
    ast.Starred: Interpreter.eval_starred,
    ast.Yield: Interpreter.eval_yield,
    ast.YieldFrom: Interpreter.eval_yieldfrom,
    ast.Await: Interpreter.eval_await,
    ast.Call: Interpreter.eval_call,
}
NARROWING = frozenset([ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Attribute])
STATEMENTS: dict[type[ast.stmt], Callable[..., object]] = {
    ast.Expr: Interpreter.run_expr,
    ast.Assign: Interpreter.run_assign,
    ast.AnnAssign: Interpreter.run_annassign,
    ast.AugAssign: Interpreter.run_augassign,
    ast.Return: Interpreter.run_return,
    ast.Raise: Interpreter.run_raise,
    ast.Assert: Interpreter.run_assert,
    ast.For: Interpreter.run_for,
    ast.AsyncFor: Interpreter.run_for,
    ast.While: Interpreter.run_while,
    ast.Break: Interpreter.run_break,
    ast.Continue: Interpreter.run_continue,
    ast.With: Interpreter.run_with,
    ast.AsyncWith: Interpreter.run_with,
    ast.Try: Interpreter.run_try,
    getattr(ast, "TryStar", ast.Try): Interpreter.run_try,  # Python 3.10 has none
    ast.FunctionDef: Interpreter.run_functiondef,
    ast.AsyncFunctionDef: Interpreter.run_functiondef,
    ast.ClassDef: Interpreter.run_classdef,
    ast.Import: Interpreter.run_import,
    ast.ImportFrom: Interpreter.run_importfrom,
    ast.Delete: Interpreter.run_delete,
    ast.Global: Interpreter.run_global,
    ast.Nonlocal: Interpreter.run_nonlocal,
    ast.Match: Interpreter.run_match,
}
