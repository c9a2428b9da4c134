"""Conditions into what they say, and the sides of a branch into what either leaves.

A condition that is known runs one side. One on an unknown host value runs both and joins them, each less sure; one on
a device tensor is a read, and is reported instead of what stands behind it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capturelint.static import attributes, managers, narrowing, operators, protocols, steady, storage, torch_calls
from capturelint.static.records import replace
from capturelint.static.state import State
from capturelint.static.values import (
    CaptureQuery,
    Class,
    Const,
    Device,
    Dtype,
    Function,
    Lambda,
    Method,
    ModuleValue,
    Number,
    Partial,
    Ref,
    Scope,
    Sequence,
    Super,
    Tensor,
    Truth,
    Union,
    Value,
    deps_of,
    is_number,
    options,
    tensor_in,
    union,
    varies_of,
)
from capturelint.vocabulary import Confidence, EventKind, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_DOUBT = 2
"""Nested unknown host conditions from which on a finding is only possible: one switch may well be on, two rarely."""


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


def uncertain(vm: Interpreter, truth: Truth, test: ast.expr | None = None, outcome: bool = True) -> Doubted:
    """Code that runs only under a condition nobody knows, and where it has this ``outcome``.

    Whether an optional argument is there is a condition that a step can take: less sure, but no doubt. That a text
    or a dtype is this one of the many that it may be (a mode, an implementation) is as doubtful as two switches.
    """
    soft = int(truth is Truth.HOST and test is not None and asks_for_none(test))
    doubt, hidden = int(truth in (Truth.HOST, Truth.STEP)) - soft, int(truth is Truth.DEVICE)
    if truth is Truth.HOST and test is not None and picks_one(test, outcome):
        doubt = MAX_DOUBT
    return Doubted(vm, doubt, hidden, soft)


def run_if(vm: Interpreter, node: ast.If, scope: Scope, rest: list[ast.stmt]) -> bool:
    """Both sides where the condition is not known, one where it is."""
    value = vm.eval(node.test, scope)
    if capture_query(value) is not None and vm.recording:
        return managers.run_capture_query(vm, node, value, scope, rest)
    work = vm.step.work
    truth = ask(vm, value, node.test, "if", report_step=False)
    if truth is Truth.HOST and vm.recording:
        truth = known(settled(vm, node, rest))
    if truth is Truth.HOST and vm.trying is None and refuses_rest(node):
        truth = Truth.TRUE
    if truth is Truth.TRUE:
        narrowing.narrow(vm, node.test, scope, True)
        return vm.run(node.body, scope)
    if truth is Truth.FALSE:
        narrowing.narrow(vm, node.test, scope, False)
        return vm.run(node.orelse, scope)
    if truth is Truth.HOST and vm.deep():
        # A switch that nobody knows is off, unless that is an error.
        on = bool(node.orelse) and isinstance(node.orelse[-1], ast.Raise)
        narrowing.narrow(vm, node.test, scope, on)
        return vm.run(node.body if on else node.orelse, scope)
    before = vm.save(scope)
    arrived: list[State] = []
    marks: list[int] = []
    doubts: list[int] = []
    leaving, outside = vm.num_exits(), vm.doubt
    every_so_often = truth is Truth.HOST and tells_rounds(node.test, scope)
    for side, outcome in ((node.body, True), (node.orelse, False)):
        marks.append(len(vm.log))
        vm.restore(scope, before)
        narrowing.narrow(vm, node.test, scope, outcome)
        with Doubted(vm) if every_so_often else uncertain(vm, truth, node.test, outcome):
            doubts.append(vm.doubt - outside)
            if vm.run(side, scope):
                arrived.append(vm.save(scope))
    if truth is Truth.HOST:
        vm.settle_sides(marks, doubts)
    if truth is Truth.STEP:
        left = vm.num_exits() > leaving  # a side that only raises records nothing else
        if left or vm.step.work > work or tensors_differ(arrived):
            torch_calls.report_varying(vm, value, node.test, "branch")
    alive = vm.merge(scope, arrived)
    if truth is Truth.HOST and len(arrived) == 2:
        narrowing.link(node.test, scope, arrived)
    return alive


def tells_rounds(test: ast.expr, scope: Scope) -> bool:
    """``if i == 0``, ``if i % 2``, ``if i < warm_up`` of the counter of a loop: one round or another goes each way."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} if scope.rounds else set()
    plain = all(isinstance(node, COUNTING) for node in ast.walk(test))
    return plain and not names.isdisjoint(scope.rounds)


