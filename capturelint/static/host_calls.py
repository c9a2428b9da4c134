"""Calls of what no analysed code defines: Python's built-ins and containers, ``torch.cuda``, ``torch.nn``, clocks.

One table of small functions by name. A call that is not in it is unknown, uses its arguments, and causes no event.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from capturelint.static import attributes, torch_calls
from capturelint.static.homes import Object, Sort, Store, as_slots, fresh_tensors
from capturelint.static.index import ClassDef
from capturelint.static.values import (
    NONE,
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
    Range,
    Ref,
    Scope,
    Sequence,
    Slice,
    Super,
    Tensor,
    Text,
    Truth,
    Value,
    constant,
    deps_of,
    element_of,
    int_constant,
    is_number,
    join,
    options,
    tensor_in,
    union,
    varies_of,
)
from capturelint.vocabulary import EventKind, Phase, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

Arguments = tuple[list[Value], dict[str, Value]]
BUILTINS = frozenset(
    [
        "len",
        "range",
        "int",
        "float",
        "bool",
        "complex",
        "str",
        "repr",
        "print",
        "format",
        "min",
        "max",
        "sum",
        "any",
        "all",
        "sorted",
        "enumerate",
        "zip",
        "map",
        "filter",
        "list",
        "tuple",
        "dict",
        "set",
        "frozenset",
        "isinstance",
        "issubclass",
        "getattr",
        "setattr",
        "hasattr",
        "super",
        "abs",
        "round",
        "divmod",
        "reversed",
        "iter",
        "next",
        "type",
        "id",
        "callable",
        "vars",
        "pow",
        "slice",
        "object",
        "property",
        "staticmethod",
        "classmethod",
        "bytes",
        "hash",
        "input",
        "open",
        "Exception",
        "ValueError",
        "RuntimeError",
        "NotImplementedError",
        "TypeError",
        "AssertionError",
        "KeyError",
        "IndexError",
        "StopIteration",
        "ord",
        "chr",
        "bin",
        "hex",
    ]
)
DRAWS = ("random.", "numpy.random.", "time.", "uuid.", "secrets.", "datetime.", "os.urandom", "os.getpid")
HARMLESS_CLOCKS = frozenset(
    [
        "time.sleep",
        "random.seed",
        "numpy.random.seed",
        "random.Random",
        "numpy.random.default_rng",
        "numpy.random.RandomState",
        "datetime.timedelta",
    ]
)
CONVERSIONS = frozenset({"int", "float", "bool", "complex"})
TRUTH_TESTS = frozenset({"min", "max", "any", "all", "sorted"})
CONTAINERS = {"list": Sort.LIST, "set": Sort.SET, "frozenset": Sort.SET, "dict": Sort.DICT}
LOG_METHODS = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "log", "warning_once", "info_once"}
)


# -------------------------------------------------------------------- external functions


def call_external(
    vm: Interpreter,
    path: str,
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    extra: bool,
    scope: Scope | None,
) -> Value:
    """A call of an external name."""
    if path.startswith("builtins."):
        return call_builtin(vm, path.removeprefix("builtins."), args, kwargs, node, extra, scope)
    if path.startswith(("torch.cuda.", "torch.accelerator.")):
        return call_cuda(vm, path.partition(".")[2].partition(".")[2], args, kwargs, node)
    if path in SPECIAL:
        return SPECIAL[path](vm, args, kwargs, node)
    if path.startswith("torch.nn.") and path.rpartition(".")[2][:1].isupper():
        return new_module(vm, path, args, kwargs, node)
    if path.startswith("torch.distributions."):
        return distribution(vm, path, args, kwargs, node)
    if path == "torch" or path.startswith("torch."):
        return torch_calls.call_function(vm, path, args, kwargs, node, extra)
    if path.startswith(DRAWS) and path not in HARMLESS_CLOCKS:
        return drawn(vm, node)
    if path in ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState"):
        return vm.heap.new(Object(Sort.INSTANCE, "random.Random"))
    if path.startswith(("math.", "numpy.", "operator.index", "cmath.")):
        return host_function(vm, path, args, kwargs, node)
    torch_calls.use(vm, torch_calls.tensors_in(torch_calls.flatten(vm, [*args, *kwargs.values()])))
    return UNKNOWN


def drawn(vm: Interpreter, node: ast.AST) -> Number:
    """A number from a host clock or generator: new at every step, and frozen where a graph records it."""
    return Number(Varies.PER_STEP, drawn=vm.site(node)) if vm.recording else Number()


def host_function(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``math`` and ``numpy`` on a device tensor convert it: a read."""
    for value in args:
        tensor = tensor_in(value)
        if tensor is not None and tensor.on_device:
            vm.emit(EventKind.SYNC, node, "host-function", tensor.sure, name=path)
            return Number(Varies.PER_STEP, read=True)
    if path.startswith("numpy."):
        return UNKNOWN
    return combined(args)


def combined(values: list[Value]) -> Number:
    """A host number computed from host values."""
    numbers = [o for v in values for o in options(v) if isinstance(o, Number)]
    varying = [n for n in numbers if n.varies is Varies.PER_STEP]
    return Number(
        max(map(varies_of, values), default=Varies.NEVER),
        frozenset().union(*map(deps_of, values)) if values else frozenset(),
        next((n.drawn for n in numbers if n.drawn), None),
        bool(varying) and all(n.read for n in varying),
    )


