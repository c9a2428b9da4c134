"""Reading and writing attributes: of tensors, of instances, of modules, of everything else.

A store into an object that outlives the step is where rebinding, growth and lazy building show; it is noted here and
judged at the end of the step, when it is known whether the old content was used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capturelint.static import calls, classes, registries, scopes
from capturelint.static.homes import Object, Sort, Store, fresh_tensors, tensors_of
from capturelint.static.index import ClassDef, FunctionDef, FunctionNode
from capturelint.static.records import replace
from capturelint.static.state import at_work
from capturelint.static.values import (
    NONE,
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
    Truth,
    Value,
    join,
    options,
    union,
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


def bases(vm: Interpreter, definition: ClassDef) -> list[ClassDef | str]:
    """The method resolution order: analysed classes, and external ones by dotted path."""
    cached = vm.orders.get(definition)
    if cached is not None:
        return cached
    vm.orders[definition] = [definition]
    order: list[ClassDef | str] = [definition]
    scope = Scope(definition.module)
    for base in definition.node.bases:
        value = vm.quiet_eval(base, scope)
        for option in options(value):
            if isinstance(option, Class):
                order += bases(vm, option.definition)
            elif isinstance(option, External):
                order.append(option.path)
            elif not isinstance(base, ast.Subscript):
                order.append("?")
    # A class that several bases share comes after all of them, as in Python's own linearisation.
    unique = [found for at, found in enumerate(order) if found not in order[at + 1 :]]
    vm.orders[definition] = unique
    return unique


def direct_bases(vm: Interpreter, definition: ClassDef) -> Value:
    """``Class.__bases__``, where every one of them is known."""
    found = [vm.quiet_eval(base, Scope(definition.module)) for base in definition.node.bases]
    known = all(isinstance(base, (Class, External)) for base in found)
    return Sequence(tuple(found or [External("builtins.object")])) if known else UNKNOWN


def has_metaclass(vm: Interpreter, definition: ClassDef) -> bool:
    """Whether a class, or one that it is derived from, may be made by something else than ``type``."""
    own = [base for base in bases(vm, definition) if isinstance(base, ClassDef)]
    return enumeration(vm, definition) is not None or any(base.node.keywords for base in own)


def is_module(vm: Interpreter, definition: ClassDef) -> bool:
    """True for subclasses of ``nn.Module``."""
    return any(isinstance(base, str) and base.startswith("torch.nn.") for base in bases(vm, definition))


def layer_base(vm: Interpreter, definition: ClassDef) -> str | None:
    """The class of ``torch.nn`` that computes something from which a class is derived."""
    outside = [base for base in bases(vm, definition) if isinstance(base, str) and base.startswith("torch.nn.")]
    return next((base for base in outside if base.rpartition(".")[2] not in PLAIN_BASES), None)


PLAIN_BASES = frozenset({"Module", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})


def is_open(vm: Interpreter, definition: ClassDef) -> bool:
    """True where a base class outside the analysed code may define anything."""
    closed = (
        "builtins.",
        "typing.",
        "abc.",
        "torch.nn.",
        "enum.",
        "collections.",
        "dataclasses.",
        "transformers.utils.",
    )
    return any(isinstance(base, str) and not base.startswith(closed) for base in bases(vm, definition))


def find_method(
    vm: Interpreter, definition: ClassDef, name: str, after: ClassDef | None = None
) -> tuple[object, ClassDef] | None:
    """The method or class-level assignment that a class or its bases give a name, and the class that has it."""
    order = bases(vm, definition)
    known = vm.members.get(definition)
    if known is None or known[0] is not order:  # while its bases are looked for, a class has another order
        known = vm.members[definition] = order, {}
    key = name, after
    if key not in known[1]:
        known[1][key] = find_member(order, name, after)
    return known[1][key]


def find_member(order: list[ClassDef | str], name: str, after: ClassDef | None) -> tuple[object, ClassDef] | None:
    """The same, looked for in an order of classes."""
    skipping = after is not None
    for base in order:
        if skipping:
            skipping = base is not after
            continue
        if isinstance(base, ClassDef):
            if (method := base.methods.get(name)) is not None:
                return method, base
            if (assigned := base.fields.get(name)) is not None:
                return assigned, base
    return None


def instance_attribute(vm: Interpreter, owner: Ref, name: str, node: ast.AST) -> Value:
    """The attribute of an object in the heap: slot, method, class field, or a built-in of ``nn.Module``."""
    found = vm.heap.get(owner)
    if found is None:
        return UNKNOWN
    if found.sort is not Sort.INSTANCE:
        return BoundExternal(owner, name)
    value = read_slot(vm, owner, name)
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
        inherited = find_method(vm, found.cls, name)
        if inherited is not None:
            return bound(vm, owner, inherited[0], inherited[1], node, name)
        if found.element is not None and not callable_on_module(name):
            return found.element  # set under a name that was put together
        if name == "__class__":
            return Class(found.cls)
        if (mapped := renamed_attribute(vm, owner, found.cls, name, node)) is not None:
            return UNKNOWN if mapped == ABSENT else mapped
        base = layer_base(vm, found.cls) if name in ("weight", "bias") else None
        if base is not None:
            return layer_parameter(vm, owner, found, base, name)
        open_ended = is_open(vm, found.cls)
        if name == "training" and (open_ended or is_module(vm, found.cls)):
            return Const(False)  # decode runs in eval mode
        if is_module(vm, found.cls) or found.cls.is_dataclass:
            return UNKNOWN if found.opaque and not callable_on_module(name) else BoundExternal(owner, name)
        getter = find_method(vm, found.cls, "__getattr__")
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
    found = find_method(vm, definition, "__getattribute__", after)
    while found is not None and naming(found[0]) is True:
        if vm.recording and found[0] not in vm.checking:
            vm.checking.add(found[0])
            return found
        found = find_method(vm, definition, "__getattribute__", found[1])
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
    value = read_slot(vm, owner, name)
    if value is not None or not isinstance(found.cls, ClassDef):
        return value if value is not None else UNKNOWN
    if name in TABLES:
        return BoundExternal(owner, name)
    if name == "__class__":
        return Class(found.cls)
    inherited = find_method(vm, found.cls, name)
    if inherited is not None:
        return bound(vm, owner, *inherited, node)
    return ABSENT if is_declared(vm, found) else UNKNOWN


def is_declared(vm: Interpreter, found: Object) -> bool:
    """Whether all that an object has stands in its class: true of dataclasses, which configurations are."""
    if not isinstance(found.cls, ClassDef) or found.element is not None or not classes.makes_fields(vm, found.cls):
        return False
    return not is_open(vm, found.cls) and find_method(vm, found.cls, "__getattr__") is None


def list_base(vm: Interpreter, found: Object) -> str | None:
    """The class outside the analysed code that keeps an object's items as slots by number: a list, a module list."""
    if not isinstance(found.cls, ClassDef):
        return found.cls if found.cls is not None and is_list(found.cls) else None
    if find_method(vm, found.cls, "__iter__") or find_method(vm, found.cls, "__getitem__"):
        return None
    return next((base for base in bases(vm, found.cls) if isinstance(base, str) and is_list(base)), None)


