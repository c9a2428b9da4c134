"""``verify --compile``: the compiled step in the report, in the findings and in the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

pytest.importorskip("torch", reason="verify runs the step")

import torch

from capturelint.catalog import BUILT_IN, data_directory, load_rules
from capturelint.cli.verify import new_findings, with_compiled
from capturelint.compiler.findings import CONFIRMS, compile_findings, summary
from capturelint.compiler.report import (
    CompiledBucket,
    CompileEvent,
    CompileKind,
    CompileReport,
    Coverage,
    Milliseconds,
    OutsideKernel,
    Partitions,
    from_json,
    merged,
)
from capturelint.finding import Evidence, Finding
from capturelint.place import Frame, Place
from capturelint.report.page import page
from capturelint.report.verify_json import render_verify_json
from capturelint.report.verify_text import render_verify_text
from capturelint.runtime.blame import Suspects
from capturelint.runtime.compiled_step import made_by_first
from capturelint.runtime.observations import BucketResult, Floor, Machine, Times
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "schemas" / "verify.json").read_text(encoding="utf-8"))
TARGETS = data_directory("fixtures") / "compile"
REPORT = CompileReport(
    "NVIDIA H200",
    "2.11.0",
    graph_breaks=(CompileEvent(CompileKind.GRAPH_BREAK, "Tensor.item", "model.py", 8, "use a tensor", 2),),
    skips=(CompileEvent(CompileKind.SKIP, "mutated inputs (1 instances)"),),
    partitioned=(Partitions(3, 2),),
    buckets=(
        CompiledBucket(
            4,
            calls=38,
            coverage=Coverage(
                120,
                123,
                2,
                1,
                (
                    OutsideKernel("triton_poi", 2, "/srv/model.py", 7, "step"),
                    OutsideKernel("fill", 1, "/srv/model.py", 5, "step", exact=False),
                ),
            ),
            compiled_ms=Milliseconds(2.5, 2.6),
            max_error=0.001,
            tolerance=0.004,
        ),
    ),
    partial=("something",),
)


def verify(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capturelint", "verify", str(TARGETS / f"{name}.py"), "--device", "emulated"]
    return subprocess.run(  # above the programs, so that paths are told from there
        [*command, "--buckets", "4", "--compile", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=TARGETS.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_step_that_captures_and_does_not_compile_whole_is_unsafe():
    result = verify("logging_call", "--format", "json")
    report = json.loads(result.stdout)

    assert result.returncode == 1, result.stderr
    jsonschema.validate(report, SCHEMA)
    assert [bucket["verdict"] for bucket in report["buckets"]] == ["ok"]
    assert report["verdict"] == "unsafe"
    assert [(event["line"], event["path"]) for event in report["compile"]["graph_breaks"]] == [
        (24, "compile/logging_call.py")
    ]
    assert "graph-break" in {finding["rule"] for finding in report["findings"]}


LAZY = """
import torch
from torch import nn


class Cache:
    def __init__(self):
        self.keys = None

    def update(self, key, position):
        if self.keys is None:
            self.keys = torch.zeros(key.shape[0], 32, key.shape[-1], device=key.device)
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.keys)
        self.keys.index_copy_(1, position, key[:, None])
        return self.keys


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.cache = Cache()

    def forward(self, x, position):
        return self.cache.update(self.proj(x), position).sum(1)


def build(device):
    torch.manual_seed(0)
    return Model().to(device)


def inputs(batch, step, device):
    return {"x": torch.full((batch, 8), 0.1 * step, device=device), "position": torch.tensor([step]).to(device)}


def step(model, x, position):
    return model(x, position)
