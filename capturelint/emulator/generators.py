"""Random numbers of the emulated device: its own generators, apart from the host's.

A device generator is a CPU generator with a name tag. An operation without a generator of its own draws from torch's
one default CPU generator, so the device's state is lent to that one for the length of a call. Capture never advances
a generator: what it draws comes from a copy, and each replay draws anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine

HostGenerator = torch._C.Generator
DEVICE = torch.device("cuda", 0)
DEFAULT_SEED = 67280421310721  # c10::detail::getNonDeterministicRandom is not asked: runs repeat


def address_of(generator: torch.Generator) -> int:
    """Of torch's own object, which all Python objects for one generator share."""
    return int(vars(HostGenerator)["_cdata"].__get__(generator))


class DeviceGenerator(HostGenerator):
    """A generator that says it lives on the emulated device."""

    machine: Machine | None = None

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it claims to live."""
        return DEVICE

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Seed it; inside a capture the seed outlives the capture, as on CUDA."""
        super().manual_seed(seed)
        self.settle()
        return self

    def set_state(self, state: torch.Tensor) -> DeviceGenerator:
        """Take a state."""
        super().set_state(state)
        self.settle()
        return self

    def settle(self) -> None:
        """Make the present state the one that a running capture restores."""
        if self.machine is not None and self.machine.recording is not None:
            self.machine.recording.forget_generator(self)


class Generators:
    """The device generators of one context, found again by the address of torch's own object."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.known: dict[int, weakref.ref[DeviceGenerator]] = {}
        self.default = self.make()
        self.default.manual_seed(DEFAULT_SEED)

    def make(self) -> DeviceGenerator:
        """A new device generator."""
        made = DeviceGenerator(device="cpu")
        made.machine = self.machine
        self.known[address_of(made)] = weakref.ref(made)
        weakref.finalize(made, self.known.pop, address_of(made), None)
        return made

    def find(self, passed: torch.Generator) -> DeviceGenerator | None:
        """The device generator behind what an operation was passed; torch hands operations a fresh wrapper."""
        found = self.known.get(address_of(passed))
        return found() if found is not None else None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let operations without a generator draw from the device's default one."""
        host = torch.default_generator
        before = host.get_state()
        host.set_state(self.default.get_state())
        try:
            yield
        finally:
            HostGenerator.set_state(self.default, host.get_state())
            host.set_state(before)


def generator_type(generators: Generators) -> type:
    """What ``torch.Generator`` is inside the context: the same name, for both kinds of device."""

    class Kind(type(HostGenerator)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, HostGenerator)

        def __call__(cls, device: torch.device | str | int = "cpu") -> torch.Generator:
            kind = "cuda" if isinstance(device, int) else torch.device(device).type
            return generators.make() if kind == "cuda" else HostGenerator(device)

    return Kind("Generator", (HostGenerator,), {"__doc__": HostGenerator.__doc__})
