"""What Python's built-ins do with abstract values: conversions and truth tests of device tensors are reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import (
    attributes,
    calls,
    classes,
    conditions,
    host_calls,
    inheritance,
    protocols,
    results,
    storage,
    torch_calls,
)
from capturelint.static.homes import LENGTH, Object, Sort, as_slots
from capturelint.static.index import ClassDef
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    CaptureQuery,
    Class,
    Const,
    Function,
    Home,
    Lambda,
    Method,
    Number,
    Range,
    Ref,
    Scope,
    Sequence,
    Slice,
    Super,
    Tensor,
    Text,
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
MAX_RANGE = 128
"""Numbers of a range that are kept one by one."""
CONVERSIONS = frozenset({"int", "float", "bool", "complex"})
TRUTH_TESTS = frozenset({"min", "max", "any", "all", "sorted"})
CONTAINERS = {"list": Sort.LIST, "set": Sort.SET, "frozenset": Sort.SET, "dict": Sort.DICT}


def call_builtin(
    vm: Interpreter,
    name: str,
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    scope: Scope | None,
) -> Value:
    """A call of a Python built-in."""
    if name in CONVERSIONS:
        return convert(vm, name, args, node)
    if name in TRUTH_TESTS:
        if name == "min" and len(args) == 1 and "default" not in kwargs and isinstance(node, ast.Call) and scope:
            look_up(vm, node.args[0], scope, node)
        return compare_all(vm, name, args, kwargs, node)
    if vm.driver is not None and name in KEEPING and isinstance(node, ast.Call) and node.args:
        vm.driver.on_listed(vm, node, vm.element(args[0]))
    if name in CONTAINERS:
        return make_container(vm, name, args, kwargs)
    handler = HANDLERS.get(name)
    return handler(vm, args, kwargs, node, scope) if handler is not None else UNKNOWN


KEEPING = frozenset({"list", "tuple", "set", "sorted"})
"""Built-ins that hold all that they are given at once."""


def convert(vm: Interpreter, name: str, args: list[Value], node: ast.AST) -> Value:
    """``int(x)``, ``float(x)``, ``bool(x)``: of a device tensor, a read."""
    if not args:
        return Const({"int": 0, "float": 0.0, "bool": False}.get(name))
    asked = protocols.run_method(vm, args[0], protocols.CONVERSIONS[name], [], node)
    if asked is not None:
        return asked
    tensor = tensor_in(args[0])
    if tensor is not None:
        if vm.driver is not None:
            vm.driver.blocks.on_host_read(vm, tensor, node)
        if tensor.on_device:
            vm.emit(EventKind.SYNC, node, name, tensor.sure, name=name)
            return Number(Varies.PER_STEP, read=True)
        return Number(tensor.varies, tensor.deps, tensor.drawn)
    known = constant(args[0])
    if isinstance(known, (int, float)) and name in ("int", "float", "bool"):
        return Const({"int": int, "float": float, "bool": bool}[name](known), deps_of(args[0]))
    if isinstance(known, str) and name == "int" and known.strip().lstrip("+-").isdecimal():
        return Const(int(known), deps_of(args[0]))
    if isinstance(known, str) and name == "bool":
        return Const(bool(known), deps_of(args[0]))
    if isinstance(known, str) and name == "float":
        return Number()
    if name == "bool" and any(isinstance(option, CaptureQuery) for option in options(args[0])):
        return args[0]
    if name == "bool":
        return (
            conditions.flag(conditions.truth_of(vm, args[0]), args[0])
            if isinstance(args[0], (Number, Ref))
            else Number()
        )
    return host_calls.combined(args)


def compare_all(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``min``, ``max``, ``any``, ``all``, ``sorted``: each test of a device tensor is a read."""
    items = list(args)
    if len(args) == 1:
        exact = vm.items(args[0])
        items = exact if exact is not None else [vm.element(args[0])]
        tensor = tensor_in(args[0])
        if tensor is not None:
            items = [tensor]
    if "key" in kwargs and kwargs["key"] != NONE:
        items = [vm.call(kwargs["key"], [item], {}, node) for item in items]
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
        return host_calls.combined([item for item in items if is_number(item) or isinstance(item, (Number, Const))])
    if all(isinstance(option, (Const, Number)) for item in items for option in options(item)):
        return host_calls.combined(items)
    return union(items)


