"""The device tensors that a state holds, and where: attribute, dict key, list index, closure.

A graph freezes addresses, so what matters of a tensor is the slot that the next step will read it from. The walk
follows what a step could follow (attributes, containers, closures, partials), each object once.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import cast

import torch

MAX_OBJECTS = 200_000
ATOMS = (
    *(str, bytes, int, float, complex, bool, type(None), type, types.ModuleType),
    *(torch.Tensor, torch.dtype, torch.device),
)
NUMBERS = (bool, int, float)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a state and what it held. ``keys`` leads to it from ``root``, whatever stands on the way by then.

    ``address`` is where a tensor's memory began: the same tensor may be given other memory (``x.data = y``).
    """

    name: str
    root: object
    keys: tuple[object, ...]
    value: object
    address: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Note the address, which the tensor itself may change."""
        if isinstance(self.value, torch.Tensor):
            object.__setattr__(self, "address", address_of(self.value))

    def current(self) -> object:
        """What the slot holds now; ``None`` where it is gone."""
        value = self.root
        for key in self.keys:
            value = read(value, key)
        return value

    def has_changed(self) -> bool:
        """Whether the slot holds another tensor, or a number that is not equal."""
        now = self.current()
        if isinstance(now, torch.Tensor) and now is self.value:
            return address_of(now) != self.address
        return now is not self.value and (isinstance(self.value, torch.Tensor) or now != self.value)


@dataclass(frozen=True, slots=True)
class Home:
    """A slot that held a tensor."""

    slot: Slot
    tensor: torch.Tensor

    @property
    def name(self) -> str:
        """``state.cache.keys[0]``."""
        return self.slot.name


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins; 0 for one that has none."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


LENGTH = object()
"""The key of a container's length."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """The key of what a class derived from a container holds beside its items."""

    name: str


def read(owner: object, key: object) -> object:
    """What one slot holds."""
    if key is LENGTH:
        return len(owner) if isinstance(owner, Sized) else None
    if isinstance(key, Attribute):
        return getattr(owner, key.name, None)
    match owner:
        case dict():
            return owner.get(key)
        case list() | tuple() | deque():
            return owner[key] if isinstance(key, int) and key < len(owner) else None
        case types.FrameType():
            return owner.f_locals.get(str(key))
        case types.FunctionType():
            held = {name: value for _, name, value in function_slots(owner)}
            return held.get(str(key), vars(owner).get(str(key)))
        case _:
            return getattr(owner, str(key), None)


def homes(state: object, name: str = "state") -> list[Home]:
    """Every slot under ``state`` that holds a tensor, in the order of the walk; a state may be one itself."""
    found = [(name, (), state), *walk(state, name)]
    return [
        Home(Slot(label, state, keys, value), value) for label, keys, value in found if isinstance(value, torch.Tensor)
    ]


def numbers(state: object, name: str = "state") -> list[Slot]:
    """Every slot under ``state`` that holds a host number or a flag."""
    return [Slot(label, state, keys, value) for label, keys, value in walk(state, name) if isinstance(value, NUMBERS)]


def global_slots(modules: Iterable[types.ModuleType], wanted: type | tuple[type, ...]) -> list[Slot]:
    """Every slot under the names of modules that holds one of ``wanted``; what a step keeps outside its state."""
    found: list[Slot] = []
    for module in modules:
        root = vars(module)
        data = {
            name: value
            for name, value in root.items()
            if not name.startswith("__") and not isinstance(value, (type, types.ModuleType, types.FunctionType))
        }
        found += named_slots(root, data, wanted)
        for name, owner in root.items():
            if isinstance(owner, (type, types.FunctionType)) and owner.__module__ == module.__name__:
                slots = named_slots(owner, attributes_of(owner), wanted)
                found += [replace(slot, name=f"{name}.{slot.name}") for slot in slots]
    return found


def attributes_of(owner: type | types.FunctionType) -> dict[str, object]:
    """What a class or a function has as attributes of its own, and what is no code."""
    code = (types.FunctionType, staticmethod, classmethod, property, type)
    return {
        name: value for name, value in vars(owner).items() if not name.startswith("__") and not isinstance(value, code)
    }


def named_slots(root: object, names: Mapping[str, object], wanted: type | tuple[type, ...]) -> Iterator[Slot]:
    """Every slot under names that ``root`` has, the names themselves included, which holds one of ``wanted``."""
    for name, value in names.items():
        places = [(name, (name,), value), *((label, (name, *keys), held) for label, keys, held in walk(value, name))]
        yield from (Slot(label, root, keys, held) for label, keys, held in places if isinstance(held, wanted))


