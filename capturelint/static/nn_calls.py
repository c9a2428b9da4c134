"""``torch.nn`` and ``torch.distributions``: instances, what every module can do, and moving one to a device."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import attributes, inheritance, results, storage, torch_calls, transfers
from capturelint.static.homes import Object, Sort
from capturelint.static.index import ClassDef
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Device,
    Dtype,
    Memory,
    Ref,
    Sequence,
    Tensor,
    Text,
    Union,
    Value,
    constant,
    options,
    union,
)
from capturelint.vocabulary import EventKind

if TYPE_CHECKING:
    from capturelint.static.driver import Driver
    from capturelint.static.interpret import Interpreter


def new_module(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """An instance of a ``torch.nn`` class; containers hold their children in slots."""
    name = path.rpartition(".")[2]
    slots: dict[object, Value] = {}
    element: Value | None = None
    if name in ("ModuleList", "ParameterList", "Sequential") and args:
        items = vm.items(args[0]) if name != "Sequential" or len(args) == 1 else list(args)
        if name == "Sequential" and len(args) == 1 and isinstance(args[0], Ref):
            found = vm.heap.get(args[0])
            items = storage.values_of(vm, args[0]) if found is not None and found.sort is Sort.DICT else [args[0]]
        if items is not None:
            slots = dict(enumerate(items))
        else:
            element = vm.element(args[0])
    elif name == "ModuleDict" and args:
        slots = dict(storage.entries(vm, args[0]))
        if isinstance(args[0], Ref) and (found := vm.heap.get(args[0])) is not None:
            element = found.element
    made = vm.heap.new(Object(Sort.INSTANCE, path, slots, element))
    if vm.default_memory is not Memory.HOST:
        vm.heap.write(made, "#moved", Const(True))
    return made


def is_name(key: object) -> bool:
    """Whether a slot is a child of a ``ModuleDict``."""
    return isinstance(key, str) and not key.startswith("#")


def distribution(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.distributions.X(...)``: argument validation, on by default, reads the device."""
    name = path.rpartition(".")[2]
    tensors = torch_calls.tensors_in([*args, *kwargs.values()])
    on_device = [t for t in tensors if t.on_device]
    off = vm.index.mentions("set_default_validate_args(False")
    if on_device and constant(kwargs.get("validate_args", NONE)) is not False and not off:
        vm.emit(EventKind.SYNC, node, "distribution", on_device[0].sure, name=name)
    torch_calls.use(vm, tensors)
    lead = tensors[0] if tensors else None
    return vm.heap.new(Object(Sort.INSTANCE, path, {"#lead": lead} if lead is not None else {}))


def call_distribution(vm: Interpreter, found: Object, name: str, args: list[Value], node: ast.AST) -> Value:
    """``sample``, ``log_prob``, ...: ``Normal.sample`` uploads even without validation."""
    lead = found.slots.get("#lead", UNKNOWN)
    if isinstance(lead, Tensor):
        if lead.on_device and str(found.cls).endswith(".Normal") and name == "sample":
            vm.emit(EventKind.UPLOAD, node, "distribution", lead.sure, name="Normal.sample")
        return results.result(vm, [lead, *args], node, None)
    return UNKNOWN


