"""Building instances: by running ``__init__``, from dataclass fields, or from an annotation that promises one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static import inheritance, nn_calls, python_calls, registries, storage
from capturelint.static.homes import Object, Sort
from capturelint.static.index import ClassDef, FunctionDef, Module
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    External,
    Function,
    Kind,
    Memory,
    Number,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Text,
    Value,
    constant,
    join,
    union,
)
from capturelint.vocabulary import Confidence, Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

TENSOR_TYPES = {
    "Tensor": Kind.UNKNOWN,
    "LongTensor": Kind.INT,
    "IntTensor": Kind.INT,
    "FloatTensor": Kind.FLOAT,
    "BoolTensor": Kind.BOOL,
    "HalfTensor": Kind.FLOAT,
    "BFloat16Tensor": Kind.FLOAT,
}


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
    present = vm.instances.get(definition) or promised(vm, definition)
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


def promised(vm: Interpreter, definition: ClassDef) -> Value | None:
    """The instance of a class that inherits from this one, where exactly one such was promised before.

    A cache that takes any configuration takes the one of the model that it is made for.
    """
    inheriting = [
        value
        for other, value in vm.instances.items()
        if isinstance(other, ClassDef) and other is not definition and definition in inheritance.bases(vm, other)
    ]
    return inheriting[0] if len(inheriting) == 1 and isinstance(inheriting[0], Ref) else None


def settle_memory(vm: Interpreter, made: Ref) -> None:
    """Who built the instance also moved it: parameters and buffers are on the device, other tensors may be."""
    moved: set[int] = set()
    for part in [made, *(value for _, value in vm.heap.reach(made) if isinstance(value, Ref))]:
        nn_calls.move_module(vm, part, Memory.DEVICE, moved)
    chosen = vm.index.mentions("set_default_device", "set_default_tensor_type", "with torch.device")
    for _, value in list(vm.heap.reach(made)):
        found = vm.heap.get(value) if isinstance(value, Ref) else None
        if found is None or not any(is_unplaced(v) for v in found.slots.values()):
            continue
        stays = not chosen and isinstance(found.cls, ClassDef) and not is_movable(vm, found.cls)
        memory = Memory.HOST if stays else Memory.EITHER
        slots = {
            key: replace(v, memory=memory, sure=Confidence.LIKELY) if isinstance(v, Tensor) and is_unplaced(v) else v
            for key, v in found.slots.items()
        }
        vm.heap.objects[value.oid] = replace(found, slots=slots)  # type: ignore[union-attr]


def is_movable(vm: Interpreter, definition: ClassDef) -> bool:
    """Whether an instance can be moved to a device as a whole: modules, and classes with a method for it."""
    movers = (inheritance.find_method(vm, definition, name) for name in ("to", "cuda", "_apply"))
    return inheritance.is_module(vm, definition) or inheritance.is_open(vm, definition) or any(movers)


def is_unplaced(value: Value) -> bool:
    """A host tensor whose device no code named."""
    return isinstance(value, Tensor) and value.memory is Memory.HOST and not value.placed


def instantiate(
    vm: Interpreter, definition: ClassDef, args: list[Value], kwargs: dict[str, Value], node: ast.AST, extra: bool
) -> Value:
    """Build an instance by running ``__init__``."""
    outside = [base for base in inheritance.bases(vm, definition) if isinstance(base, str)]
    if any(base.startswith("enum.") for base in outside):
        return UNKNOWN
    opaque = inheritance.is_open(vm, definition)
    made = vm.heap.new(Object(Sort.INSTANCE, definition, opaque=opaque, picked=vm.is_picking))
    initialiser = inheritance.find_method(vm, definition, "__init__")
    if initialiser is not None and isinstance(initialiser[0], FunctionDef):
        function: Value = Function(initialiser[0], initialiser[1].module, initialiser[1])
        function = registries.replacement(vm, definition, "__init__") or function
        vm.call(function, [made, *args], kwargs, node, extra=extra)
    elif makes_fields(vm, definition):
        fill_fields(vm, made, definition, args, kwargs, extra, node)
    else:
        storage.fill_items(vm, made, args)
    return made


def record_class(vm: Interpreter, args: list[Value], node: ast.AST) -> Value:
    """``namedtuple("Output", "logits length")``: the class that such a call makes."""
    name = constant(args[0]) if args else None
    fields = field_names(vm, args[1]) if len(args) > 1 else []
    if not isinstance(name, str) or not all(map(str.isidentifier, [name, *fields])):
        return UNKNOWN
    made = vm.records.get(node)
    if made is None:
        body = "".join(f"\n    {field}: ..." for field in fields) or " ..."
        statement = ast.parse(f"class {name}(NamedTuple):{body}").body[0]
        assert isinstance(statement, ast.ClassDef)
        made = vm.records[node] = vm.module.class_definition(statement)
        vm.orders[made] = [made, "typing.NamedTuple"]
    return Class(made)


def field_names(vm: Interpreter, fields: Value) -> list[str]:
    """``"a b"``, ``"a, b"``, ``["a", "b"]``, ``[("a", int), ("b", int)]``; none where they are not known."""
    text = constant(fields)
    if isinstance(text, str):
        return text.replace(",", " ").split()
    items = [vm.items(field) if isinstance(field, Sequence) else [field] for field in vm.items(fields) or ()]
    names = [constant(item[0]) if item else None for item in items]
    return [name for name in names if isinstance(name, str)] if None not in names else []


def makes_fields(vm: Interpreter, definition: ClassDef) -> bool:
    """True where ``__init__`` is made from the fields: of a dataclass, and of what ``dataclass_transform`` says is one.

    A base class under that decorator makes dataclasses of the classes that inherit from it (PEP 681).
    """
    inherited = [base for base in inheritance.bases(vm, definition) if isinstance(base, ClassDef)]
    return definition.is_dataclass or any(base.transforms for base in inherited)


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
    for base in reversed([b for b in inheritance.bases(vm, definition) if isinstance(b, ClassDef)]):
        for name, field in base.fields.items():
            if isinstance(field, ast.AnnAssign) and not is_class_variable(field.annotation):
                fields[name] = (field, base.module)
    passed = dict(zip(fields, args, strict=False)) | kwargs
    unseen, vm.assuming = extra or vm.assuming, False
    for name, (field, module) in fields.items():
        value = passed.get(name)
        if value is None:
            value = field_default(vm, field, module, unseen)
        if value is UNKNOWN:
            value = annotated(vm, field.annotation, module)
        vm.heap.write(made, name, value)
    after = inheritance.find_method(vm, definition, "__post_init__")
    if after is not None and isinstance(after[0], FunctionDef):
        vm.call(Function(after[0], after[1].module, after[1]), [made], {}, node)


def is_class_variable(annotation: ast.expr) -> bool:
    """``ClassVar[T]``: an attribute of the class, and no argument of its instances."""
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return ast.unparse(outer).rpartition(".")[2] == "ClassVar"


def field_default(vm: Interpreter, field: ast.AnnAssign, module: Module, extra: bool) -> Value:
    """A dataclass field's default, ``field(default_factory=...)`` included."""
    if field.value is None:
        return UNKNOWN
    if isinstance(field.value, ast.Call) and ast.unparse(field.value.func).endswith("field"):
        for keyword in field.value.keywords:
            if keyword.arg == "default":
                return vm.quiet_eval(keyword.value, Scope(module))
            if keyword.arg == "default_factory":
                made = vm.quiet_call(vm.quiet_eval(keyword.value, Scope(module)), [], field)
                return filled(vm, made) if extra else made
        return UNKNOWN
    value = vm.quiet_eval(field.value, Scope(module))
    return join(value, given(vm, field.annotation)) if value == NONE and extra else value


