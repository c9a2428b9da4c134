"""Random draws compared in distribution, where a replay draws other numbers than eager and nothing else explains it.

A replay continues torch's generators as eager does, so draws are compared number for number first. An operator with
random numbers of its own may not be. Then many runs of the same steps, each from the same state with other seeds, must
be samples of one distribution: by the Dvoretzky-Kiefer-Wolfowitz inequality two of ``n`` samples each differ by more
than ``2 sqrt(ln(4 / p) / 2n)`` in their distribution functions with probability ``p`` at most, whatever they are of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from capturelint.runtime.outputs import Leaf
from capturelint.runtime.trace import Call

ERROR_PROBABILITY = 1e-6
"""A right replay is refused with this probability at most, all elements together."""

NUM_SAMPLES = 512
NUM_PILOTS = 8
"""Runs that choose the elements, and are no samples."""

MAX_ELEMENTS = 64

Draw = Callable[[int], Sequence[Leaf]]
"""One run's last outputs, from the state that all runs start from, with the generators at a seed."""


def is_one_distribution(eager: Draw, replayed: Draw, allowed: float) -> bool:
    """Whether two kinds of run draw from one distribution, and are within ``allowed`` where eager never varies."""
    pilots = torch.stack([flat(eager(seed)) for seed in range(NUM_PILOTS)])
    varying = (pilots != pilots[0]).any(0).nonzero().flatten()
    if not len(varying):
        return False
    chosen = varying[:: -(-len(varying) // MAX_ELEMENTS)]
    first = samples(eager, NUM_PILOTS)
    second = samples(replayed, NUM_PILOTS + NUM_SAMPLES)
    constant = (first == first[0]).all(0) & (pilots == first[0]).all(0)
    scale = first.abs().max().clamp(min=torch.finfo(first.dtype).tiny)
    is_close = bool(((second - first[0]).abs()[:, constant] <= allowed * scale).all())
    return is_close and float(distance(first[:, chosen], second[:, chosen]).max()) <= limit(NUM_SAMPLES, len(chosen))


def samples(draw: Draw, first_seed: int) -> torch.Tensor:
    """[NUM_SAMPLES, elements]."""
    return torch.stack([flat(draw(first_seed + index)) for index in range(NUM_SAMPLES)])


def flat(outputs: Sequence[Leaf]) -> torch.Tensor:
    """A run's outputs as one row of numbers."""
    parts = [leaf.detach().double().flatten().cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in outputs]
    return torch.cat([part if isinstance(part, torch.Tensor) else torch.tensor([part]).double() for part in parts])


def limit(num_samples: int, num_elements: int) -> float:
    """What the distance of two samples of one distribution does not exceed, but for ``ERROR_PROBABILITY``."""
    return 2 * math.sqrt(math.log(4 * num_elements / ERROR_PROBABILITY) / (2 * num_samples))


def distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The largest difference of two empirical distribution functions, for each column of [samples, elements]."""
    ours, theirs = (each.t().contiguous().sort(1).values for each in (first, second))
    at = torch.cat((ours, theirs), 1)
    shares = [torch.searchsorted(each, at, right=True) / each.shape[1] for each in (ours, theirs)]
    return (shares[0] - shares[1]).abs().amax(1)


def draws(calls: Sequence[Call]) -> bool:
    """Whether a step calls an operator that torch knows as random."""
    return any(is_random(name) for name in {call.name for call in calls})


def is_random(name: str) -> bool:
    """``aten.bernoulli_.float``, and what an operator's own library tags so."""
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, space, None), packet, None), overload or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(found, "tags", ())
