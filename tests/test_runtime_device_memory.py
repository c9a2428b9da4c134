"""What ``--memory-limit`` leaves torch's allocator, what a graph is expected to take, and when the limit is passed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from capturelint.runtime.device_memory import (  # noqa: E402 - these need torch
    CHUNK_NBYTES,
    FIRST_NODES,
    KERNELS_NBYTES,
    MIN_NODES,
    NODE_NBYTES,
    DeviceMemory,
    GraphCosts,
    Held,
    allocator_cap,
)

GIB = 1 << 30
nbytes = st.integers(0, 200 * GIB)


class Device:
    """A device of which a test says what is taken."""

    def __init__(self, limit, outside=0, reserved=0):
        self.outside, self.reserved, self.capped, self.peaks = outside, reserved, None, []
        self.memory = DeviceMemory(self.read, self.set_cap, limit, self.peaks.append)

    def read(self):
        return Held(self.outside + self.reserved, self.reserved)

    def set_cap(self, most):
        self.capped = most


@given(nbytes, nbytes, nbytes, st.integers(0, 10**6))
def test_cap_reserve_and_what_lies_outside_make_up_the_limit(limit, outside, reserved, num_nodes):
    costs = GraphCosts().after(num_nodes, num_nodes * 1000)
    cap = allocator_cap(limit, Held(outside + reserved, reserved), costs)
    assert cap + outside + KERNELS_NBYTES + costs.reserve == limit


def test_a_first_graph_is_expected_by_the_documented_floor():
    assert GraphCosts().reserve == CHUNK_NBYTES + FIRST_NODES * NODE_NBYTES


def test_a_node_costs_what_the_graphs_so_far_took():
    costs = GraphCosts().after(1000, 3_000_000).after(1000, 5_000_000)
    assert costs.expected(500) == CHUNK_NBYTES + 2_000_000


def test_a_graph_of_few_nodes_tells_nothing_of_a_node():
    assert GraphCosts().after(MIN_NODES - 1, CHUNK_NBYTES).expected(10) == GraphCosts().expected(10)


def test_what_is_loaded_beside_the_allocator_lowers_its_cap():
    device = Device(10 * GIB, outside=GIB)
    device.memory.look()
    before = device.capped
    device.outside += 300 << 20
    device.memory.look()
    assert before - device.capped == 300 << 20


def test_a_peak_is_told_once():
    device = Device(None, outside=5)
    for reserved in (1, 7, 3, 7):
        device.reserved = reserved
        device.memory.look()
    assert device.peaks == [6, 12]


def test_what_has_passed_the_limit_is_out_of_memory():
    device = Device(GIB, outside=GIB, reserved=1)
    with pytest.raises(torch.OutOfMemoryError, match=r"1\.00 GiB of it beside torch's allocator"):
        device.memory.look()


class Graph:
    """Something that a graph's costs are charged to."""


def test_a_graph_that_would_pass_the_limit_is_not_instantiated():
    device = Device(GIB, outside=GIB - 20 * NODE_NBYTES - CHUNK_NBYTES)
    device.memory.before_instantiation(Graph(), 20)
    with pytest.raises(torch.OutOfMemoryError, match="a graph of 21 nodes"):
        device.memory.before_instantiation(Graph(), 21)


def test_a_graphs_first_launch_teaches_what_a_node_takes():
    device, graph = Device(10 * GIB), Graph()
    device.memory.before_instantiation(graph, 1000)
    device.outside += 7_000_000
    device.memory.after_launch(graph)
    device.outside += 7_000_000
    device.memory.after_launch(graph)
    assert device.memory.costs == GraphCosts(1000, 7_000_000, 1000)


@pytest.mark.parametrize(("limit", "is_short"), [(None, False), (GIB // 2, True), (GIB, True), (2 * GIB, False)])
def test_a_limit_that_the_context_takes_is_told(limit, is_short):
    assert bool(Device(limit, outside=GIB).memory.shortage()) is is_short


def test_captures_and_first_launches_are_looked_at_whoever_makes_them():
    from capturelint import emulator

    device = Device(10 * GIB)
    with emulator.cuda(), device.memory.watching_graphs():
        x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
        device.outside += GIB
        graph.replay()
        looked = device.capped
        device.outside += GIB
        graph.replay()
    assert (looked, device.capped) == (device.capped, 9 * GIB - KERNELS_NBYTES - GraphCosts().reserve)


def test_a_graph_beyond_the_limit_is_refused_in_the_line_that_captures_it():
    from capturelint import emulator

    device = Device(GIB, outside=GIB)
    with emulator.cuda(), device.memory.watching_graphs():
        x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
        with pytest.raises(torch.OutOfMemoryError), torch.cuda.graph(graph):
            x.add_(1)