def is_list(path: str) -> bool:
    """``list`` and its like, ``nn.ModuleList``, ``nn.Sequential``, ``nn.ParameterList``."""
    if path.startswith("torch.nn."):
        return path.endswith((".ModuleList", ".Sequential", ".ParameterList"))
    return path in ("builtins.list", "builtins.tuple", "collections.UserList")


def fill_items(vm: Interpreter, owner: Ref, args: list[Value]) -> None:
    """What the initialiser of a class derived from a list does with its arguments."""
    found = vm.heap[owner]
    base = list_base(vm, found)
    if base is None or not args:
        return
    items = list(args) if base.endswith(".Sequential") else vm.items(args[0])
    if items is None:
        put_element(vm, owner, vm.element(args[0]))
    else:
        slots: dict[object, Value] = {**found.slots}
        slots.update(enumerate(items))
        vm.heap.replace(owner, slots=slots)


TABLES = frozenset({"__dict__", "_buffers", "_parameters", "_modules"})
"""The dictionaries by which an object's attributes can be reached as well."""


def assigned(vm: Interpreter, owner: Ref, name: str) -> Value | None:
    """``name in owner.__dict__``: what was assigned, ``None`` where nothing was, ``UNKNOWN`` where nobody can tell."""
    found = vm.heap.get(owner)
    if found is None or not isinstance(found.cls, ClassDef):
        return UNKNOWN
    value = read_slot(vm, owner, name)
    seen = value is not None or not (found.opaque or found.element is not None or is_open(vm, found.cls))
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


