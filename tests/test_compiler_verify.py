"""``verify --compile``: the compiled step in the report, in the findings and in the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="verify runs the step")

from capturelint.catalog import BUILT_IN, data_directory
from capturelint.compiler.findings import compile_findings, summary
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
)
from capturelint.report.page import page

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
    assert [bucket["verdict"] for bucket in report["buckets"]] == ["ok"]
    assert report["verdict"] == "unsafe"
    assert [(event["line"], event["path"]) for event in report["compile"]["graph_breaks"]] == [
        (24, "compile/logging_call.py")
    ]
    assert "graph-break" in {finding["rule"] for finding in report["findings"]}


def test_a_coverage_that_nobody_measured_does_not_pass():
    result = verify("clean", "--min-coverage", "100")

    assert result.returncode == 1
    assert "compiled: coverage was not measured: no GPU; --min-coverage asks for 100%\n" in result.stdout


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
