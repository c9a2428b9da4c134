"""The memory of graphs: private pools that are reused as CUDA's are, and what reads garbage for it."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
import torch

from capturelint.emulator import cuda


@pytest.fixture(autouse=True)
def device():
    with cuda() as machine, torch.no_grad():
        yield machine


def captured(step, **options):
    """A graph of ``step``, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        out = step()
    return graph, out


def test_memory_freed_in_a_capture_serves_the_next_tensor_of_it():
    x, addresses = torch.ones(64, device="cuda"), []

    def step():
        for _ in range(3):
            addresses.append((x + 1).data_ptr())

    captured(step)
    assert len(set(addresses)) == 1


def test_memory_in_use_serves_nobody_else():
    x = torch.ones(64, device="cuda")
    graph, outs = captured(lambda: [x * number for number in range(4)])
    graph.replay()
    assert [out[0].item() for out in outs] == [0.0, 1.0, 2.0, 3.0]
    assert len({out.data_ptr() for out in outs}) == 4


def test_a_large_tensor_is_cut_from_a_large_segment():
    x = torch.zeros(1 << 19, device="cuda")
    graph, (small, large) = captured(lambda: (x[:8] + 1, x + 1))
    graph.replay()
    assert (small.sum().item(), large.sum().item()) == (8.0, float(1 << 19))
    assert abs(small.data_ptr() - large.data_ptr()) >= 1 << 20


def test_freed_neighbours_are_merged():
    x = torch.ones(128, device="cuda")

    def step():
        parts = [x + number for number in range(4)]
        first = parts[0].data_ptr()
        parts.clear()
        return first, torch.cat([x, x, x, x]).data_ptr()

    _, (first, merged) = captured(step)
    assert first == merged


def test_another_stream_does_not_get_freed_memory():
    x, side = torch.ones(64, device="cuda"), torch.cuda.Stream()

    def step():
        address = (x + 1).data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = (x + 1).data_ptr()
        torch.cuda.current_stream().wait_stream(side)
        return address, other

    _, (here, there) = captured(step)
    assert here != there


def test_memory_that_another_stream_uses_is_kept_until_the_capture_ends():
    x, side = torch.ones(64, device="cuda"), torch.cuda.Stream()

    def step():
        value = x + 1
        value.record_stream(side)
        address = value.data_ptr()
        del value
        return address, (x + 2).data_ptr()

    graph, (first, second) = captured(step)
    _, third = captured(lambda: (x + 3).data_ptr(), pool=graph.pool())
    assert first != second
    assert third == first


def test_a_replay_overwrites_another_graphs_output_in_a_shared_pool():
    x = torch.ones(64, device="cuda")
    first, _ = captured(lambda: (x * 5).sum())
    second, out = captured(lambda: x * 7, pool=first.pool())
    second.replay()
    assert out[0].item() == 7.0
    first.replay()
    assert out[0].item() == 5.0


def test_outputs_in_pools_of_their_own_keep_their_values():
    x = torch.ones(64, device="cuda")
    first, _ = captured(lambda: (x * 5).sum())
    second, out = captured(lambda: x * 7)
    second.replay()
    first.replay()
    assert out[0].item() == 7.0


def test_an_output_that_is_held_survives_the_other_graphs_of_its_pool():
    x = torch.ones(64, device="cuda")
    first, kept = captured(lambda: x * 5)
    second, out = captured(lambda: (x * 7) + 1, pool=first.pool())
    first.replay()
    second.replay()
    assert (kept[0].item(), out[0].item()) == (5.0, 8.0)


def test_graphs_in_turns_pass_values_through_freed_outputs_of_their_pool():
    x = torch.ones(64, device="cuda")
    middle = []
    first, _ = captured(lambda: middle.append(x * 5))
    second, out = captured(lambda: middle[0] + 1, pool=first.pool())
    middle.clear()
    for value in (1.0, 2.0):
        x.fill_(value)
        first.replay()
        second.replay()
        assert out[0].item() == 5 * value + 1


def test_a_capture_leaves_the_memory_of_its_pool_as_it_was():
    x = torch.ones(64, device="cuda")
    middle = []
    first, _ = captured(lambda: middle.append(x * 5))
    second, out = captured(lambda: middle[0] + 1, pool=first.pool())
    middle.clear()
    first.replay()
    captured(lambda: x * 9, pool=first.pool())
    second.replay()
    assert out[0].item() == 6.0