def read_slot(vm: Interpreter, owner: Ref, key: object) -> Value | None:
    """What a slot holds; reading it in recorded code makes it part of what the graph was recorded with."""
    value = vm.heap.read(owner, key)
    if value is not None and vm.driver is not None:
        value = vm.driver.on_load(vm, owner, key, value)
    return value


def bound(vm: Interpreter, owner: Value, member: object, holder: ClassDef, node: ast.AST, name: str = "") -> Value:
    """A class member seen through an instance: bound methods, properties, static methods, fields."""
    if not isinstance(member, FunctionDef):
        assert isinstance(member, (ast.Assign, ast.AnnAssign))
        return shared_field(vm, member, holder, name) if name else field_value(vm, member, holder)
    names = decorator_names(member.node)
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
    return read_slot(vm, scopes.rebinding(vm, holder, name, value), name) or value


def field_value(vm: Interpreter, member: ast.Assign | ast.AnnAssign, holder: ClassDef) -> Value:
    """A class-level assignment."""
    if member.value is None:
        return classes.annotated(vm, member.annotation, holder.module) if isinstance(member, ast.AnnAssign) else UNKNOWN
    return vm.quiet_eval(member.value, Scope(holder.module))


def decorator_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """The decorators of a function as written, without arguments."""
    return frozenset(
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in node.decorator_list
    )


def class_attribute(vm: Interpreter, definition: ClassDef, name: str) -> Value:
    """``Class.name``."""
    if name == "__name__":
        return Const(definition.name)
    if name == "__bases__":
        return direct_bases(vm, definition)
    rebound = rebound_attribute(vm, definition, name)
    if rebound is not None:
        return rebound
    found = find_method(vm, definition, name)
    if found is None and name == "apply" and "torch.autograd.Function" in bases(vm, definition):
        found = find_method(vm, definition, "forward")
        if found is not None and isinstance(found[0], FunctionDef):
            return Method(Function(found[0], found[1].module, found[1]), UNKNOWN)
    if found is None:
        nested = definition.module.classes.get(name)
        return Class(nested) if nested is not None else UNKNOWN
    member, holder = found
    if isinstance(member, FunctionDef):
        function = Function(member, holder.module, holder)
        return Method(function, Class(definition)) if "classmethod" in decorator_names(member.node) else function
    assert isinstance(member, (ast.Assign, ast.AnnAssign))
    if member.value is not None and (kind := enumeration(vm, definition)):
        value = field_value(vm, member, holder)
        counts = kind.endswith(("IntEnum", "StrEnum", "IntFlag")) and isinstance(value, Const)
        return value if counts else Const(Member(holder, name))
    return shared_field(vm, member, holder, name)


def enumeration(vm: Interpreter, definition: ClassDef) -> str | None:
    """The class of ``enum`` from which a class is derived."""
    return next((base for base in bases(vm, definition) if isinstance(base, str) and base.startswith("enum.")), None)


