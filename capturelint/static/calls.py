"""Calls: of analysed functions (by running them), of classes (by building them), of Python's and torch's own.

A call of an analysed function is run with its real arguments, so every finding carries the chain of calls that led to
it; of one that is called often, calls like an earlier one are looked up. Recursion and depth end in ``Unknown``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import (
    attributes,
    classes,
    cuda_calls,
    host_calls,
    inheritance,
    managers,
    python_calls,
    registries,
    results,
    steady,
    summaries,
    torch_calls,
)
from capturelint.static.homes import Object, Sort, as_slots
from capturelint.static.index import ClassDef, FunctionDef, FunctionNode
from capturelint.static.records import replace
from capturelint.static.state import Call, RaisedError
from capturelint.static.summaries import Tally
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    BoundExternal,
    Class,
    Const,
    External,
    Function,
    Lambda,
    Method,
    Number,
    Partial,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Value,
    constant,
    int_constant,
    join,
    options,
    union,
    varies_of,
)
from capturelint.vocabulary import Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_DEPTH = 60
MAX_ACTIVE = 6
"""Calls of one function within itself on constant arguments: enough for small recursions to reach their end."""
BUILTINS = python_calls.BUILTINS


def call_one(
    vm: Interpreter,
    function: Value,
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    extra: bool,
    scope: Scope | None,
) -> Value:
    """Call one alternative of a function value."""
    call = CALLED.get(type(function))
    if call is not None:
        return call(vm, function, args, kwargs, node, extra)
    match function:
        case Method(function=inner, owner=owner):
            return call_one(vm, inner, [owner, *args], kwargs, node, extra, scope)
        case Partial():
            bound = dict(function.kwargs) | kwargs
            return vm.call(function.function, [*function.args, *args], bound, node, extra=extra, scope=scope)
        case BoundExternal(owner=Tensor() as tensor, name=name):
            return torch_calls.call_method(vm, tensor, name, args, kwargs, node, extra)
        case BoundExternal():
            value = host_calls.call_bound(vm, function, args, kwargs, node)
        case External(path=path):
            value = host_calls.call_external(vm, path, args, kwargs, node, extra, scope)
        case _:
            if vm.driver is not None and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for value in args if node.func.attr in HANDED_OVER else ():
                    vm.driver.on_keep(vm, value, node, "handed-over")
            if vm.driver is not None:
                vm.driver.on_unknown_call([*args, *kwargs.values()])
            escape(vm, [*args, *kwargs.values()])
            return Const(False) if is_switch(node, args) else UNKNOWN
    if value is UNKNOWN:
        lend(vm, [*args, *kwargs.values()])
    return value


def lend(vm: Interpreter, values: list[Value]) -> None:
    """Values are given to what nobody knows, which may hold them."""
    if vm.driver is not None and not vm.recording:
        vm.driver.reads.on_lend(vm, values)


HANDED_OVER = frozenset({"put", "put_nowait", "set_result"})
"""Methods of queues and futures: what they are given is read some time later."""


def is_switch(node: ast.AST, args: list[Value]) -> bool:
    """``config.get("debug", False)`` of a configuration that nobody knows: off, unless somebody says otherwise."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    return named and len(args) == 2 and isinstance(constant(args[0]), str) and constant(args[1]) is False


def escape(vm: Interpreter, values: list[Value]) -> None:
    """Arguments of a call that nobody can look into are used by it."""
    lend(vm, values)
    torch_calls.use(vm, torch_calls.tensors_in(torch_calls.flatten(vm, values)))