"""


def test_a_step_that_builds_its_cache_runs_eager_before_it_is_compiled(tmp_path):
    target = tmp_path / "lazy.py"
    target.write_text(LAZY)
    result = verify(str(target.with_suffix("")), "--format", "json")
    report = json.loads(result.stdout)

    assert (result.returncode, report["findings"]) == (0, []), result.stderr
    assert [note for note in report["notes"] if "builds `state.cache.keys`, so it ran eager" in note]


def test_what_grows_at_every_step_is_not_built_by_the_first():
    state = {"rows": []}

    assert made_by_first(state, lambda number: state["rows"].append(torch.zeros(2))) == []
    assert made_by_first(state, lambda number: state.setdefault("cache", torch.zeros(2))) == ["state['cache']"]


def test_a_coverage_that_nobody_measured_does_not_pass():
    emulated = VerifyReport("model.py", Machine("emulated", "2.13.0"), (BucketResult(4, Verdict.OK),), ())
    compiled = CompileReport("cpu", "2.13.0", buckets=(CompiledBucket(4),))
    report = with_compiled(emulated, compiled, Suspects(), min_coverage=100)

    assert report.verdict == "unsafe"
    assert report.notes == ("compiled: coverage was not measured: no GPU; --min-coverage asks for 100%",)
    assert with_compiled(emulated, compiled, Suspects(), min_coverage=None).verdict == "safe"


def test_a_coverage_below_the_one_asked_for_does_not_pass():
    bucket = BucketResult(4, Verdict.OK)
    measured = VerifyReport("model.py", Machine("cuda", "2.11.0", "NVIDIA H200"), (bucket,), ())
    whole = replace(REPORT, graph_breaks=(), skips=(), partial=())

    assert with_compiled(measured, whole, Suspects(), min_coverage=97).verdict == "safe"
    assert with_compiled(measured, whole, Suspects(), min_coverage=98).verdict == "unsafe"


def test_a_report_travels_as_json():
    assert from_json(json.loads(json.dumps(REPORT.as_json()))) == REPORT


def test_events_are_findings_worst_first_with_their_lines():
    skip, graph_break = compile_findings(REPORT)

    assert (skip.rule, skip.place, skip.message) == (
        "cudagraph-skip",
        None,
        "no CUDA graph is used: mutated inputs (1 instances)",
    )
    assert (graph_break.rule, str(graph_break.place)) == ("graph-break", "model.py:8:1")


SUSPECT = Finding(
    "host-sync",
    Place(Path("model.py"), 8, 12, 8, 20),
    "`x.item()` waits for the device",
    ("keep it on the device",),
    Outcome.CAPTURE_ERROR,
    Confidence.LIKELY,
    (Frame(Path("model.py"), 20, "step"),),
)


def test_an_event_proves_the_static_finding_on_its_line():
    other = [replace(SUSPECT, place=Place(Path("model.py"), 9)), replace(SUSPECT, rule="pad-write")]
    _skip, graph_break, proven = compile_findings(REPORT, [SUSPECT, *other])

    assert (proven.rule, proven.place, proven.confidence) == ("host-sync", SUSPECT.place, Confidence.PROVEN)
    assert proven.evidence.text == "compiled with reduce-overhead, torch says: Tensor.item (use a tensor)"
    assert (graph_break.rule, graph_break.trail) == ("graph-break", SUSPECT.trail)
    assert graph_break.help[0] == "keep it on the device"
    assert graph_break.evidence.text.endswith("; check says host-sync: `x.item()` waits for the device")


def test_a_suspect_that_the_captured_run_has_proven_is_told_once():
    found = compile_findings(REPORT, [SUSPECT])

    assert [f.rule for f in new_findings(found, [SUSPECT])] == ["cudagraph-skip", "graph-break"]


def test_what_an_event_proves_are_rules():
    assert set().union(*CONFIRMS.values()) <= load_rules().keys()
    assert CONFIRMS.keys() == set(CompileKind)


def test_a_wrong_replay_is_a_finding_and_lost():
    wrong = replace(REPORT, graph_breaks=(), skips=(), buckets=(CompiledBucket(4, differs="0.3 off"),))
    (finding,) = compile_findings(wrong)

    assert (finding.rule, finding.outcome, finding.evidence) == (
        "unexplained",
        Outcome.SILENT_WRONG,
        Evidence("0.3 off", 4),
    )
    assert wrong.unwell


def compiled_with(**events) -> CompileReport:
    return CompileReport("cpu", "2.13.0", buckets=(CompiledBucket(4),), **events)


GUARD = CompileEvent(CompileKind.RECOMPILE, "state.count == 0", "model.py", 9)
LOSSES = {
    "a partition": (compiled_with(partitions=(CompileEvent(CompileKind.PARTITION, "cpu ops"),)), "unsafe"),
    "a guard that settles": (compiled_with(recompiles=(GUARD,)), "safe"),
    "a guard that never settles": (compiled_with(recompiles=(replace(GUARD, count=3),)), "unsafe"),
    "nothing": (compiled_with(), "safe"),
}


@pytest.mark.parametrize(("compiled", "verdict"), LOSSES.values(), ids=LOSSES)
def test_what_costs_a_graph_in_every_step_fails_the_run(compiled, verdict):
    report = VerifyReport("model.py", Machine("emulated", "2.13.0"), (BucketResult(4, Verdict.OK),), ())

    assert with_compiled(report, compiled, Suspects(), None).verdict == verdict
    assert with_compiled(report, compiled, Suspects(), None, counts=lambda rule: False).verdict == "safe"


def test_the_lowest_coverage_of_the_batch_sizes_counts():
    halves = [CompiledBucket(size, coverage=Coverage(inside, 10, 1)) for size, inside in ((1, 10), (2, 5))]
    report = merged([replace(REPORT, buckets=(bucket,)) for bucket in halves])

    assert report.coverage.percent == 50.0
    assert replace(report, buckets=(*report.buckets, CompiledBucket(4))).coverage is None
    assert [event.count for event in report.graph_breaks] == [2]


def test_eager_captured_compiled_and_both_stand_in_one_table_above_the_floor():
    both = replace(REPORT.buckets[0], compiled_captured_ms=Milliseconds(2.2, 2.25))
    bucket = BucketResult(4, Verdict.OK, 13, 0.0, eager_ms=Times(26.0, 27.9), replay_ms=Times(4.6, 4.61))
    report = VerifyReport(
        "model.py",
        Machine("cuda", "2.11.0", "NVIDIA H200"),
        (bucket, replace(bucket, size=8)),
        (),
        Floor(1_000_000_000, 4e12),
        compiled=replace(REPORT, buckets=(both,)),
    )
    text = render_verify_text(report, lambda path, cell: [])
    jsonschema.validate(json.loads(render_verify_json(report)), SCHEMA)
    record = json.loads(render_verify_json(report))["buckets"]

    assert (
        """\
