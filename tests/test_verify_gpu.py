"""On a real GPU: the same verdicts and lines, times, and what a bucketed step costs the host."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runtime_here import write_target
from test_verify_blame import (
    AROUND,
    ASKED,
    DRIVER,
    FREED,
    REBOUND,
    STALE,
    STEP,
    SWALLOWED,
    SWAPPED,
    UNJOINED,
    WARMED,
    WRONG,
    marked,
)

pytestmark = pytest.mark.gpu
TARGETS = Path(__file__).parents[1] / "fixtures" / "targets"
MAX_HOST_S = 25e-6
"""5 % of a step of 0.5 ms."""


def report(target, buckets="1,2", *more):
    options = ["--device", "cuda", "--buckets", buckets, "--format", "json", *more]
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
        assert bucket["kernels"] > 0
        assert 0 < bucket["busy_share"] <= 1
        assert "pool overwritten" in bucket["probes"]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (STALE, "stale-output"),
        (REBOUND, "input-rebind"),
        (SWAPPED, "input-rebind"),
        (WARMED, "warm-up-state"),
        (FREED, "freed-memory"),
    ],
    ids=["kept output", "rebound input", "swapped tensor", "warmed-up state", "freed memory"],
)
def test_a_driver_that_is_silently_wrong_is_blamed_on_its_line(tmp_path, body, rule):
    target = write_target(tmp_path, DRIVER + body)
    found = report(target, "1", "--driver", "drive")
    assert found["buckets"][0]["verdict"] == "replay-differs"
    assert (rule, marked(DRIVER + body)) in [(each["rule"], each.get("line")) for each in found["findings"]]


def test_memory_that_is_free_and_that_nobody_takes_is_found(tmp_path):
    target = write_target(tmp_path, DRIVER + LEFT)
    (bucket,) = (found := report(target, "1", "--driver", "drive"))["buckets"]
    assert bucket["verdict"] == "replay-differs"
    assert ("freed-memory", marked(DRIVER + LEFT)) in [(each["rule"], each.get("line")) for each in found["findings"]]


def test_a_right_driver_is_right_with_free_memory_overwritten(tmp_path):
    found = report(write_target(tmp_path, DRIVER + RIGHT), "1", "--driver", "drive")
    assert (found["verdict"], found["buckets"][0]["probes"]) == ("safe", ["memory alive", "free memory overwritten"])


def test_an_assertion_of_the_device_is_blamed_on_what_moved(tmp_path):
    found = report(write_target(tmp_path, DRIVER + ASSERTED), "1", "--driver", "drive")
    assert [bucket["verdict"] for bucket in found["buckets"]] == ["replay-differs"]
    assert [(each["rule"], each.get("line")) for each in found["findings"]] == [
        ("input-rebind", marked(DRIVER + ASSERTED))
    ]


@pytest.mark.parametrize(
    ("body", "verdict", "rule"),
    [
        (UNJOINED, "capture-error", "stream-misuse"),
        (SWALLOWED, "capture-error", "host-sync"),
        (ASKED, "capture-error", "host-sync"),
        (WRONG, "replay-differs", "baked-scalar"),
    ],
    ids=["unjoined stream", "reported by the end of the capture", "asked for progress", "wrong without an error"],
)
def test_what_has_no_frame_is_blamed_on_its_line(tmp_path, body, verdict, rule):
    source = STEP + body.lstrip("\n")
    found = report(write_target(tmp_path, source), "2")
    assert found["buckets"][0]["verdict"] == verdict
    assert (rule, marked(source)) in [(each["rule"], each.get("line")) for each in found["findings"]]


RIGHT = AROUND.replace("BETWEEN", "pass")

LEFT = """
@torch.no_grad()
def drive(device):
    eager, x, y = build(), inputs(0), torch.empty(2, 4, device=device)
    def prepared(model):
        return capture(lambda: y.copy_(model.layer(x)))
    graph, _ = prepared(build())  # here
    graph.replay()
    return {"expected": eager.layer(x)[None], "got": y[None]}
"""

ASSERTED = """
@torch.no_grad()
def drive(device):
    table = torch.nn.Embedding(8, 4).to(device)
    slots = {"x": torch.zeros(2, dtype=torch.long, device=device)}
    graph, output = capture(lambda: table(slots["x"]))
    slots["x"] = torch.ones(2, dtype=torch.long, device=device)  # here
    taken = torch.full((2,), 1 << 40, dtype=torch.long, device=device)
    graph.replay()
    return {"expected": table(slots["x"])[None], "got": output[None].clone()}
"""

DRAWS = (
    STEP
    + """
    noisy = torch.nn.functional.dropout(state(x), 0.5, training=True) + torch.randn_like(x)
    return noisy, torch.multinomial(noisy.softmax(-1), 1)
"""
)


def test_a_replay_draws_what_eager_draws(tmp_path):
    found = report(write_target(tmp_path, DRAWS.replace("):\n\n", "):\n")), "2,1")
    assert [bucket["max_error"] for bucket in found["buckets"]] == [0.0, 0.0]
    assert found["verdict"] == "safe"


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
