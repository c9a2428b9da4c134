"""Calls: of analysed functions (by running them), of classes (by building them), of Python's and torch's own.

A call of an analysed function is run with its real arguments, so every finding carries the chain of calls that led to
it. Recursion and depth end in ``Unknown``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from capturelint.static import attributes, host_calls, torch_calls
from capturelint.static.driver import Driver
from capturelint.static.homes import Object, Sort, as_slots
from capturelint.static.index import ClassDef, FunctionDef, FunctionNode, Module
from capturelint.static.values import (
    FALSE,
    NONE,
    TRUE,
    UNKNOWN,
    BoundExternal,
    CaptureQuery,
    Class,
    Const,
    Device,
    External,
    Function,
    Home,
    Kind,
    Lambda,
    Memory,
    Method,
    Number,
    Partial,
    Ref,
    Scope,
    Sequence,
    Super,
    Tensor,
    Text,
    Union,
    Value,
    constant,
    int_constant,
    join,
    options,
    tensor_in,
    union,
)
from capturelint.vocabulary import Confidence, EventKind, Phase, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_DEPTH = 60
MAX_ACTIVE = 6
"""Calls of one function within itself on constant arguments: enough for small recursions to reach their end."""
BUILTINS = host_calls.BUILTINS
TENSOR_TYPES = {
    "Tensor": Kind.UNKNOWN,
    "LongTensor": Kind.INT,
    "IntTensor": Kind.INT,
    "FloatTensor": Kind.FLOAT,
    "BoolTensor": Kind.BOOL,
    "HalfTensor": Kind.FLOAT,
    "BFloat16Tensor": Kind.FLOAT,
}


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
    match function:
        case Function():
            return run_function(vm, function, args, kwargs, node, extra)
        case Method(function=inner, owner=owner):
            return call_one(vm, inner, [owner, *args], kwargs, node, extra, scope)
        case Lambda():
            return run_lambda(vm, function, args, kwargs, node)
        case Partial():
            bound = dict(function.kwargs) | kwargs
            return vm.call(function.function, [*function.args, *args], bound, node, extra=extra, scope=scope)
        case Class(definition=definition):
            return instantiate(vm, definition, args, kwargs, node, extra)
        case Ref():
            return call_object(vm, function, args, kwargs, node, extra)
        case BoundExternal(owner=Tensor() as tensor, name=name):
            return torch_calls.call_method(vm, tensor, name, args, kwargs, node, extra)
        case BoundExternal():
            return host_calls.call_bound(vm, function, args, kwargs, node, extra)
        case External(path=path):
            return host_calls.call_external(vm, path, args, kwargs, node, extra, scope)
        case _:
            escape(vm, [*args, *kwargs.values()])
            return UNKNOWN


def escape(vm: Interpreter, values: list[Value]) -> None:
    """Arguments of a call that nobody can look into are used by it."""
    torch_calls.use(vm, torch_calls.tensors_in(torch_calls.flatten(vm, values)))


def call_object(
    vm: Interpreter, owner: Ref, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """``instance(...)``: ``nn.Module.__call__`` runs ``forward``."""
    found = vm.heap.get(owner)
    if found is None or found.sort is not Sort.INSTANCE:
        return UNKNOWN
    if isinstance(found.cls, str):
        value = call_external_instance(vm, owner, found, args, kwargs, node, extra)
        run_hooks(vm, found, owner, args, value, node)
        return value
    if not isinstance(found.cls, ClassDef):
        return UNKNOWN
    assigned = found.slots.get("forward")
    if assigned is not None:
        return vm.call(assigned, args, kwargs, node, extra=extra)
    for name in ("__call__", "forward"):
        method = attributes.find_method(vm, found.cls, name)
        if method is not None:
            value = vm.call(attributes.bound(vm, owner, *method, node), args, kwargs, node, extra=extra)
            run_hooks(vm, found, owner, args, value, node)
            return value
    sequential = any(isinstance(base, str) and base.endswith(".Sequential") for base in attributes.bases(vm, found.cls))
    return chain(vm, owner, args, node) if sequential else UNKNOWN


def run_hooks(vm: Interpreter, found: Object, owner: Ref, args: list[Value], value: Value, node: ast.AST) -> None:
    """Forward hooks run inside the recorded call."""
    hook = found.slots.get("#hook")
    if hook is not None:
        vm.call(hook, [owner, Sequence(tuple(args)), value], {}, node)


def call_external_instance(
    vm: Interpreter, owner: Ref, found: Object, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Calling an instance of a ``torch.nn`` class."""
    name = str(found.cls).rpartition(".")[2]
    if name == "Sequential":
        return chain(vm, owner, args, node)
    if str(found.cls).startswith("torch.nn."):
        return torch_calls.call_module(vm, owner, found, args, kwargs, node)
    if found.cls == "#compiled":
        inner = found.slots["function"]
        compiled, vm.compiled = vm.compiled, True
        try:
            return vm.call(inner, args, kwargs, node, extra=extra)
        finally:
            vm.compiled = compiled
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