def lengths(state: object, name: str = "state") -> list[Slot]:
    """The length of every list, dictionary and set under ``state``, and of itself."""
    found = [(name, (), state), *walk(state, name)]
    sized = [(label, keys, length(value)) for label, keys, value in found]
    return [Slot(label, state, (*keys, LENGTH), size) for label, keys, size in sized if size is not None]


def length(value: object) -> int | None:
    """The length of a list, a dictionary or a set, or of what is derived from one."""
    match value:
        case list():
            return list.__len__(value)
        case dict():
            return dict.__len__(value)
        case set():
            return set.__len__(value)
        case _:
            return None


def walk(state: object, name: str = "state") -> Iterator[tuple[str, tuple[object, ...], object]]:
    """``(name, keys, value)`` of every slot under ``state``; each object is entered once."""
    seen: set[int] = set()
    queue: deque[tuple[str, tuple[object, ...], object]] = deque([(name, (), state)])
    while queue and len(seen) < MAX_OBJECTS:
        prefix, keys, owner = queue.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for label, key, value in slots(owner):
            yield prefix + label, (*keys, key), value
            if is_walked(value):
                queue.append((prefix + label, (*keys, key), value))


def is_walked(value: object) -> bool:
    """Whether a value may hold tensors further down: no atoms, no classes, no modules of code."""
    return not isinstance(value, ATOMS) and not is_handle(value)


def is_handle(value: object) -> bool:
    """Whether a value stands for something of the device that a copy cannot have twice."""
    return isinstance(value, (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph)) or is_emulated(value)


def is_emulated(value: object) -> bool:
    """Whether it is part of the emulated device: what is in a graph there is in the driver on a GPU."""
    return type(value).__module__.startswith("capturelint.emulator.")


def slots(owner: object) -> Iterator[tuple[str, object, object]]:
    """``(label, key, value)`` of everything that an object holds.

    Containers are read as the built-in ones that they are: a class of the target may load what it holds when it is
    asked, and looking on must not run its code.
    """
    match owner:
        case torch.nn.Module():
            yield from module_slots(owner)
        case dict():
            yield from ((f"[{key!r}]", key, value) for key, value in list(dict.items(owner)))
            yield from slots_beside_items(owner)
        case list() | tuple() | deque():
            yield from ((f"[{index}]", index, value) for index, value in enumerate(held_in(owner)))
            yield from slots_beside_items(owner)
        case types.FunctionType():
            yield from function_slots(owner)
        case types.MethodType():
            yield (".__self__", "__self__", owner.__self__)
        case functools.partial():
            yield (".args", "args", owner.args)
            yield (".keywords", "keywords", owner.keywords)
            yield (".func", "func", owner.func)
        case _:
            yield from attribute_slots(owner)


def slots_beside_items(owner: object) -> Iterator[tuple[str, object, object]]:
    """What a class derived from a container holds in attributes; a container itself has none."""
    if type(owner) not in (dict, list, tuple, deque):
        yield from ((label, Attribute(str(key)), value) for label, key, value in attribute_slots(owner))


def held_in(owner: list[object] | tuple[object, ...] | deque[object]) -> list[object]:
    """The items of a list, a tuple, a ``deque`` or of a class derived from one."""
    match owner:
        case list():
            return list(list.__iter__(owner))
        case tuple():
            return list(tuple.__iter__(owner))
        case _:
            return list(deque.__iter__(owner))


def module_slots(module: torch.nn.Module) -> Iterator[tuple[str, object, object]]:
    """A module's tensors and children under the names that its code reads them by."""
    for table in ("_parameters", "_buffers", "_modules"):
        for key, value in list(module.__dict__.get(table, {}).items()):
            yield (f".{key}", key, value)
    for key, value in list(module.__dict__.items()):
        if not key.startswith("_") or isinstance(value, torch.Tensor):
            yield (f".{key}", key, value)


def function_slots(function: types.FunctionType) -> Iterator[tuple[str, str, object]]:
    """What a closure holds on to."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield (f".<{name}>", name, cell.cell_contents)
        except ValueError:  # the cell is still empty
            continue


def attribute_slots(owner: object) -> Iterator[tuple[str, object, object]]:
    """Attributes in ``__dict__`` and in ``__slots__``."""
    for key, value in list(own_attributes(owner).items()):
        yield (f".{key}", key, value)
    for kind in type(owner).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for key in (names,) if isinstance(names, str) else names:
            with suppress(AttributeError):
                yield (f".{key}", key, object.__getattribute__(owner, key))


def own_attributes(owner: object) -> dict[str, object]:
    """The ``__dict__`` of an object, where it has one."""
    try:
        return cast("dict[str, object]", object.__getattribute__(owner, "__dict__"))
    except AttributeError:
        return {}
