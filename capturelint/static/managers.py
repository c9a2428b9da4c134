"""``with`` statements, loops seen as a whole, and code that asks whether it is being captured."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from capturelint.static import assignment, attributes, calls, cuda_calls, inheritance
from capturelint.static.homes import Object, Sort
from capturelint.static.index import ClassDef, FunctionDef
from capturelint.static.state import Call
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    CaptureQuery,
    Const,
    Device,
    External,
    Home,
    Partial,
    Ref,
    Scope,
    Value,
    constant,
    options,
    tensor_in,
    union,
)
from capturelint.vocabulary import EventKind

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def run_with(vm: Interpreter, node: ast.With | ast.AsyncWith, scope: Scope, at: int = 0) -> bool:
    """A ``with`` statement from its ``at``-th manager on: what each means, then the body inside them."""
    if at == len(node.items):
        return vm.run(node.body, scope)
    item, mark = node.items[at], len(vm.stack[-1].returns)
    ended: list[bool] = []

    def body(entered: Value) -> None:
        if item.optional_vars is not None:
            assignment.assign(vm, item.optional_vars, entered, scope, node)
        ended.append(run_with(vm, node, scope, at + 1))

    outer, vm.inside = vm.inside, (item.context_expr, body)
    try:
        leave = enter(vm, item, scope, node)
    finally:
        vm.inside = outer
    if not ended:
        try:
            ended.append(run_with(vm, node, scope, at + 1))
            returned = [objects for _, objects in vm.stack[-1].returns[mark:]]
            vm.heap.merge([] if ended[0] else returned)
        finally:
            leave()
    if not ended[0]:
        after = vm.heap.snapshot()
        vm.stack[-1].returns[mark:] = [(value, after) for value, _ in vm.stack[-1].returns[mark:]]
    return ended[0]


def at_yield(vm: Interpreter, value: Value) -> bool:
    """Run the body of the ``with`` statement whose manager the running generator is; ``False`` where it is none's."""
    call = vm.stack[-1]
    if call.body is None:
        return False
    body, call.body = call.body, None
    stack, vm.stack = vm.stack, vm.stack[:-1]
    entered = vm.driver is not None and vm.driver.depth == len(stack)
    vm.yielding.append(call)
    if vm.driver is not None and entered:
        vm.driver.depth = len(vm.stack)  # the capture that began in the manager is its caller's
    try:
        body(value)
    finally:
        vm.stack = stack
        vm.yielding.pop()
    return True


def enter(vm: Interpreter, item: ast.withitem, scope: Scope, node: ast.AST) -> Callable[[], None]:
    """Enter one context manager; returns what leaving it does."""
    expression = item.context_expr
    if isinstance(expression, ast.Call):
        function = vm.eval(expression.func, scope)
        if isinstance(function, External):
            special = cuda_calls.enter_external(vm, function.path, expression, scope, node)
            if special is not None:
                return special
    value = vm.eval(expression, scope)
    if isinstance(value, Device):
        return cuda_calls.enter_device(vm, value)
    found = vm.heap.get(value) if isinstance(value, Ref) else None
    if found is not None and found.cls == "torch.cuda.Stream":
        return cuda_calls.enter_stream(vm, value, node)
    if found is not None and found.cls == cuda_calls.MANAGER:
        return cuda_calls.enter_made(vm, found, node)
    entered, leave = enter_value(vm, value, node)
    if item.optional_vars is not None:
        assignment.assign(vm, item.optional_vars, entered, scope, node)
    if found is not None and found.cls == STACK:
        return lambda: close_stack(vm, value, node)
    return lambda: leave_value(vm, leave, node)


def enter_decorators(vm: Interpreter, definition: FunctionDef) -> Callable[[], None]:
    """Enter the managers of torch that decorate a function: ``@torch.autocast("cuda")``."""
    left: list[Callable[[], None]] = []
    if vm.driver is not None and any("autocast" in name for name in inheritance.decorator_names(definition.node)):
        for decorator in definition.node.decorator_list:
            made = vm.quiet_eval(decorator, Scope(definition.module))
            found = vm.heap.get(made) if isinstance(made, Ref) else None
            if found is not None and found.cls == cuda_calls.MANAGER:
                vm.stack.append(Call(definition.name, definition.module, None, None))
                left.append(cuda_calls.enter_made(vm, found, decorator))
                vm.stack.pop()

    def leave() -> None:
        for one in reversed(left):
            one()

    return leave


