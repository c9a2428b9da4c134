"""A state put back to where it was, in place: the same tensors at the same addresses, so that no graph is lost.

A compiled step cannot be given a fresh state for every row of calls: it would be compiled or recorded again. What a
step moves is written back instead: tensors by their values, host numbers and rebound slots by their slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from capturelint.runtime.homes import Home, Slot, homes, numbers, read


@dataclass(slots=True)
class Memory:
    """What a state held when it was last remembered."""

    state: object
    tensors: list[tuple[Home, torch.Tensor]] = field(default_factory=list)
    numbers: list[Slot] = field(default_factory=list)

    def remember(self) -> None:
        """Keep the values of everything that a step may write; parameters are only read."""
        kept = [home for home in homes(self.state) if not isinstance(home.tensor, torch.nn.Parameter)]
        self.tensors = [(home, home.tensor.detach().clone()) for home in kept]
        self.numbers = numbers(self.state)

    def rewind(self) -> None:
        """Write them back. A slot that holds another tensor by now gets one of the old values."""
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


def write(slot: Slot, value: object) -> None:
    """Set what a slot holds; one that cannot be set keeps what it has."""
    owner = slot.root
    for key in slot.keys[:-1]:
        owner = read(owner, key)
    key = slot.keys[-1]
    match owner:
        case dict():
            owner[key] = value
        case list():
            if isinstance(key, int) and key < len(owner):
                owner[key] = value
        case tuple() | None:
            return
        case _:
            try:
                setattr(owner, str(key), value)
            except (AttributeError, TypeError):
                return