def filled(vm: Interpreter, value: Value) -> Value:
    """A container that somebody fills, where it is empty by default."""
    found = vm.heap.get(value) if isinstance(value, Ref) else None
    if isinstance(value, Ref) and found is not None and found.sort is not Sort.INSTANCE and not found.slots:
        vm.heap.replace(value, element=UNKNOWN, opaque=True)
    return value


def given(vm: Interpreter, annotation: ast.expr | None) -> Value:
    """What is passed for an optional parameter that somebody fills: anything, or a list of anything; not ``None``."""
    match annotation:
        case ast.BinOp(left=inner, op=ast.BitOr(), right=ast.Constant(value=None)):
            return given(vm, inner)
        case ast.Subscript(value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner):
            return given(vm, inner)
        case ast.Subscript(value=ast.Name(id="list" | "List")):
            return vm.new_list(Sequence(None, UNKNOWN))
        case _:
            return UNKNOWN


def is_instance(vm: Interpreter, value: Value, kind: Value) -> bool | None:
    """``isinstance``, where it can be told."""
    if isinstance(kind, Sequence) and kind.items is not None:
        answers = {is_instance(vm, value, item) for item in kind.items}
        return True if True in answers else None if None in answers else False
    if isinstance(value, Tensor):
        if isinstance(kind, External) and (value.array or kind.path.startswith("numpy.")):
            return value.array and kind.path == "numpy.ndarray"
        if isinstance(kind, External):
            return kind.path.endswith(("Tensor", "Parameter")) if kind.path.startswith(("torch", "builtins")) else None
        return False if isinstance(kind, Class) else None
    if value == NONE:
        return False
    if isinstance(value, Ref) and (found := vm.heap.get(value)) is not None:
        if found.sort is Sort.INSTANCE and isinstance(kind, Class) and isinstance(found.cls, ClassDef):
            order = inheritance.bases(vm, found.cls)
            return True if kind.definition in order else None if inheritance.is_open(vm, found.cls) else False
        if isinstance(kind, External):
            wanted = {Sort.LIST: "builtins.list", Sort.DICT: "builtins.dict", Sort.SET: "builtins.set"}.get(found.sort)
            if wanted is not None:
                return kind.path == wanted
            if found.sort is Sort.INSTANCE and kind.path.startswith("builtins."):
                return False
        return None
    if isinstance(kind, External) and kind.path.startswith("builtins."):
        return python_calls.is_builtin_instance(value, kind.path.removeprefix("builtins."))
    if isinstance(kind, External) and kind.path.endswith(".Tensor"):
        return False if isinstance(value, (Const, Number, Text, Sequence)) else None
    return None