def test_what_the_program_writes_into_an_output_is_what_graphs_read():
    x = torch.ones(64, device="cuda")
    first, out = captured(lambda: x * 5)
    other, doubled = captured(lambda: out * 2)
    first.replay()
    out.fill_(7)
    other.replay()
    assert (out[0].item(), doubled[0].item()) == (7.0, 14.0)
    writer, _ = captured(lambda: out.add_(1))
    writer.replay()
    other.replay()
    assert (out[0].item(), doubled[0].item()) == (8.0, 16.0)


def test_an_output_that_grows_after_the_capture_leaves_its_pool():
    x = torch.ones(64, device="cuda")
    graph, out = captured(lambda: x * 5)
    graph.replay()
    address = out.data_ptr()
    out.resize_(128).fill_(1)
    graph.replay()
    assert (out.sum().item(), out.data_ptr() == address) == (128.0, False)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, rows: x.index_copy_(0, rows, x[:2] + 9),
        lambda x, rows: x.index_add_(0, rows, x[:2] + 0),
        lambda x, rows: x.index_fill_(0, rows, 9.0),
        lambda x, rows: x.index_put_((rows, rows), x[0, :2] + 9),
        lambda x, rows: x.scatter_(0, rows[:, None].expand(2, 4), 9.0),
        lambda x, rows: x.scatter_add_(0, rows[:, None].expand(2, 4), x[:2] + 0),
        lambda x, rows: x[:, 2].copy_(x[:, 1] + 9),
        lambda x, rows: x.mul_(3),
    ],
)
def test_a_capture_puts_back_what_it_writes(write):
    x, rows = torch.arange(1e5, device="cuda")[: 1 << 16].reshape(-1, 4), torch.tensor([3, 1], device="cuda")
    before = x.clone()

    def step():
        write(x, rows)
        rows.add_(-1)
        write(x, rows)
        x.add_(1)
        write(x, rows)

    graph, _ = captured(step)
    assert (torch.equal(x, before), rows.tolist()) == (True, [3, 1])
    graph.replay()
    captured_result, replayed_rows = x.clone(), rows.tolist()
    x.copy_(before)
    rows.copy_(torch.tensor([3, 1]))
    step()
    assert (torch.equal(x, captured_result), replayed_rows) == (True, [2, 0])


def test_an_output_dropped_before_the_next_capture_is_its_memory():
    x = torch.ones(64, device="cuda")
    first, out = captured(lambda: x * 5)
    address = out.data_ptr()
    del out
    _, again = captured(lambda: x * 7, pool=first.pool())
    assert again.data_ptr() == address


def test_a_view_keeps_its_memory():
    x = torch.ones(64, device="cuda")
    first, row = captured(lambda: (x * 5).view(8, 8)[2])
    second, _ = captured(lambda: x * 7, pool=first.pool())
    first.replay()
    second.replay()
    assert row.tolist() == [5.0] * 8


