"""Reading and writing attributes: of tensors, of instances, of modules, of classes, of everything else."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import calls, classes, inheritance, registries, scopes, storage
from capturelint.static.homes import Object, Sort, Store
from capturelint.static.index import ClassDef, FunctionDef, FunctionNode
from capturelint.static.records import replace
from capturelint.static.values import (
    UNKNOWN,
    BoundExternal,
    Class,
    Const,
    Device,
    Dtype,
    External,
    Function,
    Home,
    Kind,
    Lambda,
    Member,
    Memory,
    Method,
    ModuleValue,
    Number,
    Ref,
    Scope,
    Sequence,
    Super,
    Tensor,
    Text,
    Value,
    options,
)
from capturelint.vocabulary import Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

DTYPES = {
    **dict.fromkeys(("float", "float16", "float32", "float64", "bfloat16", "half", "double"), Kind.FLOAT),
    **dict.fromkeys(("int", "int8", "int16", "int32", "int64", "long", "short", "uint8", "uint16"), Kind.INT),
    "bool": Kind.BOOL,
}
SAME_TENSOR = frozenset({"data", "real", "imag", "grad"})
TURNED_TENSOR = frozenset({"T", "mT", "H", "mH"})
HOST_FACTS = frozenset(
    [
        "is_leaf",
        "requires_grad",
        "layout",
        "itemsize",
        "nbytes",
        "is_sparse",
        "is_quantized",
        "is_nested",
        "names",
        "is_meta",
        "is_cpu",
        "grad_fn",
        "_version",
    ]
)


def external(path: str) -> Value:
    """An external name; dtypes are values of their own."""
    owner, _, name = path.rpartition(".")
    if owner == "torch" and name in DTYPES:
        return Dtype(DTYPES[name])
    if path in ("torch.inf", "torch.nan", "torch.pi", "math.inf", "math.pi", "math.nan", "torch.e"):
        return Number()
    return External(path)


def load(vm: Interpreter, owner: Value, name: str, node: ast.AST) -> Value:
    """``owner.name``."""
    match owner:
        case Tensor():
            return tensor_attribute(vm, owner, name)
        case Ref():
            return instance_attribute(vm, owner, name, node)
        case ModuleValue(module=module):
            inside = vm.index.find(f"{module.name}.{name}") if module.is_package else None
            known = name in module.functions or name in module.classes or name in module.assignments
            return ModuleValue(inside) if inside is not None and not known else scopes.global_name(vm, name, module)
        case External(path=path):
            found = vm.index.find(f"{path}.{name}")
            return ModuleValue(found) if found is not None else external(f"{path}.{name}")
        case Class(definition=definition):
            return class_attribute(vm, definition, name)
        case Super():
            return super_attribute(vm, owner, name, node)
        case Device():
            return device_attribute(owner, name)
        case Sequence(items=(first, second)) if name in ("values", "indices"):
            return first if name == "values" else second
        case BoundExternal(owner=Ref(), name="__dict__"):
            return BoundExternal(owner, name)
        case Const(value=Member() as member):
            return member_attribute(vm, member, name, node)
        case Number() | Text() | Const() | Sequence():
            if isinstance(owner, Sequence) and owner.shape and name == "numel":
                return BoundExternal(owner, name)
            return BoundExternal(owner, name)
        case _:
            return UNKNOWN


def device_attribute(owner: Device, name: str) -> Value:
    """``device.type``, ``device.index``."""
    if name == "type":
        return (
            Const("cuda") if owner.memory is Memory.DEVICE else Const("cpu") if owner.memory is Memory.HOST else Text()
        )
    return Number() if name == "index" else UNKNOWN


def tensor_attribute(vm: Interpreter, tensor: Tensor, name: str) -> Value:
    """Metadata is on the host; ``data`` and transposes are the same memory."""
    if name == "shape":
        return shape_of(tensor)
    if name == "ndim":
        return Const(tensor.rank) if tensor.rank is not None else Number()
    if name == "device":
        return Device(Memory.HOST if tensor.on_host else tensor.memory)
    if name == "is_cuda":
        return Const(tensor.on_device) if tensor.memory is not Memory.EITHER else Number()
    if name == "dtype":
        return Dtype(tensor.kind)
    if name in SAME_TENSOR:
        return tensor
    if name in TURNED_TENSOR:
        return replace(tensor, view=True)
    if name in HOST_FACTS:
        return Number()
    if name in ("values", "indices"):
        return replace(tensor, home=None, extends=None)
    return BoundExternal(tensor, name)


def shape_of(tensor: Tensor) -> Sequence:
    """The shape of a tensor: host numbers that change with the bucket, or with the step where it grows."""
    varies = max(tensor.varies, Varies.PER_BUCKET) if tensor.stretched else Varies.PER_BUCKET
    size = Number(varies, tensor.deps if varies is Varies.PER_STEP else frozenset())
    if tensor.rank is None or tensor.rank > 8:
        return Sequence(None, size, shape=True)
    sizes: list[Value] = [size] * tensor.rank
    if sizes and tensor.rows is not None:
        sizes[0] = Const(tensor.rows)
    return Sequence(tuple(sizes), shape=True)


def instance_attribute(vm: Interpreter, owner: Ref, name: str, node: ast.AST) -> Value:
    """The attribute of an object in the heap: slot, method, class field, or a built-in of ``nn.Module``."""
    found = vm.heap.get(owner)
    if found is None:
        return UNKNOWN
    if found.sort is not Sort.INSTANCE:
        return BoundExternal(owner, name)
    value = storage.read_slot(vm, owner, name)
    if value is UNKNOWN and name == "training":
        return Const(False)  # taken over from a part that nobody knows
    if value is not None:
        return value
    if name in TABLES:
        return BoundExternal(owner, name)
    if isinstance(found.cls, ClassDef):
        if (instead := registries.replacement(vm, found.cls, name)) is not None:
            return Method(instead, owner)
        rebound = rebound_attribute(vm, found.cls, name)
        if rebound is not None:
            return rebound
        inherited = inheritance.find_method(vm, found.cls, name)
        if inherited is not None:
            return bound(vm, owner, inherited[0], inherited[1], node, name)
        if found.element is not None and not callable_on_module(name):
            return found.element  # set under a name that was put together
        if name == "__class__":
            return Class(found.cls)
        if (mapped := renamed_attribute(vm, owner, found.cls, name, node)) is not None:
            return UNKNOWN if mapped == ABSENT else mapped
        base = inheritance.layer_base(vm, found.cls) if name in ("weight", "bias") else None
        if base is not None:
            return layer_parameter(vm, owner, found, base, name)
        open_ended = inheritance.is_open(vm, found.cls)
        if name == "training" and (open_ended or inheritance.is_module(vm, found.cls)):
            return Const(False)  # decode runs in eval mode
        if inheritance.is_module(vm, found.cls) or found.cls.is_dataclass:
            return UNKNOWN if found.opaque and not callable_on_module(name) else BoundExternal(owner, name)
        getter = inheritance.find_method(vm, found.cls, "__getattr__")
        return UNKNOWN if found.opaque or getter or open_ended else BoundExternal(owner, name)
    if isinstance(found.cls, str):
        return external_instance_attribute(vm, owner, found, name)
    return UNKNOWN


ABSENT = External("#absent")
"""What an attribute is that an object surely does not have."""


def renamed_attribute(vm: Interpreter, owner: Ref, definition: ClassDef, name: str, node: ast.AST) -> Value | None:
    """What ``__getattribute__`` of an analysed class gives for a name that no slot has; ``None`` without one."""
    getter = find_getter(vm, definition)
    if getter is None:
        return None
    instead = vm.renamed.get((definition, name))
    if instead is not None and (not vm.recording or getter[0] in vm.checking):
        return plain_attribute(vm, owner, instead, node)
    value = vm.call(bound(vm, owner, *getter, node), [Const(name)], {}, node)
    if naming(getter[0]) is not None and vm.asked and plain_attribute(vm, owner, vm.asked, node) == value:
        vm.renamed[definition, name] = vm.asked
        if vm.recording:
            vm.checking.add(getter[0])
    return value


def find_getter(vm: Interpreter, definition: ClassDef, after: ClassDef | None = None) -> tuple[object, ClassDef] | None:
    """The ``__getattribute__`` that decides what a name gives. One that only checks is run once, for its events."""
    found = inheritance.find_method(vm, definition, "__getattribute__", after)
    while found is not None and naming(found[0]) is True:
        if vm.recording and found[0] not in vm.checking:
            vm.checking.add(found[0])
            return found
        found = inheritance.find_method(vm, definition, "__getattribute__", found[1])
    return found


def naming(getter: object) -> bool | None:
    """What ``gives_names`` says of a method."""
    if not isinstance(getter, FunctionDef):
        return None
    known = getter.module.naming
    if getter not in known:
        known[getter] = gives_names(getter.node)
    return known[getter]


def gives_names(node: FunctionNode) -> bool | None:
    """Whether every way out of ``(self, name)`` is ``super().__getattribute__(name)``, with the same name; ``None``
    where it is something else.
    """
    if len(node.args.args) != 2 or not isinstance(node.body[-1], ast.Return):
        return None
    owner, name = (argument.arg for argument in node.args.args)
    asked = (f"super().__getattribute__({name})", f"object.__getattribute__({owner}, {name})")
    inner = list(ast.walk(node))
    returned = [n.value for n in inner if isinstance(n, ast.Return)]
    if any(value is None or ast.unparse(value) not in asked for value in returned):
        return None
    return not any(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in inner)


def plain_attribute(vm: Interpreter, owner: Ref, name: str, node: ast.AST) -> Value:
    """``object.__getattribute__(owner, name)``: a slot or what the class has, else ``ABSENT`` where that is sure."""
    vm.asked = name
    found = vm.heap[owner]
    value = storage.read_slot(vm, owner, name)
    if value is not None or not isinstance(found.cls, ClassDef):
        return value if value is not None else UNKNOWN
    if name in TABLES:
        return BoundExternal(owner, name)
    if name == "__class__":
        return Class(found.cls)
    inherited = inheritance.find_method(vm, found.cls, name)
    if inherited is not None:
        return bound(vm, owner, *inherited, node)
    return ABSENT if inheritance.is_declared(vm, found) else UNKNOWN


TABLES = frozenset({"__dict__", "_buffers", "_parameters", "_modules"})
"""The dictionaries by which an object's attributes can be reached as well."""


