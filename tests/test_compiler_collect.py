"""The 18 programs of fixtures/compile, compiled: on a CPU what a CPU can show, on a GPU what an H200 did."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a step is compiled by torch")

import torch

from capturelint.catalog import data_directory
from capturelint.compiler.collect import Program, collect
from capturelint.compiler.listen import listening
from capturelint.compiler.skips import skips
from capturelint.pytest_plugin import skip_messages, skips_kept
from capturelint.runtime.compiled_step import on_cpu
from capturelint.runtime.protocol import Plan

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "compile_experiments.py"
spec = importlib.util.spec_from_file_location("compile_experiments", SCRIPT)
experiments = importlib.util.module_from_spec(spec)
spec.loader.exec_module(experiments)
NAMES = sorted(experiments.EXPECTED)


@pytest.fixture
def scalars_as_by_default():
    """An experiment with captured scalars leaves no trace in the next test."""
    with torch._dynamo.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        yield


# A guard that fails is tested below; this one compiles eight times for it.
@pytest.mark.parametrize("name", sorted({*NAMES} - {"int_counter"}))
def test_a_cpu_shows_graph_breaks_and_incompatible_operators(name, scalars_as_by_default):
    found = experiments.collect_one(name, "cpu")

    assert experiments.differences(name, found, on_gpu=False) == []
    assert found["coverage"] is None
    assert found["partial"]


RECORDED = data_directory("fixtures") / "recorded" / "compile_experiments.h200-torch2.11.jsonl"
MEASURED = {record["name"]: record for record in map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_what_was_told_on_an_h200_is_as_recorded(name):
    assert experiments.differences(name, MEASURED[name]) == []


def test_kernels_that_ran_outside_graphs_on_an_h200_have_their_line():
    lines = {
        name: {(kernel["line"], kernel["exact"]) for kernel in MEASURED[name]["coverage"]["outside"]}
        for name in ("nonzero", "nonzero+scalars", "print_tensor", "mutated_input")
    }

    assert lines == {
        "nonzero": {(19, True)},
        "nonzero+scalars": {(19, True)},
        "print_tensor": {(19, True)},
        "mutated_input": {(18, True), (20, True)},  # the write is fused with line 18
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_does_what_an_h200_did(name):
    assert experiments.differences(name, experiments.collect_apart(name)) == []


def test_a_model_without_inputs_of_its_own_is_compiled_on_a_cpu():
    plan = Plan(str(data_directory("fixtures") / "generate" / "gptfast.py"), "emulated", (2,), 16, 3, max_length=32)
    report = on_cpu(plan)

    assert (report.error, report.graph_breaks, report.buckets[0].calls) == (None, (), 8)


def test_a_guard_that_fails_is_told_with_its_function(scalars_as_by_default):
    found = experiments.collect_one("item_break", "cpu")

    (recompile,) = found["recompiles"]
    assert Path(recompile["path"]).name == "item_break.py"
    assert recompile["reason"].startswith("___stack0 == ")


def test_an_exception_of_the_step_is_in_the_report():
    def step(x):
        return x @ x.new_zeros(3, 3)

    report = collect(Program(step, lambda number: {"x": torch.zeros(4, 64)}), "cpu")

    assert report.error is not None
    assert "3" in report.error


def test_nothing_is_printed_and_logging_is_as_before(capfd):
    before = {name: torch._logging._internal.logging.getLogger(name).handlers[:] for name in ("torch._dynamo", "torch")}
    collect(Program(lambda x: x + x.max().item(), lambda number: {"x": torch.zeros(4)}), "cpu")
    after = {name: torch._logging._internal.logging.getLogger(name).handlers[:] for name in ("torch._dynamo", "torch")}

    assert {name: len(handlers) for name, handlers in before.items()} == {n: len(h) for n, h in after.items()}
    assert capfd.readouterr() == ("", "")


torch_deprecates_its_own = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")


def add_one(x):
    return torch.relu(x) + 1


@torch_deprecates_its_own
def test_a_real_skip_is_heard_counted_and_told_with_its_line():
    torch._dynamo.reset()
    with listening() as ear:
        torch.compile(add_one, backend="cudagraphs")(torch.ones(3))  # skips on a CPU too, and says so
    (skip,) = skips(ear, ear.findings())

    assert (skip.reason, skip.path) == ("cpu device (arg0_1)", __file__)
    assert add_one.__code__.co_firstlineno <= skip.line <= add_one.__code__.co_firstlineno + 1
    assert (ear.counted("inductor", "cudagraph_skips"), len(ear.skips_emitted)) == (1, 1)


@torch_deprecates_its_own
def test_the_plugin_hears_a_real_skip(capfd):
    torch._dynamo.reset()
    with skips_kept() as keeper:
        torch.compile(add_one, backend="cudagraphs")(torch.ones(3))

    assert [text.split("; ")[0].split(": ")[1] for text in skip_messages(keeper.texts)] == ["cpu device (arg0_1)"]


def test_every_program_has_its_facts():
    programs = {path.stem for path in (data_directory("fixtures") / "compile").glob("*.py")}

    assert programs == {name.split("+")[0] for name in NAMES}
