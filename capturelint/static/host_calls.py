"""Calls of what no analysed code defines: Python's built-ins and containers, ``torch.cuda``, ``torch.nn``, clocks.

One table of small functions by name. A call that is not in it is unknown, uses its arguments, and causes no event.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from capturelint.static import (
    attributes,
    calls,
    classes,
    conditions,
    containers,
    cuda_calls,
    inheritance,
    managers,
    nn_calls,
    python_calls,
    results,
    storage,
    torch_calls,
    transfers,
)
from capturelint.static.homes import Object, Sort, as_slots
from capturelint.static.index import ClassDef
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    BoundExternal,
    Const,
    Device,
    External,
    Memory,
    Number,
    Partial,
    Ref,
    Scope,
    Sequence,
    Super,
    Tensor,
    Text,
    Value,
    constant,
    deps_of,
    int_constant,
    options,
    tensor_in,
    union,
    varies_of,
)
from capturelint.vocabulary import Confidence, EventKind, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

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


OTHER_DEVICES = frozenset(
    [f"torch.{device}.is_available" for device in ("xpu", "npu", "mps", "backends.mps", "mlu", "musa", "hpu")]
)
"""What is asked for a device that records no CUDA graph."""


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
    if path.startswith("builtins.") and path not in SPECIAL:
        return python_calls.call_builtin(vm, path.removeprefix("builtins."), args, kwargs, node, scope)
    if path in SPECIAL:
        return SPECIAL[path](vm, args, kwargs, node)
    if path in cuda_calls.MANAGERS:
        return cuda_calls.new_manager(vm, path, args, kwargs)
    if path.startswith(("torch.cuda.", "torch.accelerator.")):
        return cuda_calls.call_cuda(vm, path.partition(".")[2].partition(".")[2], args, kwargs, node)
    if path in OTHER_DEVICES:
        return Const(False)
    if path.startswith("torch.nn.") and path.rpartition(".")[2][:1].isupper():
        return nn_calls.new_module(vm, path, args, kwargs, node)
    if path.startswith("torch.distributions."):
        return nn_calls.distribution(vm, path, args, kwargs, node)
    if path == "torch" or path.startswith("torch."):
        return torch_calls.call_function(vm, path, args, kwargs, node, extra)
    if path.startswith("logging.") and path.removeprefix("logging.") in LOGGED:
        return logged(vm, path.removeprefix("logging."), args, node)
    if path.startswith(DRAWS) and path not in HARMLESS_CLOCKS:
        return shuffled(vm, node) if path.endswith(".shuffle") else drawn(vm, node)
    if path in ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState"):
        return vm.heap.new(Object(Sort.INSTANCE, "random.Random"))
    if path.startswith(("math.", "numpy.", "operator.index", "cmath.")):
        return host_function(vm, path, args, kwargs, node)
    if vm.driver is not None:
        vm.driver.on_unread_call([*args, *kwargs.values()])
    if path in vm.wrappers:
        calls.hand_over(vm, [*args, *kwargs.values()])
    tensors = torch_calls.tensors_in(torch_calls.flatten(vm, [*args, *kwargs.values()]))
    torch_calls.use(vm, tensors)
    if vm.recording and any(tensor.on_device for tensor in tensors):
        vm.unlisted.add(path)
    return UNKNOWN


def drawn(vm: Interpreter, node: ast.AST) -> Number:
    """A number from a host clock or generator: new at every step, and frozen where a graph records it."""
    return Number(Varies.PER_STEP, drawn=vm.site(node)) if vm.recording else Number()


def shuffled(vm: Interpreter, node: ast.AST) -> Value:
    """A list in a new order: in recorded code the order of the capture stays."""
    site = vm.site(node)
    vm.emit(EventKind.RANDOM, site, "drawn", Confidence.LIKELY, name=site.code)
    return NONE


def host_function(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``math`` and ``numpy`` on a device tensor convert it: a read."""
    for value in args:
        tensor = tensor_in(value)
        if tensor is not None and tensor.on_device:
            vm.emit(EventKind.SYNC, node, "host-function", tensor.sure, name=path)
            return Number(Varies.PER_STEP, read=True)
    if path.startswith("numpy."):
        return numpy_result(vm, path.removeprefix("numpy."), args, kwargs, node)
    return combined(args)