def make_device(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.device("cuda")``."""
    return Device(torch_calls.memory_named(args[0])) if args else Device(Memory.EITHER)


def make_partial(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``functools.partial``."""
    return Partial(args[0], tuple(args[1:]), tuple(kwargs.items())) if args else UNKNOWN


def compile_function(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.compile(f)``: the same function; under a graph mode its calls are recorded by Inductor."""
    from capturelint.static.calls import compiles_with_graphs

    function = args[0] if args else kwargs.get("model", UNKNOWN)
    if isinstance(node, ast.Call) and compiles_with_graphs(node) and function is not UNKNOWN:
        return vm.heap.new(Object(Sort.INSTANCE, "#compiled", {"function": function}))
    return function


def parameter(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``nn.Parameter(tensor)``."""
    tensor = tensor_in(args[0]) if args else None
    return replace(tensor, parameter=True) if tensor is not None else Tensor(Memory.EITHER, None, parameter=True)


def generator(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.Generator(device)``."""
    return vm.heap.new(Object(Sort.INSTANCE, "torch.Generator"))


def deep_copy(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``copy.deepcopy``: the same shape of value."""
    value = args[0] if args else UNKNOWN
    return replace(value, home=None, ident=vm.ident()) if isinstance(value, Tensor) else value


def identity(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """Functions that give their argument back: ``typing.cast``, markers."""
    return args[-1] if args else UNKNOWN


def default_device(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.set_default_device``."""
    vm.default_memory = torch_calls.memory_named(args[0]) if args else Memory.EITHER
    return NONE


def namespace(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``SimpleNamespace(a=...)``."""
    return vm.heap.new(Object(Sort.INSTANCE, "types.SimpleNamespace", as_slots(kwargs)))


def ordered_dict(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``OrderedDict``, ``defaultdict``."""
    return vm.heap.new(Object(Sort.DICT, slots=as_slots(kwargs), opaque=bool(args), element=UNKNOWN if args else None))


def deque(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``collections.deque``."""
    return vm.new_list(args[0]) if args else vm.heap.new(Object(Sort.LIST))


def reduced_product(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``math.prod``."""
    return combined([vm.element(args[0])] if args else [])


def chained(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``itertools.chain``."""
    return Sequence(None, union([vm.element(arg) for arg in args]))


def graphed(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.cuda.make_graphed_callables(f, sample_args)``: runs and records ``f``."""
    if len(args) > 1 and vm.driver is not None:
        samples = vm.items(args[1])
        vm.call(args[0], samples or [vm.element(args[1])], {}, node)
        vm.driver.begin(vm, node)
        vm.call(args[0], samples or [vm.element(args[1])], {}, node)
        vm.driver.end(vm)
    return args[0] if args else UNKNOWN


SPECIAL: dict[str, Callable[[Interpreter, list[Value], dict[str, Value], ast.AST], Value]] = {
    "torch.device": make_device,
    "functools.partial": make_partial,
    "torch.compile": compile_function,
    "torch.nn.Parameter": parameter,
    "torch.nn.parameter.Parameter": parameter,
    "torch.nn.Buffer": parameter,
    "torch.Generator": generator,
    "copy.deepcopy": deep_copy,
    "copy.copy": deep_copy,
    "typing.cast": identity,
    "torch.compiler.disable": identity,
    "torch._dynamo.disable": identity,
    "torch.set_default_device": default_device,
    "types.SimpleNamespace": namespace,
    "argparse.Namespace": namespace,
    "collections.OrderedDict": ordered_dict,
    "collections.defaultdict": ordered_dict,
    "collections.deque": deque,
    "math.prod": reduced_product,
    "itertools.chain": chained,
    "torch.compiler.is_compiling": lambda vm, args, kwargs, node: Const(vm.compiled),
    "torch.compiler.is_dynamo_compiling": lambda vm, args, kwargs, node: Const(vm.compiled),
    "torch._dynamo.is_compiling": lambda vm, args, kwargs, node: Const(vm.compiled),
    "torch._utils.is_compiling": lambda vm, args, kwargs, node: Const(vm.compiled),
    "torch.jit.is_scripting": lambda vm, args, kwargs, node: Const(False),
    "torch.jit.is_tracing": lambda vm, args, kwargs, node: Const(False),
    "torch.is_grad_enabled": lambda vm, args, kwargs, node: Const(False),
    "torch._assert_async": lambda vm, args, kwargs, node: NONE,
    "torch.finfo": lambda vm, args, kwargs, node: vm.heap.new(Object(Sort.INSTANCE, "torch.finfo")),
    "torch.iinfo": lambda vm, args, kwargs, node: vm.heap.new(Object(Sort.INSTANCE, "torch.finfo")),
    "torch.manual_seed": lambda vm, args, kwargs, node: UNKNOWN,
    "torch.Size": identity,
    "itertools.count": lambda vm, args, kwargs, node: vm.heap.new(Object(Sort.INSTANCE, "itertools.count")),
}


# -------------------------------------------------------------------- torch.cuda


def call_cuda(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.cuda.<name>(...)``."""
    match name:
        case _ if name.startswith("#main."):
            return call_stream(vm, External("torch.cuda.#main"), "torch.cuda.Stream", name[6:], args, node)
        case "synchronize":
            vm.emit(EventKind.SYNC, node, "synchronize", name="torch.cuda.synchronize")
            return NONE
        case "is_current_stream_capturing" | "graphs.is_current_stream_capturing":
            return CaptureQuery()
        case "Stream" | "ExternalStream" | "streams.Stream":
            return vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.Stream"))
        case "Event" | "streams.Event":
            return vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.Event"))
        case "current_stream" | "default_stream":
            return vm.stream_stack[-1] if vm.stream_stack and name == "current_stream" else External("torch.cuda.#main")
        case "CUDAGraph" | "graphs.CUDAGraph":
            return vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.CUDAGraph"))
        case "is_available" | "is_initialized":
            return Const(True)
        case _ if name.endswith("Tensor"):
            return torch_calls.from_host(vm, name, args, kwargs | {"device": Device(Memory.DEVICE)}, node)
        case "make_graphed_callables":
            return graphed(vm, args, kwargs, node)
        case "device_count" | "current_device" | "memory_allocated":
            return Number()
        case "set_device" | "empty_cache" | "nvtx.range_push" | "nvtx.range_pop":
            return NONE
        case "current_device_name" | "get_device_name":
            return Text()
        case _:
            return UNKNOWN


def call_stream(vm: Interpreter, owner: Value, cls: str, name: str, args: list[Value], node: ast.AST) -> Value:
    """Methods of streams and events."""
    if name in ("synchronize", "query"):
        vm.emit(EventKind.SYNC, node, name, name=f"{cls.rpartition('.')[2].lower()}.{name}")
        return Const(True) if name == "query" else NONE
    if name == "wait_stream" and args:
        join_stream(vm, args[0], owner)
    elif name in ("wait_event", "wait") and (args or name == "wait"):
        event = args[0] if name == "wait_event" else owner
        if isinstance(event, Ref) and (found := vm.heap.get(event)) is not None:
            join_stream(vm, found.slots.get("#stream", UNKNOWN), owner if name == "wait_event" else UNKNOWN)
    elif name == "record_event":
        event_ref = args[0] if args else vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.Event"))
        if isinstance(event_ref, Ref):
            vm.heap.write(event_ref, "#stream", owner)
        return event_ref
    elif name == "record" and isinstance(owner, Ref):
        current = args[0] if args else vm.stream_stack[-1] if vm.stream_stack else External("torch.cuda.#main")
        vm.heap.write(owner, "#stream", current)
    return NONE


def join_stream(vm: Interpreter, side: Value, waiter: Value) -> None:
    """Somebody waits for a side stream: its work is part of the capture's result."""
    if side == waiter:
        return
    for option in options(side):
        if (found := vm.side_streams.get(option)) is not None:
            found.joined = True
        elif option is UNKNOWN:
            for stream in vm.side_streams.values():
                stream.joined = True


def enter_external(
    vm: Interpreter, path: str, call: ast.Call, scope: Scope, node: ast.AST
) -> Callable[[], None] | None:
    """Enter a context manager of torch; ``None`` where it is none of those that matter."""
    if path in ("torch.cuda.graph", "torch.cuda.graphs.graph"):
        for argument in [*call.args, *[k.value for k in call.keywords]]:
            vm.eval(argument, scope)
        return enter_graph(vm, node)
    if path == "torch.cuda.stream" and call.args:
        return enter_stream(vm, vm.eval(call.args[0], scope), node)
    if path == "torch.device" and call.args:
        value = vm.eval(call, scope)
        return enter_device(vm, value) if isinstance(value, Device) else None
    if path in ("torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast"):
        given = {k.arg: constant(vm.eval(k.value, scope)) for k in call.keywords}
        return enter_autocast(vm, call, given.get("cache_enabled") is not False and given.get("enabled") is not False)
    if path in (
        "torch.no_grad",
        "torch.inference_mode",
        "torch.enable_grad",
        "contextlib.nullcontext",
        "torch.profiler.record_function",
    ):
        return lambda: None
    if path in ("contextlib.suppress",):
        return lambda: None
    return None


def enter_autocast(vm: Interpreter, call: ast.AST, caches: bool) -> Callable[[], None]:
    """``torch.autocast``: its weight cache must not be filled outside the graph and read inside."""
    before = vm.autocast
    vm.autocast = vm.site(call) if caches and not vm.recording else None

    def leave() -> None:
        vm.autocast = before

    return leave


def enter_graph(vm: Interpreter, node: ast.AST) -> Callable[[], None]:
    """``with torch.cuda.graph(g)``: the body is recorded."""
    if vm.driver is None or vm.recording:
        return lambda: None
    vm.driver.begin(vm, node)
    return lambda: vm.driver.end(vm) if vm.driver is not None else None


def enter_stream(vm: Interpreter, stream: Value, node: ast.AST) -> Callable[[], None]:
    """``with torch.cuda.stream(s)``: device work goes to a side stream."""
    from capturelint.static.interpret import Stream

    side = next((option for option in options(stream) if isinstance(option, Ref)), UNKNOWN)
    vm.stream_stack.append(side)
    if vm.recording and side is not UNKNOWN:
        vm.side_streams[side] = Stream(vm.site(node), joined=True)

    def leave() -> None:
        vm.stream_stack.pop()

    return leave


def enter_device(vm: Interpreter, device: Device) -> Callable[[], None]:
    """``with torch.device(d)``: factories make their tensors there."""
    before, vm.default_memory = vm.default_memory, device.memory

    def leave() -> None:
        vm.default_memory = before

    return leave


# -------------------------------------------------------------------- torch.nn, torch.distributions


def new_module(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """An instance of a ``torch.nn`` class; containers hold their children in slots."""
    name = path.rpartition(".")[2]
    slots: dict[object, Value] = {}
    element: Value | None = None
    if name in ("ModuleList", "ParameterList", "Sequential") and args:
        items = vm.items(args[0]) if name != "Sequential" or len(args) == 1 else list(args)
        if name == "Sequential" and len(args) == 1 and isinstance(args[0], Ref):
            found = vm.heap.get(args[0])
            items = attributes.values_of(vm, args[0]) if found is not None and found.sort is Sort.DICT else [args[0]]
        if items is not None:
            slots = dict(enumerate(items))
        else:
            element = vm.element(args[0])
    elif name == "ModuleDict" and args:
        slots = dict(attributes.entries(vm, args[0]))
        if isinstance(args[0], Ref) and (found := vm.heap.get(args[0])) is not None:
            element = found.element
    made = vm.heap.new(Object(Sort.INSTANCE, path, slots, element))
    if vm.default_memory is not Memory.HOST:
        vm.heap.write(made, "#moved", Const(True))
    return made


def distribution(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.distributions.X(...)``: argument validation, on by default, reads the device."""
    name = path.rpartition(".")[2]
    tensors = torch_calls.tensors_in([*args, *kwargs.values()])
    on_device = [t for t in tensors if t.on_device]
    off = any(
        module is not None and "set_default_validate_args(False" in module.text for module in vm.index.modules.values()
    )
    if on_device and constant(kwargs.get("validate_args", NONE)) is not False and not off:
        vm.emit(EventKind.SYNC, node, "distribution", on_device[0].sure, name=name)
    torch_calls.use(vm, tensors)
    lead = tensors[0] if tensors else None
    return vm.heap.new(Object(Sort.INSTANCE, path, {"#lead": lead} if lead is not None else {}))


# -------------------------------------------------------------------- methods without analysed code


def call_bound(
    vm: Interpreter, function: BoundExternal, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """A method of a container, a module, a stream, a string."""
    owner, name = function.owner, function.name
    if isinstance(owner, Ref) and (found := vm.heap.get(owner)) is not None:
        match found.sort:
            case Sort.DICT:
                return call_dict(vm, owner, found, name, args, kwargs, node)
            case Sort.LIST | Sort.SET:
                return call_list(vm, owner, found, name, args, kwargs, node)
            case _:
                return call_instance(vm, owner, found, name, args, kwargs, node)
    if isinstance(owner, Sequence):
        return call_sequence(vm, owner, name, args, node)
    if isinstance(owner, (Const, Text)) and (isinstance(constant(owner), str) or isinstance(owner, Text)):
        for value in [*args, *kwargs.values()] if name == "format" else []:
            torch_calls.formatted(vm, value, node)
        return Text()
    if name == "bit_length" and (known := int_constant(owner)) is not None:
        return Const(known.bit_length(), deps_of(owner))
    if isinstance(owner, (Const, Number)):
        return Number(varies_of(owner), deps_of(owner)) if name in ("bit_length", "is_integer", "item") else Number()
    return UNKNOWN


def call_sequence(vm: Interpreter, owner: Sequence, name: str, args: list[Value], node: ast.AST) -> Value:
    """``shape.numel()``, ``tuple.index``."""
    if name in ("numel", "index", "count"):
        return Number(Varies.PER_BUCKET if owner.shape else Varies.NEVER)
    return UNKNOWN


def call_dict(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods of dicts."""
    key = constant(args[0]) if args else Const
    default = args[1] if len(args) > 1 else NONE
    everything = attributes.values_of(vm, owner)
    match name:
        case "get" | "pop" | "setdefault":
            if key is not Const and key in found.slots:
                return attributes.read_slot(vm, owner, key) or UNKNOWN
            if name == "setdefault":
                if key is not Const:
                    attributes.write_slot(vm, owner, key, default, node)
                    return default
                if found.element is None:
                    attributes.put_element(vm, owner, default)
                return vm.heap[owner].element or UNKNOWN
            if not everything and not found.opaque:
                return default
            return union([*everything, default, *([UNKNOWN] if found.opaque and default == NONE else [])])
        case "values":
            return Sequence(tuple(everything)) if found.element is None else Sequence(None, union(everything))
        case "items":
            pairs: list[Value] = [Sequence((Const(k), vm.heap.read(owner, k) or UNKNOWN)) for k in found.slots]
            if found.element is None:
                return Sequence(tuple(pairs))
            return Sequence(None, union([*pairs, Sequence((UNKNOWN, found.element))]))
        case "keys":
            keys: list[Value] = [Const(k) for k in found.slots]
            return Sequence(tuple(keys)) if found.element is None else Sequence(None, UNKNOWN)
        case "update":
            for value in args:
                for inner_key, inner in attributes.entries(vm, value):
                    attributes.write_slot(vm, owner, inner_key, inner, node)
            for inner_key, inner in kwargs.items():
                attributes.write_slot(vm, owner, inner_key, inner, node)
            return NONE
        case "copy":
            return vm.heap.new(replace(found))
        case "clear":
            vm.heap.replace(owner, slots={}, element=None)
            return NONE
        case _:
            return UNKNOWN


def call_list(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods of lists and sets."""
    match name:
        case "append" | "add" | "appendleft" | "insert":
            if args:
                keep(vm, owner, args[-1], node)
            return NONE
        case "extend" | "update":
            items = vm.items(args[0]) if args else None
            for value in items if items is not None else [vm.element(args[0])] if args else []:
                keep(vm, owner, value, node, exact=items is not None)
            return NONE
        case "pop" | "popleft":
            return attributes.element(vm, owner)
        case "copy":
            return vm.heap.new(replace(found))
        case "clear":
            vm.heap.replace(owner, slots={}, element=None)
            return NONE
        case "index" | "count":
            return Number()
        case _:
            return NONE


def keep(vm: Interpreter, owner: Ref, value: Value, node: ast.AST, exact: bool = True) -> None:
    """Append to a list. In recorded code, on a list that outlives the step, it happens at capture only."""
    found = vm.heap[owner]
    if vm.heap.persistent(owner) and vm.phase in (Phase.WARM_UP, Phase.RECORDED) and vm.driver is None:
        vm.heap.per_step.add(Home(owner.oid, "#length"))
    if vm.driver is not None:
        vm.driver.on_keep(vm, value, node, "append")
    if vm.recording and vm.heap.persistent(owner) and fresh_tensors(vm.heap, value):
        outside = vm.driver is not None and len(vm.stack) == vm.driver.depth
        vm.step.stores.append(
            Store(Home(owner.oid, "append"), NONE, value, vm.site(node), vm.doubt, bool(vm.hidden), outside)
        )
    looping = vm.driver is not None and vm.driver.loops > 0
    if (
        found.sort is Sort.LIST
        and found.element is None
        and len(found.slots) < 8
        and exact
        and not vm.doubt
        and not looping
    ):
        vm.heap.replace(owner, slots={**found.slots, len(found.slots): value})
    else:
        attributes.put_element(vm, owner, value)


def call_instance(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods that an instance has from outside the analysed code."""
    cls = found.cls if isinstance(found.cls, str) else ""
    if cls in ("torch.cuda.Stream", "torch.cuda.Event"):
        return call_stream(vm, owner, cls, name, args, node)
    if cls == "torch.cuda.CUDAGraph":
        return call_graph(vm, name, args, node)
    if cls == "random.Random":
        return drawn(vm, node)
    if cls == "torch.Generator":
        return owner if name in ("manual_seed", "seed", "clone_state") else UNKNOWN
    if cls.startswith("torch.distributions."):
        return call_distribution(vm, found, name, args, node)
    if cls == "#compiled":
        return vm.call(attributes.load(vm, found.slots["function"], name, node), args, kwargs, node)
    if cls == "" and not isinstance(found.cls, ClassDef):
        return UNKNOWN
    return call_nn_method(vm, owner, found, name, args, kwargs, node)


def call_graph(vm: Interpreter, name: str, args: list[Value], node: ast.AST) -> Value:
    """Methods of ``torch.cuda.CUDAGraph``."""
    if name == "replay" and vm.driver is not None:
        vm.driver.on_replay(vm, node)
    elif name == "capture_begin" and vm.driver is not None and not vm.recording:
        vm.driver.begin(vm, node)
    elif name == "capture_end" and vm.driver is not None and vm.recording:
        vm.driver.end(vm)
    elif name == "register_generator_state" and args and isinstance(args[0], Ref):
        vm.heap.write(args[0], "#registered", Const(True))
    return UNKNOWN if name == "pool" else NONE


def call_distribution(vm: Interpreter, found: Object, name: str, args: list[Value], node: ast.AST) -> Value:
    """``sample``, ``log_prob``, ...: ``Normal.sample`` uploads even without validation."""
    lead = found.slots.get("#lead", UNKNOWN)
    if isinstance(lead, Tensor):
        if lead.on_device and str(found.cls).endswith(".Normal") and name == "sample":
            vm.emit(EventKind.UPLOAD, node, "distribution", lead.sure, name="Normal.sample")
        return torch_calls.result(vm, [lead, *args], node, None)
    return UNKNOWN


def call_nn_method(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods that every ``nn.Module`` has, and those of module containers."""
    match name:
        case "__call__" | "forward":
            method = attributes.find_method(vm, found.cls, "forward") if isinstance(found.cls, ClassDef) else None
            return vm.call(attributes.bound(vm, owner, *method, node), args, kwargs, node) if method else UNKNOWN
        case "to" | "cuda" | "cpu" | "half" | "float" | "bfloat16" | "eval" | "train" | "requires_grad_" | "to_empty":
            if name in ("to", "cuda", "cpu", "to_empty"):
                memory = destination(name, args, kwargs)
                if memory is not None:
                    move_module(vm, owner, memory, set())
            return owner
        case "register_buffer":
            if args and isinstance(constant(args[0]), str):
                value = args[1] if len(args) > 1 else kwargs.get("tensor", NONE)
                vm.heap.replace(owner, buffers=found.buffers | {str(constant(args[0]))})
                attributes.write_slot(vm, owner, constant(args[0]), value, node)
            return NONE
        case "register_parameter" | "add_module" | "register_module":
            if len(args) > 1:
                attributes.write_slot(vm, owner, constant(args[0]), args[1], node)
            return NONE
        case "register_forward_hook" | "register_forward_pre_hook":
            if args:
                vm.heap.write(owner, "#hook", args[0])
            return UNKNOWN
        case "parameters" | "buffers":
            return Sequence(None, Tensor(vm.module_memory, None, parameter=True))
        case "named_parameters" | "named_buffers":
            return Sequence(None, Sequence((Text(), Tensor(vm.module_memory, None, parameter=True))))
        case "children" | "modules":
            return Sequence(None, children(vm, owner))
        case "named_children" | "named_modules" | "items":
            return Sequence(None, Sequence((Text(), children(vm, owner))))
        case "values":
            return Sequence(None, children(vm, owner))
        case "keys":
            return Sequence(None, Text())
        case "append" if args:
            attributes.put_element(vm, owner, args[0])
            return owner
        case "compile":
            return NONE
        case "apply" if args:
            return owner
        case _:
            return UNKNOWN


def children(vm: Interpreter, owner: Ref) -> Value:
    """Any child module."""
    found = vm.heap[owner]
    inner = [vm.heap.read(owner, key) or UNKNOWN for key in found.slots]
    modules = [value for value in inner if isinstance(value, Ref)]
    if found.element is not None:
        modules.append(found.element)  # type: ignore[arg-type]
    return union(list(modules))


def destination(name: str, args: list[Value], kwargs: dict[str, Value]) -> Memory | None:
    """Where ``module.to(...)`` moves a module, or ``None`` for a change of dtype."""
    if name == "cuda":
        return Memory.DEVICE
    if name == "cpu":
        return Memory.HOST
    for value in [*args, *([kwargs["device"]] if "device" in kwargs else [])]:
        if isinstance(value, Device) or isinstance(constant(value), str):
            return torch_calls.memory_named(value)
        if isinstance(value, Tensor):
            return value.memory
        if value is UNKNOWN:
            return Memory.EITHER
    return None


def move_module(vm: Interpreter, owner: Ref, memory: Memory, seen: set[int]) -> None:
    """``module.to(device)`` moves parameters, buffers and child modules; plain tensor attributes stay."""
    found = vm.heap.get(owner)
    if found is None or owner.oid in seen or found.sort is not Sort.INSTANCE:
        return
    seen.add(owner.oid)
    is_nn = isinstance(found.cls, str) and found.cls.startswith("torch.nn.")
    if not is_nn and not (isinstance(found.cls, ClassDef) and attributes.is_module(vm, found.cls)):
        return
    slots: dict[object, Value] = {}
    for key, value in found.slots.items():
        moved = value
        if isinstance(value, Tensor) and (value.parameter or key in found.buffers):
            moved = replace(value, memory=memory)
        for option in options(value):
            if isinstance(option, Ref):
                move_module(vm, option, memory, seen)
        slots[key] = moved
    for option in options(found.element) if found.element is not None else ():
        if isinstance(option, Ref):
            move_module(vm, option, memory, seen)
    if is_nn:
        slots["#moved"] = Const(memory is Memory.DEVICE)
    vm.heap.replace(owner, slots=slots)


# -------------------------------------------------------------------- built-ins


def call_builtin(
    vm: Interpreter,
    name: str,
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    extra: bool,
    scope: Scope | None,
) -> Value:
    """A call of a Python built-in."""
    if name in CONVERSIONS:
        return convert(vm, name, args, node)
    if name in TRUTH_TESTS:
        return compare_all(vm, name, args, kwargs, node)
    if name in CONTAINERS:
        return make_container(vm, name, args, kwargs)
    handler = HANDLERS.get(name)
    return handler(vm, args, kwargs, node, scope) if handler is not None else UNKNOWN


def convert(vm: Interpreter, name: str, args: list[Value], node: ast.AST) -> Value:
    """``int(x)``, ``float(x)``, ``bool(x)``: of a device tensor, a read."""
    if not args:
        return Const({"int": 0, "float": 0.0, "bool": False}.get(name))
    tensor = tensor_in(args[0])
    if tensor is not None:
        if tensor.on_device:
            vm.emit(EventKind.SYNC, node, name, tensor.sure, name=name)
            return Number(Varies.PER_STEP, read=True)
        return Number(tensor.varies, tensor.deps)
    known = constant(args[0])
    if isinstance(known, (int, float)) and name in ("int", "float", "bool"):
        return Const({"int": int, "float": float, "bool": bool}[name](known), deps_of(args[0]))
    if isinstance(known, str) and name == "float":
        return Number()
    if name == "bool":
        return vm.flag(vm.truth_of(args[0]), args[0]) if isinstance(args[0], (Number, Ref)) else Number()
    return combined(args)


def compare_all(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``min``, ``max``, ``any``, ``all``, ``sorted``: each test of a device tensor is a read."""
    items = list(args)
    if len(args) == 1:
        exact = vm.items(args[0])
        items = exact if exact is not None else [vm.element(args[0])]
        tensor = tensor_in(args[0])
        if tensor is not None:
            items = [tensor]
    single = len(items) == 1 and not isinstance(args[0] if args else UNKNOWN, Tensor) and vm.items(args[0]) is not None
    for value in items:
        tensor = tensor_in(value)
        if tensor is not None and tensor.on_device and not (single and name in ("min", "max", "sorted")):
            vm.emit(EventKind.SYNC, node, f"builtin-{name}", tensor.sure, name=name)
            return Number(Varies.PER_STEP, read=True)
    known = [constant(item) for item in items]
    if name in ("min", "max") and known and all(isinstance(k, (int, float)) for k in known) and "key" not in kwargs:
        chosen = (min if name == "min" else max)(known)  # type: ignore[type-var]
        return Const(chosen, frozenset().union(*map(deps_of, items)))
    if name == "sorted":
        return vm.new_list(args[0]) if args else UNKNOWN
    if name in ("any", "all"):
        return combined([item for item in items if is_number(item) or isinstance(item, (Number, Const))])
    if all(isinstance(option, (Const, Number)) for item in items for option in options(item)):
        return combined(items)
    return union(items)


def make_container(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``list(x)``, ``dict(...)``, ``set(x)``."""
    if name == "dict":
        slots = as_slots(kwargs)
        for value in args:
            slots |= {str(key): inner for key, inner in attributes.entries(vm, value)}
        return vm.heap.new(Object(Sort.DICT, slots=slots, element=UNKNOWN if args and not slots else None))
    if not args:
        return vm.heap.new(Object(CONTAINERS[name]))
    if name == "list":
        return vm.new_list(args[0])
    return vm.heap.new(Object(Sort.SET, element=vm.element(args[0])))


Handler = Callable[["Interpreter", list[Value], dict[str, Value], ast.AST, "Scope | None"], Value]


def length(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``len``: of a tensor, its first size; of a list that the step appends to, a number of the step."""
    value = args[0] if args else UNKNOWN
    items = vm.items(value)
    if isinstance(value, Ref) and (home := Home(value.oid, "#length")) in vm.heap.per_step:
        return Number(Varies.PER_STEP, frozenset({home}))
    if items is not None and not isinstance(value, Ref):
        return Const(len(items))
    if isinstance(value, Ref) and (found := vm.heap.get(value)) is not None:
        if isinstance(found.cls, ClassDef) and (method := attributes.find_method(vm, found.cls, "__len__")):
            return vm.call(attributes.bound(vm, value, *method, node), [], {}, node)
        return Const(len(items)) if items is not None and not vm.heap.persistent(value) else Number()
    if isinstance(value, Tensor):
        return Const(value.rows) if value.rows is not None else Number(max(value.varies, Varies.PER_BUCKET), value.deps)
    return Number(Varies.PER_BUCKET if isinstance(value, Sequence) and value.shape else Varies.NEVER)


def make_range(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``range``: a device tensor as a bound is read."""
    for value in args:
        tensor = tensor_in(value)
        if tensor is not None and tensor.on_device:
            vm.emit(EventKind.SYNC, node, "range", tensor.sure, name="range")
            return Range(Varies.NEVER)
    bounds = [int_constant(value) for value in args]
    varies = max(map(varies_of, args), default=Varies.NEVER)
    read = any(isinstance(o, Number) and o.read for v in args for o in options(v))
    exact = [bound for bound in bounds if bound is not None]
    if len(exact) == len(args) and args and not (len(exact) == 3 and exact[2] == 0):
        found = range(*exact)
        return Range(Varies.NEVER, tuple(found) if len(found) <= 64 else None)
    return Range(Varies.NEVER if read else varies)


def print_values(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``print``, ``str``, ``repr``, ``format``: text of a device tensor needs its values."""
    for value in args:
        torch_calls.formatted(vm, value, node)
    return Text()


def total(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``sum``: additions, which stay on the device."""
    element = vm.element(args[0]) if args else UNKNOWN
    items = vm.items(args[0]) if args else None
    tensor = tensor_in(element)
    if tensor is not None:
        return torch_calls.result(vm, items or [element], node, tensor.rank)
    known = [constant(item) for item in items or []]
    if items and all(isinstance(k, (int, float)) for k in known):
        return Const(sum(known))  # type: ignore[arg-type]
    return combined(items if items is not None else [element])


def enumerated(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``enumerate``."""
    items = vm.items(args[0]) if args else None
    if items is not None:
        return Sequence(tuple(Sequence((Const(at), item)) for at, item in enumerate(items)))
    return Sequence(None, Sequence((Number(), vm.element(args[0]) if args else UNKNOWN)))


def zipped(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``zip``."""
    columns = [vm.items(value) for value in args]
    exact = [column for column in columns if column is not None]
    if len(exact) == len(columns) and len({len(column) for column in exact}) == 1:
        return Sequence(tuple(Sequence(row) for row in zip(*exact, strict=True)))
    return Sequence(None, Sequence(tuple(vm.element(value) for value in args)))


def mapped(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``map(f, xs)``."""
    return Sequence(None, vm.call(args[0], [vm.element(v) for v in args[1:]], {}, node)) if len(args) > 1 else UNKNOWN


def filtered(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``filter(f, xs)``."""
    return Sequence(None, vm.element(args[1])) if len(args) > 1 else UNKNOWN


def make_tuple(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``tuple(x)``, ``reversed(x)``, ``iter(x)``."""
    if not args:
        return Sequence(())
    items = vm.items(args[0])
    if isinstance(args[0], Sequence):
        return args[0]
    return Sequence(tuple(items)) if items is not None else Sequence(None, vm.element(args[0]))


def first_item(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``next(x)``, ``next(x, default)``."""
    iterator = args[0] if args and isinstance(args[0], Ref) else None
    found = vm.heap.get(iterator) if iterator is not None else None
    if iterator is not None and found is not None and found.cls == "itertools.count" and vm.heap.persistent(iterator):
        return Number(Varies.PER_STEP, frozenset({Home(iterator.oid, "count")}))
    element = vm.element(args[0]) if args else UNKNOWN
    return join(element, args[1]) if len(args) > 1 else element


def check_instance(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``isinstance``."""
    from capturelint.static.calls import is_instance

    if len(args) < 2:
        return Number()
    answers = {is_instance(vm, option, args[1]) for option in options(args[0])}
    return Const(answers.pop()) if len(answers) == 1 and None not in answers else Number()


def get_attribute(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``getattr`` with a literal name."""
    name = constant(args[1]) if len(args) > 1 else None
    if not isinstance(name, str):
        return UNKNOWN
    if len(args) > 2 and has_attribute(vm, args[0], name) is False:
        return args[2]
    found = vm.attribute(args[0], name, node)
    if len(args) > 2 and has_attribute(vm, args[0], name) is None:
        return join(found, args[2]) if found is not UNKNOWN else UNKNOWN
    return found


def has_attribute(vm: Interpreter, owner: Value, name: str) -> bool | None:
    """Whether an object has an attribute, where it can be told."""
    if isinstance(owner, Ref) and (found := vm.heap.get(owner)) is not None and isinstance(found.cls, ClassDef):
        if name in found.slots or attributes.find_method(vm, found.cls, name) is not None:
            return True
        if found.opaque or attributes.is_open(vm, found.cls) or attributes.find_method(vm, found.cls, "__getattr__"):
            return None
        return attributes.is_module(vm, found.cls) and name in attributes.MODULE_METHODS
    return None


def check_attribute(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``hasattr``."""
    name = constant(args[1]) if len(args) > 1 else None
    known = has_attribute(vm, args[0], name) if isinstance(name, str) else None
    return Const(known) if known is not None else Number()


def set_attribute(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``setattr`` with a literal name."""
    if len(args) == 3 and isinstance(constant(args[1]), str):
        attributes.store(vm, args[0], constant(args[1]), args[2], node)
    return NONE


def make_super(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``super()``."""
    if len(args) == 2 and isinstance(args[0], Class):
        return Super(args[1], args[0].definition)
    holder = scope
    while holder is not None and holder.owner is None:
        holder = holder.parent
    return Super(holder.this, holder.owner) if holder is not None and holder.owner is not None else UNKNOWN


def magnitude(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``abs``, ``round``, ``pow``, ``divmod``: of a tensor, device work."""
    tensor = tensor_in(args[0]) if args else None
    if tensor is not None:
        return torch_calls.result(vm, args, node, tensor.rank)
    return combined(args)


def kind_of_value(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``type(x)``."""
    value = args[0] if args else UNKNOWN
    if isinstance(value, Ref) and (found := vm.heap.get(value)) is not None and isinstance(found.cls, ClassDef):
        return Class(found.cls)
    return UNKNOWN


def make_slice(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``slice(a, b)``."""
    if len(args) == 1:
        return Slice(NONE, args[0], NONE)
    return Slice(*(args + [NONE] * 3)[:3]) if args else UNKNOWN


HANDLERS: dict[str, Handler] = {
    "len": length,
    "range": make_range,
    "print": print_values,
    "str": print_values,
    "repr": print_values,
    "format": print_values,
    "sum": total,
    "enumerate": enumerated,
    "zip": zipped,
    "map": mapped,
    "filter": filtered,
    "tuple": make_tuple,
    "reversed": make_tuple,
    "iter": make_tuple,
    "next": first_item,
    "isinstance": check_instance,
    "getattr": get_attribute,
    "hasattr": check_attribute,
    "setattr": set_attribute,
    "super": make_super,
    "abs": magnitude,
    "round": magnitude,
    "pow": magnitude,
    "divmod": magnitude,
    "type": kind_of_value,
    "slice": make_slice,
    "callable": lambda vm, args, kwargs, node, scope: (
        Const(isinstance(args[0], (Function, Lambda, Method))) if args and args[0] is not UNKNOWN else Number()
    ),
}


def is_builtin_instance(value: Value, kind: str) -> bool | None:
    """``isinstance(value, int)`` and the like."""
    known = constant(value)
    if known is not Const:
        types = {"int": int, "float": float, "str": str, "bool": bool, "bytes": bytes}
        return isinstance(known, types[kind]) if kind in types else False
    match value:
        case Number():
            return None if kind in ("int", "float", "bool") else False
        case Text():
            return kind == "str"
        case Sequence():
            return kind == "tuple"
        case _:
            return None


__all__ = ["Kind", "Phase", "Truth", "call_bound", "call_external", "element_of"]