def assigned(vm: Interpreter, owner: Ref, name: str) -> Value | None:
    """``name in owner.__dict__``: what was assigned, ``None`` where nothing was, ``UNKNOWN`` where nobody can tell."""
    found = vm.heap.get(owner)
    if found is None or not isinstance(found.cls, ClassDef):
        return UNKNOWN
    value = storage.read_slot(vm, owner, name)
    seen = value is not None or not (found.opaque or found.element is not None or inheritance.is_open(vm, found.cls))
    return value if seen else UNKNOWN


def callable_on_module(name: str) -> bool:
    """Methods that every ``nn.Module`` has."""
    return name in MODULE_METHODS


MODULE_METHODS = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "eval",
        "train",
        "requires_grad_",
        "apply",
        "parameters",
        "named_parameters",
        "buffers",
        "named_buffers",
        "children",
        "modules",
        "named_children",
        "named_modules",
        "state_dict",
        "load_state_dict",
        "register_buffer",
        "register_parameter",
        "add_module",
        "register_module",
        "register_forward_hook",
        "register_forward_pre_hook",
        "get_submodule",
        "zero_grad",
        "compile",
        "forward",
        "__call__",
        "set_submodule",
        "type",
        "share_memory",
        "to_empty",
    ]
)


def external_instance_attribute(vm: Interpreter, owner: Ref, found: Object, name: str) -> Value:
    """An attribute of an instance of an external class: parameters of ``torch.nn`` modules, methods of the rest."""
    cls = str(found.cls)
    if cls.startswith("torch.nn.") and name in ("weight", "bias"):
        return layer_parameter(vm, owner, found, cls, name)
    if cls.startswith("torch.nn.") and name == "training":
        return Const(False)
    return BoundExternal(owner, name)


