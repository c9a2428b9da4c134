"""On a real GPU: the same verdicts and lines, times, and what a bucketed step costs the host."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
TARGETS = Path(__file__).parents[1] / "fixtures" / "targets"
MAX_HOST_S = 25e-6
"""5 % of a step of 0.5 ms."""


def report(target, buckets="1,2"):
    options = ["--device", "cuda", "--buckets", buckets, "--format", "json"]
    command = [sys.executable, "-m", "capturelint", "verify", target, *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("name", "verdict", "rules"),
    [
        ("clean_decoder.py", "ok", []),
        ("item_in_step.py", "capture-error", ["host-sync"]),
        ("int_position.py", "replay-differs", ["baked-scalar"]),
    ],
)
def test_the_gpu_says_what_the_emulator_says(name, verdict, rules):
    found = report(TARGETS / name)
    assert {bucket["verdict"] for bucket in found["buckets"]} == {verdict}
    assert [finding["rule"] for finding in found["findings"]] == rules


def test_a_clean_step_is_measured():
    (small, large) = report(TARGETS / "clean_decoder.py")["buckets"]
    for bucket in (small, large):
        assert {"eager_ms", "replay_ms", "graph_nodes", "pool_bytes", "capture_s", "speedup"} <= bucket.keys()
        assert "pool overwritten" in bucket["probes"]


def test_a_bucketed_step_costs_the_host_little_more_than_copy_and_replay():
    torch = pytest.importorskip("torch")
    from capturelint.runtime.buckets import BucketedStep

    weight = torch.randn(256, 256, device="cuda")
    run = BucketedStep(lambda x: x @ weight, lambda size: {"x": torch.zeros(size, 256, device="cuda")}, (4, 8))
    live = torch.randn(3, 256, device="cuda")
    bucket = run.buckets[4]
    view = bucket.static["x"][:3]

    def bare():
        view.copy_(live)
        bucket.graph.replay()

    def best(function, rounds=7, calls=300):
        taken = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(calls):
                function()
            taken.append((time.perf_counter() - started) / calls)
        return min(taken)

    extra = best(lambda: run(x=live)) - best(bare)
    print(f"a bucketed step costs the host {extra * 1e6:.1f} us more than copy and replay")
    assert extra <= MAX_HOST_S
