"""``--memory-limit`` on a device: what torch's allocator may take of it, what a graph needs beside, and the peak.

The limit holds for all that the process has of the device. torch's allocator can be capped and fails in the target's
own line; the context, kernels loaded at their first run and instantiated graphs lie outside it, cannot be refused, and
are looked at after each thing that may add to them. The cap is what they leave, less a reserve for what comes next.
The surprise: a graph takes its memory when it is instantiated and when it is first launched, so both are awaited.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from capturelint.runtime.hooks import Hook, Pending, hooked
from capturelint.runtime.meter import Meter

MIB = 1 << 20
KERNELS_NBYTES = 64 * MIB
"""Kernels and handles that one step may load between two looks."""

CHUNK_NBYTES = 2 * MIB
"""The driver takes memory in pieces of this size: a small graph may take one, or none."""

NODE_NBYTES = 4 << 10
FIRST_NODES = 2000
MIN_NODES = 500
"""What a node of a graph takes, and how many the first one has, before a graph of ``MIN_NODES`` has been measured.

An H200 takes 2.4 to 3.2 kB a node, of additions and of matrix products alike.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """Device memory of this process: all of it, and what torch's allocator has taken for itself."""

    used: int
    reserved: int

    @property
    def outside(self) -> int:
        """What the allocator knows nothing of."""
        return max(0, self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """What measured graphs took outside the allocator; ``largest`` is the most nodes that any graph had."""

    num_nodes: int = 0
    nbytes: int = 0
    largest: int = 0

    def expected(self, num_nodes: int) -> int:
        """What a graph of so many nodes will take."""
        per_node = self.nbytes / self.num_nodes if self.num_nodes else NODE_NBYTES
        return CHUNK_NBYTES + math.ceil(num_nodes * per_node)

    @property
    def reserve(self) -> int:
        """What the next graph may take, if it is as large as the largest so far."""
        return self.expected(self.largest or FIRST_NODES)

    def after(self, num_nodes: int, grown: int) -> GraphCosts:
        """With one more graph; one of a few nodes tells nothing of a node."""
        largest = max(self.largest, num_nodes)
        if num_nodes < MIN_NODES:
            return GraphCosts(self.num_nodes, self.nbytes, largest)
        return GraphCosts(self.num_nodes + num_nodes, self.nbytes + max(0, grown), largest)


def allocator_cap(limit: int, held: Held, costs: GraphCosts) -> int:
    """What the allocator may take of ``limit``; not positive where the rest leaves nothing."""
    return limit - held.outside - KERNELS_NBYTES - costs.reserve


@dataclass(slots=True)
class Begun:
    """A graph up to its first launch: its nodes, and what lay outside the allocator before it was instantiated."""

    num_nodes: int
    outside: int


@dataclass(slots=True)
class DeviceMemory:
    """Looks at what this process holds, caps the allocator, and raises ``OutOfMemoryError`` beyond ``limit``.

    ``tell`` is called with each new peak; ``limit`` is ``None`` where only the peak is asked for.
    """

    read: Callable[[], Held]
    cap: Callable[[int], None]
    limit: int | None
    tell: Callable[[int], None] = lambda peak: None
    costs: GraphCosts = GraphCosts()
    peak: int = 0
    begun: weakref.WeakKeyDictionary[Any, Begun] = field(default_factory=weakref.WeakKeyDictionary)
    keeping: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def look(self) -> Held:
        """Note what is held by now. Raises ``OutOfMemoryError`` where that passes the limit."""
        held = self.read()
        if held.used > self.peak:
            self.peak = held.used
            self.tell(held.used)
        if self.limit is not None:
            if held.used > self.limit:
                raise torch.OutOfMemoryError(beyond(self.limit, held))
            self.cap(max(0, allocator_cap(self.limit, held, self.costs)))
        return held

    def shortage(self) -> str:
        """Why the limit leaves the target nothing before it has begun; empty where it leaves something."""
        if self.limit is None:
            return ""
        held = self.read()
        missing = -allocator_cap(self.limit, held, self.costs)
        if missing < 0:
            return ""
        return (
            f"--memory-limit {words(self.limit)}: the context alone takes {words(held.outside)} of this device, and "
            f"kernels and a graph need {words(KERNELS_NBYTES + self.costs.reserve)}; allow more than "
            f"{words(self.limit + missing)}"
        )

    def before_instantiation(self, graph: object, num_nodes: int) -> None:
        """Raise ``OutOfMemoryError`` where a captured graph would not fit."""
        held = self.look()
        self.begun[graph] = Begun(num_nodes, held.outside)
        expected = self.costs.expected(num_nodes)
        if self.limit is not None and held.used + expected > self.limit:
            raise torch.OutOfMemoryError(
                f"a graph of {num_nodes} nodes takes about {words(expected)} beside torch's allocator, "
                f"and {words(self.limit - held.used)} of {words(self.limit)} are left (--memory-limit)"
            )

    def after_launch(self, graph: object) -> None:
        """Learn from a graph's first launch what a node takes."""
        begun = self.begun.pop(graph, None)
        if begun is not None:
            self.costs = self.costs.after(begun.num_nodes, self.look().outside - begun.outside)

    @contextmanager
    def watching_graphs(self) -> Iterator[None]:
        """Look around every capture and first launch while entered, the target's own ones too."""
        kind = torch.cuda.CUDAGraph

        def make(kind: type, call: Pending) -> object:
            made = call()
            if any((*call.args[1:], *call.keywords.values())):
                self.keeping.add(made)
            return made

        def end(graph: object, call: Pending) -> object:
            num_nodes = num_capturing()
            if graph in self.keeping:
                self.begun[graph] = Begun(num_nodes, 0)
            else:
                self.before_instantiation(graph, num_nodes)
            ended = call()
            self.look()
            return ended

        def instantiate(graph: object, call: Pending) -> object:
            if graph in self.begun:
                self.before_instantiation(graph, self.begun[graph].num_nodes)
            prepared = call()
            self.look()
            return prepared

        def replay(graph: object, call: Pending) -> object:
            launched = call()
            self.after_launch(graph)
            return launched

        hooks: dict[str, Hook] = {"capture_end": end, "replay": replay}
        if "__new__" in vars(kind) and hasattr(kind, "instantiate"):  # torch 2.8 and later
            hooks |= {"__new__": make, "instantiate": instantiate}
        with hooked(kind, hooks):
            yield


def metered(meter: Meter | None, limit: int | None, tell: Callable[[int], None] = lambda peak: None) -> DeviceMemory:
    """The memory of this process, which has a context; without a meter only what torch's allocator has."""
    total = torch.cuda.get_device_properties(0).total_memory

    def read() -> Held:
        reserved = torch.cuda.memory_reserved()
        return Held(reserved if meter is None else meter.nbytes(), reserved)

    def cap(nbytes: int) -> None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total))

    return DeviceMemory(read, cap, limit, tell)


