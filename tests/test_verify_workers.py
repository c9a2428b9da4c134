"""Targets that hang, die or eat memory cost one bucket, in real worker processes; nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runtime_here import plan, write_target

from capturelint.runtime.blame import Suspects
from capturelint.runtime.verify import Limits, verify
from capturelint.vocabulary import Verdict

pytest.importorskip("torch")
TARGETS = Path(__file__).parents[1] / "fixtures" / "targets"
MISBEHAVING = TARGETS / "misbehaving.py"
HANG_S = 6.0


@pytest.fixture
def verified(monkeypatch):
    """The report on a target that misbehaves as asked; one worker unless the fault ends it before the last bucket."""

    def run(fault, buckets, memory_gib=None, timeout_s=120.0):
        monkeypatch.setenv("CAPTURELINT_TEST_FAULT", fault)
        asked = plan(MISBEHAVING, buckets=buckets, memory_limit_gib=memory_gib)
        return verify(asked, Limits(timeout_s, memory_gib), Suspects())

    return run


def line_of(words):
    """The line of the misbehaving target with these words."""
    return next(n for n, text in enumerate(MISBEHAVING.read_text().splitlines(), 1) if words in text)


def test_a_segmentation_fault_costs_its_bucket_and_names_its_line(verified):
    report = verified("step:segv:2", (1, 2))
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.OK, Verdict.CRASH]
    assert "killed by SIGSEGV" in report.buckets[1].message
    assert f"misbehaving.py:{line_of('os.kill')}" in report.buckets[1].message
    assert report.verdict == "fault"


def test_a_hang_during_capture_is_a_timeout_at_its_line(verified):
    report = verified("capture:hang:1", (1,), timeout_s=HANG_S)
    (bucket,) = report.buckets
    assert bucket.verdict is Verdict.TIMEOUT
    assert "during capture of step 3" in bucket.message
    assert [finding.place.line for finding in report.findings] == [line_of("time.sleep")]
    assert report.verdict == "unsafe"


def test_memory_beyond_the_limit_is_the_buckets_verdict(verified):
    report = verified("step:memory:1", (1, 2), memory_gib=1.0)
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.OUT_OF_MEMORY, Verdict.OK]
    assert report.notes[-1] == "batch 2 is the largest that fits"


def test_memory_that_fills_slowly_ends_at_the_limit_and_not_at_the_time_out(verified):
    report = verified("step:slow-memory:1", (1,), memory_gib=1.0, timeout_s=4.0)
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.OUT_OF_MEMORY]


LATE = """
import torch

@torch.no_grad()
def drive(device):
    layer, slots = torch.nn.Embedding(4, 4).to(device), {"x": torch.zeros(2, dtype=torch.long, device=device)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = layer(slots["x"])
    slots["x"] = torch.ones_like(slots["x"])  # here
    graph.replay()
    raise RuntimeError("CUDA error: device-side assert triggered")
"""


def test_an_error_of_the_device_that_comes_late_is_looked_into_by_another_process(tmp_path):
    target = write_target(tmp_path, LATE)
    report = verify(plan(target, driver="drive", buckets=(0,)), Limits(120.0, None), Suspects())
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.REPLAY_DIFFERS]
    assert "after 1 replays" in report.buckets[0].message
    (finding,) = report.findings
    line = next(n for n, text in enumerate(LATE.splitlines(), 1) if text.endswith("# here"))
    assert (finding.rule, finding.place.line) == ("input-rebind", line)


def test_a_process_that_leaves_is_a_crash(verified):
    report = verified("step:leave:1", (1,))
    assert report.buckets[0].verdict is Verdict.CRASH
    assert (
        f"exited with status 7 at {os.path.relpath(MISBEHAVING)}:{line_of('os._exit(7)')}" in report.buckets[0].message
    )


def test_a_process_that_leaves_quietly_while_it_is_captured_is_a_crash_at_its_line(verified):
    report = verified("capture:leave-quietly:1", (1,))
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.CRASH]
    assert [finding.place.line for finding in report.findings] == [line_of("os._exit(0)")]


def test_a_step_that_hangs_by_itself_is_the_targets_fault(verified):
    report = verified("step:hang:1", (1,), timeout_s=HANG_S)
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.TIMEOUT]
    assert report.verdict == "fault"


def test_a_process_that_the_target_forked_is_ended_and_not_waited_for(verified):
    report = verified("build:fork", (1,))
    assert report.verdict == "safe"


def command(*arguments, fault="none:none"):
    """The command line, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "capturelint", "verify", *map(str, arguments), "--device", "emulated"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CAPTURELINT_TEST_FAULT": fault, "OMP_NUM_THREADS": "1"},
    )


def workers_of(pid):
    """Process ids of the children of ``pid``."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_child(number):
    # A shell's background job ignores SIGINT, and so would the run: what is ignored stays so through exec.
    ignored = signal.signal(number, signal.default_int_handler)
    try:
        run = command(MISBEHAVING, "--buckets", "1", fault="build:hang")
    finally:
        signal.signal(number, ignored)
    while not (children := workers_of(run.pid)):
        time.sleep(0.05)
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (130, "interrupted\n")
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_what_a_target_prints_does_not_reach_the_report():
    run = command(MISBEHAVING, "--buckets", "1", "--format", "json", fault="step:print")
    out, said = run.communicate(timeout=120)
    assert json.loads(out)["verdict"] == "safe"
    assert (run.returncode, said) == (0, "")
