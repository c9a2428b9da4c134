"""On a real GPU: what the driver sees of a process never passes ``--memory-limit``, whoever takes the memory."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

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
    x, kept = torch.zeros(64, device=device), [torch.empty(3 << 29, dtype=torch.uint8, device=device)]
    for _ in range(200):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5000):
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
    command = [sys.executable, "-m", "capturelint", "verify", target, "--device", "cuda", "--format", "json"]
    run = subprocess.Popen(
        [*command, "--memory-limit", str(limit), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    most, done = [0], threading.Event()

    def sample():
        while not done.is_set():
            most.append(sum(used for pid, used in meter.by_process().items() if is_below(run.pid, pid)))
            time.sleep(0.002)

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        out, said = run.communicate()
    finally:
        done.set()
        sampling.join()
    found = json.loads(out) if out else {"stderr": said}
    short = [(each["size"], each["verdict"], each.get("message", "")[:300]) for each in found.get("buckets", ())]
    print(f"limit {limit:.2f} GiB, peak {max(most) / GIB:.3f} GiB, {short}, {found.get('notes')}, {said[-500:]}")
    return found, max(most)


def is_below(ancestor, pid):
    """Whether a process was started by another one, directly or not."""
    while pid > 1 and pid != ancestor:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return False
    return pid == ancestor


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
    found, peak = report(write_target(tmp_path, MANY_GRAPHS), 2.75, "--driver", "drive")
    assert 2.5 * GIB <= peak <= 2.75 * GIB
    assert [bucket["verdict"] for bucket in found["buckets"]] == ["out-of-memory"]
    assert "a graph of 5000 nodes" in found["buckets"][0]["message"]


def test_a_limit_below_what_the_context_takes_is_told(tmp_path):
    found, _ = report(write_target(tmp_path, FITS), 0.25)
    assert "the context alone takes" in found["stderr"]