ms a step                 batch 4        batch 8
                        p50 / p99      p50 / p99
eager               26.00 / 27.90  26.00 / 27.90
captured              4.60 / 4.61    4.60 / 4.61
compiled              2.50 / 2.60            ...
compiled, captured    2.20 / 2.25            ...
floor                        0.25           0.25
"""
        in text
    )
    assert "replay ms" not in text
    assert (record[0]["compiled_ms"], record[0]["compiled_captured_ms"]) == (
        {"p50": 2.5, "p99": 2.6},
        {"p50": 2.2, "p99": 2.25},
    )
    assert "compiled_ms" not in record[1]


def test_coverage_is_told_with_the_kernels_outside():
    assert summary(REPORT) == (
        "compiled: something",
        "compiled: 120 of 123 kernels (97.6%) run inside graphs, 2 graph launches a step",
        "compiled: outside: 2 x triton_poi at /srv/model.py:7",
        "compiled: outside: 1 x fill in `step` (/srv/model.py:5)",
        "compiled: largest error against eager 0.001, tolerance 0.004",
    )


@pytest.mark.parametrize("kind", CompileKind)
def test_every_kind_of_event_is_a_rule_with_a_page(kind):
    assert kind.value in BUILT_IN
    assert page(kind.value).summary


def verify_on_gpu(target: Path, *options: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "capturelint", "verify", str(target), "--device", "cuda", "--compile"]
    result = subprocess.run(
        [*command, "--format", "json", *options], capture_output=True, text=True, check=False, cwd=TARGETS.parent
    )
    return result.returncode, json.loads(result.stdout)


@pytest.mark.gpu
def test_a_clean_step_runs_whole_inside_graphs_and_is_timed_four_ways():
    code, report = verify_on_gpu(
        TARGETS.parent / "targets" / "clean_decoder.py", "--buckets", "1,4", "--min-coverage", "100"
    )

    assert (code, report["findings"]) == (0, [])
    assert [bucket["coverage"]["outside"] for bucket in report["compile"]["buckets"]] == [[], []]
    timed = {"eager_ms", "replay_ms", "compiled_ms", "compiled_captured_ms"}
    assert [timed - bucket.keys() for bucket in report["buckets"]] == [set(), set()]


@pytest.mark.gpu
def test_a_cache_that_the_first_step_builds_does_not_fail_the_compiled_step(tmp_path):
    target = tmp_path / "lazy.py"
    target.write_text(LAZY)
    code, report = verify_on_gpu(target, "--buckets", "2", "--min-coverage", "100")

    assert (code, report["findings"]) == (0, [])


@pytest.mark.gpu
def test_a_partition_is_a_finding_and_proves_what_check_foretold(tmp_path):
    suspects = tmp_path / "check.json"
    check = [sys.executable, "-m", "capturelint", "check", str(TARGETS / "cpu_roundtrip.py"), "--format", "json"]
    subprocess.run([*check, "--output", str(suspects)], check=False, cwd=TARGETS.parent)
    code, report = verify_on_gpu(TARGETS / "cpu_roundtrip.py", "--buckets", "4", "--suspects", str(suspects))

    assert code == 1
    found = {(finding["rule"], finding.get("line"), finding["confidence"]) for finding in report["findings"]}
    assert {("cudagraph-partition", 19, "proven"), ("host-sync", 19, "proven")} <= found
    assert len(report["compile"]["partitions"]) >= 2
