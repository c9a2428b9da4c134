"""What calls into torch do and return, by the operation catalogue.

One table answers for functions, methods and ``torch.nn`` modules alike: the name decides the effect (with its
conditions on the arguments) and the sort of result. What the catalogue does not list has no effect and returns a
tensor of the widest operand's rank where an operand is a tensor, else nothing known.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from capturelint.catalog import Case, Operation
from capturelint.static import attributes
from capturelint.static.homes import Object, Sort
from capturelint.static.index import ClassDef
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Device,
    Dtype,
    External,
    Home,
    Kind,
    Memory,
    Number,
    Ref,
    Sequence,
    Tensor,
    Text,
    Value,
    constant,
    deps_of,
    element_of,
    int_constant,
    options,
    tensor_in,
    union,
    varies_of,
)
from capturelint.vocabulary import Confidence, Effect, EventKind, Phase, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

EVENTS = {
    Effect.READ: EventKind.SYNC,
    Effect.DYNAMIC_SHAPE: EventKind.DYNAMIC_SHAPE,
    Effect.UPLOAD: EventKind.UPLOAD,
    Effect.SYNCHRONIZE: EventKind.SYNC,
    Effect.QUERY: EventKind.SYNC,
    Effect.CHECKED: EventKind.SYNC,
    Effect.UNSAFE: EventKind.UNSAFE_OP,
    Effect.DIFFERS: EventKind.UNSAFE_OP,
}
PREFIXES = ("torch.nn.functional.", "torch.Tensor.", "torch.special.", "torch._C._nn.", "torch._refs.", "torch.")
MAX_DEPS = 12
METADATA_ARGUMENTS = frozenset(
    {"dim", "dims", "dtype", "device", "layout", "keepdim", "out", "memory_format", "generator"}
)


def operation_name(path: str) -> str:
    """The catalogue's name of a dotted path: ``torch.nn.functional.softmax`` -> ``softmax``."""
    for prefix in PREFIXES:
        if path.startswith(prefix):
            return path[len(prefix) :]
    return path


def find_operation(vm: Interpreter, name: str) -> Operation | None:
    """The catalogue's row; in-place names share their base's row, ``nn.functional.`` is optional."""
    table = vm.catalog.operations
    for spelled in (name, f"nn.functional.{name}", name.rstrip("_"), f"nn.functional.{name.rstrip('_')}"):
        if (found := table.get(spelled)) is not None:
            return found
    return None


def sorts_of(vm: Interpreter, name: str) -> frozenset[str]:
    """The sorts of result that a name is listed under."""
    results = vm.catalog.results
    return (
        results.get(name)
        or results.get(name.removeprefix("nn.functional."))
        or results.get(name.rstrip("_"))
        or frozenset()
    )


# -------------------------------------------------------------------- operands


def tensors_in(values: list[Value]) -> list[Tensor]:
    """The tensors among values, looking into sequences one level deep."""
    found: list[Tensor] = []
    for value in values:
        tensor = tensor_in(value)
        if tensor is not None:
            found.append(tensor)
        elif isinstance(value, Sequence):
            found += [t for t in map(tensor_in, value.items or (value.element,)) if t is not None]
    return found


def flatten(vm: Interpreter, values: list[Value]) -> list[Value]:
    """Values with lists and tuples opened."""
    flat: list[Value] = []
    for value in values:
        for option in options(value):
            if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None and found.sort is Sort.LIST:
                flat += [vm.heap.read(option, key) or UNKNOWN for key in found.slots]
                flat += [found.element] if found.element is not None else []
            elif isinstance(option, Sequence):
                flat += list(option.items) if option.items is not None else [option.element]
            else:
                flat.append(option)
    return flat


def use(vm: Interpreter, tensors: list[Tensor]) -> None:
    """Note that a step's inherited tensors are read by device work."""
    for tensor in tensors:
        if tensor.home is not None:
            vm.step.used.add(tensor.home)
        if vm.driver is not None:
            vm.driver.on_use(vm, tensor)


def report_varying(vm: Interpreter, value: Value, node: ast.AST, how: str, name: str = "") -> None:
    """A host value that changes at every step reached recorded code: what it is now is baked."""
    for option in options(value):
        if isinstance(option, Number) and option.varies is Varies.PER_STEP and not option.read:
            if option.drawn is not None:
                vm.emit(EventKind.RANDOM, option.drawn, "drawn", option.sure, name=option.drawn.code)
                return
            sure = option.sure if len(options(value)) == 1 else min(option.sure, Confidence.LIKELY)
            names = sorted(str(dep) for dep in option.deps if isinstance(dep.key, str))
            vm.emit(
                EventKind.BAKED_SCALAR,
                node,
                how,
                sure,
                name=name or (names[0] if names else ""),
                varies=Varies.PER_STEP,
            )
            return


