"""Equal starting states for every run: built once where a copy is as good as a new build, else built afresh.

Each run (reference, noise, capture, probe) must start from what ``build`` leaves, the random generators included.
A copy shares the parameters, which a decode step reads only, and copies everything else; it is trusted only if it
shares no other tensor with the original, since a closure or a global would leak one run's state into the next.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from capturelint.runtime.homes import homes, is_handle, walk


class UnequalCopiesError(Exception):
    """Two runs from copies of one state differ by more than rounding: the copies may be at fault."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """Python's, NumPy's and torch's global generators."""

    python: object
    numpy: object
    cpu: torch.Tensor
    cuda: torch.Tensor | None

    @classmethod
    def now(cls) -> RandomState:
        """The generators as they stand."""
        numpy = sys.modules.get("numpy")
        return cls(
            random.getstate(),
            numpy.random.get_state() if numpy else None,
            torch.get_rng_state(),
            torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        )

    def restore(self) -> None:
        """Set the generators back."""
        random.setstate(self.python)  # type: ignore[arg-type]
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Generators that start from ``seed`` inside and go on outside as if nothing had been drawn."""
    before = RandomState.now()
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)  # it takes no more
    torch.manual_seed(seed)
    try:
        yield
    finally:
        before.restore()


@dataclass(frozen=True, slots=True)
class Origin:
    """The state that every run starts from. ``original`` is ``None`` where copies cannot be trusted."""

    build: Callable[[], object]
    original: object | None
    randomness: RandomState

    def fresh(self) -> object:
        """A state as ``build`` leaves it, the generators with it."""
        state = self.build() if self.original is None else duplicate(self.original)
        self.randomness.restore()
        return state

    def rebuilt(self) -> Origin:
        """The same origin without copies."""
        return Origin(self.build, None, self.randomness)


def origin(build: Callable[[], object]) -> Origin:
    """Build once, and find out whether copies may stand in for further builds."""
    before = RandomState.now()

    def again() -> object:
        before.restore()
        return build()

    original = build()
    randomness = RandomState.now()
    return Origin(again, original if can_duplicate(original) else None, randomness)


def duplicate(state: object) -> object:
    """A deep copy that shares the parameters and the streams."""
    shared = [value for _, _, value in walk(state) if isinstance(value, torch.nn.Parameter) or is_handle(value)]
    return copy.deepcopy(state, {id(value): value for value in shared})


def can_duplicate(state: object) -> bool:
    """Whether a copy is complete: same homes, no tensor shared but the parameters."""
    try:
        twin = duplicate(state)
    except Exception:  # noqa: BLE001 - copying runs the target's code, which may raise anything
        return False
    original, copied = mutable(state), mutable(twin)
    if original.keys() != copied.keys():
        return False
    # The emulator marks storages as device memory, and a copied storage has lost its mark.
    same_devices = all(tensor.device == copied[name].device for name, tensor in original.items())
    return same_devices and not addresses(original) & addresses(copied)


def addresses(tensors: dict[str, torch.Tensor]) -> set[int]:
    """Where the tensors' memory starts."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors.values() if tensor.numel()}


def mutable(state: object) -> dict[str, torch.Tensor]:
    """The tensors that a step may write, by the name of their home."""
    return {home.name: home.tensor for home in homes(state) if not isinstance(home.tensor, torch.nn.Parameter)}