# -------------------------------------------------------------------- functions


def run_function(
    vm: Interpreter, function: Function, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Run an analysed function."""
    from capturelint.static.interpret import Call

    definition = function.definition
    active = sum(call.definition is definition for call in vm.stack)
    counted = any(int_constant(value) is not None for value in args)
    if active > (MAX_ACTIVE if counted else 1) or len(vm.stack) > MAX_DEPTH or vm.fuel <= 0:
        escape(vm, [*args, *kwargs.values()])
        return UNKNOWN
    scope = Scope(function.module, function.scope)
    scope.owner = function.owner
    call = Call(definition.qualified_name, function.module, node, definition)
    bind_parameters(vm, definition.node, args, kwargs, scope, extra)
    if function.owner is not None and args and "staticmethod" not in attributes.decorator_names(definition.node):
        scope.this = args[0]
    compiled = vm.compiled
    vm.compiled = vm.compiled or function.compiled
    vm.stack.append(call)
    if vm.recording:
        vm.reached[definition] = None
    if vm.driver is not None:
        vm.driver.on_call(vm, definition)
    try:
        alive = vm.run(definition.node.body, scope)
    finally:
        vm.stack.pop()
        vm.compiled = compiled
    return leave(vm, call, alive)


def leave(vm: Interpreter, call: object, alive: bool) -> Value:
    """Join the ways out of a call: values and heaps."""
    from capturelint.static.interpret import Call

    assert isinstance(call, Call)
    states = [objects for _, objects in call.returns]
    values = [value for value, _ in call.returns]
    if alive:
        states.append(vm.heap.snapshot())
        values.append(NONE)
    vm.heap.merge(states)
    if call.yields:
        return Sequence(None, union(call.yields))
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
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    named = dict(kwargs)
    for at, parameter in enumerate(positional):
        if at < len(args):
            value = args[at]
        elif parameter.arg in named:
            value = named.pop(parameter.arg)
        else:
            value = default_value(vm, defaults[at], scope, parameter, extra)
        scope.names[parameter.arg] = refine(vm, value, parameter, scope.module)
    if spec.vararg is not None:
        rest = args[len(positional) :]
        scope.names[spec.vararg.arg] = Sequence(None, UNKNOWN) if extra else Sequence(tuple(rest))
    for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        value = (
            named.pop(parameter.arg) if parameter.arg in named else default_value(vm, default, scope, parameter, extra)
        )
        scope.names[parameter.arg] = refine(vm, value, parameter, scope.module)
    if spec.kwarg is not None:
        element = UNKNOWN if extra else None
        made = Object(Sort.DICT, slots=as_slots(named), element=element, opaque=vm.assuming)
        scope.names[spec.kwarg.arg] = vm.heap.new(made)


def default_value(vm: Interpreter, default: ast.expr | None, scope: Scope, parameter: ast.arg, extra: bool) -> Value:
    """The value of a parameter that no known argument fills."""
    if default is None:
        return UNKNOWN
    value = vm.quiet_eval(default, Scope(scope.module))
    # Who calls with more arguments than are known usually leaves flags alone, but fills what is empty.
    return join(value, UNKNOWN) if value == NONE and (extra or vm.assuming) else value


def refine(vm: Interpreter, value: Value, parameter: ast.arg, module: Module) -> Value:
    """Replace "anything" by what the annotation says."""
    if value is UNKNOWN and parameter.annotation is not None:
        return annotated(vm, parameter.annotation, module)
    return value


def annotated(vm: Interpreter, annotation: ast.expr, module: Module, depth: int = 0) -> Value:
    """A value of an annotated type: likely, since annotations are promises."""
    if depth > 3:
        return UNKNOWN
    match annotation:
        case ast.Constant(value=str() as text):
            try:
                return annotated(vm, ast.parse(text, mode="eval").body, module, depth + 1)
            except SyntaxError:
                return UNKNOWN
        case ast.Constant(value=None):
            return NONE
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return join(annotated(vm, left, module, depth + 1), annotated(vm, right, module, depth + 1))
        case ast.Subscript(value=base, slice=inner):
            return generic(vm, ast.unparse(base).rpartition(".")[2], inner, module, depth)
        case ast.Name() | ast.Attribute():
            return named_type(vm, annotation, module)
        case _:
            return UNKNOWN


def generic(vm: Interpreter, base: str, inner: ast.expr, module: Module, depth: int) -> Value:
    """``Optional[T]``, ``list[T]``, ``tuple[T, ...]``."""
    arguments = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if base in ("Optional", "Union"):
        return union([annotated(vm, a, module, depth + 1) for a in arguments] + ([NONE] if base == "Optional" else []))
    if base in ("list", "List", "Sequence", "Iterable"):
        return vm.new_list(Sequence(None, annotated(vm, arguments[0], module, depth + 1)))
    if base in ("tuple", "Tuple"):
        if len(arguments) == 2 and isinstance(arguments[1], ast.Constant) and arguments[1].value is Ellipsis:
            return Sequence(None, annotated(vm, arguments[0], module, depth + 1))
        return Sequence(tuple(annotated(vm, a, module, depth + 1) for a in arguments))
    if base in ("dict", "Dict") and len(arguments) == 2:
        return vm.heap.new(Object(Sort.DICT, element=annotated(vm, arguments[1], module, depth + 1), opaque=True))
    if base in ("Annotated", "Final", "ClassVar"):
        return annotated(vm, arguments[0], module, depth + 1)
    return UNKNOWN


def named_type(vm: Interpreter, annotation: ast.expr, module: Module) -> Value:
    """A plain type."""
    name = ast.unparse(annotation)
    bare = name.rpartition(".")[2]
    if bare in TENSOR_TYPES:
        return Tensor(Memory.DEVICE, None, TENSOR_TYPES[bare], Confidence.LIKELY, ident=vm.ident())
    if name in ("int", "float", "bool"):
        return Number()
    if name == "str":
        return Text()
    value = vm.quiet_eval(annotation, Scope(module))
    return instance_of(vm, value.definition) if isinstance(value, Class) else UNKNOWN


def instance_of(vm: Interpreter, definition: ClassDef) -> Value:
    """An instance that somebody else built: its ``__init__`` run on what the annotations say."""
    present = vm.instances.get(definition)
    if present is not None:
        return present
    vm.instances[definition] = UNKNOWN
    phase, vm.phase = vm.phase, Phase.SET_UP
    assuming, vm.assuming = vm.assuming, True
    step, vm.heap.step = vm.heap.step, 0
    driver, vm.driver = vm.driver, None
    default = vm.default_memory
    try:
        with vm.silent():
            made = instantiate(vm, definition, [], {}, definition.node, False)
    finally:
        vm.phase, vm.heap.step, vm.driver, vm.assuming = phase, step, driver, assuming
        vm.default_memory = default
    if isinstance(made, Ref):
        vm.heap.replace(made, opaque=True)
        settle_memory(vm, made)
    vm.instances[definition] = made
    return made


def settle_memory(vm: Interpreter, made: Ref) -> None:
    """Who built the instance also moved it: parameters and buffers are on the device, other tensors may be."""
    host_calls.move_module(vm, made, Memory.DEVICE, set())
    for _, value in list(vm.heap.reach(made)):
        found = vm.heap.get(value) if isinstance(value, Ref) else None
        if found is None or not any(is_unplaced(v) for v in found.slots.values()):
            continue
        slots = {
            key: replace(v, memory=Memory.EITHER) if isinstance(v, Tensor) and is_unplaced(v) else v
            for key, v in found.slots.items()
        }
        vm.heap.objects[value.oid] = replace(found, slots=slots)  # type: ignore[union-attr]


def is_unplaced(value: Value) -> bool:
    """A host tensor whose device no code named."""
    return isinstance(value, Tensor) and value.memory is Memory.HOST and not value.placed


def run_lambda(vm: Interpreter, function: Lambda, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """Run a lambda."""
    from capturelint.static.interpret import Call

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
            continue
        if compiles_with_graphs(decorator):
            value = replace(value, compiled=True) if isinstance(value, Function) else value
            continue
        if text in ("torch.compile", "torch.jit.script", "torch.jit.ignore"):
            continue
        wrapper = vm.quiet_eval(decorator, Scope(function.module))
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


# -------------------------------------------------------------------- classes


def instantiate(
    vm: Interpreter, definition: ClassDef, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Build an instance by running ``__init__``."""
    outside = [base for base in attributes.bases(vm, definition) if isinstance(base, str)]
    if any(base.startswith("enum.") for base in outside):
        return UNKNOWN
    opaque = attributes.is_open(vm, definition)
    made = vm.heap.new(Object(Sort.INSTANCE, definition, opaque=opaque))
    initialiser = attributes.find_method(vm, definition, "__init__")
    if initialiser is not None and isinstance(initialiser[0], FunctionDef):
        function = Function(initialiser[0], initialiser[1].module, initialiser[1])
        vm.call(function, [made, *args], kwargs, node, extra=extra)
    elif definition.is_dataclass:
        fill_fields(vm, made, definition, args, kwargs, extra, node)
    return made


def fill_fields(
    vm: Interpreter,
    made: Ref,
    definition: ClassDef,
    args: list[Value],
    kwargs: dict[str, Value],
    extra: bool,
    node: ast.AST,
) -> None:
    """What a dataclass's made ``__init__`` does."""
    fields: dict[str, tuple[ast.AnnAssign, Module]] = {}
    for base in reversed([b for b in attributes.bases(vm, definition) if isinstance(b, ClassDef)]):
        for name, field in base.fields.items():
            if isinstance(field, ast.AnnAssign):
                fields[name] = (field, base.module)
    given = dict(zip(fields, args, strict=False)) | kwargs
    for name, (field, module) in fields.items():
        value = given.get(name)
        if value is None:
            value = field_default(vm, field, module, extra)
        if value is UNKNOWN:
            value = annotated(vm, field.annotation, module)
        vm.heap.write(made, name, value)
    after = attributes.find_method(vm, definition, "__post_init__")
    if after is not None and isinstance(after[0], FunctionDef):
        vm.call(Function(after[0], after[1].module, after[1]), [made], {}, node)


def field_default(vm: Interpreter, field: ast.AnnAssign, module: Module, extra: bool) -> Value:
    """A dataclass field's default, ``field(default_factory=...)`` included."""
    if field.value is None:
        return UNKNOWN
    if isinstance(field.value, ast.Call) and ast.unparse(field.value.func).endswith("field"):
        for keyword in field.value.keywords:
            if keyword.arg == "default":
                return vm.quiet_eval(keyword.value, Scope(module))
            if keyword.arg == "default_factory":
                return vm.quiet_call(vm.quiet_eval(keyword.value, Scope(module)), [], field)
        return UNKNOWN
    value = vm.quiet_eval(field.value, Scope(module))
    return join(value, UNKNOWN) if value == NONE and (extra or vm.assuming) else value


def is_instance(vm: Interpreter, value: Value, kind: Value) -> bool | None:
    """``isinstance``, where it can be told."""
    if isinstance(kind, Sequence) and kind.items is not None:
        answers = {is_instance(vm, value, item) for item in kind.items}
        return True if True in answers else None if None in answers else False
    if isinstance(value, Tensor):
        if isinstance(kind, External):
            return kind.path.endswith(("Tensor", "Parameter")) if kind.path.startswith(("torch", "builtins")) else None
        return False if isinstance(kind, Class) else None
    if value == NONE:
        return False
    if isinstance(value, Ref) and (found := vm.heap.get(value)) is not None:
        if found.sort is Sort.INSTANCE and isinstance(kind, Class) and isinstance(found.cls, ClassDef):
            order = attributes.bases(vm, found.cls)
            return True if kind.definition in order else None if attributes.is_open(vm, found.cls) else False
        if isinstance(kind, External):
            wanted = {Sort.LIST: "builtins.list", Sort.DICT: "builtins.dict", Sort.SET: "builtins.set"}.get(found.sort)
            if wanted is not None:
                return kind.path == wanted
            if found.sort is Sort.INSTANCE and kind.path.startswith("builtins."):
                return False
        return None
    if isinstance(kind, External) and kind.path.startswith("builtins."):
        return host_calls.is_builtin_instance(value, kind.path.removeprefix("builtins."))
    if isinstance(kind, External) and kind.path.endswith(".Tensor"):
        return False if isinstance(value, (Const, Number, Text, Sequence)) else None
    return None


# -------------------------------------------------------------------- with


def run_with(vm: Interpreter, node: ast.With | ast.AsyncWith, scope: Scope) -> bool:
    """A ``with`` statement: what each manager means, then the body inside them."""
    exits: list[Callable[[], None]] = []
    for item in node.items:
        exits.append(enter(vm, item, scope, node))
    try:
        return vm.run(node.body, scope)
    finally:
        for leave_manager in reversed(exits):
            leave_manager()


def enter(vm: Interpreter, item: ast.withitem, scope: Scope, node: ast.AST) -> Callable[[], None]:
    """Enter one context manager; returns what leaving it does."""
    expression = item.context_expr
    if isinstance(expression, ast.Call):
        function = vm.eval(expression.func, scope)
        if isinstance(function, External):
            special = host_calls.enter_external(vm, function.path, expression, scope, node)
            if special is not None:
                return special
    value = vm.eval(expression, scope)
    if isinstance(value, Device):
        return host_calls.enter_device(vm, value)
    entered: Value = value
    if isinstance(value, Ref) and (found := vm.heap.get(value)) is not None:
        if found.cls == "torch.cuda.Stream":
            return host_calls.enter_stream(vm, value, node)
        if isinstance(found.cls, ClassDef) and (method := attributes.find_method(vm, found.cls, "__enter__")):
            entered = vm.call(attributes.bound(vm, value, *method, node), [], {}, node)
    elif isinstance(value, Sequence) and value.items is None:
        entered = value.element  # a generator under contextmanager: what it yields
    if item.optional_vars is not None:
        vm.assign(item.optional_vars, entered, scope, node)
    return lambda: None


@contextmanager
def in_loop(vm: Interpreter) -> Iterator[None]:
    """A loop whose items are not known one by one."""
    if vm.driver is None:
        yield
        return
    vm.driver.loops += 1
    try:
        yield
    finally:
        vm.driver.loops -= 1


def run_capture_query(vm: Interpreter, node: ast.If, value: Value, scope: Scope, rest: list[ast.stmt]) -> bool:
    """``if torch.cuda.is_current_stream_capturing()``: recorded code takes one side; is work left out on it?

    The side that capture does not take is run without events, only to see whether it changes tensors that the taken
    side leaves alone. Choosing between implementations and refusing host-only calls do not.
    """
    query = next(option for option in options(value) if isinstance(option, CaptureQuery))
    taken, skipped = (node.orelse, node.body) if query.negated else (node.body, node.orelse)
    before = vm.save(scope)
    shadow = Shadow(vm)
    with vm.silent(), shadow:
        if vm.run(skipped, scope):
            changed = {name for name, value in before.names.items() if replaces_tensor(value, scope.names.get(name))}
            vm.run(rest, scope)
        else:
            changed = set()
    vm.restore(scope, before)
    mutated = set(vm.step.mutated)
    alive = vm.run(taken, scope)
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
    return alive


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


__all__ = ["FALSE", "TRUE", "Driver", "Super", "Union", "Varies", "constant", "tensor_in"]
