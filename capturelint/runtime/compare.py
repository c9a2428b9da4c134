"""Two runs' outputs become an error a step, in units of the eager output's largest value.

Integers and flags must be equal. NaN never passes; infinities pass where both runs have the same one, since masked
logits are made of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from capturelint.runtime.outputs import Leaf

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Relative to the largest value. Replay runs the kernels of eager; only cuBLAS's workspace may differ."""

NOISE_FACTOR = 4.0
"""Eager runs that differ by ``noise`` excuse a replay that differs by a few times as much."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Errors of the steps that both runs made, first step first."""

    errors: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest error; 0 where nothing was compared."""
        return max(self.errors, default=0.0)

    def first_above(self, tolerance: float) -> int | None:
        """The index of the first step that is too far off."""
        return next((index for index, error in enumerate(self.errors) if not error <= tolerance), None)


def compare(expected: Sequence[Sequence[Leaf]], got: Sequence[Sequence[Leaf]]) -> Comparison:
    """Errors of ``got`` against ``expected``, step by step."""
    return Comparison(tuple(step_error(a, b) for a, b in zip(expected, got, strict=False)))


def step_error(expected: Sequence[Leaf], got: Sequence[Leaf]) -> float:
    """The largest error of one step's outputs; infinite where they cannot be compared."""
    if len(expected) != len(got):
        return math.inf
    return max((leaf_error(a, b) for a, b in zip(expected, got, strict=True)), default=0.0)


def leaf_error(expected: Leaf, got: Leaf) -> float:
    """The largest difference, relative to the largest expected value."""
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = not isinstance(expected, torch.Tensor) and not isinstance(got, torch.Tensor) and expected == got
        return 0.0 if same else math.inf
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    if not expected.dtype.is_floating_point:
        return float((expected != got).double().mean())
    return float_error(expected, got)


def float_error(expected: torch.Tensor, got: torch.Tensor) -> float:
    """As ``leaf_error``, for two floating tensors of one shape."""
    if torch.equal(expected, got):
        return 0.0
    a, b = expected.double(), got.double()
    if bool(b.isnan().any()) or not torch.equal(a.isinf(), b.isinf()):
        return math.inf
    finite = ~a.isinf()
    if not torch.equal(a[~finite], b[~finite]):
        return math.inf
    scale = float(a[finite].abs().max())
    return float((a[finite] - b[finite]).abs().max()) / max(scale, torch.finfo(expected.dtype).tiny)


def has_nan(outputs: Sequence[Leaf]) -> bool:
    """Whether a step's outputs contain NaN."""
    return any(
        bool(leaf.isnan().any()) if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point else leaf != leaf
        for leaf in outputs
        if not isinstance(leaf, torch.Tensor) or leaf.dtype.is_floating_point
    )


def tolerance(outputs: Sequence[Leaf], noise: float) -> float:
    """What a replay may differ by: the widest of the outputs' dtypes, or a few times the eager noise."""
    dtypes = [leaf.dtype for leaf in outputs if isinstance(leaf, torch.Tensor)]
    by_dtype = max((TOLERANCES.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    return max(by_dtype, NOISE_FACTOR * noise)


def argmax_flips(expected: Sequence[Sequence[Leaf]], got: Sequence[Sequence[Leaf]]) -> int | None:
    """How many rows of logits choose another token; ``None`` where the first output is no logits."""
    flips = 0
    for a, b in zip(expected, got, strict=False):
        first, second = a[0], b[0]
        if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
            return None
        if not first.dtype.is_floating_point or first.dim() < 2 or first.shape != second.shape:
            return None
        flips += int((first.argmax(-1) != second.argmax(-1)).sum())
    return flips


def argmax_margin(outputs: Sequence[Sequence[Leaf]]) -> float | None:
    """The smallest distance between the two best logits of a row, relative to the step's largest value.

    ``None`` where the first output is no logits. A token may change where an error is half as large.
    """
    margins: list[float] = []
    for step in outputs:
        logits = step[0] if step else None
        if not isinstance(logits, torch.Tensor) or not logits.dtype.is_floating_point or logits.dim() < 2:
            return None
        if logits.shape[-1] < 2 or not logits.numel():
            return None
        best = logits.double().topk(2, dim=-1).values
        finite = logits[logits.isfinite()].abs()
        scale = float(finite.max()) if len(finite) else 1.0
        margins.append(float((best[..., 0] - best[..., 1]).min()) / max(scale, torch.finfo(logits.dtype).tiny))
    return min(margins, default=None)
