"""Inputs unlike those of the capture: steps in another order, far counters, and other values of what never changes.

A step that depends on a host copy of its inputs, or on its own count of steps, goes on replaying right as long as the
steps come in the order of the capture. Each function gives a ``Target`` with other ``inputs``; eager steps on those
are the truth, as they are for the usual ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from capturelint.runtime.eager import DEVICE, make_inputs
from capturelint.runtime.target import Inputs, Target

SCALE = 0.75
"""What a floating input that is the same at every step is multiplied by: temperatures and scales stay valid."""


def far_order(target: Target, steps: range) -> list[int]:
    """Which steps' inputs are given in place of ``steps``: the last ones that are known to be valid, backwards."""
    last = max(steps.stop - 1, target.last_step or 0)
    return list(range(last, last - len(steps), -1))


def constants(target: Target, bucket: int, steps: range) -> dict[str, object]:
    """Inputs that have one value at all ``steps``."""
    first = make_inputs(target, bucket, steps.start)
    same = dict(first)
    for step in steps[1:]:
        given = make_inputs(target, bucket, step)
        same = {name: value for name, value in same.items() if name in given and is_equal(value, given[name])}
    return same


def is_equal(first: object, second: object) -> bool:
    """Whether two inputs have one value."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape and bool((first == second).all())
    return first is second or (isinstance(first, (int, float, str)) and first == second)


def can_scale(value: object) -> bool:
    """Whether another value of the same kind is at hand: a floating tensor with finite numbers other than 0 and 1."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point or not value.numel():
        return False
    is_mask = bool(((value == 0) | (value == 1) | ~value.isfinite()).all()) and value.numel() > 1
    return bool(value.isfinite().all()) and bool((value != 0).any()) and not is_mask


def varied_target(target: Target, steps: range, order: Sequence[int], scaled: frozenset[str]) -> Target:
    """``target`` with the inputs of ``order`` at ``steps``, and those of ``scaled`` multiplied."""

    def inputs(batch: int, step: int, device: str) -> Inputs:
        given = target.inputs(batch, order[step - steps.start] if step >= steps.start else step, device)
        if step < steps.start or not scaled:
            return given
        return {name: value * SCALE if name in scaled else value for name, value in given.items()}  # type: ignore[operator]

    return replace(target, inputs=inputs)


def moved_target(target: Target, held: list[Inputs]) -> Target:
    """``target`` with every input in memory of its own; ``held`` keeps what came, so that no address comes again."""

    def inputs(batch: int, step: int, device: str) -> Inputs:
        given = target.inputs(batch, step, device)
        held.append(given)
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}

    return replace(target, inputs=inputs)


def mixed_target(target: Target, bucket: int, live: int, order: Mapping[int, int]) -> Target:
    """``target`` with the rows behind ``live`` as they are in another step, its numbers eight times as large."""

    def inputs(batch: int, step: int, device: str) -> Inputs:
        usual = target.inputs(batch, step, DEVICE)
        if batch != bucket or step not in order:
            return usual
        return with_rows(usual, target.inputs(batch, order[step], DEVICE), bucket, live)

    return replace(target, inputs=inputs)


HOSTILE = 8
"""What the padding's floating values are multiplied by."""


def with_rows(usual: Inputs, other: Inputs, batch: int, live: int) -> Inputs:
    """``usual`` with the rows behind ``live`` from ``other``, where there is a row for each of the batch."""
    mixed = dict(usual)
    for name, value in usual.items():
        strange = other[name]
        if not isinstance(value, torch.Tensor) or not isinstance(strange, torch.Tensor):
            continue
        if value.dim() > 0 and value.shape[0] == batch:
            replaced = value.clone()
            rows = strange[live:]
            replaced[live:].copy_(rows * HOSTILE if rows.dtype.is_floating_point else rows)
            mixed[name] = replaced
    return mixed