def layer_parameter(vm: Interpreter, owner: Ref, found: Object, cls: str, name: str) -> Tensor:
    """The weight or bias of a layer of ``torch.nn``."""
    memory = Memory.DEVICE if found.slots.get("#moved") == Const(True) else vm.module_memory
    rank = 1 if name == "bias" or "Norm" in cls else 2
    return Tensor(memory, rank, Kind.FLOAT, home=Home(owner.oid, name), parameter=True, ident=-owner.oid)


def bound(vm: Interpreter, owner: Value, member: object, holder: ClassDef, node: ast.AST, name: str = "") -> Value:
    """A class member seen through an instance: bound methods, properties, static methods, fields."""
    if not isinstance(member, FunctionDef):
        assert isinstance(member, (ast.Assign, ast.AnnAssign))
        return shared_field(vm, member, holder, name) if name else field_value(vm, member, holder)
    names = inheritance.decorator_names(member.node)
    plain = Function(member, holder.module, holder)
    function: Value = plain
    if "property" in names:
        return vm.call(Method(function, owner), [], {}, node)
    if names & {"cached_property", "functools.cached_property"}:
        value = vm.call(Method(function, owner), [], {}, node)
        if isinstance(owner, Ref) and vm.heap.get(owner) is not None:
            vm.heap.write(owner, member.name, value)  # the next look-up finds it in the instance
        return value
    if "staticmethod" in names:
        return function
    if "classmethod" in names:
        cls = vm.heap[owner].cls if isinstance(owner, Ref) else None
        return Method(function, Class(cls) if isinstance(cls, ClassDef) else owner)
    return Method(calls.decorated(vm, plain, member.node, Scope(holder.module)), owner)


