"""What a step returns, flattened: tensors in a fixed order, whatever containers they came in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from capturelint.errors import TargetError

Leaf = torch.Tensor | float


def leaves(output: object) -> list[Leaf]:
    """Tensors and numbers of a step's result, in order. Raises ``TargetError`` if there are none."""
    found = flatten(output) or flatten(fields_of(output))
    if not found:
        raise TargetError(
            f"step returns {type(output).__name__}, without a tensor to compare; return the logits or the tokens"
        )
    return found


def flatten(output: object) -> list[Leaf]:
    """Tensors and numbers, depth first. Caches and other objects in a result are state, not output."""
    match output:
        case torch.Tensor():
            return [output]
        case bool() | int() | float():
            return [float(output)]
        case Mapping():
            return [leaf for value in output.values() for leaf in flatten(value)]
        case list() | tuple():
            return [leaf for value in output for leaf in flatten(value)]
        case _:
            return flatten(output.logits) if hasattr(output, "logits") else []


def fields_of(output: object) -> dict[str, object]:
    """What a step's own output class holds, a dataclass with slots too."""
    if dataclasses.is_dataclass(output):
        return {field.name: getattr(output, field.name, None) for field in dataclasses.fields(output)}
    return dict(getattr(output, "__dict__", {}))


def keep(found: list[Leaf]) -> list[Leaf]:
    """Copies that no later step can overwrite; of eight-bit floats, which can hardly be computed with, wider ones."""
    return [copy_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in found]


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the values."""
    narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1
    return tensor.detach().float() if narrow else tensor.detach().clone()
