"""What the context replaces, it puts back; without torch's own state it would not be usable in anybody's tests."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from capturelint.emulator import cuda
from capturelint.emulator.memory import MARK
from capturelint.runtime.worker import device_context


def names():
    """Every attribute that the context may touch."""
    owners = [torch, torch.cuda, torch.Tensor, torch.UntypedStorage, threading.Thread, torch._C]
    owners += [module for name, module in sys.modules.items() if name.startswith(("torch.cuda.", "torch._library."))]
    return {(str(owner), name): value for owner in owners for name, value in vars(owner).items()}


def test_no_replacement_outlives_the_context():
    with cuda():
        torch.zeros(1, device="cuda")
    before = names()
    with cuda():
        assert torch.cuda.is_available()
        torch.zeros(1, device="cuda").cpu()
    after = names()
    assert {key for key in before if after.get(key) is not before[key]} == set()
    assert after.keys() - before.keys() == set()


def test_an_error_in_the_body_closes_the_context():
    with pytest.raises(ZeroDivisionError), cuda():
        raise ZeroDivisionError
    assert (torch.cuda.is_available(), hasattr(torch.UntypedStorage, MARK)) == (False, False)


def test_tensors_of_a_closed_context_are_ordinary():
    with cuda():
        x = torch.ones(2, device="cuda")
    assert (x.device.type, (x + torch.ones(2)).tolist()) == ("cpu", [2.0, 2.0])


def reads_freed_memory():
    """What a graph gives whose input was freed after the capture."""
    with torch.no_grad():
        inputs = [torch.ones(2, device="cuda")]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = inputs[0] * 2
        inputs.clear()
        graph.replay()
        return out.tolist()


def test_freed_memory_can_be_left_as_it_is():
    with cuda(poison_freed=False):
        assert reads_freed_memory() == [2.0, 2.0]


def test_a_worker_overwrites_freed_memory_as_the_next_owner_does_on_a_gpu():
    with device_context("emulated"):
        assert reads_freed_memory() != [2.0, 2.0]


def test_the_compiler_is_not_imported():
    import subprocess

    code = (
        "import sys, torch, capturelint.emulator as e\n"
        "with e.cuda(): torch.zeros(1, device='cuda')\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