def make_container(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``list(x)``, ``dict(...)``, ``set(x)``."""
    if name == "dict":
        slots = as_slots(kwargs)
        for value in args:
            slots |= {str(key): inner for key, inner in storage.entries(vm, value)}
            slots |= pairs_of(vm, value)
        items = [pair_value(vm, value) for value in args] if not slots else []
        return vm.heap.new(Object(Sort.DICT, slots=slots, element=union(items) if items else None))
    if not args:
        return vm.heap.new(Object(CONTAINERS[name]))
    if name == "list":
        return vm.new_list(args[0])
    return vm.heap.new(Object(Sort.SET, element=vm.element(args[0])))


def pair_value(vm: Interpreter, value: Value) -> Value:
    """Any value of ``dict(pairs)``, of pairs whose keys nobody knows."""
    pair = vm.element(value) if isinstance(value, Sequence) else UNKNOWN
    items = vm.items(pair)
    return items[1] if items is not None and len(items) == 2 else UNKNOWN


def pairs_of(vm: Interpreter, value: Value) -> dict[object, Value]:
    """The items of ``dict([(key, item), ...])`` whose keys are known."""
    pairs = [vm.items(pair) for pair in vm.items(value) or ()] if isinstance(value, Sequence) else []
    found: dict[object, Value] = {}
    for pair in pairs:
        if pair is not None and len(pair) == 2 and isinstance(key := constant(pair[0]), (str, int)):
            found[key] = pair[1]
    return found


Handler = Callable[["Interpreter", list[Value], dict[str, Value], ast.AST, "Scope | None"], Value]


def length(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``len``: of a tensor, its first size; of a list that the step appends to, a number of the step."""
    value = args[0] if args else UNKNOWN
    items = vm.items(value)
    if isinstance(value, Ref):
        home = Home(value.oid, LENGTH)
        vm.heap.measured.add(home)
        if home in vm.heap.per_step:
            return Number(Varies.PER_STEP, frozenset({home}))
    if items is not None and not isinstance(value, Ref):
        return Const(len(items))
    if isinstance(value, Ref) and (found := vm.heap.get(value)) is not None:
        if isinstance(found.cls, ClassDef) and (method := inheritance.find_method(vm, found.cls, "__len__")):
            return vm.call(attributes.bound(vm, value, *method, node), [], {}, node)
        return Const(len(items)) if items is not None and not vm.heap.persistent(value) else Number()
    if isinstance(value, Tensor):
        shape = attributes.shape_of(value)
        return shape.items[0] if shape.items else element_of(shape)
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
        first = tuple(range(*exact)[: MAX_RANGE + 1])  # `len` of a range ends where a pointer does
        return Range(Varies.NEVER, first if len(first) <= MAX_RANGE else None)
    return Range(Varies.NEVER if read else varies)


def print_values(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``print``, ``str``, ``repr``, ``format``: text of a device tensor needs its values."""
    for value in args:
        torch_calls.formatted(vm, value, node)
    text = exact_text(vm, args[0]) if len(args) == 1 else None
    return Text() if text is None else Const(text)


def exact_text(vm: Interpreter, value: Value, shown: bool = False) -> str | None:
    """The text of a number, a string, an analysed class, or a tuple of those; ``shown`` as ``repr`` gives it."""
    match value:
        case Const(value=bool() | int() | str() | None as known):
            return repr(known) if shown else str(known)
        case Class(definition=definition) if not inheritance.has_metaclass(vm, definition):
            return f"<class '{definition.module.name}.{definition.name}'>"
        case Sequence(items=items) if items is not None:
            parts = [exact_text(vm, item, shown=True) for item in items]
            known_parts = [part for part in parts if part is not None]
            inside = ", ".join(known_parts) + "," * (len(parts) == 1)
            return f"({inside})" if len(known_parts) == len(parts) else None
        case _:
            return None


def total(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``sum``: additions, which stay on the device."""
    element = vm.element(args[0]) if args else UNKNOWN
    items = vm.items(args[0]) if args else None
    tensor = tensor_in(element)
    if tensor is not None:
        return results.result(vm, items or [element], node, tensor.rank)
    known = [constant(item) for item in items or []]
    if items and all(isinstance(k, (int, float)) for k in known):
        return Const(sum(known))  # type: ignore[arg-type]
    return host_calls.combined(items if items is not None else [element])


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
    if len(args) < 2:
        return UNKNOWN
    replays = vm.driver.replays if vm.driver is not None else 0
    value = vm.call(args[0], [vm.element(v) for v in args[1:]], {}, node)
    if vm.driver is not None and vm.driver.replays > replays:
        vm.driver.mapping = node
    return Sequence(None, value)


def filtered(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None) -> Value:
    """``filter(f, xs)``, ``itertools.takewhile(f, xs)``: what the predicate says of each item is tested."""
    if len(args) < 2:
        return UNKNOWN
    element = vm.element(args[1])
    answer = element if args[0] == NONE else vm.call(args[0], [element], {}, node)
    if isinstance(node, ast.expr):
        conditions.ask(vm, answer, node, "filter", report_step=False)
    return calls.new_iterator(vm, element)


def make_tuple(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``tuple(x)``, ``reversed(x)``."""
    if not args:
        return Sequence(())
    items = vm.items(args[0])
    if isinstance(args[0], Sequence):
        return args[0]
    return Sequence(tuple(items)) if items is not None else Sequence(None, vm.element(args[0]))


def make_iterator(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``iter(x)``."""
    known = isinstance(args[0], Ref) and (held := vm.heap.get(args[0])) is not None and held.cls == calls.ITERATOR
    return args[0] if known else calls.new_iterator(vm, vm.element(args[0]))


def first_item(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``next(x)``, ``next(x, default)``."""
    if len(args) == 1 and isinstance(node, ast.Call) and scope is not None:
        look_up(vm, node.args[0], scope, node)
    element = vm.element(args[0]) if args else UNKNOWN
    if args and isinstance(args[0], Ref) and differs_per_step(vm, args[0], element):
        return Number(Varies.PER_STEP, frozenset({Home(args[0].oid, "place")}))
    return join(element, args[1]) if len(args) > 1 else element


def differs_per_step(vm: Interpreter, iterator: Ref, element: Value) -> bool:
    """Host numbers taken from an iterator that outlives the step: the next step takes the next one."""
    found = vm.heap.get(iterator)
    numbers = is_number(element) or all(isinstance(option, (Const, Number)) for option in options(element))
    steady = isinstance(element, Const)
    return bool(
        found is not None
        and found.cls == calls.ITERATOR
        and vm.recording
        and vm.heap.persistent(iterator)
        and numbers
        and not steady
    )


def look_up(vm: Interpreter, search: ast.expr, scope: Scope, node: ast.AST) -> None:
    """``next(size for size in sizes if size >= rows)``, ``min(...)``: raises where no size is large enough."""
    if vm.driver is None:
        return
    match search:
        case (
            ast.GeneratorExp(generators=[ast.comprehension(iter=sizes, ifs=[ast.Compare(ops=[ast.GtE() | ast.LtE()])])])
            | ast.ListComp(generators=[ast.comprehension(iter=sizes, ifs=[ast.Compare(ops=[ast.GtE() | ast.LtE()])])])
        ):
            with vm.silent():
                items = vm.items(vm.eval(sizes, scope))
            if items is not None:
                vm.driver.buckets.on_lookup(vm, items, node, sizes)
        case _:
            pass


def check_instance(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``isinstance``."""
    if len(args) < 2:
        return Number()
    answers = {classes.is_instance(vm, option, args[1]) for option in options(args[0])}
    return Const(answers.pop()) if len(answers) == 1 and None not in answers else Number()


def check_subclass(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``issubclass``: not known where the class may stand for one that inherits from it."""
    match args:
        case [Class(definition=definition), Class(definition=wanted)]:
            order = inheritance.bases(vm, definition)
            settled = wanted in order or not (
                inheritance.is_open(vm, definition) or definition in inheritance.bases(vm, wanted)
            )
            return Const(wanted in order) if settled else Number()
        case _:
            return Number()


def get_attribute(
    vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST, scope: Scope | None
) -> Value:
    """``getattr`` with a literal name."""
    name = constant(args[1]) if len(args) > 1 else None
    if not isinstance(name, str):
        holder = vm.heap.get(args[0]) if args and isinstance(args[0], Ref) else None
        if holder is None or holder.sort is not Sort.INSTANCE or holder.element is None:
            return UNKNOWN
        return holder.element
    known = has_attribute(vm, args[0], name) if len(args) > 2 else True
    if known is False:
        return args[2]
    found = vm.attribute(args[0], name, node)
    if known is None:
        return join(found, args[2]) if found is not UNKNOWN else UNKNOWN
    return found


def has_attribute(vm: Interpreter, owner: Value, name: str) -> bool | None:
    """Whether an object has an attribute, where it can be told."""
    if isinstance(owner, Ref) and (found := vm.heap.get(owner)) is not None and isinstance(found.cls, ClassDef):
        if name in found.slots or inheritance.find_method(vm, found.cls, name) is not None:
            return True
        if inheritance.is_declared(vm, found):
            given = attributes.renamed_attribute(vm, owner, found.cls, name, found.cls.node)
            return None if given is UNKNOWN else given not in (None, attributes.ABSENT)
        if found.opaque or inheritance.is_open(vm, found.cls) or inheritance.find_method(vm, found.cls, "__getattr__"):
            return None
        return inheritance.is_module(vm, found.cls) and name in attributes.MODULE_METHODS
    if isinstance(owner, Class):
        definition = owner.definition
        if attributes.class_attribute(vm, definition, name) is not UNKNOWN:
            return True
        closed = not inheritance.is_open(vm, definition) and not inheritance.has_metaclass(vm, definition)
        return False if closed and not name.startswith("__") and name not in attributes.MODULE_METHODS else None
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
    """``setattr``: under a name that is not known it may be any attribute."""
    if len(args) == 3 and isinstance(constant(args[1]), str):
        attributes.store(vm, args[0], constant(args[1]), args[2], node)
    elif len(args) == 3 and isinstance(args[0], Ref) and vm.phase is Phase.SET_UP:
        storage.put_element(vm, args[0], args[2])
    else:
        calls.lend(vm, args[2:])
        if vm.driver is not None and len(args) == 3:
            vm.driver.on_parameter_set(vm, args[0], args[2], node)
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
        return results.result(vm, args, node, tensor.rank)
    return host_calls.combined(args)


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
    "iter": make_iterator,
    "next": first_item,
    "isinstance": check_instance,
    "issubclass": check_subclass,
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
    "vars": lambda vm, args, kwargs, node, scope: host_calls.attribute_table(vm, args, kwargs, node),
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
