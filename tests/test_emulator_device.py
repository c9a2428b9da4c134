"""The emulated device as a program sees it, outside captures."""

from __future__ import annotations

import copy
import io
import threading

import numpy as np
import pytest
import torch

from capturelint.emulator import CaptureRefused, cuda


@pytest.fixture(autouse=True)
def device():
    with cuda() as machine:
        yield machine


def test_tensors_say_where_they_live():
    x = torch.zeros(2, 3, device="cuda")
    assert (x.device, x[1:].device, x.is_cuda, x.is_cpu) == (
        torch.device("cuda", 0),
        torch.device("cuda", 0),
        True,
        False,
    )
    assert torch.zeros(2).device == torch.device("cpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([1, 2], device="cuda"),
        lambda: torch.as_tensor(np.ones(2), device="cuda"),
        lambda: torch.arange(3, device="cuda:0"),
        lambda: torch.zeros(2, device=0),
        lambda: torch.full((2,), 1.0, device=torch.device("cuda", 0)),
        lambda: torch.nn.Linear(2, 2, device=0).weight,
        lambda: torch.zeros(2).to(0),
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2).to("cuda", torch.float16),
        lambda: torch.zeros(2).to(torch.zeros(1, device="cuda")),
        lambda: torch.zeros_like(torch.zeros(2, device="cuda")),
        lambda: torch.zeros(2, device="cuda").new_tensor([1]),
        lambda: torch.zeros(2, device="cuda") + 1,
        lambda: torch.zeros(2, device="cuda") * torch.tensor(2.0),
        lambda: torch.nn.functional.one_hot(torch.arange(3, device="cuda"), 4),
        lambda: torch.nn.Linear(2, 2).cuda().weight,
        lambda: copy.deepcopy(torch.zeros(2, device="cuda")),
    ],
)
def test_results_on_the_device(make):
    assert make().device == torch.device("cuda", 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: torch.zeros_like(x, device="cpu"),
        lambda x: x.new_zeros(2, device="cpu"),
        lambda x: torch.from_numpy(x.cpu().numpy()),
    ],
)
def test_results_on_the_host(make):
    assert make(torch.zeros(2, device="cuda")).device == torch.device("cpu")


def test_two_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.zeros(2, device="cuda") + torch.zeros(2)


def test_a_device_tensor_is_no_array():
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.zeros(2, device="cuda").numpy()


def test_the_default_device_can_be_cuda():
    with torch.device("cuda"):
        assert (torch.zeros(1).device.type, torch.tensor([1]).device.type) == ("cuda", "cuda")


def test_the_default_device_can_be_set():
    torch.set_default_device("cuda")
    try:
        found = (torch.get_default_device(), torch.arange(3).device.type, torch.zeros(2, device="cpu").device.type)
    finally:
        torch.set_default_device(None)
    assert found == (torch.device("cuda", 0), "cuda", "cpu")
    assert torch.get_default_device() == torch.device("cpu")


def test_a_module_moves_there_and_back():
    layer = torch.nn.Linear(2, 2).to("cuda")
    assert (layer.weight.is_leaf, layer.weight.requires_grad, layer.weight.is_cuda) == (True, True, True)
    assert layer.cpu().weight.device.type == "cpu"


def test_saved_tensors_load_onto_the_device():
    file = io.BytesIO()
    torch.save({"x": torch.ones(2, device="cuda")}, file)
    file.seek(0)
    assert torch.load(file, map_location="cuda")["x"].device.type == "cuda"


def test_pinned_memory_is_told_apart():
    pinned = torch.zeros(2).pin_memory()
    assert (pinned.is_pinned(), torch.zeros(2).is_pinned(), torch.empty(2, pin_memory=True).is_pinned()) == (
        True,
        False,
        True,
    )


def test_generators_have_a_device():
    drawn = torch.rand(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    again = torch.rand(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    assert torch.equal(drawn, again)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())


def test_the_device_draws_apart_from_the_host():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    torch.rand(5, device="cuda")
    assert torch.equal(torch.rand(2), expected)


def test_autocast_lowers_matrix_products():
    layer, x = torch.nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (layer(x).dtype, torch.is_autocast_enabled("cuda")) == (torch.bfloat16, True)
    assert not torch.is_autocast_enabled("cuda")


def test_gradients_are_on_the_device():
    weight = torch.ones(2, device="cuda", requires_grad=True)
    (weight * 3).sum().backward()
    assert (weight.grad.device.type, weight.grad.tolist()) == ("cuda", [3.0, 3.0])


def test_types_without_a_cpu_kernel_are_computed():
    counts = torch.histc(torch.tensor([0, 1, 1], dtype=torch.int32, device="cuda"), 2, 0, 1)
    assert (counts.tolist(), counts.dtype) == ([1, 2], torch.int32)


def test_threads_have_the_device():
    found = []

    class Worker(threading.Thread):
        def run(self):
            found.append(torch.zeros(1, device="cuda").device.type)

    thread = Worker()
    thread.start()
    thread.join()
    assert found == ["cuda"]


def test_a_second_device_cannot_be_opened():
    with pytest.raises(RuntimeError, match="already open"), cuda():
        pass


def test_a_refusal_is_a_runtime_error():
    assert issubclass(CaptureRefused, RuntimeError)


def test_the_mean_of_a_ctc_loss_takes_lengths_of_the_host():
    scores, targets = torch.randn(6, 2, 5).log_softmax(-1), torch.ones(2, 2, dtype=torch.long)
    lengths = torch.tensor([6, 6]), torch.tensor([2, 2])
    expected = torch.nn.functional.ctc_loss(scores, targets, *lengths)
    on_device = scores.cuda().requires_grad_()
    loss = torch.nn.functional.ctc_loss(on_device, targets.cuda(), *lengths)
    loss.backward()
    assert (loss.item(), on_device.grad.device.type) == (pytest.approx(expected.item()), "cuda")