def result(
    vm: Interpreter,
    operands: list[Value],
    node: ast.AST,
    rank: int | None = None,
    kind: Kind | None = None,
    **more: object,
) -> Tensor:
    """A new tensor computed from operands: on the device where one operand is."""
    flat = flatten(vm, operands)
    tensors = tensors_in(flat)
    use(vm, tensors)
    devices = [t for t in tensors if t.memory is Memory.DEVICE]
    eithers = [t for t in tensors if t.memory is Memory.EITHER]
    memory = Memory.DEVICE if devices else Memory.EITHER if eithers else Memory.HOST
    deps = frozenset().union(*map(deps_of, flat)) if flat else frozenset()
    if memory is not Memory.HOST and vm.phase is not Phase.SET_UP:
        vm.step.work += 1
    if memory is not Memory.HOST and vm.recording:
        fork(vm, node)
    deciding = devices or eithers or tensors
    fields: dict[str, object] = {
        "memory": memory,
        "rank": rank,
        "kind": kind or (tensors[0].kind if tensors else Kind.UNKNOWN),
        "sure": max((t.sure for t in deciding), default=Confidence.CERTAIN),
        "ident": vm.ident(),
        "recorded": vm.recording,
        "negative": any(t.negative for t in tensors),
        "varies": max((varies_of(v) for v in flat), default=Varies.NEVER) if memory is Memory.HOST else Varies.NEVER,
        "deps": frozenset(sorted(deps, key=str)[:MAX_DEPS]) if len(deps) > MAX_DEPS else deps,
    }
    return Tensor(**{**fields, **more})  # type: ignore[arg-type]


def fork(vm: Interpreter, node: ast.AST) -> None:
    """Device work under ``with torch.cuda.stream(side)`` while recording."""
    if vm.stream_stack and (found := vm.side_streams.get(vm.stream_stack[-1])) is not None:
        found.joined = False


def operate(
    vm: Interpreter,
    node: ast.AST,
    operands: list[Value],
    *,
    in_place: Tensor | None = None,
    matmul: bool = False,
    compare: bool = False,
    op: object = None,
) -> Value:
    """An arithmetic operator on at least one tensor."""
    for operand in operands:
        tensor = tensor_in(operand)
        if tensor is None:
            report_varying(vm, operand, node, "kernel-argument")
    tensors = tensors_in(operands)
    host = [t for t in tensors if t.on_host and t.varies is Varies.PER_STEP]
    if host and any(t.on_device for t in tensors):
        report_varying(vm, Number(Varies.PER_STEP, host[0].deps), node, "kernel-argument")
    ranks = [t.rank for t in tensors]
    rank = None if None in ranks or matmul else max(r for r in ranks if r is not None)
    kind = Kind.BOOL if compare else None
    if kind is None and any(t.kind is Kind.FLOAT for t in tensors):
        kind = Kind.FLOAT
    if isinstance(op, ast.Div):
        kind = Kind.FLOAT
    made = result(vm, operands, node, rank, kind)
    if in_place is not None:
        mutate(vm, in_place, node, made)
        return in_place
    if isinstance(made, Tensor) and (compare or isinstance(op, (ast.Mod, ast.BitAnd, ast.Invert))):
        wraps = isinstance(op, ast.Mod)
        return replace(made, negative=made.negative and wraps)
    return made


def mutate(vm: Interpreter, target: Tensor, node: ast.AST, source: Value | None = None) -> None:
    """An in-place write. Outside set-up it is remembered by home: what depends on itself advances with every run."""
    if vm.phase is Phase.SET_UP:
        return
    if target.on_device:
        vm.step.work += 1
        if vm.recording:
            fork(vm, node)
    if target.home is not None:
        vm.step.mutated.setdefault(target.home, vm.site(node))
    if vm.compiled and vm.recording and is_compiled_input(vm, target):
        vm.emit(
            EventKind.MUTATED_INPUT, node, "in-place", min(target.sure, Confidence.LIKELY), name=str(target.home or "")
        )
    if vm.driver is not None:
        vm.driver.on_mutate(vm, target, source, node)


def is_compiled_input(vm: Interpreter, target: Tensor) -> bool:
    """Whether Dynamo passes the tensor to the compiled graph as an input without a static address.

    Parameters and buffers of modules have one; arguments, and attributes of any other object, do not
    (torch.compiler_cudagraph_trees, "Input Mutation Support").
    """
    if target.argument:
        return True
    found = vm.heap.objects.get(target.home.owner) if target.home is not None else None
    if found is None or target.parameter or not target.on_device:
        return False
    plain = isinstance(found.cls, ClassDef) and not attributes.is_module(vm, found.cls)
    return found.sort is Sort.INSTANCE and plain


def row(vm: Interpreter, tensor: Tensor) -> Value:
    """One element along the first dimension: a view."""
    rank = tensor.rank - 1 if tensor.rank else None
    return replace(tensor, rank=rank, view=True, extends=None, rows=None)


