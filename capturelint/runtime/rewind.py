"""A state put back to where it was, in place: the same tensors at the same addresses, so that no graph is lost.

A compiled step cannot be given a fresh state for every row of calls: it would be compiled or recorded again. What a
step moves is written back instead: tensors by their values, containers by their items, numbers and rebound slots by
their slots.
"""

from __future__ import annotations

import contextlib
import functools
import types
from dataclasses import dataclass, field

import torch

from capturelint.runtime.contents import Content, contents
from capturelint.runtime.homes import Attribute, Home, Slot, homes, numbers, read


@dataclass(slots=True)
class Memory:
    """What a state held when it was last remembered."""

    state: object
    tensors: list[tuple[Home, torch.Tensor]] = field(default_factory=list)
    numbers: list[Slot] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)

    def remember(self) -> None:
        """Keep the values of everything that a step may write; parameters are only read."""
        kept = [home for home in homes(self.state) if not isinstance(home.tensor, torch.nn.Parameter)]
        self.tensors = [(home, home.tensor.detach().clone()) for home in kept]
        self.numbers = numbers(self.state)
        self.contents = contents(self.state)

    def rewind(self) -> None:
        """Write them back. A slot that holds another tensor by now gets one of the old values."""
        for content in self.contents:
            if content.has_changed():
                content.restore()
        # Tensors made in inference mode may be written in inference mode only; others may be, too.
        with torch.inference_mode():
            for home, values in self.tensors:
                if not home.slot.has_changed():
                    home.tensor.copy_(values)
        for home, values in self.tensors:
            if home.slot.has_changed():
                write(home.slot, values.clone())
        for slot in self.numbers:
            if slot.has_changed():
                write(slot, slot.value)


def owner_of(slot: Slot) -> object:
    """What has the slot by now."""
    return functools.reduce(read, slot.keys[:-1], slot.root)


def erase(slot: Slot) -> None:
    """Take an attribute away that hides its class's, which is seen again then."""
    owner, name = owner_of(slot), slot_name(slot)
    if hasattr(type(owner), name):
        with contextlib.suppress(AttributeError, TypeError):
            delattr(owner, name)


def slot_name(slot: Slot) -> str:
    """The attribute that a slot is."""
    key = slot.keys[-1]
    return key.name if isinstance(key, Attribute) else str(key)


def write(slot: Slot, value: object) -> None:
    """Set what a slot holds; one that cannot be set keeps what it has."""
    owner, key = owner_of(slot), slot.keys[-1]
    match owner:
        case types.FunctionType() if str(key) in owner.__code__.co_freevars:
            cells = dict(zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=False))
            cells[str(key)].cell_contents = value
        case dict() if not isinstance(key, Attribute):
            owner[key] = value
        case list() if isinstance(key, int):
            if key < len(owner):
                owner[key] = value
        case None:
            return
        case tuple() if isinstance(key, int):
            return
        case _:
            try:
                setattr(owner, slot_name(slot), value)
            except (AttributeError, TypeError):
                return