def member_attribute(vm: Interpreter, member: Member, name: str, node: ast.AST) -> Value:
    """``Mode.DECODE.name``, ``.value``, or what the enumeration defines."""
    if name in ("name", "_name_"):
        return Const(member.name)
    found = find_method(vm, member.definition, member.name if name in ("value", "_value_") else name)
    return bound(vm, Const(member), found[0], found[1], node) if found is not None else UNKNOWN


def rebound_attribute(vm: Interpreter, definition: ClassDef, name: str) -> Value | None:
    """What a function has put into an attribute of a class or of its bases."""
    for base in bases(vm, definition) if vm.rebound else ():
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
    found = find_getter(vm, cls, owner.after) if asks else find_method(vm, cls, name, owner.after)
    if found is not None:
        return bound(vm, owner.owner, found[0], found[1], node, name)
    inherits = name == "forward" and layer_base(vm, cls) is not None
    return BoundExternal(owner if inherits else owner.owner, name)


def store(vm: Interpreter, owner: Value, name: object, value: Value, node: ast.AST, same: bool = False) -> None:
    """``owner.name = value`` for each alternative of the owner."""
    for option in options(owner):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None:
            setter = find_setter(vm, found.cls, name) if isinstance(found.cls, ClassDef) and not same else None
            if setter is not None:
                vm.call(Function(setter, setter.module, setter.owner), [option, value], {}, node)
            else:
                write_slot(vm, option, name, value, node, same)
        elif isinstance(option, ModuleValue) and isinstance(name, str):
            write_slot(vm, scopes.globals_of(vm, option.module, name), name, value, node)
        elif isinstance(option, Class) and isinstance(name, str) and isinstance(value, (Function, Lambda)):
            registries.replace_method(vm, option.definition, name, value)
        elif isinstance(option, Class) and isinstance(name, str):
            present = class_attribute(vm, option.definition, name)
            write_slot(vm, scopes.rebinding(vm, option.definition, name, present), name, value, node)
        elif isinstance(option, Tensor) and name == "data" and vm.recording and option.home is not None:
            swap = Store(option.home, option, value, vm.site(node), vm.doubt, bool(vm.hidden), data=True)
            vm.step.stores.append(swap)
        elif isinstance(option, Tensor) and name == "data" and vm.driver is not None:
            vm.driver.on_swap(vm, option, value, node)
        else:
            calls.lend(vm, [value])


def find_setter(vm: Interpreter, definition: ClassDef, name: object) -> FunctionDef | None:
    """What runs instead of a store: the setter of the property that a class or its bases have under a name."""
    for base in bases(vm, definition):
        if isinstance(base, ClassDef) and isinstance(name, str) and (name in base.setters or name in base.methods):
            return base.setters.get(name)
    return None


def write_slot(vm: Interpreter, owner: Ref, key: object, value: Value, node: ast.AST, same: bool = False) -> None:
    """Write a slot and note what that means for a graph."""
    found = vm.heap[owner]
    old = found.slots.get(key, found.element if found.sort is not Sort.INSTANCE else None)
    if vm.driver is not None and not same:
        value = vm.driver.alias_in_slot(vm, vm.driver.grown(value, node), node)
        vm.driver.on_output_slot(vm, owner, key, old, value, node)
        vm.driver.on_store(vm, owner, key, old, value, node)
    home = Home(owner.oid, key)
    if (vm.recording or vm.warms_compiled) and vm.heap.persistent(owner) and not same:
        tensors = tensors_of(vm.heap, value)
        if any(t.home is None or (t.home != home and not t.view) for t in tensors):
            record_store(vm, home, old if old is not None else NONE, value, node)
    if isinstance(value, Tensor) and value.on_host and not same and vm.heap.persistent(owner) and home in value.deps:
        vm.heap.per_step.add(home)
    if isinstance(value, (Const, Number)) and home in value.deps and any(map(at_work, vm.stack)):
        value = replace(value, deps=value.deps - {home})  # what it counts up, it counts down again
    if not isinstance(value, Tensor) or not same:
        vm.heap.write(owner, key, value)


