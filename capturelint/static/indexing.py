"""``x[index]`` and ``x[index] = value``: where innocent spelling decides between a view, a gather and a device read.

The exact cases were measured on an H200 (constructs of the operation catalogue): a 0-d device index is a host read, a
1-d one is a gather; a Python number assigned to one element is an upload, assigned to a slice it is a fill kernel.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeGuard

from capturelint.static import attributes, calls, inheritance, results, storage, torch_calls
from capturelint.static.homes import Object, Sort, tensors_of
from capturelint.static.index import ClassDef
from capturelint.static.records import replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    BoundExternal,
    Const,
    Kind,
    Number,
    Ref,
    Scope,
    Sequence,
    Slice,
    Tensor,
    Text,
    Value,
    constant,
    deps_of,
    element_of,
    int_constant,
    join,
    options,
    tensor_in,
    union,
    varies_of,
)
from capturelint.vocabulary import Confidence, EventKind, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def load(vm: Interpreter, owner: Value, index: Value, node: ast.Subscript) -> Value:
    """``owner[index]``; by a name, only what may have one is meant."""
    holders = [option for option in options(owner) if option != NONE]
    if isinstance(constant(index), str):
        holders = [option for option in holders if not counts_items(vm, option)] or holders
    values = [load_one(vm, option, index, node) for option in holders]
    if len(values) > 1 and vm.recording:
        # What they are joined to has no home any more.
        torch_calls.use(vm, [tensor for tensor in map(tensor_in, values) if tensor is not None])
    return union(values)


def counts_items(vm: Interpreter, value: Value) -> bool:
    """A tensor, a tuple, a list: its items have numbers and no names."""
    found = vm.heap.get(value) if isinstance(value, Ref) else None
    return isinstance(value, (Tensor, Sequence)) or (found is not None and found.sort is Sort.LIST)


def load_one(vm: Interpreter, owner: Value, index: Value, node: ast.Subscript) -> Value:
    """``owner[index]`` for one alternative."""
    match owner:
        case Tensor():
            return tensor_item(vm, owner, index, node)
        case Sequence():
            return sequence_item(vm, owner, index, node)
        case Ref():
            return object_item(vm, owner, index, node)
        case BoundExternal(owner=holder, name=name) if name in attributes.TABLES and isinstance(constant(index), str):
            return vm.attribute(holder, str(constant(index)), node)
        case Const(value=str()) | Text():
            return Text()
        case _:
            return UNKNOWN


def sequence_item(vm: Interpreter, owner: Sequence, index: Value, node: ast.Subscript) -> Value:
    """An item or a slice of a tuple."""
    number_index(vm, index, node)
    if isinstance(index, Slice):
        if owner.items is not None:
            start, stop, step = (constant(bound) for bound in (index.start, index.stop, index.step))
            if is_bound(start) and is_bound(stop) and is_bound(step) and step != 0:
                return replace(owner, items=owner.items[start:stop:step])
        return replace(owner, items=None, element=element_of(owner))
    at = int_constant(index)
    if owner.items is not None and at is not None:
        return owner.items[at] if -len(owner.items) <= at < len(owner.items) else UNKNOWN
    found = element_of(owner)
    # A tuple is a record: which of its items is meant decides what it is.
    record = owner.items is not None and index is UNKNOWN
    record = record or (tensor_in(found) is not None and any(isinstance(option, Ref) for option in options(found)))
    return as_guess(found) if record and not owner.shape else chosen_number(found, index)


def as_guess(value: Value) -> Value:
    """The same value, its tensors no more than possible."""
    return union([replace(o, sure=Confidence.POSSIBLE) if isinstance(o, Tensor) else o for o in options(value)])


def is_bound(value: object) -> TypeGuard[int | None]:
    """An exact slice bound."""
    return value is None or isinstance(value, int)


def number_index(vm: Interpreter, index: Value, node: ast.Subscript) -> None:
    """A device tensor as the index of a host container is read (``__index__``)."""
    tensor = tensor_in(index)
    if tensor is not None and tensor.on_device:
        vm.emit(EventKind.SYNC, node, "host-index", tensor.sure)


def object_item(vm: Interpreter, owner: Ref, index: Value, node: ast.Subscript) -> Value:
    """An item of a list, a dict, a module container or an instance with ``__getitem__``."""
    found = vm.heap.get(owner)
    if found is None:
        return UNKNOWN
    if found.sort is Sort.INSTANCE:
        if isinstance(found.cls, ClassDef) and (method := inheritance.find_method(vm, found.cls, "__getitem__")):
            return vm.call(attributes.bound(vm, owner, method[0], method[1], node), [index], {}, node)
        items = vm.items(owner) if isinstance(found.cls, ClassDef) else None
        if items is not None:
            return sequence_item(vm, Sequence(tuple(items)), index, node)
        if not has_items(found):
            return UNKNOWN
    if found.sort is not Sort.DICT:
        number_index(vm, index, node)
    key = constant(index)
    if isinstance(key, int) and found.sort is not Sort.DICT and key < 0 and found.element is None:
        key += len(found.slots)
    if key is not Const and key in found.slots:
        return storage.read_slot(vm, owner, key) or UNKNOWN
    if isinstance(index, Slice):
        return vm.new_list(Sequence(None, storage.element(vm, owner)))
    if found.factory is not None and found.element is None:
        return made_item(vm, owner, key, found.factory, node)
    if key is not Const and found.sort is Sort.DICT and isinstance(key, (str, int)):
        if vm.driver is not None and found.element is None and isinstance(key, int):
            vm.driver.on_missing(vm, found, node)
        return found.element if found.element is not None else UNKNOWN
    if (named := known_items(vm, owner, index)) is not None:
        return named
    inner = storage.values_of(vm, owner)
    if any(computes(vm, option) for value in inner for option in options(value)):
        torch_calls.report_varying(vm, index, node, "index")
    if vm.driver is not None:
        by_rows = found.sort is Sort.DICT and found.element is None and varies_of(index) is Varies.PER_BUCKET
        sizes: list[Value] = [Const(key) for key in found.slots] if by_rows else inner
        vm.driver.buckets.on_lookup(vm, sizes, node, node.value)
        inner = [vm.driver.on_load(vm, owner, "[]", value) for value in inner]
    return chosen_number(union(inner), index)


def chosen_number(value: Value, index: Value) -> Value:
    """One of several host numbers, chosen by a number that changes at every step, changes with it."""
    if varies_of(index) is not Varies.PER_STEP or isinstance(value, Const):
        return value
    if not all(isinstance(option, (Const, Number)) and option != NONE for option in options(value)):
        return value
    by = next((option for option in options(index) if isinstance(option, Number)), Number())
    return replace(by, deps=deps_of(index) | deps_of(value))


def made_item(vm: Interpreter, owner: Ref, key: object, factory: Value, node: ast.Subscript) -> Value:
    """What a ``defaultdict`` puts under a key that it did not hold."""
    made = vm.call(factory, [], {}, node)
    if key is Const:
        inner = storage.values_of(vm, owner)
        storage.put_element(vm, owner, made)
        return union([*inner, made])
    storage.write_slot(vm, owner, key, made, node)
    return storage.read_slot(vm, owner, key) or UNKNOWN


def known_items(vm: Interpreter, owner: Ref, index: Value) -> Value | None:
    """What a dict holds under the keys that an index is known to be able to be; ``None`` where no such is in it.

    Where a key is one of the dict's or anything at all, anything is not a reason to take every item for meant.
    """
    keys = [key for key in map(constant, options(index)) if isinstance(key, (str, int))]
    held = [key for key in keys if key in vm.heap[owner].slots] if vm.heap[owner].sort is Sort.DICT else []
    return union([storage.read_slot(vm, owner, key) or UNKNOWN for key in held]) if held else None


def computes(vm: Interpreter, item: Value) -> bool:
    """A tensor, a module, or what holds tensors: which of several is taken decides what the graph records."""
    found = vm.heap.get(item) if isinstance(item, Ref) else None
    if found is None:
        return isinstance(item, Tensor)
    if isinstance(found.cls, ClassDef):
        return inheritance.is_module(vm, found.cls) or bool(tensors_of(vm.heap, item))
    return str(found.cls).startswith("torch.nn.") or bool(tensors_of(vm.heap, item))


def has_items(found: Object) -> bool:
    """True for module containers, whose children are slots by number or name."""
    return isinstance(found.cls, str) and found.cls.rpartition(".")[2] in (
        "ModuleList",
        "Sequential",
        "ModuleDict",
        "ParameterList",
    )


def index_parts(vm: Interpreter, index: Value) -> list[Value]:
    """The comma-separated parts of a tensor index."""
    return list(index.items) if isinstance(index, Sequence) and index.items is not None else [index]


def tensor_item(vm: Interpreter, tensor: Tensor, index: Value, node: ast.Subscript) -> Value:
    """A view, a gather, or a read of the device."""
    parts = index_parts(vm, index)
    torch_calls.use(vm, [replace(tensor, rows=None)])  # how many rows are used is what the index says
    check_bounds(vm, tensor, parts, node)
    if tensor.on_device:
        for part in parts:
            check_part(vm, tensor, part, node, storing=False)
    advanced = [t for t in map(tensor_in, parts) if t is not None and t.rank != 0]
    lists = [part for part in parts if isinstance(part, Ref)]
    rank = indexed_rank(tensor, parts)
    if advanced or lists:
        return results.result(vm, [tensor, *parts], node, rank, tensor.kind)
    narrowed = any(not whole(part) for part in parts)
    if vm.driver is not None and isinstance(parts[0], Slice):
        vm.untold += tensor.rows is not None
        vm.driver.buckets.on_rows(tensor)
    made = replace(tensor, rank=rank, view=tensor.view or narrowed, rows=num_rows(vm, tensor, parts[0]))
    if narrowed and tensor.home is None and tensor.ident in vm.step.written:
        made = replace(made, negative=False)  # the part that was written
    if tensor.stretched and not all(whole(part) or isinstance(part, Tensor) for part in parts[1:]):
        made = replace(made, strided=True, stretched=False, varies=Varies.NEVER)
    return replace(made, extends=None) if narrowed else made


def num_rows(vm: Interpreter, tensor: Tensor, first: Value) -> int | None:
    """The size of the first dimension after ``[:stop]``, where it is known."""
    if not isinstance(first, Slice) or first.start not in (NONE, Const(0)) or first.step != NONE:
        return None
    if first.stop == NONE:
        return tensor.rows
    stop = largest(vm, first.stop)
    return stop if stop is None or stop >= 0 else None


def largest(vm: Interpreter, value: Value) -> int | None:
    """A number, or the largest of the list that it is any item of: the least such, where one was cut from another."""
    owners = {home.owner for home in deps_of(value)}
    if isinstance(value, Number) and owners and vm.driver is not None:
        most = [largest_item(vm.heap.objects.get(owner)) for owner in owners]
        return min((size for size in most if size is not None), default=None) if None not in most else None
    return int_constant(value)


def largest_item(found: Object | None) -> int | None:
    """The largest of a list of known numbers."""
    sizes = [int_constant(item) for item in found.slots.values()] if found and found.sort is Sort.LIST else []
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None


def whole(part: Value) -> bool:
    """``:``, ``...``, ``None``: nothing is left out."""
    if isinstance(part, Slice):
        return part.start in (NONE, Const(0)) and part.stop == NONE
    return part == NONE or constant(part) is Ellipsis


def indexed_rank(tensor: Tensor, parts: list[Value]) -> int | None:
    """The rank of ``tensor[parts]``, where it can be told."""
    if tensor.rank is None:
        return None
    rank, gathered = tensor.rank, None
    for part in parts:
        match part:
            case Slice():
                pass
            case Const(value=None):
                rank += 1
            case Const(value=value) if value is Ellipsis:
                pass
            case Const(value=bool()):
                return None
            case Const() | Number():
                rank -= 1
            case Tensor(kind=Kind.BOOL):
                rank -= (part.rank or 1) - 1
            case Tensor(rank=None):
                return None
            case Tensor():
                rank -= 1
                gathered = max(gathered or 0, part.rank or 0)
            case Ref():
                rank -= 1
                gathered = max(gathered or 0, 1)
            case _:
                return None
    return max(rank + (gathered or 0), 0)


def check_bounds(vm: Interpreter, tensor: Tensor, parts: list[Value], node: ast.Subscript) -> None:
    """Slice bounds and integer indices are host integers: a tensor is read, a number of the step is baked."""
    for part in parts:
        bounds = [part.start, part.stop, part.step] if isinstance(part, Slice) else []
        for bound in bounds:
            held = tensor_in(bound)
            if held is not None and held.on_device:
                vm.emit(EventKind.SYNC, node, "slice-bound", held.sure)
            elif tensor.on_device:
                torch_calls.report_varying(vm, bound, node, "slice")
        if isinstance(part, (Number, Tensor)) and tensor.on_device:
            torch_calls.report_varying(vm, part, node, "index")


def check_part(vm: Interpreter, tensor: Tensor, part: Value, node: ast.Subscript, storing: bool) -> None:
    """One part of an index into a device tensor."""
    held = tensor_in(part)
    if held is not None:
        sure = min(tensor.sure, held.sure)
        if held.on_device and held.kind is Kind.BOOL and not storing:
            vm.emit(EventKind.DYNAMIC_SHAPE, node, "mask-read", sure)
        elif held.on_device and held.rank == 0 and held.kind is not Kind.BOOL and held.kind is not Kind.FLOAT:
            vm.emit(EventKind.SYNC, node, "index-0d", sure)
        elif held.on_host and held.rank not in (0, None):
            vm.emit(EventKind.UPLOAD, node, "host-tensor-index", min(sure, held.sure))
        return
    if isinstance(part, Sequence) and not part.shape and part.items and all(map(is_host_number, part.items)):
        vm.emit(EventKind.UPLOAD, node, "list-index", tensor.sure)
    if isinstance(part, Ref) and (found := vm.heap.get(part)) is not None and found.sort is Sort.LIST:
        inner = storage.element(vm, part)
        if not any(isinstance(option, (Tensor, Slice)) for option in options(inner)) and inner is not UNKNOWN:
            vm.emit(EventKind.UPLOAD, node, "list-index", tensor.sure)


def store(vm: Interpreter, owner: Value, target: ast.Subscript, value: Value, scope: Scope) -> None:
    """``owner[index] = value`` for each alternative of the owner."""
    index = vm.eval(target.slice, scope)
    for option in options(owner):
        match option:
            case Tensor():
                store_tensor(vm, option, index, value, target)
            case Ref():
                store_object(vm, option, index, value, target)
            case BoundExternal(owner=holder, name=name) if name in attributes.TABLES:
                key = constant(index)
                if isinstance(key, str):
                    attributes.store(vm, holder, key, value, target)
            case _:
                calls.lend(vm, [value])


def store_object(vm: Interpreter, owner: Ref, index: Value, value: Value, node: ast.Subscript) -> None:
    """An item of a container in the heap."""
    found = vm.heap.get(owner)
    if found is None:
        return
    if found.sort is Sort.INSTANCE:
        if isinstance(found.cls, ClassDef) and (method := inheritance.find_method(vm, found.cls, "__setitem__")):
            vm.call(attributes.bound(vm, owner, method[0], method[1], node), [index, value], {}, node)
        else:
            calls.lend(vm, [value])
        return
    key = constant(index)
    if vm.driver is not None:
        value = vm.driver.on_keep(vm, value, node, "item")
        vm.driver.on_register(vm, index, value)
    if isinstance(key, (str, int, type(None))) and (found.sort is Sort.DICT or key in found.slots):
        storage.write_slot(vm, owner, key, value, node)
        return
    if isinstance(index, Slice):
        items = vm.items(value) if whole(index) and found.element is None else None
        if items is not None and list(found.slots) == list(range(len(items))):
            for at, item in enumerate(items):
                storage.write_slot(vm, owner, at, item, node)
            return
        storage.put_element(vm, owner, vm.element(value))
        return
    storage.note_element_store(vm, owner, value, node)
    if found.sort is Sort.LIST and found.slots and found.element is None:
        # An item that is there, whichever: a list does not grow by it.
        vm.heap.replace(owner, slots={at: join(held, value) for at, held in found.slots.items()})
        return
    storage.put_element(vm, owner, value)


def store_tensor(vm: Interpreter, tensor: Tensor, index: Value, value: Value, node: ast.Subscript) -> None:
    """An in-place write through an index."""
    parts = index_parts(vm, index)
    check_bounds(vm, tensor, parts, node)
    source = tensor_in(value)
    torch_calls.use(vm, [t for t in (source, *map(tensor_in, parts)) if t is not None])
    if tensor.on_device:
        for part in parts:
            check_part(vm, tensor, part, node, storing=True)
        check_assignment(vm, tensor, parts, value, node)
        if source is None:
            torch_calls.report_varying(vm, value, node, "kernel-argument")
    if vm.driver is not None and not vm.recording:
        part = replace(tensor, view=not all(map(whole, parts)))
        tail = isinstance(parts[0], Slice) and parts[0].stop == NONE and parts[0].start != NONE
        vm.driver.buckets.on_fill(part, source, value, tail)
    # One row of several (a ring of staging buffers) is not the whole buffer.
    torch_calls.mutate(vm, tensor if isinstance(parts[0], Slice) else replace(tensor, view=True), node, value)


def check_assignment(vm: Interpreter, tensor: Tensor, parts: list[Value], value: Value, node: ast.Subscript) -> None:
    """What is assigned decides: a host number to one element or through an index is uploaded."""
    source = tensor_in(value)
    indices = [t for t in map(tensor_in, parts) if t is not None]
    masks = [t for t in indices if t.kind is Kind.BOOL and t.on_device]
    gathers = [t for t in indices if t.kind is not Kind.BOOL and t.on_device and t.rank != 0]
    negative = next(
        (t for t in gathers if t.negative or (vm.driver is not None and vm.driver.buckets.is_negative(t))), None
    )
    if negative is not None:
        vm.emit(EventKind.PAD_WRITE, node, "negative-index", min(negative.sure, Confidence.LIKELY))
    elif vm.driver is not None and any(map(vm.driver.buckets.is_zero_padded, gathers)):
        vm.emit(EventKind.PAD_WRITE, node, "zero-index", Confidence.LIKELY)
    if masks and source is not None and (source.on_device or source.rank != 0):
        vm.emit(EventKind.DYNAMIC_SHAPE, node, "mask-write", min(masks[0].sure, source.sure))
        return
    if source is not None:
        if source.on_host:
            vm.emit(EventKind.UPLOAD, node, "assign-host-tensor", source.sure)
        return
    if not is_host_number(value):
        return
    if gathers:
        vm.emit(EventKind.UPLOAD, node, "assign-scalar-index", min(tensor.sure, gathers[0].sure))
    elif tensor.rank is not None and not masks and single_element(tensor, parts):
        vm.emit(EventKind.UPLOAD, node, "assign-scalar-element", tensor.sure)


def is_host_number(value: Value) -> bool:
    """A Python number or flag."""
    return all(
        isinstance(option, Number) or isinstance(constant(option), (int, float, complex)) for option in options(value)
    )


def single_element(tensor: Tensor, parts: list[Value]) -> bool:
    """True where host integers pick exactly one element: the destination is 0-d."""
    if any(isinstance(part, Slice) or part == NONE or constant(part) is Ellipsis for part in parts):
        return False
    numbers = [part for part in parts if isinstance(part, Number) or int_constant(part) is not None]
    return len(numbers) == len(parts) == tensor.rank