def test_what_autograd_saved_keeps_its_memory():
    with torch.enable_grad():
        weight = torch.ones(64, device="cuda", requires_grad=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = ((weight * 3) * (weight * 4)).sum()
            (gradient,) = torch.autograd.grad(loss, weight)
    graph.replay()
    assert gradient[0].item() == 24.0


def test_freed_input_reads_as_garbage():
    inputs = [torch.ones(64, device="cuda")]
    graph, out = captured(lambda: inputs[0] * 2)
    inputs.clear()
    graph.replay()
    assert out.isnan().all()


def test_freed_memory_that_the_graph_writes_first_is_no_garbage():
    x, scratch = torch.ones(64, device="cuda"), [torch.zeros(64, device="cuda")]
    graph, out = captured(lambda: scratch[0].copy_(x) + 1)
    scratch.clear()
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert out[0].item() == value + 1


def test_memory_held_elsewhere_is_not_free():
    class Holder:
        pass

    holder = Holder()
    holder.view = torch.ones(64, device="cuda").view(8, 8)
    graph, out = captured(lambda: holder.view * 2)
    graph.replay()
    assert out[0, 0].item() == 2.0


def test_memory_that_a_call_only_measures_is_not_counted_as_free():
    x = torch.ones(64, device="cuda")
    graph, out = captured(lambda: torch.empty_like(x).copy_(x))
    graph.replay()
    assert out[0].item() == 1.0


def test_memory_never_written_in_a_graph_reads_what_lay_there():
    x = torch.ones(64, device="cuda")

    def step():
        address = (x * 3).data_ptr()
        left = torch.empty(64, device="cuda")
        return left, left.data_ptr() == address

    graph, (left, is_reused) = captured(step)
    graph.replay()
    assert (is_reused, left[0].item()) == (True, 3.0)


def test_memory_that_a_capture_filled_holds_nothing_before_a_replay():
    x = torch.ones(64, device="cuda")
    graph, out = captured(lambda: torch.empty_like(x).copy_(x))
    assert out.sum().item() == 0.0
    graph.replay()
    assert out.sum().item() == 64.0


def test_a_tensor_outlives_its_graph():
    x = torch.ones(64, device="cuda")
    graph, out = captured(lambda: x * 2)
    graph.replay()
    graph.reset()
    del graph
    assert out.sum().item() == 128.0


def test_a_pool_is_forgotten_with_its_graphs(device):
    x = torch.ones(64, device="cuda")
    graph, out = captured(lambda: x * 2)
    assert len(device.pools) == 1
    del out
    graph.reset()
    assert len(device.pools) == 0


def test_a_tensor_can_grow_in_a_capture():
    x = torch.ones(4, device="cuda")

    def step():
        grown = x + 1
        grown.resize_(8)
        return grown.narrow(0, 4, 4).copy_(x), grown

    graph, (_, grown) = captured(step)
    graph.replay()
    assert grown.tolist() == [2.0] * 4 + [1.0] * 4


def test_conjugates_and_other_types_are_views_of_their_memory():
    x = torch.ones(4, dtype=torch.complex64, device="cuda")

    def step():
        turned = (x * 1j).conj()
        return turned @ turned, torch.view_as_real(turned.resolve_conj()).view(torch.int32) + 0

    graph, (product, bits) = captured(step)
    graph.replay()
    assert product.item() == -4
    assert bits.view(torch.float32).tolist() == [[0.0, -1.0]] * 4


def test_results_that_share_memory_still_do():
    x = torch.arange(6.0, device="cuda")
    graph, parts = captured(lambda: (x + 1).split(2))
    graph.replay()
    assert [part.tolist() for part in parts] == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert parts[0].untyped_storage().data_ptr() == parts[2].untyped_storage().data_ptr()


def test_copies_to_device_memory_mark_nothing():
    device, host, pinned = torch.ones(2, device="cuda"), torch.zeros(2), torch.zeros(2).pin_memory()
    host.copy_(device)
    pinned.copy_(device, non_blocking=True)
    assert (host.device.type, pinned.device.type, pinned.is_pinned()) == ("cpu", "cpu", True)


def test_memory_may_be_dropped_by_the_collector_in_another_thread():
    x, kept = torch.ones(64, device="cuda"), []
    stop = threading.Event()

    def drop():
        while not stop.is_set():
            with contextlib.suppress(IndexError):
                kept.pop()
            gc.collect(0)

    def step():
        outs = []
        for number in range(200):
            kept.append([x + 1, x * 2])
            outs.append(x + number)
        return outs

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        graph, outs = captured(step)
    finally:
        stop.set()
        thread.join()
    graph.replay()
    assert [out[0].item() for out in outs] == [1.0 + number for number in range(200)]


def test_a_dropped_graph_gives_its_memory_back_without_the_collector():
    x = torch.ones(64, device="cuda")
    graph, out = captured(lambda: ((x + 1) * 2).sum())
    graph.replay()
    segment = weakref.ref(graph.recording.pool.segments[0].content)
    gc.disable()
    try:
        del graph, out
        assert segment() is None
    finally:
        gc.enable()


def test_a_view_that_is_turned_in_place_is_turned_once_for_all_replays():
    x = torch.arange(6.0, device="cuda").reshape(2, 3)

    def step():
        turned = x + 1
        turned.t_()
        return turned * 1

    graph, out = captured(step)
    for _ in range(3):
        graph.replay()
        assert torch.equal(out, (x + 1).t())


def test_an_input_freed_after_a_replay_is_still_found():
    held = [torch.ones(64, device="cuda")]
    graph, out = captured(lambda: held[0] + 1)
    graph.replay()
    assert out[0].item() == 2.0
    held.clear()
    graph.replay()
    assert out.isnan().all()
