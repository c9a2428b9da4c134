"""On a real GPU: what the driver sees of a process never passes ``--memory-limit``, whoever takes the memory."""

import json
import subprocess
import sys
import threading
import time

import pytest
from runtime_here import write_target

pytestmark = pytest.mark.gpu
GIB = 1 << 30
HEADER = """
import torch

def build(device):
    torch.manual_seed(0)
    return torch.nn.Linear({width}, {width}).to(device)

def inputs(batch, step, device):
    g = torch.Generator().manual_seed(step)
    return {{"x": torch.randn(batch, {width}, generator=g).to(device)}}
"""
FITS = HEADER.format(width=4096) + "\ndef step(state, x):\n    return state(x)\n"
GREEDY = HEADER.format(width=64) + (
    "\ndef step(state, x):\n    return state(x) + torch.empty(x.shape[0] * (1 << 28), device=x.device).fill_(0).max()\n"
)
MANY_NODES = HEADER.format(width=64) + (
    "\ndef step(state, x):\n    for _ in range(x.shape[0] * 2000):\n        x = x + 1\n    return state(x)\n"
)
MANY_GRAPHS = """
import torch

def drive(device):
    x = torch.zeros(64, device=device)
    kept = []
    for _ in range(2000):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3000):
                x.add_(1)
        graph.replay()
        kept.append(graph)
    return {"expected": torch.zeros(1), "got": torch.zeros(1)}
"""


def report(target, limit, *more):
    """The report under a limit in GiB, and the most memory that the device had beside what it has without."""
    from capturelint.runtime.meter import opened

    meter = opened()
    assert meter is not None, "NVML does not answer"
    most, done = [0], threading.Event()

    def sample():
        while not done.is_set():
            most.append(meter.on_device() - meter.others)
            time.sleep(0.002)

    sampling = threading.Thread(target=sample)
    sampling.start()
    command = [sys.executable, "-m", "capturelint", "verify", target, "--device", "cuda", "--format", "json"]
    try:
        run = subprocess.run(
            [*command, "--memory-limit", str(limit), *more], capture_output=True, text=True, check=False
        )
    finally:
        done.set()
        sampling.join()
    print(f"limit {limit:.2f} GiB, peak {max(most) / GIB:.3f} GiB", run.stdout[-3000:], run.stderr[-500:])
    return (json.loads(run.stdout) if run.stdout else {"stderr": run.stderr}), max(most)


@pytest.mark.parametrize(
    ("source", "limit", "verdicts"),
    [
        (FITS, 3, {4: "ok", 8: "ok"}),
        (GREEDY, 6, {4: "ok", 8: "out-of-memory"}),
        (MANY_NODES, 1.25, {4: "ok", 8: "ok"}),
    ],
    ids=["a step that fits", "a step that takes more", "graphs of many nodes"],
)
def test_the_peak_of_the_process_stays_within_the_limit(tmp_path, source, limit, verdicts):
    found, peak = report(write_target(tmp_path, source), limit, "--buckets", ",".join(map(str, verdicts)))
    assert peak <= limit * GIB
    assert found["device_bytes"] <= limit * GIB
    assert {bucket["size"]: bucket["verdict"] for bucket in found["buckets"]} == verdicts
    if "out-of-memory" in verdicts.values():
        assert "batch 4 is the largest that fits" in found["notes"]


def test_graphs_alone_can_take_what_the_limit_allows(tmp_path):
    found, peak = report(write_target(tmp_path, MANY_GRAPHS), 1.5, "--driver", "drive")
    assert peak <= 1.5 * GIB
    assert [bucket["verdict"] for bucket in found["buckets"]] == ["out-of-memory"]


def test_a_limit_below_what_the_context_takes_is_told(tmp_path):
    found, _ = report(write_target(tmp_path, FITS), 0.25)
    assert "the context alone takes" in found["stderr"]