def load_libraries() -> None:
    """Let the first product and the first graph take what they take, so that it is known before the target begins.

    On an H200 that is 69 and 73 MB, whatever their size.
    """
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.zeros(64, 64, dtype=dtype, device="cuda")
        torch.nn.functional.linear(square, square)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        square.add_(1)
    graph.replay()
    torch.cuda.synchronize()


def num_capturing() -> int:
    """Nodes that the capture on the current stream has so far; 0 where the driver does not tell."""
    status, number, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
    behind, num_behind, count = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    asked = [ctypes.byref(each) for each in (status, number, graph, behind, num_behind)]
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failed = driver.cuStreamGetCaptureInfo_v2(stream, *asked) or not graph.value
        failed = failed or driver.cuGraphGetNodes(graph, None, ctypes.byref(count))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else int(count.value)


def beyond(limit: int, held: Held) -> str:
    """What passed the limit."""
    return (
        f"the process holds {words(held.used)} of device memory, {words(held.outside)} of it beside torch's allocator "
        f"(context, kernels, graphs): more than {words(limit)} (--memory-limit)"
    )


def words(nbytes: int) -> str:
    """``1.50 GiB``, or ``12 MiB``."""
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >= 1 << 30 else f"{max(0, nbytes) / MIB:.0f} MiB"
