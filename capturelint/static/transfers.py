"""Tensors from host data, copies between memories, and what a capture says to each."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import torch_calls
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Device,
    Dtype,
    External,
    Kind,
    Memory,
    Number,
    Ref,
    Sequence,
    Tensor,
    Value,
    constant,
    deps_of,
    int_constant,
    options,
    tensor_in,
    varies_of,
)
from capturelint.vocabulary import EventKind, Phase, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def pinned(vm: Interpreter, tensor: Tensor, node: ast.AST) -> Value:
    """``x.pin_memory()``: a new block; made in the step, nothing rewrites it before a replay."""
    vm.emit(EventKind.STAGING, node, "pinned-made-in-step", tensor.sure, name="pin_memory")
    return replace(tensor, memory=Memory.PINNED, home=None, ident=vm.ident(), placed=True)


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
    first = torch_calls.flatten(vm, sizes)[:1]
    number = constant(fill)
    varies = max((varies_of(v) for v in torch_calls.flatten(vm, [*args, *kwargs.values()])), default=Varies.NEVER)
    if memory is not Memory.HOST and vm.phase is not Phase.SET_UP:
        vm.step.work += 1
    starts = args[0] if len(args) > 1 else Const(0)
    drawn = (
        vm.site(node) if vm.recording and memory is Memory.HOST and "random" in torch_calls.sorts_of(vm, name) else None
    )
    varies = Varies.PER_STEP if drawn is not None else varies
    return Tensor(
        memory,
        rank,
        kind_argument(kwargs, default),
        ident=vm.ident(),
        rows=int_constant(first[0]) if first and name in ("zeros", "ones", "empty", "full", "rand", "randn") else None,
        recorded=vm.recording,
        negative=isinstance(number, (int, float)) and number < 0,
        varies=varies if varies is Varies.PER_STEP and memory is not Memory.DEVICE else Varies.NEVER,
        drawn=drawn,
        zero=name == "arange" and constant(starts) == 0,
        stretched=drawn is None and varies is Varies.PER_STEP,
        made=vm.site(node) if memory is Memory.PINNED else None,
        deps=frozenset().union(*map(deps_of, torch_calls.flatten(vm, args))) if args else frozenset(),
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
    flat = torch_calls.flatten(vm, [source])
    inner = torch_calls.tensors_in(flat)
    if present is not None and present.on_device and memory is not Memory.HOST:
        return present if name in ("as_tensor", "asarray") else replace(present, home=None, ident=vm.ident())
    if any(t.on_device for t in inner) and present is None:
        vm.emit(EventKind.SYNC, node, "tensor-of-tensors", inner[0].sure, name=name)
    elif memory is Memory.DEVICE and vm.items(source) != []:  # nothing is copied where there is nothing
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
        varies=varies
        if any(isinstance(v, Tensor) or (isinstance(v, Number) and not v.read) for v in flat)
        else Varies.NEVER,
        drawn=next((t.drawn for t in inner if t.drawn), None) if memory is Memory.HOST else None,
        deps=frozenset().union(*map(deps_of, flat)) if flat else frozenset(),
        negative=any(isinstance(n := constant(v), int) and n < 0 for v in flat) or any(t.negative for t in inner),
        zero=any(constant(v) == 0 for v in flat) or any(t.zero for t in inner),
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
    torch_calls.use(vm, [tensor])
    wanted, kind = destination(vm, name, args[1:], kwargs, tensor)
    non_blocking = constant(kwargs.get("non_blocking", NONE))
    kind = kind or tensor.kind
    moved = replace(tensor, memory=wanted, kind=kind, extends=None)
    if wanted is not tensor.memory:
        moved = replace(moved, output=False, kept=None)
    if wanted is Memory.HOST and tensor.on_device:
        if name == "to" and True in (non_blocking, *map(constant, args[2:4])):
            # torch takes pinned memory for it and waits for nothing: the copy is recorded, and a replay fills it anew.
            made = replace(moved, memory=Memory.PINNED, varies=Varies.PER_STEP, placed=True)
            made = replace(made, home=None, ident=vm.ident(), deps=frozenset())
            if vm.driver is not None:
                vm.driver.blocks.on_fetched(vm, made)
            return made
        vm.emit(EventKind.SYNC, node, "to-cpu" if name != "cpu" else "cpu", tensor.sure, name=name)
        return replace(moved, home=None, ident=vm.ident(), deps=frozenset())
    if wanted is Memory.DEVICE and tensor.on_host:
        pinned_source(vm, tensor, node, non_blocking) if tensor.memory is Memory.PINNED else upload(
            vm, tensor, node, name
        )
        return replace(moved, home=None, ident=vm.ident(), recorded=vm.recording)
    if wanted is tensor.memory and kind is tensor.kind:
        return tensor
    home = tensor.home if wanted is tensor.memory else None
    made = replace(moved, ident=vm.ident(), home=home, view=True, argument=False)
    if vm.driver is not None:
        vm.driver.on_derive(vm, made, [tensor])
    return made


def upload(vm: Interpreter, tensor: Tensor, node: ast.AST, name: str) -> None:
    """Pageable memory copied to the device."""
    vm.emit(EventKind.UPLOAD, node, "to", tensor.sure, name=name)


def pinned_source(vm: Interpreter, tensor: Tensor, node: ast.AST, non_blocking: object) -> None:
    """Pinned memory: refused when blocking; when not, replay reads whatever the host block then holds."""
    if non_blocking is not True:
        vm.emit(EventKind.UPLOAD, node, "pinned-blocking", tensor.sure)
    elif vm.driver is not None:
        vm.driver.blocks.on_staged(vm, tensor)
    if tensor.recorded and tensor.made is not None:
        vm.emit(EventKind.STAGING, tensor.made, "pinned-made-in-step", tensor.sure)


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


def copied_in(vm: Interpreter, target: Tensor, source: Tensor, kwargs: dict[str, Value], node: ast.AST) -> None:
    """``copy_`` between memories."""
    non_blocking = constant(kwargs.get("non_blocking", NONE))
    if target.on_device and source.on_host:
        if source.memory is Memory.PINNED:
            pinned_source(vm, source, node, non_blocking)
        else:
            upload(vm, source, node, "copy_")
    elif target.on_host and source.on_device and target.memory is Memory.PINNED and non_blocking is True:
        if vm.driver is not None:
            vm.driver.blocks.on_fetched(vm, target)
    elif target.on_host and source.on_device:
        vm.emit(EventKind.SYNC, node, "copy-to-host", source.sure, name="copy_")