def call_object(
    vm: Interpreter, owner: Ref, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """``instance(...)``: ``nn.Module.__call__`` runs ``forward``."""
    found = vm.heap.get(owner)
    if found is None or found.sort is not Sort.INSTANCE:
        return UNKNOWN
    hooks = vm.items(found.slots["#hooks"]) if "#hooks" in found.slots else None
    if hooks:
        args = hooked(vm, hooks, owner, args, node)
    assigned = found.slots.get("forward")
    if assigned is not None:
        return vm.call(assigned, args, kwargs, node, extra=extra)
    if isinstance(found.cls, str):
        value = call_external_instance(vm, owner, found, args, kwargs, node, extra)
        return output_hooked(vm, hooks, owner, args, value, node) if hooks else value
    if not isinstance(found.cls, ClassDef):
        return UNKNOWN
    for name in ("__call__", "forward"):
        if inheritance.find_method(vm, found.cls, name) is not None:
            method = attributes.instance_attribute(vm, owner, name, node)
            value = vm.call(method, args, kwargs, node, extra=extra)
            return output_hooked(vm, hooks, owner, args, value, node) if hooks else value
    value = inherited_forward(vm, owner, found.cls, args, kwargs, node)
    return output_hooked(vm, hooks, owner, args, value, node) if hooks else value


def inherited_forward(
    vm: Interpreter, owner: Ref, definition: ClassDef, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """The ``forward`` that a class has from ``torch.nn.Sequential``, ``torch.nn.Linear``, ..."""
    base = inheritance.layer_base(vm, definition)
    if base is None:
        return UNKNOWN
    if base.endswith(".Sequential"):
        return chain(vm, owner, args, node)
    return results.call_module(vm, owner, base, args, kwargs, node)


def hooked(vm: Interpreter, hooks: list[Value], owner: Ref, args: list[Value], node: ast.AST) -> list[Value]:
    """The arguments of a module's ``forward`` after its pre-hooks, which are recorded with it."""
    for hook in hooks:
        if isinstance(hook, Sequence) and hook.items is not None and hook.items[0] == Const("pre"):
            given = vm.call(hook.items[1], [owner, Sequence(tuple(args))], {}, node)
            if isinstance(given, Tensor):
                args = [given]
            elif isinstance(given, Sequence) and given.items is not None:
                args = list(given.items)
    return args


def output_hooked(
    vm: Interpreter, hooks: list[Value], owner: Ref, args: list[Value], value: Value, node: ast.AST
) -> Value:
    """The output of a module after its forward hooks: what a hook returns takes its place."""
    for hook in hooks:
        if isinstance(hook, Sequence) and hook.items is not None and hook.items[0] == Const("post"):
            given = vm.call(hook.items[1], [owner, Sequence(tuple(args)), value], {}, node)
            instead = [option for option in options(given) if option not in (NONE, UNKNOWN)]
            kept = [value] if len(instead) < len(options(given)) or not instead else []
            value = union([*kept, *instead])
    return value


def call_external_instance(
    vm: Interpreter, owner: Ref, found: Object, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Calling an instance of a ``torch.nn`` class."""
    name = str(found.cls).rpartition(".")[2]
    if name == "Sequential":
        return chain(vm, owner, args, node)
    if str(found.cls).startswith("torch.nn."):
        return results.call_module(vm, owner, str(found.cls), args, kwargs, node)
    if found.cls == cuda_calls.GRAPHED:
        return cuda_calls.call_graphed(vm, found, node)
    if found.cls == "#compiled":
        if vm.driver is not None:
            vm.driver.on_compiled(vm, args, kwargs, node)
        inner = found.slots["function"]
        compiled, vm.compiled = vm.compiled, True
        try:
            value = vm.call(inner, args, kwargs, node, extra=extra)
        finally:
            vm.compiled = compiled
        if vm.driver is None:
            return value
        return vm.driver.trees.on_result(vm, value, [*args, *kwargs.values()], isinstance(inner, Ref))
    return UNKNOWN


def chain(vm: Interpreter, owner: Ref, args: list[Value], node: ast.AST) -> Value:
    """``nn.Sequential``: each child on the result of the one before."""
    found = vm.heap[owner]
    value = args[0] if args else UNKNOWN
    for key in list(found.slots):
        if not isinstance(key, str) or not key.startswith("#"):
            value = vm.call(found.slots[key], [value], {}, node)
    if found.element is not None:
        value = join(value, vm.call(found.element, [value], {}, node))
    return value


def run_function(
    vm: Interpreter, function: Function, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Run an analysed function."""
    definition = function.definition
    if definition in vm.wrappers:
        hand_over(vm, [*args, *kwargs.values()])
    if function.cached and not extra:
        return remembered(vm, function, args, kwargs, node)
    active = sum(call.definition is definition for call in vm.stack)
    counted = any(int_constant(value) is not None for value in args)
    if active > (MAX_ACTIVE if counted else 1) or len(vm.stack) > MAX_DEPTH or vm.fuel <= 0:
        vm.untold += 1
        escape(vm, [*args, *kwargs.values()])
        return UNKNOWN
    if function.scope is not None:
        vm.untold += 1  # it may read names of a call that is running
        return enter(vm, function, args, kwargs, node, extra)
    tally = vm.tallies.get(definition)
    if tally is None:
        tally = vm.tallies[definition] = Tally()
    if tally.pays and summaries.can_keep(vm) and not is_manager(definition):
        given = [*args, *kwargs.values()]
        key = (function, extra, *kwargs)
        return summaries.call(vm, tally, key, given, lambda: enter(vm, function, args, kwargs, node, extra))
    before = vm.fuel
    value = enter(vm, function, args, kwargs, node, extra)
    tally.add(before - vm.fuel)
    return value


def enter(
    vm: Interpreter, function: Function, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Run the body of an analysed function. Raises ``RaisedError`` where it surely does, inside a ``try``."""
    definition = function.definition
    scope = Scope(function.module, function.scope)
    scope.owner = function.owner
    call = Call(definition.qualified_name, function.module, node, definition, scope=scope)
    if vm.inside is not None and vm.inside[0] is node and is_manager(definition):
        call.body, vm.inside = vm.inside[1], None
    bind_parameters(vm, definition.node, args, kwargs, scope, extra)
    if function.owner is not None and args and "staticmethod" not in inheritance.decorator_names(definition.node):
        scope.this = args[0]
    leave_modes = managers.enter_decorators(vm, definition)
    compiled = vm.compiled
    if function.compiled and vm.driver is not None:
        vm.driver.on_compiled(vm, args, kwargs, node)
    vm.compiled = vm.compiled or function.compiled
    # A decorator of the class puts something else in the method's place: which one runs is a condition nobody knows.
    owner = function.owner
    instead = owner is not None and registries.replaced_methods(vm, owner).get(definition.name) is UNKNOWN
    vm.doubt += instead
    vm.stack.append(call)
    if vm.recording:
        vm.reached[definition] = None
    begun = vm.driver.on_call(vm, definition, scope) if vm.driver is not None else 0
    replays = vm.driver.replays if vm.driver is not None else 0
    try:
        alive = vm.run(definition.node.body, scope)
    finally:
        if vm.driver is not None:
            vm.driver.on_return(begun)
        vm.stack.pop()
        vm.doubt -= instead
        vm.compiled = compiled
        leave_modes()
    if vm.trying == vm.conditions() and not (alive or call.returns or call.yields):
        raise RaisedError
    value = leave(vm, call, alive)
    if vm.driver is None:
        return value
    if function.compiled:
        value = vm.driver.trees.on_result(vm, value, [*args, *kwargs.values()], function.owner is not None)
    return vm.driver.on_result(vm, value, node, replays)


def remembered(
    vm: Interpreter, function: Function, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """A call of a function that keeps its answers: it runs where the arguments are new, and where they may be."""
    given = [*args, *kwargs.values()]
    key = (function.definition, tuple(map(plain, args)), tuple((name, plain(value)) for name, value in kwargs.items()))
    if key in vm.remembered:
        return vm.remembered[key]
    value = run_function(vm, replace(function, cached=False), args, kwargs, node, False)
    if not any(varies_of(one) is Varies.PER_STEP for one in given):
        vm.remembered[key] = value
    return value


def plain(value: Value) -> Value:
    """A value without what is known of where it comes from."""
    return replace(value, deps=frozenset()) if isinstance(value, (Const, Number)) else value


def is_manager(definition: FunctionDef) -> bool:
    """A generator under ``contextmanager``."""
    names = inheritance.decorator_names(definition.node)
    return any(name.rpartition(".")[2] in ("contextmanager", "asynccontextmanager") for name in names)


def leave(vm: Interpreter, call: object, alive: bool) -> Value:
    """Join the ways out of a call: values and heaps."""
    assert isinstance(call, Call)
    states = [objects for _, objects in call.returns]
    values = [value for value, _ in call.returns]
    if alive:
        states.append(vm.heap.snapshot())
        values.append(NONE)
    vm.heap.merge(states)
    if call.yields:
        return new_iterator(vm, union(call.yields))
    return union(values) if values else UNKNOWN


def bind_parameters(
    vm: Interpreter,
    node: FunctionNode | ast.Lambda,
    args: list[Value],
    kwargs: dict[str, Value],
    scope: Scope,
    extra: bool,
) -> None:
    """Give parameters their arguments, defaults, or what their annotation says."""
    spec = node.args
    unseen = extra or vm.assuming
    vm.assuming = False  # what this call calls is given what is written there
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    named = dict(kwargs)
    for at, parameter in enumerate(positional):
        if at < len(args):
            value = args[at]
        elif parameter.arg in named:
            value = named.pop(parameter.arg)
        else:
            value = default_value(vm, defaults[at], scope, parameter, unseen)
        scope.names[parameter.arg] = refine(vm, value, parameter, scope)
    if spec.vararg is not None:
        rest = args[len(positional) :]
        scope.names[spec.vararg.arg] = Sequence(None, UNKNOWN) if extra else Sequence(tuple(rest))
    for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        if parameter.arg in named:
            value = named.pop(parameter.arg)
        else:
            value = default_value(vm, default, scope, parameter, unseen)
        scope.names[parameter.arg] = refine(vm, value, parameter, scope)
    if spec.kwarg is not None:
        made = Object(Sort.DICT, slots=as_slots(named), element=UNKNOWN if extra else None)
        scope.names[spec.kwarg.arg] = vm.heap.new(made)


def default_value(vm: Interpreter, default: ast.expr | None, scope: Scope, parameter: ast.arg, extra: bool) -> Value:
    """The value of a parameter that no known argument fills."""
    if default is None:
        return UNKNOWN
    value = vm.quiet_eval(default, Scope(scope.module))
    # Who calls with more arguments than are known usually leaves flags alone, but fills what is empty.
    given = value == NONE and extra and not (vm.decoding and steady.comes_with_prompt(parameter.arg))
    return join(value, classes.given(vm, parameter.annotation)) if given else value


def refine(vm: Interpreter, value: Value, parameter: ast.arg, scope: Scope) -> Value:
    """Replace "anything" by what the annotation says: the parameter's, or the one of its class's attribute."""
    if value is not UNKNOWN:
        return value
    if parameter.annotation is not None:
        return classes.annotated(vm, parameter.annotation, scope.module)
    declared = inheritance.find_method(vm, scope.owner, parameter.arg) if scope.owner is not None else None
    if declared is not None and isinstance(declared[0], ast.AnnAssign):
        return classes.annotated(vm, declared[0].annotation, declared[1].module)
    return value


def hand_over(vm: Interpreter, values: list[Value]) -> None:
    """Note the code that a wrapper is given."""
    vm.handed += [value for value in values if isinstance(value, (Function, Method, Ref))]


def build(
    vm: Interpreter, function: Class, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Make an instance of an analysed class."""
    if function.definition in vm.wrappers:
        hand_over(vm, [*args, *kwargs.values()])
    return classes.instantiate(vm, function.definition, args, kwargs, node, extra)


def run_lambda(
    vm: Interpreter, function: Lambda, args: list[Value], kwargs: dict[str, Value], node: ast.AST, _extra: bool
) -> Value:
    """Run a lambda."""
    vm.untold += 1
    if len(vm.stack) > MAX_DEPTH:
        return UNKNOWN
    scope = Scope(function.module, function.scope)
    scope.owner, scope.this = function.scope.owner, function.scope.this
    bind_parameters(vm, function.node, args, kwargs, scope, False)
    vm.stack.append(Call("<lambda>", function.module, node, function.node))
    try:
        return vm.eval(function.node.body, scope)
    finally:
        vm.stack.pop()


def nested_function(vm: Interpreter, node: FunctionNode, scope: Scope) -> Value:
    """A function defined inside a function."""
    function = Function(FunctionDef(node, scope.module, scope.owner), scope.module, None, scope)
    return decorated(vm, function, node, scope)


ITERATOR = "#iterator"
"""The class of what has a place of its own in what it gives: generators, ``itertools``, ``iter(x)``."""


def new_iterator(vm: Interpreter, element: Value) -> Ref:
    """An iterator that gives such items."""
    return vm.heap.new(Object(Sort.INSTANCE, ITERATOR, element=element))


CALLED: dict[type[Value], Callable[..., Value]] = {
    Function: run_function,
    Lambda: run_lambda,
    Class: build,
    Ref: call_object,
}
"""What a call of each sort of value does; found by type, since most calls are of these."""

KEEPING = frozenset(
    [
        "no_grad",
        "inference_mode",
        "torch.no_grad",
        "torch.inference_mode",
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
        "override",
        "functools.wraps",
        "wraps",
        "lru_cache",
        "functools.lru_cache",
        "cache",
        "functools.cache",
        "torch.jit.export",
        "contextmanager",
        "contextlib.contextmanager",
        "asynccontextmanager",
        "contextlib.asynccontextmanager",
        "abstractmethod",
        "torch._dynamo.disable",
        "torch.compiler.disable",
        "functools.cached_property",
    ]
)


def decorated(vm: Interpreter, function: Function, node: FunctionNode, scope: Scope) -> Value:
    """A function under its decorators: analysed wrappers are run, the rest are taken to keep the function."""
    value: Value = function
    for decorator in reversed(node.decorator_list):
        text = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if text in KEEPING or text.endswith((".setter", ".getter")):
            caches = text.removeprefix("functools.") in ("lru_cache", "cache")
            value = replace(value, cached=True) if caches and isinstance(value, Function) else value
            continue
        if compiles_with_graphs(decorator):
            value = replace(value, compiled=True) if isinstance(value, Function) else value
            continue
        if text in ("torch.compile", "torch.jit.script", "torch.jit.ignore"):
            continue
        wrapper = vm.quiet_eval(decorator, scope)
        if isinstance(wrapper, (Function, Lambda)):
            made = vm.quiet_call(wrapper, [value], node)
            if isinstance(made, (Function, Lambda, Partial)):
                value = made
    return value


GRAPH_MODES = ("reduce-overhead", "max-autotune")


def compiles_with_graphs(node: ast.expr) -> bool:
    """``torch.compile(mode="reduce-overhead" | "max-autotune")``, or the ``triton.cudagraphs`` option."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    if not name.endswith("compile"):
        return False
    for keyword in node.keywords:
        if keyword.arg == "mode" and isinstance(keyword.value, ast.Constant) and keyword.value.value in GRAPH_MODES:
            return True
        if keyword.arg == "options" and "triton.cudagraphs" in ast.unparse(keyword.value):
            return True
        if keyword.arg == "backend" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "cudagraphs":
            return True
    return False