def numpy_result(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """An array in host memory, or a host number."""
    present = torch_calls.tensors_in(torch_calls.flatten(vm, args))
    if name in ARRAYS:
        lead = present[0] if present and name in ("array", "asarray", "ascontiguousarray", "copy") else None
        rank = transfers.nesting(vm, args[0]) if name in ("array", "asarray") and args else None
        if name in ("zeros", "ones", "empty", "full"):
            rank = transfers.size_rank(vm, args[:1])
        if lead is not None:
            return replace(lead, home=None, array=True)
        held = args[1:2] if name == "full" else args[:1] if name in ("array", "asarray") else []
        numbers = [constant(value) for value in torch_calls.flatten(vm, held)]
        return Tensor(
            Memory.HOST,
            1 if name == "arange" else rank,
            ident=vm.ident(),
            negative=any(isinstance(number, int) and number < 0 for number in numbers),
            placed=True,
            array=True,
        )
    if present:
        return results.result(vm, args, node, None)
    return combined(args) if args and all(isinstance(v, (Number, Const)) for v in args) else UNKNOWN


ARRAYS = frozenset(["zeros", "ones", "empty", "full", "array", "asarray", "ascontiguousarray", "copy", "arange"])


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
    return Device(transfers.memory_named(args[0])) if args else Device(Memory.EITHER)


LOGGER = "logging.Logger"
LOGGED = frozenset({"warning", "warn", "error", "critical", "exception"})
"""What a logger writes at the level that it has unless it is set: the arguments are formatted."""


def logged(vm: Interpreter, name: str, args: list[Value], node: ast.AST) -> Value:
    """A method of a logger, or the function of that name in ``logging``; debugging is off unless it is turned on."""
    if name == "isEnabledFor" and args == [External("logging.DEBUG")]:
        return Const(False)
    for value in args if name in LOGGED else ():
        torch_calls.formatted(vm, value, node)
    return Number() if name == "isEnabledFor" else NONE


def make_partial(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``functools.partial``."""
    return Partial(args[0], tuple(args[1:]), tuple(kwargs.items())) if args else UNKNOWN


def compile_function(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.compile(f)``: the same function; under a graph mode its calls are recorded by Inductor."""
    function = args[0] if args else kwargs.get("model", UNKNOWN)
    known = function is not UNKNOWN or vm.driver is not None
    if isinstance(node, ast.Call) and calls.compiles_with_graphs(node) and known:
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
    """``copy.deepcopy``: the same shape of value; an object of its own, whose attributes can be set apart."""
    value = args[0] if args else UNKNOWN
    found = vm.heap.get(value) if isinstance(value, Ref) else None
    if found is not None:
        return vm.heap.new(found)
    return replace(value, home=None, ident=vm.ident()) if isinstance(value, Tensor) else value


def identity(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """Functions that give their argument back: ``typing.cast``, markers."""
    return args[-1] if args else UNKNOWN


def default_device(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.set_default_device``."""
    vm.default_memory = transfers.memory_named(args[0]) if args else Memory.EITHER
    return NONE


def namespace(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``SimpleNamespace(a=...)``."""
    return vm.heap.new(Object(Sort.INSTANCE, "types.SimpleNamespace", as_slots(kwargs)))


def ordered_dict(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``OrderedDict``."""
    return python_calls.make_container(vm, "dict", args, kwargs)


def default_dict(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``defaultdict``: what its factory makes comes with the first look-up of a key."""
    made = python_calls.make_container(vm, "dict", args[1:], kwargs)
    if args and isinstance(made, Ref):
        vm.heap.replace(made, factory=args[0])
    return made


def counter(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``Counter``: numbers, 0 for what was not counted yet."""
    counted = Number() if args else None
    return vm.heap.new(Object(Sort.DICT, slots=as_slots(kwargs), element=counted, factory=External("builtins.int")))


def deque(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``collections.deque``."""
    return vm.new_list(args[0]) if args else vm.heap.new(Object(Sort.LIST))


def reduced_product(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``math.prod``."""
    return combined([vm.element(args[0])] if args else [])


def chained(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``itertools.chain``."""
    return Sequence(None, union([vm.element(arg) for arg in args]))


def iterated(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``itertools.cycle(items)`` and its like: an iterator over the items of another one."""
    return calls.new_iterator(vm, vm.element(args[0]) if args else UNKNOWN)


def operator_call(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``operator.add(a, b)`` and its like: arithmetic."""
    if torch_calls.tensors_in(args):
        return results.operate(vm, node, args)
    return combined(args) if all(isinstance(value, (Number, Const)) for value in args) else UNKNOWN


def reduced(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``functools.reduce(function, items)``."""
    if len(args) < 2:
        return UNKNOWN
    items = vm.items(args[1])
    items = [vm.element(args[1])] * 2 if items is None else items
    value, rest = (args[2], items) if len(args) > 2 else (items[0] if items else UNKNOWN, items[1:])
    for item in rest:
        value = vm.call(args[0], [value, item], {}, node)
    return value


def environment(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``os.environ.get(name, default)``: a switch that nobody turned is as its code leaves it."""
    return args[1] if len(args) > 1 else kwargs.get("default", NONE)


def asserted(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch._assert(condition, message)``: Python's ``assert``, which reads a condition on the device."""
    if args and isinstance(node, ast.Call) and node.args:
        conditions.ask(vm, args[0], node.args[0], "assert")
    return NONE


def seeded(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.manual_seed(n)``: a capture refuses any seed but the one that is set already."""
    if any(varies_of(value) is Varies.PER_STEP for value in [*args, *kwargs.values()]):
        vm.emit(EventKind.UNSAFE_OP, node, "seed")
    return UNKNOWN


def reparametrised(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``weight_norm(module)`` and what takes it away: the same module, whose weight is another tensor from then on."""
    module = args[0] if args else kwargs.get("module", UNKNOWN)
    if vm.driver is not None and isinstance(module, Ref):
        vm.driver.on_move(vm, module, None, node)
    return module


def met(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``dist.barrier()`` and collectives of Python objects: the host waits for the device."""
    vm.emit(EventKind.SYNC, node, "synchronize", Confidence.LIKELY, name="barrier")
    return UNKNOWN


def attribute_table(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``vars(instance)``: its attributes by name, which may be set through it."""
    made = as_dict(vm, args, kwargs, node)
    if isinstance(made, Ref) and isinstance(args[0], Ref):
        vm.attribute_tables[made.oid] = args[0]
    return made


def step_begun(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.compiler.cudagraph_mark_step_begin()``."""
    if vm.driver is not None:
        vm.untold += 1
        vm.driver.trees.on_step_begin()
    return NONE


def filled_by_vector(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``vector_to_parameters(vector, parameters)``: every parameter's ``data`` becomes a part of the vector."""
    walked = args[1] if len(args) > 1 else kwargs.get("parameters", UNKNOWN)
    for option in options(vm.element(walked)):
        if isinstance(option, Tensor) and vm.driver is not None:
            vm.driver.on_swap(vm, option, args[0] if args else UNKNOWN, node)
    return NONE


def exchanged(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.utils.swap_tensors(a, b)``: each name has the other's memory."""
    tensors = [tensor_in(value) for value in args]
    if len(tensors) == 2 and vm.driver is not None:
        for tensor, other in zip(tensors, reversed(args), strict=True):
            if tensor is not None:
                vm.driver.on_swap(vm, tensor, other, node)
    return NONE


def with_changes(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``dataclasses.replace(instance, field=value)``."""
    found = vm.heap.get(args[0]) if args and isinstance(args[0], Ref) else None
    if found is None or found.sort is not Sort.INSTANCE:
        return UNKNOWN
    return vm.heap.new(replace(found, slots={**found.slots, **as_slots(kwargs)}))


def as_dict(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``dataclasses.asdict(instance)``, ``vars(instance)``: its attributes by name."""
    found = vm.heap.get(args[0]) if args and isinstance(args[0], Ref) else None
    if found is None or found.sort is not Sort.INSTANCE:
        return UNKNOWN
    named = {key: value for key, value in found.slots.items() if not str(key).startswith("#")}
    return vm.heap.new(Object(Sort.DICT, slots=named, element=found.element, opaque=found.opaque))


def getter(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, kind: str) -> Value:
    """``operator.methodcaller(name, ...)``, ``attrgetter(name)``: a function of one object."""
    return Partial(External(f"#{kind}"), tuple(args), tuple(kwargs.items())) if args else UNKNOWN


def got(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, kind: str) -> Value:
    """What such a function gives for its object, the last argument."""
    if len(args) < 2:
        return UNKNOWN
    wanted, more, owner = args[0], args[1:-1], args[-1]
    name = constant(wanted)
    if not isinstance(name, str) or "." in name or (kind == "attrgetter" and more):
        return UNKNOWN
    found = vm.attribute(owner, name, node)
    return vm.call(found, more, kwargs, node) if kind == "methodcaller" else found


GETTERS = ("methodcaller", "attrgetter")
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "and_", "or_", "xor", "neg", "pow")
MEETINGS = ("barrier", "monitored_barrier", "all_gather_object", "gather_object", "broadcast_object_list")
REPARAMETRISED = (
    "weight_norm",
    "remove_weight_norm",
    "spectral_norm",
    "remove_spectral_norm",
    "parametrizations.weight_norm",
    "parametrizations.spectral_norm",
    "parametrizations.orthogonal",
    "parametrize.register_parametrization",
    "parametrize.remove_parametrizations",
)
SPECIAL: dict[str, Callable[[Interpreter, list[Value], dict[str, Value], ast.AST], Value]] = {
    "torch.device": make_device,
    "functools.partial": make_partial,
    "functools.reduce": reduced,
    **{f"operator.{name}": operator_call for name in OPERATORS},
    **{f"operator.{kind}": partial(getter, kind=kind) for kind in GETTERS},
    **{f"#{kind}": partial(got, kind=kind) for kind in GETTERS},
    "collections.namedtuple": lambda vm, args, kwargs, node: classes.record_class(vm, args, node),
    "typing.NamedTuple": lambda vm, args, kwargs, node: classes.record_class(vm, args, node),
    "contextlib.ExitStack": lambda vm, args, kwargs, node: managers.new_stack(vm),
    "contextlib.AsyncExitStack": lambda vm, args, kwargs, node: managers.new_stack(vm),
    "#leave": managers.left,
    "os.environ.get": environment,
    "os.getenv": environment,
    "dataclasses.replace": with_changes,
    "dataclasses.asdict": as_dict,
    "torch.vmap": identity,
    "torch.func.vmap": identity,
    "torch.compile": compile_function,
    "torch.nn.Parameter": parameter,
    "torch.nn.parameter.Parameter": parameter,
    "torch.nn.Buffer": parameter,
    **{f"torch.nn.utils.{name}": reparametrised for name in REPARAMETRISED},
    **{f"torch.distributed.{name}": met for name in MEETINGS},
    "torch.compiler.cudagraph_mark_step_begin": step_begun,
    "torch.Generator": generator,
    "torch.nn.utils.vector_to_parameters": filled_by_vector,
    "torch.nn.utils.convert_parameters.vector_to_parameters": filled_by_vector,
    "torch.utils.swap_tensors": exchanged,
    "copy.deepcopy": deep_copy,
    "copy.copy": deep_copy,
    "typing.cast": identity,
    "torch.compiler.disable": identity,
    "torch._dynamo.disable": identity,
    "torch.set_default_device": default_device,
    "types.SimpleNamespace": namespace,
    "argparse.Namespace": namespace,
    "builtins.object.__setattr__": lambda vm, args, kwargs, node: python_calls.set_attribute(
        vm, args, kwargs, node, None
    ),
    "logging.getLogger": lambda vm, args, kwargs, node: vm.heap.new(Object(Sort.INSTANCE, LOGGER)),
    "collections.OrderedDict": ordered_dict,
    "collections.defaultdict": default_dict,
    "collections.Counter": counter,
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
    "torch._assert": asserted,
    "torch._assert_async": lambda vm, args, kwargs, node: NONE,
    "torch.finfo": lambda vm, args, kwargs, node: vm.heap.new(Object(Sort.INSTANCE, "torch.finfo")),
    "torch.iinfo": lambda vm, args, kwargs, node: vm.heap.new(Object(Sort.INSTANCE, "torch.finfo")),
    "torch.manual_seed": seeded,
    "torch.random.manual_seed": seeded,
    "torch.cuda.manual_seed": seeded,
    "torch.cuda.manual_seed_all": seeded,
    "torch.Size": identity,
    "itertools.count": lambda vm, args, kwargs, node: calls.new_iterator(vm, Number()),
    **{f"itertools.{name}": iterated for name in ("cycle", "islice", "accumulate")},
    **{
        f"itertools.{name}": lambda vm, args, kwargs, node: python_calls.filtered(vm, args, kwargs, node, None)
        for name in ("takewhile", "dropwhile", "filterfalse")
    },
}


def call_bound(
    vm: Interpreter, function: BoundExternal, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """A method of a container, a module, a stream, a string."""
    owner, name = function.owner, function.name
    if isinstance(owner, Ref) and (found := vm.heap.get(owner)) is not None:
        match found.sort:
            case Sort.DICT:
                return containers.call_dict(vm, owner, found, name, args, kwargs, node)
            case Sort.LIST | Sort.SET:
                return containers.call_list(vm, owner, found, name, args, kwargs, node)
            case _:
                return call_instance(vm, owner, found, name, args, kwargs, node)
    if isinstance(owner, BoundExternal) and isinstance(owner.owner, Ref):
        return call_table(vm, owner.owner, name, args, kwargs, node)
    if isinstance(owner, Super):
        return super_forward(vm, owner, args, kwargs, node)
    if isinstance(owner, Sequence):
        return containers.call_sequence(vm, owner, name, args, node)
    if isinstance(owner, (Const, Text)) and (isinstance(constant(owner), str) or isinstance(owner, Text)):
        for value in [*args, *kwargs.values()] if name == "format" else []:
            torch_calls.formatted(vm, value, node)
        return call_text(owner, name, args)
    if name == "bit_length" and (known := int_constant(owner)) is not None:
        return Const(known.bit_length(), deps_of(owner))
    if isinstance(owner, (Const, Number)):
        return Number(varies_of(owner), deps_of(owner)) if name in ("bit_length", "is_integer", "item") else Number()
    return UNKNOWN


def looked_up(vm: Interpreter, owner: Ref, definition: ClassDef, args: list[Value], node: ast.AST) -> Value:
    """``Mapping.get(key, default)``, which asks ``__getitem__`` of the class."""
    getter = inheritance.find_method(vm, definition, "__getitem__")
    if getter is None or not any(str(base).endswith("Mapping") for base in inheritance.bases(vm, definition)):
        return UNKNOWN
    value = vm.call(attributes.bound(vm, owner, *getter, node), args[:1], {}, node)
    return value if value is not UNKNOWN else args[1] if len(args) > 1 else NONE


def set_attributes(vm: Interpreter, owner: Ref, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> None:
    """The attributes that ``update`` of an object's table sets."""
    for key, value in [*(pair for arg in args for pair in storage.entries(vm, arg)), *kwargs.items()]:
        attributes.store(vm, owner, key, value, node)


def call_table(
    vm: Interpreter, owner: Ref, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """``owner.__dict__.get(key, default)``, ``owner.__dict__.update(key=value)``."""
    if name == "update":
        set_attributes(vm, owner, args, kwargs, node)
        return NONE
    key = constant(args[0]) if args else None
    if name != "get" or not isinstance(key, str):
        return UNKNOWN
    value = attributes.assigned(vm, owner, key)
    return value if value is not None else args[1] if len(args) > 1 else NONE


TEXT_METHODS = frozenset(["startswith", "endswith", "removeprefix", "removesuffix", "lower", "upper", "strip"])


def call_text(owner: Const | Text, name: str, args: list[Value]) -> Value:
    """A method of a string: known where all texts are."""
    known = [constant(value) for value in (owner, *args)]
    if name in TEXT_METHODS and len(known) < 3 and all(isinstance(text, str) for text in known):
        return Const(getattr(str, name)(*known))
    return Text()


def super_forward(vm: Interpreter, owner: Super, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``super().forward(x)`` in a class derived from a layer of ``torch.nn``."""
    found = vm.heap.get(owner.owner) if isinstance(owner.owner, Ref) else None
    if found is None or not isinstance(owner.owner, Ref) or not isinstance(found.cls, ClassDef):
        return UNKNOWN
    return calls.inherited_forward(vm, owner.owner, found.cls, args, kwargs, node)


def call_instance(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods that an instance has from outside the analysed code."""
    cls = found.cls if isinstance(found.cls, str) else ""
    if cls in ("torch.cuda.Stream", "torch.cuda.Event"):
        return cuda_calls.call_stream(vm, owner, cls, name, args, node)
    if cls == "torch.cuda.CUDAGraph":
        return cuda_calls.call_graph(vm, owner, name, args, node)
    if cls == LOGGER:
        return logged(vm, name, args, node)
    if cls == "random.Random":
        return shuffled(vm, node) if name == "shuffle" else drawn(vm, node)
    if cls == nn_calls.HANDLE and name == "remove":
        nn_calls.remove_hook(vm, found)
        return NONE
    if cls == managers.STACK:
        return managers.call_stack(vm, owner, found, name, args, kwargs, node)
    if cls == "torch.Generator":
        return owner if name in ("manual_seed", "seed", "clone_state") else UNKNOWN
    if cls.startswith("torch.distributions."):
        return nn_calls.call_distribution(vm, found, name, args, node)
    if cls == "#compiled":
        return vm.call(attributes.load(vm, found.slots["function"], name, node), args, kwargs, node)
    if name == "__getattribute__" and args and isinstance(constant(args[0]), str):
        return attributes.plain_attribute(vm, owner, str(constant(args[0])), node)
    if name == "get" and args and isinstance(found.cls, ClassDef):
        return looked_up(vm, owner, found.cls, args, node)
    if name == "__init__":
        storage.fill_items(vm, owner, args)
        return NONE
    if name == "__setattr__":
        return python_calls.set_attribute(vm, [owner, *args], kwargs, node, None)
    if name == "_replace" and isinstance(found.cls, ClassDef):
        return with_changes(vm, [owner], kwargs, node)
    if cls == "" and not isinstance(found.cls, ClassDef):
        return UNKNOWN
    return nn_calls.call_nn_method(vm, owner, found, name, args, kwargs, node)