COUNTING = (
    ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant,
    ast.cmpop, ast.boolop, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
"""What a condition on a counter is made of: numbers, and names that hold some."""


def refuses_rest(node: ast.If) -> bool:
    """``if kind in ("a", "b"): ... else: raise``: a check, and no choice. Of ``==`` there may be others before it."""
    equal = isinstance(node.test, ast.Compare) and any(isinstance(op, ast.Eq) for op in node.test.ops)
    return bool(node.orelse) and isinstance(node.orelse[-1], ast.Raise) and not equal


def settled(vm: Interpreter, node: ast.If, rest: list[ast.stmt]) -> bool | None:
    """What a condition asks that warm-up has settled: the same for every analysis of the module."""
    answers = vm.module.settled
    if node not in answers:
        answers[node] = steady.settled_by_warm_up(node.test, node.body, node.orelse, rest)
    return answers[node]


def tensors_differ(states: list[State]) -> bool:
    """True where two paths leave different tensors in local names."""
    if len(states) < 2:
        return False
    first, second = states[0].names, states[1].names
    return any(tensor_in(value) and second.get(name) != value for name, value in first.items())


def eval_boolop(vm: Interpreter, node: ast.BoolOp, scope: Scope) -> Value:
    """``and``/``or``: every operand but the last is tested; evaluation stops where Python stops."""
    stop = Truth.FALSE if isinstance(node.op, ast.And) else Truth.TRUE
    seen: list[Value] = []
    saved = dict(scope.names)
    entered = 0
    try:
        for at, operand in enumerate(node.values):
            value = vm.eval(operand, scope)
            last = at == len(node.values) - 1
            if last and isinstance(value, Const) and truth_of(vm, value) is stop:
                return value  # whatever the unknown operands are, the condition is settled
            query = capture_query(value)
            if query is not None and vm.recording:
                if last or (Truth.FALSE if query.negated else Truth.TRUE) is stop:
                    return query
                continue
            truth = Truth.HOST if last else ask(vm, value, operand, "bool-op", report_step=False)
            seen.append(value)
            if truth is stop:
                return value
            if not last:
                if truth is not (Truth.TRUE if stop is Truth.FALSE else Truth.FALSE) and not asks_for_none(operand):
                    doubts = MAX_DOUBT if picks_one(operand, stop is Truth.FALSE) else 1
                    vm.doubt += doubts
                    entered += doubts
                else:
                    seen.pop()
                narrowing.narrow(vm, operand, scope, stop is Truth.FALSE)
    finally:
        vm.doubt -= entered
        scope.names = saved | {k: v for k, v in scope.names.items() if k not in saved}
    return boolean(seen)


def boolean(seen: list[Value]) -> Value:
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


def eval_ifexp(vm: Interpreter, node: ast.IfExp, scope: Scope) -> Value:
    """``a if test else b``."""
    test = vm.eval(node.test, scope)
    query = capture_query(test)
    if query is not None and vm.recording:
        return managers.eval_capture_query(vm, node, query, scope)
    truth = ask(vm, test, node.test, "ternary", report_step=False)
    if truth in (Truth.TRUE, Truth.FALSE):
        return vm.eval(node.body if truth is Truth.TRUE else node.orelse, scope)
    values: list[Value] = []
    saved = dict(scope.names)
    for side, outcome in ((node.body, True), (node.orelse, False)):
        narrowing.narrow(vm, node.test, scope, outcome)
        with uncertain(vm, truth, node.test, outcome):
            values.append(vm.eval(side, scope))
        scope.names = dict(saved)
    joined = union(values)
    if truth is Truth.STEP and tensor_in(joined) is not None and values[0] != values[1]:
        torch_calls.report_varying(vm, test, node.test, "branch")
    if truth in (Truth.STEP, Truth.DEVICE) and is_number(joined):
        return replace(operators.arithmetic(joined, joined), varies=Varies.PER_STEP, read=truth is Truth.DEVICE)
    return joined


def negate(vm: Interpreter, value: Value, node: ast.expr) -> Value:
    """``not value``."""
    query = capture_query(value)
    if query is not None:
        return CaptureQuery(not query.negated)
    truth = ask(vm, value, node, "not", report_step=False)
    if truth in (Truth.TRUE, Truth.FALSE):
        return Const(truth is Truth.FALSE, deps_of(value))
    return flag(truth, value)


def flag(truth: Truth, value: Value) -> Value:
    """A host flag whose answer is not known."""
    varies = Varies.PER_STEP if truth is Truth.STEP else Varies.NEVER
    drawn = next((o.drawn for o in options(value) if isinstance(o, Number) and o.drawn), None)
    return Number(varies, deps_of(value) if truth is Truth.STEP else frozenset(), drawn, truth is Truth.DEVICE)


def ask(vm: Interpreter, value: Value, node: ast.expr, how: str, report_step: bool = True) -> Truth:
    """What a condition says. A tensor on the device is read to find out, and that is an event."""
    if isinstance(value, Ref):
        asked = protocols.run_method(vm, value, protocols.CONVERSIONS["bool"], [], node)
        value = asked if asked is not None else value
    if isinstance(value, Const):
        return Truth.TRUE if value.value else Truth.FALSE
    answers = {truth_of(vm, option) for option in options(value)}
    tensor = tensor_in(value)
    if vm.driver is not None and tensor is not None and tensor.on_device:
        vm.driver.blocks.on_wait()
    if tensor is not None and Truth.DEVICE in answers and tensor.sure is Confidence.POSSIBLE:
        return Truth.HOST  # one of many things that a table may hold
    if tensor is not None and tensor.argument and vm.decoding and steady.has_many(node):
        return Truth.HOST  # the truth of several items is an error
    if tensor is not None and Truth.DEVICE in answers:
        settled = doubts_before_last(node) if isinstance(value, Union) else 0
        vm.doubt += settled
        vm.emit(EventKind.BRANCH, node, how, tensor.sure, name=how)
        vm.doubt -= settled
        return Truth.DEVICE
    if Truth.STEP in answers:
        if report_step:
            torch_calls.report_varying(vm, value, node, "branch")
        return Truth.STEP
    answer = answers.pop() if len(answers) == 1 else Truth.HOST
    return known(steady.flag(node)) if answer is Truth.HOST and vm.decoding else answer


def truth_of(vm: Interpreter, value: Value) -> Truth:
    """The truth of one alternative."""
    match value:
        case Const():
            return Truth.TRUE if value.value else Truth.FALSE
        case Tensor():
            if value.on_device and vm.recording:
                return Truth.DEVICE
            return Truth.STEP if varies_of(value) is Varies.PER_STEP else Truth.HOST
        case Number(varies=Varies.PER_STEP, read=False):
            return Truth.STEP
        case Sequence(items=items) if items is not None:
            return Truth.TRUE if items else Truth.FALSE
        case Function() | Lambda() | Method() | Class() | ModuleValue() | Partial() | Device() | Dtype() | Super():
            return Truth.TRUE
        case Ref():
            return storage.truth(vm, value)
        case _:
            return Truth.HOST


def known(answer: bool | None) -> Truth:
    """What a condition says whose answer may be known."""
    return Truth.HOST if answer is None else Truth.TRUE if answer else Truth.FALSE


def capture_query(value: Value) -> CaptureQuery | None:
    """The capture query that a value may be: what a guard around the query gives instead is no capture."""
    if isinstance(value, CaptureQuery):
        return value
    return next((o for o in value.options if isinstance(o, CaptureQuery)), None) if isinstance(value, Union) else None


def asks_for_none(test: ast.expr) -> bool:
    """``x is None``, ``x is not None``, or ``not (...)`` of one."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return asks_for_none(operand)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case _:
            return False


def picks_one(test: ast.expr, outcome: bool) -> bool:
    """True where this outcome means one of many: ``mode == "a"``, ``"a" in kind``, ``x.dtype == torch.half``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return picks_one(operand, not outcome)
        case ast.BoolOp(op=ast.And(), values=values):
            keyed = {ast.dump(part.value) for part in ast.walk(test) if isinstance(part, ast.Subscript)}
            return outcome and any(picks_one(value, True) for value in values if not asks_for_key(value, keyed))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return any(map(is_choice, (left, right))) and isinstance(
                op, (ast.Eq, ast.In) if outcome else (ast.NotEq, ast.NotIn)
            )
        case _:
            return False


def is_choice(side: ast.expr) -> bool:
    """A text, or a ``torch.dtype`` by its name."""
    match side:
        case ast.Constant(value=str()):
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return name in attributes.DTYPES
        case _:
            return False


def asks_for_key(test: ast.expr, keyed: set[str]) -> bool:
    """``"experts" in config``, of a mapping that is also looked into."""
    match test:
        case ast.Compare(ops=[ast.In()], comparators=[holder]):
            return ast.dump(holder) in keyed
        case _:
            return False


def doubts_before_last(test: ast.expr) -> int:
    """The doubt that a tensor at the end of an ``and`` or ``or`` is tested: what stands before may settle it."""
    if not isinstance(test, ast.BoolOp):
        return 0
    return MAX_DOUBT if any(picks_one(value, isinstance(test.op, ast.And)) for value in test.values[:-1]) else 1