def formatted(vm: Interpreter, value: Value, node: ast.AST) -> None:
    """Text of a device tensor needs its values."""
    tensor = tensor_in(value)
    if tensor is not None and tensor.on_device:
        vm.emit(EventKind.SYNC, node, "format", tensor.sure)
        return
    if isinstance(value, Sequence):
        inner = tensor_in(element_of(value))
        if inner is not None and inner.on_device:
            vm.emit(EventKind.SYNC, node, "format", min(inner.sure, Confidence.LIKELY))


# -------------------------------------------------------------------- calls


def arguments(operation: Operation, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """Arguments by the catalogue's parameter names."""
    return {**dict(zip(operation.params, args, strict=False)), **kwargs}


def holds(case: Case, given: dict[str, Value], extra: bool) -> bool | None:
    """Whether a case's condition holds; ``None`` where unknown arguments decide it."""
    if extra and (case.absent or case.given):
        return None
    if any(name in given and given[name] != Const(-1) and given[name] != NONE for name in case.absent):
        return False
    if any(name not in given or given[name] == NONE for name in case.given):
        return False
    if case.device and not any((t := tensor_in(given.get(name, UNKNOWN))) and t.on_device for name in case.device):
        return False
    return not (case.host and not any((t := tensor_in(given.get(name, UNKNOWN))) and t.on_host for name in case.host))


def apply_effect(
    vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> None:
    """Emit what the catalogue says this call does to a capture."""
    operation = find_operation(vm, name)
    if operation is None:
        if not any(sorts_of(vm, name)):
            vm.unlisted.add(name)
        return
    tensors = [t for t in tensors_in(flatten(vm, [*args, *kwargs.values()])) if t.memory is Memory.DEVICE]
    if not tensors:
        return
    sure = max(t.sure for t in tensors)
    for case in operation.cases:
        verdict = holds(case, arguments(operation, args, kwargs), extra)
        if verdict is False or case.effect is Effect.SAFE:
            continue
        if case.possible or verdict is None:
            sure = Confidence.POSSIBLE
        vm.emit(EVENTS[case.effect], node, how_of(vm, name, case), sure, name=name, torch=case.torch)
        return


NAMED_READS = frozenset({"item", "tolist", "cpu", "numpy", "save"})


def how_of(vm: Interpreter, name: str, case: Case) -> str:
    """What tells this event from others of its kind."""
    if case.effect is Effect.READ:
        return name if name in NAMED_READS else "sampling" if "random" in sorts_of(vm, name) else "operation"
    return str(case.effect.value)


def call_function(
    vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """A call of ``torch.<path>``."""
    name = operation_name(path)
    if name.startswith("cuda.") or path.startswith(
        ("torch.nn.init.", "torch.compiler.", "torch._dynamo.", "torch.backends.")
    ):
        return UNKNOWN
    return call(vm, name, args, kwargs, node, extra, method=False)


def call_method(
    vm: Interpreter, tensor: Tensor, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """A call of ``tensor.<name>``."""
    return call(vm, name, [tensor, *args], kwargs, node, extra, method=True)


def call(
    vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool, method: bool
) -> Value:
    """Effect, then result, of one operation."""
    sorts = sorts_of(vm, name)
    flat = flatten(vm, [*args, *kwargs.values()])
    tensors = tensors_in(flat)
    if "moves" in sorts and method:
        return move(vm, name, args, kwargs, node)
    if "uploaded" in sorts or name in ("new_tensor",):
        return from_host(vm, name, args, kwargs, node)
    apply_effect(vm, name, args, kwargs, node, extra)
    if name == "pin_memory" and (held := tensor_in(args[0])) is not None:
        return pinned(vm, held, node)
    if name in ("item", "tolist", "numpy"):
        return read_value(vm, name, args, tensors)
    if "host" in sorts:
        return host_result(vm, name, args, tensors)
    if "shape" in sorts:
        return size_call(args, kwargs)
    check_sizes(vm, name, sorts, args, kwargs, node, method)
    baked_arguments(vm, name, args, kwargs, node, method)
    random_generator(vm, sorts, kwargs, node)
    if "factory" in sorts and not (method and name.startswith("new_")):
        return factory(vm, name, args, kwargs, node)
    if not tensors:
        return UNKNOWN
    if name.endswith("_") and not name.endswith("__") and args and (target := tensor_in(args[0])) is not None:
        return in_place(vm, name, target, args, kwargs, node)
    return shaped(vm, name, sorts, args, kwargs, node)


def pinned(vm: Interpreter, tensor: Tensor, node: ast.AST) -> Value:
    """``x.pin_memory()``: a new block; made in the step, nothing rewrites it before a replay."""
    vm.emit(EventKind.STAGING, node, "pinned-made-in-step", tensor.sure, name="pin_memory")
    return replace(tensor, memory=Memory.PINNED, home=None, ident=vm.ident(), placed=True)


def read_value(vm: Interpreter, name: str, args: list[Value], tensors: list[Tensor]) -> Value:
    """``item``, ``tolist``, ``numpy``: host values that were on the device a moment ago."""
    on_device = any(t.on_device for t in tensors)
    varies = Varies.PER_STEP if on_device else max((t.varies for t in tensors), default=Varies.NEVER)
    deps = frozenset() if on_device else frozenset().union(*(t.deps for t in tensors)) if tensors else frozenset()
    number = Number(varies, deps, read=on_device or varies is not Varies.PER_STEP)
    return number if name == "item" else vm.new_list(Sequence(None, number))


def host_result(vm: Interpreter, name: str, args: list[Value], tensors: list[Tensor]) -> Value:
    """Metadata."""
    if name in ("dim", "ndimension") and tensors and tensors[0].rank is not None:
        return Const(tensors[0].rank)
    if name in ("numel", "nelement"):
        return Number(Varies.PER_BUCKET)
    if name == "is_tensor" and args:
        return Const(isinstance(args[0], Tensor)) if not isinstance(args[0], type(UNKNOWN)) else Number()
    if name in ("equal", "allclose", "is_nonzero"):
        return Number(Varies.PER_STEP, read=True)
    return Number()


def size_call(args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``size()``, ``size(d)``, ``stride()``."""
    tensor = tensor_in(args[0]) if args else None
    shape = attributes.shape_of(tensor) if tensor is not None else Sequence(None, Number(Varies.PER_BUCKET), shape=True)
    dim = int_constant(args[1]) if len(args) > 1 else int_constant(kwargs.get("dim", UNKNOWN))
    if len(args) == 1 and "dim" not in kwargs:
        return shape
    if shape.items is not None and dim is not None and -len(shape.items) <= dim < len(shape.items):
        return shape.items[dim]
    return element_of(shape)


def check_sizes(
    vm: Interpreter,
    name: str,
    sorts: frozenset[str],
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    method: bool,
) -> None:
    """A device number where a size must be a host integer is read."""
    if "view" in sorts:
        sizes = args[1:]
    elif "factory" in sorts and name not in ("full", "scalar_tensor", "normal"):
        sizes = args
    elif name == "full":
        sizes = args[:1]
    else:
        return
    for value in flatten(vm, [*sizes, *([kwargs["size"]] if "size" in kwargs else [])]):
        tensor = tensor_in(value)
        if tensor is not None and tensor.on_device:
            vm.emit(EventKind.SYNC, node, "size", tensor.sure, name=name)
            return


def baked_arguments(
    vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, method: bool
) -> None:
    """A number that changes at every step, passed to a kernel."""
    if not vm.recording:
        return
    for key, value in [("", v) for v in args] + list(kwargs.items()):
        if key in METADATA_ARGUMENTS:
            continue
        for inner in flatten(vm, [value]):
            report_varying(vm, inner, node, "kernel-argument", name="")


def random_generator(vm: Interpreter, sorts: frozenset[str], kwargs: dict[str, Value], node: ast.AST) -> None:
    """Drawing from a generator that no graph knows is refused."""
    if "random" not in sorts or not vm.recording:
        return
    generator = kwargs.get("generator", NONE)
    for option in options(generator):
        found = vm.heap.get(option) if isinstance(option, Ref) else None
        if found is not None and found.cls == "torch.Generator" and "#registered" not in found.slots:
            sure = Confidence.CERTAIN if option is generator else Confidence.LIKELY
            vm.emit(EventKind.RANDOM, node, "generator", sure)


def device_argument(vm: Interpreter, kwargs: dict[str, Value], default: Memory) -> Memory:
    """The memory that a ``device=`` argument names."""
    value = kwargs.get("device", NONE)
    if value == NONE:
        return default
    found = {memory_named(option) for option in options(value)}
    return found.pop() if len(found) == 1 else Memory.EITHER


def memory_named(value: Value) -> Memory:
    """The memory of a device value: ``torch.device``, ``"cuda:0"``, ``"cpu"``."""
    if isinstance(value, Device):
        return value.memory
    text = constant(value)
    if isinstance(text, str):
        return Memory.HOST if text == "cpu" else Memory.DEVICE if text.startswith(("cuda", "hip")) else Memory.EITHER
    return Memory.DEVICE if isinstance(text, int) and not isinstance(text, bool) else Memory.EITHER


def kind_argument(kwargs: dict[str, Value], default: Kind) -> Kind:
    """The element kind that a ``dtype=`` argument names."""
    value = kwargs.get("dtype", NONE)
    return value.kind if isinstance(value, Dtype) else default if value == NONE else Kind.UNKNOWN


def factory(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``zeros``, ``arange``, ...: a new tensor on the device that ``device=`` names, else the default one."""
    memory = device_argument(vm, kwargs, vm.default_memory)
    if memory is Memory.HOST and constant(kwargs.get("pin_memory", NONE)) is True:
        memory = Memory.PINNED
    sizes = args[:1] if name == "full" else args[1:2] if name == "randint" and len(args) == 2 else args
    if name == "randint" and len(args) >= 3:
        sizes = [args[2]]
    if "size" in kwargs:
        sizes = [kwargs["size"]]
    rank = size_rank(vm, sizes)
    if name in ("arange", "linspace", "logspace", "randperm"):
        rank = 1
    elif name in ("eye", "tril_indices", "triu_indices"):
        rank = 2
    elif name == "scalar_tensor":
        rank = 0
    default = Kind.INT if name in ("arange", "randint", "randperm", "tril_indices", "triu_indices") else Kind.FLOAT
    fill = args[1] if name == "full" and len(args) > 1 else kwargs.get("fill_value", UNKNOWN)
    if name == "full":
        default = kind_of(fill)
    first = flatten(vm, sizes)[:1]
    number = constant(fill)
    varies = max((varies_of(v) for v in flatten(vm, [*args, *kwargs.values()])), default=Varies.NEVER)
    if memory is not Memory.HOST and vm.phase is not Phase.SET_UP:
        vm.step.work += 1
    return Tensor(
        memory,
        rank,
        kind_argument(kwargs, default),
        ident=vm.ident(),
        rows=int_constant(first[0]) if first and name in ("zeros", "ones", "empty", "full", "rand", "randn") else None,
        recorded=vm.recording,
        negative=isinstance(number, (int, float)) and number < 0,
        varies=varies if varies is Varies.PER_STEP and memory is not Memory.DEVICE else Varies.NEVER,
        deps=frozenset().union(*map(deps_of, flatten(vm, args))) if args else frozenset(),
        placed="device" in kwargs or memory is Memory.PINNED,
    )


def kind_of(value: Value) -> Kind:
    """The element kind that a host value gives a tensor."""
    found = constant(value)
    match found:
        case bool():
            return Kind.BOOL
        case int():
            return Kind.INT
        case float():
            return Kind.FLOAT
        case _:
            return Kind.UNKNOWN


def size_rank(vm: Interpreter, sizes: list[Value]) -> int | None:
    """The rank that size arguments describe: ``(2, 3)``, ``((2, 3),)``, ``x.shape``."""
    if len(sizes) != 1:
        return len(sizes)
    items = vm.items(sizes[0])
    if items is not None:
        return len(items)
    return 1 if isinstance(sizes[0], (Const, Number)) else None


def from_host(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.tensor(data, device=...)``: built in host memory and, for a device, uploaded from pageable memory."""
    is_new = name == "new_tensor"
    source = args[1] if is_new and len(args) > 1 else args[0] if args else kwargs.get("data", UNKNOWN)
    present = tensor_in(source)
    default = tensor_in(args[0]).memory if is_new and tensor_in(args[0]) else vm.default_memory  # type: ignore[union-attr]
    memory = device_argument(vm, kwargs, present.memory if present is not None else default)
    flat = flatten(vm, [source])
    inner = tensors_in(flat)
    if present is not None and present.on_device and memory is not Memory.HOST:
        return present if name in ("as_tensor", "asarray") else replace(present, home=None, ident=vm.ident())
    if any(t.on_device for t in inner) and present is None:
        vm.emit(EventKind.SYNC, node, "tensor-of-tensors", inner[0].sure, name=name)
    elif memory is Memory.DEVICE:
        vm.emit(EventKind.UPLOAD, node, "tensor" if present is None else "to", name=name)
    if memory is Memory.HOST and constant(kwargs.get("pin_memory", NONE)) not in (False, None, Const):
        memory = Memory.PINNED
        vm.emit(EventKind.STAGING, node, "pinned-made-in-step", name=name)
    rank = present.rank if present is not None else nesting(vm, source)
    varies = max((varies_of(v) for v in flat), default=Varies.NEVER)
    return Tensor(
        memory,
        rank,
        kind_argument(kwargs, present.kind if present is not None else kind_of(flat[0]) if flat else Kind.UNKNOWN),
        ident=vm.ident(),
        recorded=vm.recording,
        varies=varies if any(isinstance(v, Number) and not v.read for v in flat) else Varies.NEVER,
        deps=frozenset().union(*map(deps_of, flat)) if flat else frozenset(),
        negative=any(isinstance(n := constant(v), int) and n < 0 for v in flat),
        placed="device" in kwargs or memory is Memory.PINNED,
    )


def nesting(vm: Interpreter, value: Value) -> int | None:
    """The rank of a tensor made from nested lists."""
    if isinstance(value, (Const, Number)):
        return 0
    items = vm.items(value)
    if items is not None:
        inner = nesting(vm, items[0]) if items else 0
        return inner + 1 if inner is not None else None
    if isinstance(value, (Sequence, Ref)):
        inner = nesting(vm, vm.element(value))
        return inner + 1 if inner is not None else None
    return None


def move(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``to``, ``cuda``, ``cpu``, ``type``: a copy between memories, or a conversion where it stays."""
    tensor = tensor_in(args[0])
    if tensor is None:
        return UNKNOWN
    use(vm, [tensor])
    wanted, kind = destination(vm, name, args[1:], kwargs, tensor)
    non_blocking = constant(kwargs.get("non_blocking", NONE))
    kind = kind or tensor.kind
    moved = replace(tensor, memory=wanted, kind=kind, extends=None)
    if wanted is Memory.HOST and tensor.on_device:
        vm.emit(EventKind.SYNC, node, "to-cpu" if name != "cpu" else "cpu", tensor.sure, name=name)
        return replace(moved, home=None, ident=vm.ident(), deps=frozenset())
    if wanted is Memory.DEVICE and tensor.on_host:
        pinned_source(vm, tensor, node, non_blocking) if tensor.memory is Memory.PINNED else upload(
            vm, tensor, node, name
        )
        return replace(moved, home=None, ident=vm.ident(), recorded=vm.recording)
    if wanted is tensor.memory and kind is tensor.kind:
        return tensor
    return replace(moved, ident=vm.ident(), home=tensor.home if wanted is tensor.memory else None, view=True)


def upload(vm: Interpreter, tensor: Tensor, node: ast.AST, name: str) -> None:
    """Pageable memory copied to the device."""
    vm.emit(EventKind.UPLOAD, node, "to", tensor.sure, name=name)


def pinned_source(vm: Interpreter, tensor: Tensor, node: ast.AST, non_blocking: object) -> None:
    """Pinned memory: refused when blocking; when not, replay reads whatever the host block then holds."""
    if non_blocking is not True:
        vm.emit(EventKind.UPLOAD, node, "pinned-blocking", tensor.sure)


def destination(
    vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], tensor: Tensor
) -> tuple[Memory, Kind | None]:
    """Where a move ends, and with which element kind (``None``: the same)."""
    if name == "cpu":
        return Memory.HOST, None
    if name == "cuda":
        return Memory.DEVICE, None
    memory, kind = tensor.memory, None
    for value in [
        *args[:2],
        *([kwargs["device"]] if "device" in kwargs else []),
        *([kwargs["dtype"]] if "dtype" in kwargs else []),
    ]:
        for option in options(value):
            match option:
                case Dtype():
                    kind = option.kind
                case Device() | Const(value=str()):
                    memory = memory_named(option) if not isinstance(constant(option), bool) else memory
                case Tensor():
                    memory, kind = option.memory, option.kind
                case External(path=path) if path.endswith("Tensor"):
                    memory = Memory.DEVICE if ".cuda." in path else Memory.HOST
                case Const(value=None) | Const(value=bool()):
                    pass
                case _:
                    memory, kind = (Memory.EITHER if name == "to" and tensor.on_host else memory), Kind.UNKNOWN
    return memory, kind


ACCUMULATES = frozenset(
    {"add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "logical_or_", "logical_and_", "pow_"}
)


def in_place(
    vm: Interpreter, name: str, target: Tensor, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """``x.add_(...)``: the same tensor, written."""
    sources = [*args[1:], *kwargs.values()]
    tensors = tensors_in(flatten(vm, sources))
    rewrites = name in ("copy_", "zero_", "fill_")
    use(vm, tensors if rewrites else [target, *tensors])
    if name == "copy_" and tensors:
        copied_in(vm, target, tensors[0], kwargs, node)
    if name == "fill_" and len(args) > 1:
        number = constant(args[1])
        target = replace(target, negative=isinstance(number, (int, float)) and number < 0)
    source: Value = UNKNOWN
    if tensors or not rewrites:
        source = result(vm, [*([] if name not in ACCUMULATES else [target]), *sources], node)
        if name != "copy_" and name not in ACCUMULATES and isinstance(source, Tensor):
            source = replace(source, deps=frozenset())  # a write at a position is not a function of what was there
    mutate(vm, target, node, source)
    return target


def copied_in(vm: Interpreter, target: Tensor, source: Tensor, kwargs: dict[str, Value], node: ast.AST) -> None:
    """``copy_`` between memories."""
    non_blocking = constant(kwargs.get("non_blocking", NONE))
    if target.on_device and source.on_host:
        if source.memory is Memory.PINNED:
            pinned_source(vm, source, node, non_blocking)
        else:
            upload(vm, source, node, "copy_")
    elif target.on_host and source.on_device and not (target.memory is Memory.PINNED and non_blocking is True):
        vm.emit(EventKind.SYNC, node, "copy-to-host", source.sure, name="copy_")


def shaped(
    vm: Interpreter, name: str, sorts: frozenset[str], args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """The result of an operation that makes a tensor, or several."""
    first = tensor_in(args[0]) if args else None
    flat = tensors_in(flatten(vm, args))
    lead = first or (flat[0] if flat else None)
    if lead is None:
        lead = tensors_in(flatten(vm, list(kwargs.values())))[0]
    kind = Kind.BOOL if "bool" in sorts else Kind.INT if "int" in sorts else None
    if name == "where" and len(args) > 2:
        kind = chosen_kind(args[1], args[2])  # of the values, not of the mask
    operands = [*args, *kwargs.values()]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else NONE)
    rank = lead.rank
    if "pair" in sorts:
        return pair(vm, name, lead, operands, dim, kwargs, node)
    if "parts" in sorts:
        inner = (rank - 1 if rank else None) if name == "unbind" else rank
        part = as_view(result(vm, operands, node, inner), lead)
        count = int_constant(args[1]) if name in ("chunk", "tensor_split") and len(args) > 1 else None
        return Sequence((part,) * count) if count and count <= 8 else Sequence(None, part)
    if "reduce" in sorts:
        rank = reduced_rank(vm, lead, dim, kwargs, name)
        made = result(vm, operands, node, rank, kind)
        return as_view(made, lead) if name == "select" else made
    if "matmul" in sorts:
        return result(vm, operands, node, lead.rank if name in ("matmul", "mm", "bmm") and lead.rank != 1 else None)
    if "wider" in sorts:
        base = tensor_in(args[0]) if name != "stack" and args else (flat[0] if flat else None)
        if name.endswith("embedding") and len(args) > 1:
            base = tensor_in(args[0])
        rank = base.rank + 1 if base is not None and base.rank is not None else None
        made = result(vm, operands, node, rank, Kind.FLOAT if name.endswith("embedding") else kind)
        if name == "stack":
            return concatenated(vm, made, flat, node)
        return as_view(made, lead) if name == "unsqueeze" else made
    if "squeeze" in sorts:
        rank = rank - 1 if rank and int_constant(dim) is not None else None
        return as_view(result(vm, operands, node, rank, kind), lead)
    if "view" in sorts:
        rank = size_rank(vm, args[1:]) if len(args) > 1 else None
        if name.startswith("new_"):
            return result(vm, args[:1], node, rank, kind_argument(kwargs, lead.kind))
        return as_view(result(vm, operands, node, rank, kind), lead)
    if "flatten" in sorts:
        return as_view(
            result(vm, operands, node, 1 if len(args) == 1 and not kwargs and name != "unflatten" else None), lead
        )
    if name in CONCATENATIONS:
        return concatenated(vm, result(vm, operands, node, rank, kind), flat, node)
    if name in ("pad", "nn.functional.pad"):
        return concatenated(vm, result(vm, operands, node, rank, kind), [lead, lead], node)
    if "same" in sorts:
        if name.endswith("_like"):
            return like(vm, name, lead, args, kwargs)
        made = result(vm, operands, node, rank, kind or lead.kind)
        if name in NON_NEGATIVE:
            made = replace(made, negative=False)
        return as_view(made, lead) if name in VIEWS else made
    if len(flat) == 1 and name not in ("where",):
        return result(vm, operands, node, None, kind)
    ranks = [t.rank for t in flat]
    widest = None if None in ranks or not ranks else max(r for r in ranks if r is not None)
    made = result(vm, operands, node, widest if name in BROADCAST else None, kind)
    return replace(made, negative=False) if name in NON_NEGATIVE else made


def chosen_kind(left: Value, right: Value) -> Kind:
    """The element kind of ``where(mask, left, right)``."""
    kinds = {t.kind if (t := tensor_in(value)) is not None else kind_of(value) for value in (left, right)}
    if Kind.FLOAT in kinds:
        return Kind.FLOAT
    return kinds.pop() if len(kinds) == 1 else Kind.INT if kinds == {Kind.INT, Kind.BOOL} else Kind.UNKNOWN


CONCATENATIONS = frozenset({"cat", "concat", "concatenate", "vstack", "hstack", "dstack", "row_stack", "column_stack"})
NON_NEGATIVE = frozenset({"abs", "clamp", "clamp_min", "relu", "where", "masked_fill", "maximum", "square"})
"""Operations by which code replaces the negative slots of padded rows."""
VIEWS = frozenset(
    [
        "transpose",
        "permute",
        "swapaxes",
        "movedim",
        "narrow",
        "expand_as",
        "view_as",
        "reshape_as",
        "t",
        "detach",
        "contiguous",
        "requires_grad_",
    ]
)
BROADCAST = frozenset(
    [
        "where",
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "fmod",
        "remainder",
        "true_divide",
        "floor_divide",
        "atan2",
        "masked_fill",
        "lerp",
        "isclose",
        "bitwise_xor",
        "isin",
    ]
)


def as_view(made: Value, lead: Tensor) -> Value:
    """A result that shares memory with its source keeps the source's home."""
    if isinstance(made, Tensor):
        return replace(made, home=lead.home, view=True, kind=lead.kind, ident=lead.ident, recorded=lead.recorded,
                       negative=lead.negative, extends=lead.extends, made=lead.made, memory=lead.memory)  # fmt: skip
    return made


def concatenated(vm: Interpreter, made: Value, parts: list[Tensor], node: ast.AST) -> Value:
    """A concatenation with a whole home among its parts is longer than that home."""
    homes = [t.home for t in parts if t.home is not None and not t.view and not t.parameter]
    if isinstance(made, Tensor) and homes and len(parts) > 1 and vm.phase is not Phase.SET_UP:
        return replace(made, extends=homes[0], made=vm.site(node))
    extended = next((t for t in parts if t.extends is not None), None)
    if isinstance(made, Tensor) and extended is not None:
        return replace(made, extends=extended.extends, made=extended.made)
    return made


def like(vm: Interpreter, name: str, lead: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``zeros_like``, ...: a new tensor beside another one."""
    number = constant(args[1]) if name == "full_like" and len(args) > 1 else None
    if lead.memory is not Memory.HOST and vm.phase is not Phase.SET_UP:
        vm.step.work += 1
    return replace(
        lead,
        memory=device_argument(vm, kwargs, lead.memory),
        kind=kind_argument(kwargs, lead.kind),
        home=None,
        view=False,
        extends=None,
        ident=vm.ident(),
        recorded=vm.recording,
        negative=isinstance(number, (int, float)) and number < 0,
        deps=frozenset(),
        parameter=False,
    )


def pair(
    vm: Interpreter, name: str, lead: Tensor, operands: list[Value], dim: Value, kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """``max(dim)``, ``topk``, ``sort``: values and indices; ``max()`` of everything is 0-d."""
    if name in ("max", "min", "median", "mode") and dim == NONE:
        return result(vm, operands, node, 0)
    if name in ("max", "min") and tensor_in(dim) is not None:
        return result(vm, operands, node, lead.rank)
    keeps = name in ("sort", "topk", "cummin") or constant(kwargs.get("keepdim", NONE)) is True
    rank = lead.rank if keeps else lead.rank - 1 if lead.rank else None
    values = result(vm, operands, node, rank)
    indices: Value = replace(values, kind=Kind.INT, ident=vm.ident()) if isinstance(values, Tensor) else UNKNOWN
    if name in ("var_mean", "std_mean", "aminmax"):
        indices = values
    return Sequence((values, indices))


def reduced_rank(vm: Interpreter, lead: Tensor, dim: Value, kwargs: dict[str, Value], name: str) -> int | None:
    """The rank after a reduction."""
    if dim == NONE or isinstance(dim, Dtype):
        return 0
    if constant(kwargs.get("keepdim", NONE)) is True:
        return lead.rank
    if lead.rank is None:
        return None
    items = vm.items(dim)
    removed = len(items) if items is not None else 1 if isinstance(dim, (Const, Number)) else None
    return lead.rank - removed if removed is not None and removed <= lead.rank else None


# -------------------------------------------------------------------- torch.nn


def call_module(
    vm: Interpreter, owner: Ref, found: Object, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Calling an instance of a ``torch.nn`` class."""
    name = str(found.cls).rpartition(".")[2]
    for value in [*args, *kwargs.values()]:
        report_varying(vm, value, node, "kernel-argument")
    flat = tensors_in(flatten(vm, [*args, *kwargs.values()]))
    if not flat:
        return UNKNOWN
    lead = flat[0]
    weight = Tensor(vm.module_memory, 2, Kind.FLOAT, home=Home(owner.oid, "weight"), parameter=True)
    operands: list[Value] = [*args, *kwargs.values()]
    if vm.driver is not None:
        vm.driver.on_load(vm, owner, "weight", weight)
    if name in ("Linear", "Embedding", "LayerNorm", "RMSNorm", "GRUCell", "LSTMCell", "Conv1d", "Conv2d"):
        operands.append(weight)
    sort = vm.catalog.modules.get(name)
    match sort:
        case "same":
            return result(vm, operands, node, lead.rank, Kind.FLOAT)
        case "wider":
            return result(vm, operands, node, lead.rank + 1 if lead.rank is not None else None, Kind.FLOAT)
        case "pair":
            made = result(vm, operands, node, lead.rank, Kind.FLOAT)
            return Sequence((made, made))
        case "state":
            made = result(vm, operands, node, lead.rank, Kind.FLOAT)
            return Sequence((made, Sequence((made, made)) if name == "LSTM" else made))
        case _:
            return result(vm, operands, node, None)


__all__ = ["Text", "call_function", "call_method", "call_module", "formatted", "operate", "report_varying", "union"]