def shared_field(vm: Interpreter, member: ast.Assign | ast.AnnAssign, holder: ClassDef, name: str) -> Value:
    """A class attribute: a container or tensor is the same one for every instance and at every step."""
    value = field_value(vm, member, holder)
    if member.value is None or holder.is_dataclass or not isinstance(value, (Ref, Tensor)):
        return value
    return storage.read_slot(vm, scopes.rebinding(vm, holder, name, value), name) or value


def field_value(vm: Interpreter, member: ast.Assign | ast.AnnAssign, holder: ClassDef) -> Value:
    """A class-level assignment."""
    if member.value is None:
        return classes.annotated(vm, member.annotation, holder.module) if isinstance(member, ast.AnnAssign) else UNKNOWN
    return vm.quiet_eval(member.value, Scope(holder.module))


def class_attribute(vm: Interpreter, definition: ClassDef, name: str) -> Value:
    """``Class.name``."""
    if name == "__name__":
        return Const(definition.name)
    if name == "__bases__":
        return inheritance.direct_bases(vm, definition)
    rebound = rebound_attribute(vm, definition, name)
    if rebound is not None:
        return rebound
    found = inheritance.find_method(vm, definition, name)
    if found is None and name == "apply" and "torch.autograd.Function" in inheritance.bases(vm, definition):
        found = inheritance.find_method(vm, definition, "forward")
        if found is not None and isinstance(found[0], FunctionDef):
            return Method(Function(found[0], found[1].module, found[1]), UNKNOWN)
    if found is None:
        nested = definition.module.classes.get(name)
        return Class(nested) if nested is not None else UNKNOWN
    member, holder = found
    if isinstance(member, FunctionDef):
        function = Function(member, holder.module, holder)
        takes_class = "classmethod" in inheritance.decorator_names(member.node)
        return Method(function, Class(definition)) if takes_class else function
    assert isinstance(member, (ast.Assign, ast.AnnAssign))
    if member.value is not None and (kind := inheritance.enumeration(vm, definition)):
        value = field_value(vm, member, holder)
        counts = kind.endswith(("IntEnum", "StrEnum", "IntFlag")) and isinstance(value, Const)
        return value if counts else Const(Member(holder, name))
    return shared_field(vm, member, holder, name)