def call_nn_method(
    vm: Interpreter, owner: Ref, found: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """Methods that every ``nn.Module`` has, and those of module containers."""
    match name:
        case "__call__" | "forward":
            method = inheritance.find_method(vm, found.cls, "forward") if isinstance(found.cls, ClassDef) else None
            return vm.call(attributes.bound(vm, owner, *method, node), args, kwargs, node) if method else UNKNOWN
        case _ if name in MOVES:
            return move(vm, owner, name, args, kwargs, node)
        case "state_dict" if vm.driver is not None:
            return live_state(vm, owner, vm.driver)
        case "load_state_dict":
            load_state(vm, owner, args, kwargs, node)
            return UNKNOWN
        case "register_buffer":
            register_buffer(vm, owner, args, kwargs, node)
            return NONE
        case "register_parameter" | "add_module" | "register_module":
            put_named(vm, owner, args, node)
            return NONE
        case "register_forward_hook" | "register_forward_pre_hook":
            return register_hook(vm, owner, "pre" if "pre" in name else "post", args[0]) if args else UNKNOWN
        case "parameters" | "buffers":
            return Sequence(None, Tensor(vm.module_memory, None, parameter=True))
        case "named_parameters" | "named_buffers":
            return Sequence(None, Sequence((Text(), Tensor(vm.module_memory, None, parameter=True))))
        case "children" | "values":
            return children(vm, owner)
        case "modules":
            return descendants(vm, owner)
        case "get_submodule":
            return vm.element(descendants(vm, owner))
        case "items" if found.slots and found.element is None:
            inside = [(key, vm.heap.read(owner, key) or UNKNOWN) for key in found.slots if is_name(key)]
            return Sequence(tuple(Sequence((Const(key), child)) for key, child in inside))
        case "named_children" | "items":
            return named(vm, children(vm, owner))
        case "named_modules":
            return named(vm, descendants(vm, owner))
        case "keys":
            return Sequence(None, Text())
        case "append" if args:
            storage.put_element(vm, owner, args[0])
            return owner
        case "compile":
            return NONE
        case "apply" if args:
            if vm.driver is not None and not vm.recording:
                for module in vm.items(descendants(vm, owner)) or ():
                    vm.call(args[0], [module], {}, node)
            return owner
        case _:
            return UNKNOWN


MOVES = frozenset(
    ["to", "cuda", "cpu", "half", "float", "bfloat16", "double", "eval", "train", "requires_grad_", "to_empty"]
)
"""Methods that may move or cast the tensors of a module, and give the module back."""


def move(vm: Interpreter, owner: Ref, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``module.to(...)`` and its like."""
    memory = destination(name, args, kwargs) if name in ("to", "cuda", "cpu", "to_empty") else None
    cast = name in CASTS or any(isinstance(value, Dtype) for value in [*args, *kwargs.values()])
    if vm.driver is not None and (cast or memory in (Memory.HOST, Memory.DEVICE)):
        vm.driver.on_move(vm, owner, None if cast else memory, node)
    if memory is not None:
        move_module(vm, owner, memory, set())
    return owner


def live_state(vm: Interpreter, owner: Ref, driver: Driver) -> Value:
    """``state_dict()``: the very tensors of the module."""
    state = vm.heap.new(Object(Sort.DICT, element=Tensor(vm.module_memory, None, parameter=True)))
    vm.untold += 1
    driver.live_states[state.oid] = owner.oid
    return state


def load_state(vm: Interpreter, owner: Ref, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> None:
    """``load_state_dict(...)``: in place, unless ``assign`` puts other tensors there."""
    if vm.driver is not None and constant(kwargs.get("assign", NONE)) is True:
        vm.driver.on_move(vm, owner, None, node)
    elif vm.driver is not None:
        vm.driver.on_load_state(vm, owner, args[0] if args else UNKNOWN)


def register_buffer(vm: Interpreter, owner: Ref, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> None:
    """``register_buffer(name, tensor)``, under a name that is known or put together."""
    buffers = vm.heap[owner].buffers
    if args and isinstance(constant(args[0]), str):
        value = args[1] if len(args) > 1 else kwargs.get("tensor", NONE)
        vm.heap.replace(owner, buffers=buffers | {str(constant(args[0]))})
        storage.write_slot(vm, owner, constant(args[0]), value, node)
    elif len(args) > 1:
        vm.heap.replace(owner, buffers=buffers | {ANY_NAME})
        storage.put_element(vm, owner, args[1])


def put_named(vm: Interpreter, owner: Ref, args: list[Value], node: ast.AST) -> None:
    """``add_module(name, module)``, ``register_parameter(name, parameter)``."""
    if len(args) > 1 and isinstance(constant(args[0]), str):
        storage.write_slot(vm, owner, constant(args[0]), args[1], node)
    elif len(args) > 1:
        storage.put_element(vm, owner, args[1])


def register_hook(vm: Interpreter, owner: Ref, when: str, hook: Value) -> Value:
    """Add a hook to a module; what is given back can remove it."""
    present = vm.items(vm.heap[owner].slots["#hooks"]) if "#hooks" in vm.heap[owner].slots else None
    added = Sequence((Const(when), hook))
    if added not in (present or ()):
        vm.heap.write(owner, "#hooks", Sequence((*(present or ()), added)))
    return vm.heap.new(Object(Sort.INSTANCE, HANDLE, {"#owner": owner, "#hook": added}))


def remove_hook(vm: Interpreter, handle: Object) -> None:
    """``handle.remove()``."""
    owner = handle.slots["#owner"]
    if isinstance(owner, Ref) and "#hooks" in vm.heap[owner].slots:
        kept = [hook for hook in vm.items(vm.heap[owner].slots["#hooks"]) or () if hook != handle.slots["#hook"]]
        vm.heap.write(owner, "#hooks", Sequence(tuple(kept)))


HANDLE = "torch.utils.hooks.RemovableHandle"
ANY_NAME = "[]"
"""Stands in an object's buffers for one whose name was put together."""
CASTS = frozenset({"half", "float", "bfloat16", "double"})


def children(vm: Interpreter, owner: Ref) -> Sequence:
    """The child modules, one by one where all are known."""
    found = vm.heap[owner]
    inner = [vm.heap.read(owner, key) or UNKNOWN for key in found.slots]
    modules: list[Value] = [value for value in inner if isinstance(value, Ref) and computes(vm, value)]
    if found.element is not None or any(not isinstance(value, Ref) for value in inner if refers(value)):
        modules += [value for value in inner if isinstance(value, Union)]
        return Sequence(None, union([*modules, *([found.element] if found.element is not None else [])]))
    return Sequence(tuple(modules))


def refers(value: Value) -> bool:
    """An object, or one of several."""
    return any(isinstance(option, Ref) for option in options(value))


def descendants(vm: Interpreter, owner: Ref) -> Sequence:
    """A module and all modules in it, in no order, one by one where all are known."""
    inner = [value for _, value in vm.heap.reach(owner) if isinstance(value, Ref) and computes(vm, value)]
    return Sequence(tuple(inner))


def computes(vm: Interpreter, value: Ref) -> bool:
    """Whether an object is an ``nn.Module``."""
    found = vm.heap.get(value)
    if found is None or found.sort is not Sort.INSTANCE:
        return False
    if isinstance(found.cls, ClassDef):
        return inheritance.is_module(vm, found.cls)
    return str(found.cls).startswith("torch.nn.")


def named(vm: Interpreter, modules: Sequence) -> Sequence:
    """The same modules, each behind its name."""
    if modules.items is None:
        return Sequence(None, Sequence((Text(), modules.element)))
    return Sequence(tuple(Sequence((Text(), module)) for module in modules.items))


def destination(name: str, args: list[Value], kwargs: dict[str, Value]) -> Memory | None:
    """Where ``module.to(...)`` moves a module, or ``None`` for a change of dtype."""
    if name == "cuda":
        return Memory.DEVICE
    if name == "cpu":
        return Memory.HOST
    for value in [*args, *([kwargs["device"]] if "device" in kwargs else [])]:
        if isinstance(value, Device) or isinstance(constant(value), str):
            return transfers.memory_named(value)
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
    if not is_nn and not (isinstance(found.cls, ClassDef) and inheritance.is_module(vm, found.cls)):
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
    element = found.element
    for option in options(element) if element is not None else ():
        if isinstance(option, Ref):
            move_module(vm, option, memory, seen)
    if element is not None:
        moves = ANY_NAME in found.buffers
        each = [
            replace(o, memory=memory) if isinstance(o, Tensor) and (moves or o.parameter) else o
            for o in options(element)
        ]
        element = union(each)
    if is_nn:
        slots["#moved"] = Const(memory is Memory.DEVICE)
    vm.heap.replace(owner, slots=slots, element=element)
