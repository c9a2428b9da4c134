"""Runs recorded code on abstract values and reports what it does to a capture, as events.

Statements and expressions are walked once per call, with real call contexts: a model is built by interpreting its
``__init__``, a step is run on what that left. Branches on unknown host values run both sides and join them; code that
only an unknown condition reaches is less sure, code behind a data-dependent branch is not reported (the branch is).
The one surprise: nothing here knows a rule. Rules see the events.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from capturelint.catalog import Operations
from capturelint.place import Frame
from capturelint.static import attributes, calls, conditions, inheritance, matching, results, storage
from capturelint.static.conditions import MAX_DOUBT, Doubted
from capturelint.static.driver import Driver
from capturelint.static.events import Event, EventKey, Site, least
from capturelint.static.expressions import EVALUATORS
from capturelint.static.facts import Watch
from capturelint.static.homes import Heap, Object, Sort, Step
from capturelint.static.index import ClassDef, FunctionDef, Index, Module
from capturelint.static.records import replace
from capturelint.static.state import Call, State, Stream
from capturelint.static.statements import STATEMENTS
from capturelint.static.summaries import Tally
from capturelint.static.values import (
    UNKNOWN,
    Class,
    Const,
    Function,
    Lambda,
    Memory,
    Method,
    Number,
    Range,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Union,
    Value,
    element_of,
    is_none,
    join,
    union,
)
from capturelint.vocabulary import Confidence, EventKind, Phase, Varies

FUEL = 400_000
"""Expressions that one entry may evaluate; what is not reached by then is not analysed, and the report says so."""
GUESSED_FUEL = 160_000
"""The same for an entry that is a guess from a signature: a library has hundreds of them."""


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
        """What ``inheritance.find_method`` found, by class: its bases in their order, and what they give a name."""
        self.checking: set[object] = set()
        """The ``__getattribute__`` methods that only name and whose events the running step has."""
        self.renamed: dict[tuple[ClassDef, str], str] = {}
        """The name that such a method of a class took instead of one that an object has not."""
        self.asked = ""
        """The name that such a method asked for last."""
        self.instances: dict[object, Value] = {}
        self.tallies: dict[FunctionDef, Tally] = {}
        self.untold = 0
        """How often something happened that no summary of a call can tell, since it depends on what came before."""
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
        self.attribute_tables: dict[int, Ref] = {}
        """What ``vars(x)`` gave, by number, and the object whose attributes are set through it."""
        self.yielding: list[Call] = []
        """Managers whose ``with`` statement runs: their names are there, though they are not on the stack."""
        self.entered: list[Callable[[], None]] = []
        """What leaving a manager of torch does that an ``ExitStack`` entered, by number."""
        self.inside: tuple[ast.expr, Callable[[Value], None]] | None = None
        """The call that makes a manager, and the body to run where it yields."""
        self.driver: Driver | None = None
        self.wrappers: frozenset[FunctionDef | ClassDef | str] = frozenset()
        """What captures the code that it is handed, where that is looked for."""
        self.handed: list[Value] = []
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
                if not conditions.run_if(self, statement, scope, body[at + 1 :]):  # type: ignore[arg-type]
                    return False
                continue
            execute = STATEMENTS.get(sort)
            if execute is not None and execute(self, statement, scope) is False:
                return False
        return True

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

    @property
    def is_picking(self) -> bool:
        """True where the running code is one of many that a name, or a table, picks."""
        return self.tables > 0 or self.doubt >= MAX_DOUBT

    def conditions(self) -> int:
        """How many conditions that nobody knows the running code is under."""
        return self.doubt + self.soft + self.hidden

    # ---------------------------------------------------------------- assignment

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
                    return [storage.read_slot(self, value, key) or UNKNOWN for key in in_order(found.slots)]
                if found is not None and found.sort is Sort.DICT and found.element is None:
                    return [Const(key) for key in found.slots]
                if found is not None and found.element is None and inheritance.list_base(self, found):
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
                return storage.element(self, value)
            case Tensor():
                return results.row(self, value)
            case _:
                return UNKNOWN

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

    def attribute(self, owner: Value, name: str, node: ast.AST) -> Value:
        """The attribute of a value, of each of its alternatives."""
        if not isinstance(owner, Union):
            return UNKNOWN if is_none(owner) else attributes.load(self, owner, name, node)
        return union([attributes.load(self, option, name, node) for option in owner.options if not is_none(option)])

    def new_list(self, items: Value) -> Ref:
        """A list in the heap with these items."""
        exact = self.items(items)
        if exact is not None:
            return self.heap.new(Object(Sort.LIST, slots=dict(enumerate(exact))))
        return self.heap.new(Object(Sort.LIST, element=self.element(items)))

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
            return union([self.call_alternative(option, args, kwargs, node, extra, scope) for option in chosen])
        finally:
            self.doubt -= variants > 1
            self.tables -= variants > 2

    def call_alternative(
        self,
        function: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST,
        extra: bool,
        scope: Scope | None,
    ) -> Value:
        """Call one of several values: what was one of many when it was made is as doubtful here."""
        found = self.heap.get(function) if isinstance(function, Ref) else None
        with Doubted(self, MAX_DOUBT if found is not None and found.picked else 0):
            return calls.call_one(self, function, args, kwargs, node, extra, scope)

    # ---------------------------------------------------------------- truth


def in_order(keys: Iterable[object]) -> list[object]:
    """The keys of a list, by position."""
    return sorted(keys, key=lambda key: (key if isinstance(key, int) else -1, str(key)))


def doubted(doubt: int) -> Confidence:
    """The most that can be said behind so many unknown conditions."""
    return Confidence.CERTAIN if doubt == 0 else Confidence.LIKELY if doubt < MAX_DOUBT else Confidence.POSSIBLE