def enter_value(vm: Interpreter, value: Value, node: ast.AST) -> tuple[Value, Value | None]:
    """What ``__enter__`` gives, and the bound ``__exit__``."""
    found = vm.heap.get(value) if isinstance(value, Ref) else None
    if found is not None and isinstance(found.cls, ClassDef):
        method = inheritance.find_method(vm, found.cls, "__enter__")
        if method is None:
            return value, None
        entered = vm.call(attributes.bound(vm, value, *method, node), [], {}, node)
        leaving = inheritance.find_method(vm, found.cls, "__exit__")
        return entered, attributes.bound(vm, value, *leaving, node) if leaving is not None else None
    if found is not None and found.cls == calls.ITERATOR and found.element is not None:
        return found.element, None  # a generator under contextmanager: what it yields
    return value, None


def leave_value(vm: Interpreter, leave: Value | None, node: ast.AST) -> None:
    """``__exit__(None, None, None)``."""
    if leave is not None:
        vm.call(leave, [NONE, NONE, NONE], {}, node)


STACK = "contextlib.ExitStack"


def new_stack(vm: Interpreter) -> Value:
    """``ExitStack()``: its slots are what is to be called when it is left, by number."""
    return vm.heap.new(Object(Sort.INSTANCE, STACK))


def call_stack(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """``enter_context``, ``push``, ``callback``, ``close``."""
    if name == "close":
        close_stack(vm, owner, node)
        return NONE
    if name not in ("enter_context", "enter_async_context", "push", "callback") or not args:
        return UNKNOWN
    made = vm.heap.get(args[0]) if isinstance(args[0], Ref) else None
    entered: Value = NONE
    if name.startswith("enter") and made is not None and made.cls == cuda_calls.MANAGER:
        vm.entered.append(cuda_calls.enter_made(vm, made, node))
        leave = Partial(External("#leave"), (Const(len(vm.entered) - 1),), ())
    elif not name.startswith("enter"):
        entered, leave = args[0], Partial(args[0], tuple(args[1:]), tuple(kwargs.items()))
    else:
        entered, exit_method = enter_value(vm, args[0], node)
        if exit_method is None:
            return entered
        leave = Partial(exit_method, (NONE, NONE, NONE), ())
    vm.heap.replace(owner, slots={**found.slots, len(found.slots): leave})
    return entered


def left(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """Leave a manager of torch that a stack entered."""
    at = constant(args[0])
    if isinstance(at, int):
        vm.entered[at]()
    return NONE


def close_stack(vm: Interpreter, owner: Value, node: ast.AST) -> None:
    """Call what was put on the stack, the last one first."""
    found = vm.heap.get(owner) if isinstance(owner, Ref) else None
    if isinstance(owner, Ref) and found is not None:
        vm.heap.replace(owner, slots={})
        for leave in reversed(list(found.slots.values())):
            vm.call(leave, [], {}, node)


@contextmanager
def in_loop(vm: Interpreter) -> Iterator[None]:
    """A loop whose items are not known one by one."""
    if vm.driver is None:
        yield
        return
    begun, vm.driver.begun = vm.driver.begun, vm.driver.replays
    vm.driver.loops += 1
    try:
        yield
    finally:
        vm.driver.loops -= 1
        vm.driver.begun = begun


def run_capture_query(vm: Interpreter, node: ast.If, value: Value, scope: Scope, rest: list[ast.stmt]) -> bool:
    """``if torch.cuda.is_current_stream_capturing()``: recorded code takes one side; is work left out on it?

    The side that capture does not take is run without events, only to see whether it changes tensors that the taken
    side leaves alone. Choosing between implementations and refusing host-only calls do not.
    """
    query = next(option for option in options(value) if isinstance(option, CaptureQuery))
    taken, skipped = (node.orelse, node.body) if query.negated else (node.body, node.orelse)
    before = vm.save(scope)
    bound: dict[str, Value] = {}
    shadow = Shadow(vm)
    with vm.silent(), shadow:
        if vm.run(skipped, scope):
            bound = dict(scope.names)
            changed = {name for name, value in before.names.items() if replaces_tensor(value, scope.names.get(name))}
            vm.run(rest, scope)
        else:
            changed = set()
    vm.restore(scope, before)
    mutated, ways_out = set(vm.step.mutated), vm.num_exits()
    alive = vm.run(taken, scope)
    if not alive and vm.num_exits() == ways_out:
        return alive  # it refuses to be captured, and records nothing else
    if not alive:
        left_out = shadow.mutated - set(vm.step.mutated)
        returned = union([value for value, _ in vm.stack[-1].returns])
        if shadow.returned is not None and returned != shadow.returned and vm.step.work == shadow.before:
            left_out = left_out | {Home(0, "result")}
    else:
        with vm.silent(), Shadow(vm) as plain:
            after = vm.save(scope)
            vm.run(rest, scope)
            vm.restore(scope, after)
        left_out = shadow.mutated - plain.mutated - (set(vm.step.mutated) - mutated)
        kept = {name for name in changed if before.names[name] == scope.names.get(name)}
        left_out = left_out | {Home(0, name) for name in kept}
    if left_out:
        vm.emit(EventKind.CAPTURE_QUERY, node.test, "work-left-out")
    elif any(
        name not in before.names and differs(value, scope.names.get(name, UNKNOWN)) for name, value in bound.items()
    ):
        vm.emit(EventKind.CAPTURE_QUERY, node.test, "other-value")
    return alive


def eval_capture_query(vm: Interpreter, node: ast.IfExp, query: CaptureQuery, scope: Scope) -> Value:
    """``a if torch.cuda.is_current_stream_capturing() else b``: is one of them a part of the other?"""
    taken, skipped = (node.orelse, node.body) if query.negated else (node.body, node.orelse)
    before = vm.save(scope)
    with vm.silent(), Shadow(vm):
        other = vm.eval(skipped, scope)
    vm.restore(scope, before)
    value = vm.eval(taken, scope)
    if differs(value, other):
        vm.emit(EventKind.CAPTURE_QUERY, node, "other-value")
    return value


def differs(left: Value, right: Value) -> bool:
    """True where two values cannot be equal implementations: a part of a tensor and all of it, two numbers that scale.

    Two whole numbers may be two sizes of one answer (the longest length there is, for the longest at the moment).
    """
    first, second = tensor_in(left), tensor_in(right)
    if first is not None and second is not None:
        same = first.ident == second.ident != 0 and first.home == second.home
        return same and first.view is not second.view
    numbers = [constant(value) for value in (left, right)]
    return any(isinstance(n, float) for n in numbers) and all(isinstance(n, (int, float)) for n in numbers) and (
        numbers[0] != numbers[1]
    )  # fmt: skip


def replaces_tensor(old: Value, new: Value | None) -> bool:
    """A name that held a tensor holds another one."""
    before, after = tensor_in(old), tensor_in(new) if new is not None else None
    return before is not None and after is not None and before.ident != after.ident


class Shadow:
    """Runs code only to see which homes it writes and whether it computes anything; nothing else remains."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.mutated: set[Home] = set()
        self.work = 0
        self.returned: Value | None = None
        """The tensors that the code returns, where it computed anything."""
        self.before = vm.step.work

    def __enter__(self) -> Shadow:
        vm = self.vm
        self.kept = (vm.step, len(vm.stack[-1].returns), vm.driver)
        vm.step = type(vm.step)()
        vm.driver = None
        return self

    def __exit__(self, *_: object) -> None:
        vm = self.vm
        self.mutated = set(vm.step.mutated)
        self.work = vm.step.work
        vm.step, returns, vm.driver = self.kept
        given = [value for value, _ in vm.stack[-1].returns[returns:]]
        tensors = [value for value in given if tensor_in(value) is not None]
        self.returned = union(tensors) if tensors and self.work else None
        del vm.stack[-1].returns[returns:]


LOOK_UPS = frozenset(
    ["KeyError", "IndexError", "AttributeError", "LookupError", "StopIteration", "TypeError", "NameError"]
)
"""What code catches to find out whether something is there; other errors are failures."""


def handles_look_up(handler: ast.ExceptHandler) -> bool:
    """Whether a handler may be the usual way on: of a look-up that finds nothing, or of any error at all."""
    caught = handler.type
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught] if caught is not None else []
    names = {ast.unparse(kind).rpartition(".")[2] for kind in kinds}
    return not names or bool(names & (LOOK_UPS | {"Exception", "BaseException"}))


MAX_CHEAP = 128
"""Items of a comprehension without calls that are looked at one by one: what each layer of a model is, by number."""


def is_cheap(node: ast.expr) -> bool:
    """Whether an expression calls nothing but conversions of Python."""
    calls = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return all(isinstance(called, ast.Name) and called.id in ("bool", "int", "str") for called in calls)