def element(vm: Interpreter, owner: Ref) -> Value:
    """Any item of a container object; iterating a module container gives its children, a dict its keys."""
    found = vm.heap.get(owner)
    if found is None:
        return UNKNOWN
    if found.sort is Sort.DICT:
        keys: list[Value] = [Const(key) for key in found.slots]
        return union([*keys, *([UNKNOWN] if found.element is not None else [])]) if len(keys) <= 4 else UNKNOWN
    if found.sort is Sort.INSTANCE:
        if isinstance(found.cls, ClassDef) and (method := find_method(vm, found.cls, "__iter__")) is not None:
            return vm.element(vm.call(bound(vm, owner, method[0], method[1], found.cls.node), [], {}, found.cls.node))
        children = [vm.heap.read(owner, key) or UNKNOWN for key in found.slots if isinstance(key, int)]
        if found.element is not None:
            children.append(found.element)
        return union(children)
    items = [vm.heap.read(owner, key) or UNKNOWN for key in found.slots]
    if found.element is not None:
        items.append(found.element)
    return union(items)


def values_of(vm: Interpreter, owner: Ref) -> list[Value]:
    """The values of a dict, exact ones first."""
    found = vm.heap[owner]
    inner = [read_slot(vm, owner, key) or UNKNOWN for key in found.slots]
    return [*inner, found.element] if found.element is not None else inner


def entries(vm: Interpreter, value: Value) -> Iterator[tuple[object, Value]]:
    """The exact items of a dict value."""
    for option in options(value):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None and found.sort is Sort.DICT:
            for key in found.slots:
                yield key, vm.heap.read(option, key) or UNKNOWN


def keywords(vm: Interpreter, value: Value) -> tuple[dict[str, Value], bool]:
    """The arguments that ``**value`` passes, and whether there may be more."""
    exact: dict[str, Value] = {}
    more = False
    for option in options(value):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None and found.sort is Sort.DICT:
            exact |= {str(key): read_slot(vm, option, key) or UNKNOWN for key in found.slots}
            more = more or found.element is not None or found.opaque
        else:
            more = True
    return exact, more


def truth(vm: Interpreter, value: Ref) -> Truth:
    """Instances are true; containers where they surely have an item."""
    found = vm.heap.get(value)
    if found is None:
        return Truth.HOST
    if found.sort is Sort.INSTANCE:
        if isinstance(found.cls, ClassDef):
            has_length = find_method(vm, found.cls, "__len__") or find_method(vm, found.cls, "__bool__")
            return Truth.HOST if has_length or is_open(vm, found.cls) else Truth.TRUE
        return Truth.HOST if found.slots or found.opaque else Truth.TRUE
    if found.slots:
        return Truth.TRUE if vm.heap.persistent(value) is False or found.element is None else Truth.HOST
    return Truth.HOST if found.element is not None or found.opaque else Truth.FALSE


def put_element(vm: Interpreter, owner: Ref, value: Value) -> None:
    """Add any further item to a container."""
    found = vm.heap[owner]
    vm.heap.replace(owner, element=value if found.element is None else join(found.element, value))


def note_element_store(vm: Interpreter, owner: Ref, value: Value, node: ast.AST) -> None:
    """A store under a key that is not known: like a slot write, on the container as a whole."""
    found = vm.heap[owner]
    if vm.recording and vm.heap.persistent(owner) and fresh_tensors(vm.heap, value):
        held = [*found.slots.values(), *([found.element] if found.element is not None else [])]
        old = union(held) if held else NONE
        record_store(vm, Home(owner.oid, "[]"), old, value, node)


def record_store(vm: Interpreter, home: Home, old: Value, value: Value, node: ast.AST) -> None:
    """Remember a tensor put into what outlives the step, to be judged when the step is over."""
    outside = vm.driver is not None and len(vm.stack) == vm.driver.depth
    vm.step.stores.append(Store(home, old, value, vm.site(node), vm.doubt, bool(vm.hidden), outside))