def member_attribute(vm: Interpreter, member: Member, name: str, node: ast.AST) -> Value:
    """``Mode.DECODE.name``, ``.value``, or what the enumeration defines."""
    if name in ("name", "_name_"):
        return Const(member.name)
    found = inheritance.find_method(vm, member.definition, member.name if name in ("value", "_value_") else name)
    return bound(vm, Const(member), found[0], found[1], node) if found is not None else UNKNOWN


def rebound_attribute(vm: Interpreter, definition: ClassDef, name: str) -> Value | None:
    """What a function has put into an attribute of a class or of its bases."""
    for base in inheritance.bases(vm, definition) if vm.rebound else ():
        if not isinstance(base, ClassDef):
            continue
        value = scopes.rebound_value(vm, base, name)
        if value is not None or name in base.methods or name in base.fields:
            return value
    return None


def super_attribute(vm: Interpreter, owner: Super, name: str, node: ast.AST) -> Value:
    """``super().name``."""
    cls = vm.heap[owner.owner].cls if isinstance(owner.owner, Ref) else None
    if isinstance(owner.owner, Class):
        cls = owner.owner.definition
    if not isinstance(cls, ClassDef):
        return UNKNOWN
    asks = name == "__getattribute__"
    found = find_getter(vm, cls, owner.after) if asks else inheritance.find_method(vm, cls, name, owner.after)
    if found is not None:
        return bound(vm, owner.owner, found[0], found[1], node, name)
    inherits = name == "forward" and inheritance.layer_base(vm, cls) is not None
    return BoundExternal(owner if inherits else owner.owner, name)


def store(vm: Interpreter, owner: Value, name: object, value: Value, node: ast.AST, same: bool = False) -> None:
    """``owner.name = value`` for each alternative of the owner."""
    for option in options(owner):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None:
            ours = found.cls if isinstance(found.cls, ClassDef) and not same else None
            setter = inheritance.find_setter(vm, ours, name) if ours is not None else None
            if setter is not None:
                vm.call(Function(setter, setter.module, setter.owner), [option, value], {}, node)
            else:
                storage.write_slot(vm, option, name, value, node, same)
        elif isinstance(option, ModuleValue) and isinstance(name, str):
            storage.write_slot(vm, scopes.globals_of(vm, option.module, name), name, value, node)
        elif isinstance(option, Class) and isinstance(name, str) and isinstance(value, (Function, Lambda)):
            registries.replace_method(vm, option.definition, name, value)
        elif isinstance(option, Class) and isinstance(name, str):
            present = class_attribute(vm, option.definition, name)
            storage.write_slot(vm, scopes.rebinding(vm, option.definition, name, present), name, value, node)
        elif isinstance(option, Tensor) and name == "data" and vm.recording and option.home is not None:
            swap = Store(option.home, option, value, vm.site(node), vm.doubt, bool(vm.hidden), data=True)
            vm.step.stores.append(swap)
        elif isinstance(option, Tensor) and name == "data" and vm.driver is not None:
            vm.driver.on_swap(vm, option, value, node)
        else:
            calls.lend(vm, [value])
