"""Capture and replay on the emulated device: what runs when, what is kept, what is refused."""

from __future__ import annotations

import pytest
import torch

from capturelint.emulator import CaptureRefused, cuda
from capturelint.vocabulary import ObservationKind


@pytest.fixture(autouse=True)
def device():
    with cuda() as machine, torch.no_grad():
        yield machine


def captured(step):
    """A graph of ``step``, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def refused(step):
    """The refusal that capturing ``step`` ends in: the first of the chain."""
    with pytest.raises(RuntimeError) as info:
        captured(step)
    error = info.value
    while error.__context__ is not None:
        error = error.__context__
    assert isinstance(error, CaptureRefused)
    return error


def test_capture_does_not_execute():
    total = torch.zeros(1, device="cuda")
    graph, _ = captured(lambda: total.add_(1))
    assert total.item() == 0
    graph.replay()
    graph.replay()
    assert total.item() == 2


def test_outputs_are_undefined_until_the_first_replay():
    x = torch.ones(2, device="cuda")
    graph, out = captured(lambda: x * 2)
    assert out.isnan().all()
    graph.replay()
    assert out.tolist() == [2.0, 2.0]


def test_replay_reads_what_was_written_since():
    x = torch.ones(2, device="cuda")
    graph, out = captured(lambda: x * 2)
    x.fill_(5)
    graph.replay()
    assert out.tolist() == [10.0, 10.0]


def test_numbers_are_frozen():
    x, scale = torch.ones(1, device="cuda"), [2.0]
    graph, out = captured(lambda: x * scale[0])
    scale[0] = 7.0
    graph.replay()
    assert out.item() == 2.0


def test_host_branches_are_frozen():
    x, is_first = torch.ones(1, device="cuda"), [True]
    graph, out = captured(lambda: x + 1 if is_first[0] else x - 1)
    is_first[0] = False
    graph.replay()
    assert out.item() == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_attention_is_replayed_in_every_type(dtype, mode):
    with mode():
        attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).to("cuda", dtype).eval()
        x = torch.randn(2, 3, 8, device="cuda", dtype=dtype)
        graph, out = captured(lambda: attention(x, x, x, need_weights=False)[0])
        x.copy_(torch.randn(2, 3, 8, device="cuda", dtype=dtype))
        graph.replay()
        expected = attention(x, x, x, need_weights=False)[0]
        assert torch.allclose(out, expected, atol=1e-2 if dtype is torch.bfloat16 else 1e-3)


def test_autocast_is_captured():
    layer, x = torch.nn.Linear(8, 8).cuda(), torch.randn(2, 8, device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return layer(x)

    graph, out = captured(step)
    graph.replay()
    assert (out.dtype, torch.equal(out, step())) == (torch.bfloat16, True)


def test_a_check_that_torch_makes_on_a_cpu_only_is_no_read():
    x, at = torch.arange(5.0, device="cuda"), torch.tensor([0.25, 0.5], device="cuda")
    graph, (first, second) = captured(lambda: (torch.quantile(x, at), x.nanquantile(at)))
    graph.replay()
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0], [1.0, 2.0])
    assert refused(lambda: x.sum().item()).kind is ObservationKind.HOST_READ


def test_a_host_scalar_tensor_is_frozen_by_value():
    x, scale = torch.ones(1, device="cuda"), torch.tensor(2.0)
    graph, out = captured(lambda: x * scale)
    scale.fill_(7.0)
    graph.replay()
    assert out.item() == 2.0


def test_an_attribute_bound_in_the_capture_is_the_graphs_memory():
    start = torch.zeros(1, device="cuda")

    class State:
        h = start

    def step():
        State.h = State.h + 1
        return State.h

    graph, out = captured(step)
    graph.replay()
    graph.replay()
    assert (out.item(), out is State.h) == (1.0, True)


def test_views_taken_in_the_capture_follow_their_memory():
    cache = torch.zeros(4, 2, device="cuda")
    graph, row = captured(lambda: cache[1:2].add_(1)[0])
    graph.replay()
    assert (row.tolist(), cache[1].tolist(), cache[0].tolist()) == ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0])


def test_pinned_sources_are_read_at_replay():
    source, target = torch.ones(2).pin_memory(), torch.zeros(2, device="cuda")
    graph, _ = captured(lambda: target.copy_(source, non_blocking=True))
    source.fill_(3)
    graph.replay()
    assert target.tolist() == [3.0, 3.0]


def test_pinned_targets_are_written_at_replay_only():
    x, target = torch.ones(2, device="cuda"), torch.zeros(2).pin_memory()
    graph, _ = captured(lambda: target.copy_(x, non_blocking=True))
    assert target.tolist() == [0.0, 0.0]
    graph.replay()
    assert target.tolist() == [1.0, 1.0]


def test_every_replay_draws_anew_and_the_capture_draws_nothing():
    torch.cuda.manual_seed(3)
    expected = [torch.rand(2, device="cuda") for _ in range(2)]
    torch.cuda.manual_seed(3)
    graph, out = captured(lambda: torch.rand(2, device="cuda"))
    for values in expected:
        graph.replay()
        assert torch.equal(out, values)


def test_a_registered_generator_may_draw():
    generator = torch.Generator(device="cuda").manual_seed(1)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = torch.rand(2, device="cuda", generator=generator)
    graph.replay()
    assert torch.equal(out, torch.rand(2, device="cuda", generator=generator.manual_seed(1)))


def test_inference_mode_is_captured_call_by_call():
    with torch.inference_mode():
        layer, x = torch.nn.Linear(2, 2, device="cuda"), torch.ones(1, 2, device="cuda")
        graph, out = captured(lambda: layer(x).softmax(-1))
        graph.replay()
        assert torch.equal(out, layer(x).softmax(-1))


def test_graphed_callables_train():
    with torch.enable_grad():
        layer = torch.nn.Linear(2, 2).cuda()
        plain = torch.nn.Linear(2, 2).cuda()
        plain.load_state_dict(layer.state_dict())
        graphed = torch.cuda.make_graphed_callables(layer, (torch.ones(3, 2, device="cuda"),))
        x = torch.rand(3, 2, device="cuda")
        graphed(x).sum().backward()
        plain(x).sum().backward()
    assert torch.allclose(layer.weight.grad, plain.weight.grad)


def test_freed_memory_goes_to_the_next_tensor_of_its_size():
    tables = [torch.ones(64, device="cuda")]
    graph, out = captured(lambda: tables[0] * 2)
    tables.clear()
    other = torch.full((64,), 7.0, device="cuda")
    graph.replay()
    assert out[0].item() == 14.0
    assert other[0].item() == 7.0


def test_a_graph_writes_into_freed_memory():
    scratch = [torch.zeros(64, device="cuda")]
    graph, count = captured(lambda: scratch[0].fill_(1).numel())
    scratch.clear()
    bystander = torch.full((64,), 7.0, device="cuda")
    graph.replay()
    assert bystander.sum().item() == count


def test_memory_in_use_is_never_given_away():
    table = torch.ones(64, device="cuda")
    graph, out = captured(lambda: table * 2)
    torch.full((64,), 7.0, device="cuda")
    graph.replay()
    assert out[0].item() == 2.0


def test_memory_of_a_dropped_graph_is_still_in_use():
    table = torch.ones(64, device="cuda")
    captured(lambda: table * 2)
    graph, out = captured(lambda: table * 3)
    others = [torch.full((64,), 7.0, device="cuda") for _ in range(3)]
    graph.replay()
    assert (out[0].item(), table[0].item(), [other[0].item() for other in others]) == (3.0, 1.0, [7.0] * 3)


def test_a_dropped_graph_is_forgotten(device):
    table = torch.ones(64, device="cuda")
    captured(lambda: table * 2)
    assert device.ledger.entries == {}


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (lambda x: x.sum().item(), ObservationKind.HOST_READ),
        (lambda x: x.cpu(), ObservationKind.HOST_READ),
        (lambda x: x.tolist(), ObservationKind.HOST_READ),
        (lambda x: f"{x}", ObservationKind.HOST_READ),
        (lambda x: x[x > 0], ObservationKind.DYNAMIC_OUTPUT),
        (lambda x: x.copy_(torch.ones(4)), ObservationKind.PAGEABLE_COPY),
        (lambda x: torch.tensor([1.0], device="cuda"), ObservationKind.PAGEABLE_COPY),
        (lambda x: x.__setitem__(0, 1.5), ObservationKind.PAGEABLE_COPY),
        (lambda x: x[[0, 2]], ObservationKind.PAGEABLE_COPY),
        (lambda x: torch.cuda.synchronize(), ObservationKind.SYNCHRONISED),
        (lambda x: torch.cuda.current_stream().query(), ObservationKind.SYNCHRONISED),
        (lambda x: torch.linalg.inv(x.view(2, 2) + torch.eye(2, device="cuda")), ObservationKind.CHECKED_ERROR),
        (lambda x: torch.rand(1, device="cuda", generator=torch.Generator("cuda")), ObservationKind.FOREIGN_GENERATOR),
    ],
)
def test_refusals_say_what_was_seen(step, kind):
    x = torch.ones(4, device="cuda")
    assert refused(lambda: step(x)).kind is kind


def test_a_refusal_quotes_cuda_and_says_why():
    x = torch.ones(4, device="cuda")
    assert str(refused(lambda: x.sum().item())) == (
        "CUDA error: operation not permitted when stream is capturing "
        "(aten::_local_scalar_dense.default: the value is copied to the host)"
    )


def test_an_unjoined_side_stream_is_refused_at_the_end():
    def step():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return torch.zeros(1, device="cuda")

    assert refused(step).kind is ObservationKind.UNJOINED_STREAM


def test_a_joined_side_stream_is_captured():
    x = torch.ones(1, device="cuda")

    def step():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return out

    graph, out = captured(step)
    graph.replay()
    assert out.item() == 2.0


def test_everything_after_a_refusal_fails_too():
    x = torch.ones(1, device="cuda")

    def step():
        with pytest.raises(CaptureRefused):
            x.item()
        x.add_(1)

    with pytest.raises(CaptureRefused, match="previous error"):
        captured(step)
    with pytest.raises(CaptureRefused, match="previous error"):
        torch.cuda.CUDAGraph().capture_begin()


def test_a_refused_capture_is_undone():
    x = torch.ones(1, device="cuda")
    refused(lambda: x.add_(1).item())
    assert x.item() == 1.0


def test_only_capturing_code_sees_a_capture():
    seen = []
    captured(lambda: seen.append(torch.cuda.is_current_stream_capturing()))
    assert [*seen, torch.cuda.is_current_stream_capturing()] == [True, False]


def test_the_default_stream_does_not_capture():
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
