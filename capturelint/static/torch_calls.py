"""What calls into torch do and return, by the operation catalogue.

One table answers for functions, methods and ``torch.nn`` modules alike: the name decides the effect (with its
conditions on the arguments) and the sort of result. What the catalogue does not list has no effect and returns a
tensor of the widest operand's rank where an operand is a tensor, else nothing known.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.catalog import Case, Operation
from capturelint.static import inheritance, protocols, results, transfers
from capturelint.static.homes import Sort
from capturelint.static.index import ClassDef
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Memory,
    Number,
    Ref,
    Sequence,
    Tensor,
    Value,
    constant,
    deps_of,
    element_of,
    options,
    tensor_in,
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
    for option in (as_number(one, how == "branch") for one in options(value)):
        if option is not None and option.varies is Varies.PER_STEP and not option.read:
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


def as_number(value: Value, asked: bool) -> Number | None:
    """A host number, as itself or as a 0-d tensor in host memory, which kernels take by value.

    A tensor of one element is a number too where its truth is ``asked`` for.
    """
    if isinstance(value, Tensor) and value.on_host and (value.rank == 0 or asked):
        return Number(value.varies, value.deps, value.drawn, sure=value.sure)
    return value if isinstance(value, Number) else None


def mutate(vm: Interpreter, target: Tensor, node: ast.AST, source: Value | None = None) -> None:
    """An in-place write. Outside set-up it is remembered by home: what depends on itself advances with every run."""
    if vm.phase is Phase.SET_UP:
        return
    vm.step.written.add(target.ident)
    if target.on_device:
        vm.step.work += 1
        if vm.recording:
            results.fork(vm)
    if target.home is not None:
        vm.step.mutated.setdefault(target.home, vm.site(node))
        if target.memory is Memory.HOST and source is not None and target.home in deps_of(source):
            vm.heap.per_step.add(target.home)
    if vm.compiled and (is_compiled_input(vm, target) if vm.recording else is_handed_over(vm, target)):
        sure = min(target.sure, Confidence.LIKELY)
        vm.emit(EventKind.MUTATED_INPUT, node, "in-place", sure, name=str(target.home or ""), phase=Phase.RECORDED)
    if vm.driver is not None:
        vm.driver.on_mutate(vm, target, source, node)


def is_compiled_input(vm: Interpreter, target: Tensor) -> bool:
    """Whether Dynamo passes the tensor to the compiled graph as an input without a static address.

    Parameters and buffers of modules have one; arguments, and attributes of any other object, do not
    (torch.compiler_cudagraph_trees, "Input Mutation Support").
    """
    if vm.index.mentions("mark_static_address"):
        return False  # whoever calls the compiled code may have marked it
    if target.argument:
        return True
    found = vm.heap.objects.get(target.home.owner) if target.home is not None else None
    if found is None or target.parameter or not target.on_device:
        return False
    plain = isinstance(found.cls, ClassDef) and not inheritance.is_module(vm, found.cls)
    return found.sort is Sort.INSTANCE and plain


def is_handed_over(vm: Interpreter, target: Tensor) -> bool:
    """Whether a driver made a tensor before it called compiled code, and no module has it."""
    known = vm.driver is not None and 0 < target.ident <= vm.driver.compiled_from
    if not known or not target.on_device or target.parameter or vm.index.mentions("mark_static_address"):
        return False
    return not any(
        isinstance(held, Tensor) and held.ident == target.ident
        for _, found in vm.heap.objects.items()
        if isinstance(found.cls, str) or (isinstance(found.cls, ClassDef) and inheritance.is_module(vm, found.cls))
        for held in (*found.slots.values(), found.element)
    )


def formatted(vm: Interpreter, value: Value, node: ast.AST) -> None:
    """Text of a device tensor needs its values."""
    tensor = tensor_in(value)
    if tensor is not None and tensor.on_device:
        vm.emit(EventKind.SYNC, node, "format", tensor.sure)
        return
    if isinstance(value, Ref):
        protocols.written(vm, value, node)
    if isinstance(value, Sequence):
        inner = tensor_in(element_of(value))
        if inner is not None and inner.on_device:
            vm.emit(EventKind.SYNC, node, "format", min(inner.sure, Confidence.LIKELY))


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
        if not any(sorts_of(vm, name)) and not all(t.array for t in tensors_in(args)):
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
    """A call of ``tensor.<name>``.

    No tensor has a method ``get_...`` but ``get_device``: what has one was taken for a tensor by its name alone.
    """
    if name.startswith("get_") and name != "get_device":
        return UNKNOWN
    return call(vm, name, [tensor, *args], kwargs, node, extra, method=True)


def call(
    vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool, method: bool
) -> Value:
    """Effect, then result, of one operation."""
    sorts = sorts_of(vm, name)
    flat = flatten(vm, [*args, *kwargs.values()])
    tensors = tensors_in(flat)
    if "moves" in sorts and method:
        return transfers.move(vm, name, args, kwargs, node)
    if "uploaded" in sorts or name in ("new_tensor",):
        return transfers.from_host(vm, name, args, kwargs, node)
    apply_effect(vm, name, args, kwargs, node, extra)
    if name == "pin_memory" and (held := tensor_in(args[0])) is not None:
        return transfers.pinned(vm, held, node)
    if name in ("item", "tolist", "numpy"):
        if vm.driver is not None and tensors:
            vm.driver.blocks.on_host_read(vm, tensors[0], node)
        return results.read_value(vm, name, tensors)
    if "host" in sorts:
        return results.host_result(vm, name, args, tensors)
    if "shape" in sorts:
        return results.size_call(args, kwargs)
    check_sizes(vm, name, sorts, args, kwargs, node)
    baked_arguments(vm, args, kwargs, node)
    random_generator(vm, sorts, kwargs, node)
    if "factory" in sorts and not (method and name.startswith("new_")):
        return transfers.factory(vm, name, args, kwargs, node)
    if not tensors:
        return UNKNOWN
    if name.endswith("_") and not name.endswith("__") and args and (target := tensor_in(args[0])) is not None:
        if name in UNWRITTEN:
            return replace(target, rank=target.rank if name in KEEPING_SHAPE else None)
        return in_place(vm, name, target, args, kwargs, node)
    return results.shaped(vm, name, sorts, args, kwargs, node)


KEEPING_SHAPE = frozenset(["requires_grad_", "detach_", "rename_", "share_memory_"])
UNWRITTEN = KEEPING_SHAPE | {"squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_"}
"""In-place methods that change what is said of a tensor, and none of its values (torch.Tensor's documentation)."""


def check_sizes(
    vm: Interpreter,
    name: str,
    sorts: frozenset[str],
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
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
    named = [value for key, value in kwargs.items() if key not in {*METADATA_ARGUMENTS, "fill_value", "input"}]
    for value in flatten(vm, [*sizes, *named]):
        tensor = tensor_in(value)
        if tensor is not None and tensor.on_device:
            vm.emit(EventKind.SYNC, node, "size", tensor.sure, name=name)
            return


def baked_arguments(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> None:
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
    if vm.driver is None and vm.index.mentions("register_generator_state"):
        return  # who captures this step is elsewhere, and registers generators
    generator = kwargs.get("generator", NONE)
    for option in options(generator):
        found = vm.heap.get(option) if isinstance(option, Ref) else None
        if found is not None and found.cls == "torch.Generator" and "#registered" not in found.slots:
            sure = Confidence.CERTAIN if option is generator else Confidence.LIKELY
            vm.emit(EventKind.RANDOM, node, "generator", sure)


ACCUMULATES = frozenset(
    {
        *(
            "add_",
            "sub_",
            "mul_",
            "div_",
            "pow_",
            "lerp_",
            "addcmul_",
            "addcdiv_",
            "addmm_",
            "baddbmm_",
            "addmv_",
            "addr_",
        ),
        *("logical_or_", "logical_and_", "logical_xor_", "bitwise_or_", "bitwise_and_", "bitwise_xor_"),
        *("scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_"),
    }
)
"""In-place operations whose result is a function of what the tensor held."""


INDEXED = frozenset({"index_copy_", "index_add_", "index_fill_"})
"""In-place operations that write the rows that an index names."""


def given_at(args: list[Value], kwargs: dict[str, Value], at: int, name: str) -> Value:
    """An argument by place or by name."""
    return args[at] if len(args) > at else kwargs.get(name, UNKNOWN)


def in_place(
    vm: Interpreter, name: str, target: Tensor, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """``x.add_(...)``: the same tensor, written."""
    sources = [*args[1:], *kwargs.values()]
    tensors = tensors_in(flatten(vm, sources))
    rewrites = name in ("copy_", "zero_", "fill_")
    use(vm, tensors if rewrites else [target, *tensors])
    if name == "copy_" and tensors:
        transfers.copied_in(vm, target, tensors[0], kwargs, node)
    if name == "copy_" and tensors:
        target = replace(target, negative=tensors[0].negative)
    if vm.driver is not None and name in ("zero_", "fill_", "copy_") and not vm.recording:
        vm.driver.buckets.on_fill(target, tensors[0] if tensors else None, Const(0) if name == "zero_" else args[-1])
    if name == "fill_" and len(args) > 1:
        number = constant(args[1])
        target = replace(target, negative=isinstance(number, (int, float)) and number < 0)
    source: Value = UNKNOWN
    if tensors or not rewrites:
        source = results.result(vm, [*([] if name not in ACCUMULATES else [target]), *sources], node)
        if name != "copy_" and name not in ACCUMULATES and isinstance(source, Tensor):
            source = replace(source, deps=frozenset())  # a write at a position is not a function of what was there
    if vm.driver is not None and name in INDEXED and (index := tensor_in(given_at(args, kwargs, 2, "index"))):
        vm.driver.buckets.on_indexed_write(vm, index, node)
    if vm.driver is not None and rewrites and target.home not in deps_of(source):
        vm.driver.on_rewrite(target)
    if name in ("set_", "swap_") and vm.driver is not None and args[1:]:
        vm.driver.on_swap(vm, target, args[1], node)
    mutate(vm, target, node, source)
    if vm.recording and target.on_host and "random" in sorts_of(vm, name):
        return replace(target, varies=Varies.PER_STEP, drawn=vm.site(node))
    return target
