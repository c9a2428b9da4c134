"""``torch.cuda``'s interface to captures, streams and events, as a program's own capture code uses it."""

from __future__ import annotations

import threading

import pytest
import torch

from capturelint.emulator import CaptureRefused, cuda


@pytest.fixture(autouse=True)
def device():
    with cuda() as machine, torch.no_grad():
        yield machine


def in_thread(function):
    """What ``function`` returns, or the exception it raises, in a thread of its own."""
    found = []

    def run():
        try:
            found.append(function())
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def begun(**options):
    """A graph that captures on a stream of its own, and that stream."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.set_stream(stream)
    graph.capture_begin(**options)
    return graph


def test_a_capture_can_be_begun_and_ended_by_hand():
    x = torch.ones(2, device="cuda")
    graph = begun()
    out = x * 3
    graph.capture_end()
    torch.cuda.set_stream(torch.cuda.default_stream())
    graph.replay()
    assert out.tolist() == [3.0, 3.0]


def test_a_graph_replays_only_what_it_captured():
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().replay()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().pool()


def test_a_graph_captures_again_after_a_reset():
    x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x * 2
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.cuda.graph(graph):
        pass
    graph.reset()
    with torch.cuda.graph(graph):
        out = x * 4
    graph.replay()
    assert out.tolist() == [4.0, 4.0]


def test_one_capture_runs_at_a_time():
    graph = begun()
    with pytest.raises(RuntimeError, match="another stream is capturing"):
        torch.cuda.CUDAGraph().capture_begin()
    graph.capture_end()


def test_an_unknown_error_mode_is_refused():
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        begun(capture_error_mode="lenient")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_the_error_modes_capture(mode):
    x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        out = x * 2
    graph.replay()
    assert out.tolist() == [2.0, 2.0]


def test_handles_name_pools(device):
    handle = torch.cuda.graph_pool_handle()
    x, first, second = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=handle):
        x * 2
    with torch.cuda.graph(second, pool=first.pool()):
        x * 3
    assert (first.pool(), second.pool(), len(device.pools)) == (handle, handle, 1)
    assert torch.cuda.graph_pool_handle() != handle


def test_a_pool_object_names_a_pool():
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    x = torch.ones(2, device="cuda")
    with torch.cuda.use_mem_pool(pool), torch.cuda.graph(graph, pool=pool.id):
        out = x * 2
    graph.replay()
    assert (graph.pool(), out.tolist()) == (pool.id, [2.0, 2.0])


def test_a_graph_can_be_given_its_stream():
    stream, graph, seen = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph, stream=stream):
        seen.append(torch.cuda.current_stream())
    assert (seen, torch.cuda.current_stream()) == ([stream], torch.cuda.default_stream())


def test_graphed_callables_share_a_pool_and_keep_their_outputs_apart():
    layers = [torch.nn.Linear(4, 4).cuda().eval() for _ in range(2)]
    x = torch.rand(3, 4, device="cuda")
    expected = [layer(x) for layer in layers]
    with torch.enable_grad():
        graphed = torch.cuda.make_graphed_callables(
            tuple(layers), tuple((torch.zeros(3, 4, device="cuda"),) for _ in layers)
        )
    got = [layer(x) for layer in graphed]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, expected, strict=True))


def test_only_the_capturing_stream_captures():
    graph = begun()
    with torch.cuda.stream(torch.cuda.Stream()):
        elsewhere = torch.cuda.is_current_stream_capturing()
    here = torch.cuda.is_current_stream_capturing()
    graph.capture_end()
    assert (here, elsewhere, torch.cuda.is_current_stream_capturing()) == (True, False, False)


def test_events_order_streams():
    start, end, side = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), torch.cuda.Stream()
    start.record()
    side.wait_event(start)
    end.record(side)
    torch.cuda.current_stream().wait_event(end)
    end.synchronize()
    assert (end.query(), start.elapsed_time(end) >= 0, side.query()) == (True, True, True)


def test_work_joined_by_events_is_captured():
    x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
    side, forked, joined = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.graph(graph):
        forked.record()
        with torch.cuda.stream(side):
            forked.wait()
            out = x * 2
            joined.record()
        joined.wait()
    graph.replay()
    assert out.tolist() == [2.0, 2.0]


def test_waiting_for_work_from_outside_a_capture_is_refused():
    event = torch.cuda.Event()
    event.record()
    graph = begun()
    with pytest.raises(CaptureRefused, match="uncaptured work"):
        event.wait()
    with pytest.raises(CaptureRefused, match="previous error"):
        graph.capture_end()


def test_streams_and_events_have_their_types():
    stream = torch.cuda.Stream(priority=-1)
    assert (isinstance(stream, torch.cuda.Stream), isinstance(torch.cuda.current_stream(), torch.cuda.Stream)) == (
        True,
        True,
    )
    assert (stream.priority, stream.device.type, stream == torch.cuda.Stream()) == (-1, "cuda", False)
    assert isinstance(stream.record_event(), torch.cuda.Event)


def test_every_thread_has_its_current_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        elsewhere = in_thread(torch.cuda.current_stream)
    assert elsewhere == torch.cuda.default_stream()


def test_streams_are_entered_and_left_thread_by_thread():
    mine, entered, leave = torch.cuda.Stream(), threading.Event(), threading.Event()

    def other():
        with torch.cuda.Stream():
            entered.set()
            leave.wait(10)
        return torch.cuda.current_stream()

    found = []
    thread = threading.Thread(target=lambda: found.append(other()))
    thread.start()
    entered.wait(10)
    with mine:
        leave.set()
        thread.join()
    assert (found, torch.cuda.current_stream()) == ([torch.cuda.default_stream()], torch.cuda.default_stream())


def test_another_thread_computes_while_one_captures():
    x = torch.ones(2, device="cuda")
    graph = begun()
    out = x * 2
    total = in_thread(lambda: (x + 1).sum().item())
    graph.capture_end()
    graph.replay()
    assert (total, out.tolist()) == (4.0, [2.0, 2.0])


@pytest.mark.parametrize(("mode", "is_refused"), [("global", True), ("thread_local", False), ("relaxed", False)])
def test_other_threads_may_ask_events_as_the_error_mode_says(mode, is_refused):
    event = torch.cuda.Event()
    event.record()
    graph = begun(capture_error_mode=mode)
    found = in_thread(event.query)
    if is_refused:
        with pytest.raises(CaptureRefused):
            graph.capture_end()
    else:
        graph.capture_end()
    assert isinstance(found, CaptureRefused) is is_refused


def test_freed_inputs_are_reported_when_liveness_is_checked():
    inputs, graph = [torch.ones(2, device="cuda")], begun(check_input_liveness=True)
    inputs[0] * 2
    graph.capture_end()
    graph.replay()
    inputs.clear()
    with pytest.raises(RuntimeError, match=r"CUDA graph replay detected 1 dead tensor\(s\)"):
        graph.replay()
