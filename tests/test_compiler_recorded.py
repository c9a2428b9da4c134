"""What torch 2.11 said on an H200 of 18 programs, read again: breaks, skips and partitions, each with its line."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from capturelint.catalog import data_directory

pytest.importorskip("torch", reason="the compiled step is looked at by torch")

import torch
from torch.profiler import ProfilerActivity, profile

from capturelint.compiler import breaks, partitions, skips
from capturelint.compiler.coverage import Caller, callers_of, coverage_of, event_tree
from capturelint.compiler.generated import Generated
from capturelint.compiler.listen import Ear, Heard, read_counters
from capturelint.compiler.report import CompiledBucket, CompileEvent, CompileKind, CompileReport, Coverage, Span, once

LINES = (data_directory("fixtures") / "compile" / "h200-torch2.11.jsonl").read_text(encoding="utf-8").splitlines()
RECORDED = {f"{r['name']}{'+scalars' * r['capture_scalar_outputs']}": r for r in map(json.loads, LINES)}
PREFIX = re.compile(r"[VIWE]\d{4} [\d:.]+ \d+ (?P<file>\S+)\.py:(?P<line>\d+)\] (?:\[[\d/_]+\] )?(?P<tag>\[__\w+\] )?")


def hear(record: dict) -> Ear:
    """The recorded lines as log records again: a message of many lines was one record."""
    records: list[tuple[tuple[str, str], Heard]] = []
    for text in record["log"]:
        prefix = PREFIX.match(text)
        assert prefix is not None
        artifact = (prefix["tag"] or "").strip("[] ")
        name = ".".join(filter(None, [prefix["file"].replace("/", "."), artifact]))
        stamp = (prefix.group().split("]")[0], name)
        body = text[prefix.end() :]
        if records and records[-1][0] == stamp and "scheduler" not in name:
            records[-1] = (stamp, Heard(name, f"{records[-1][1].text}\n{body}"))
        else:
            records.append((stamp, Heard(name, body)))
    # Other tests of this process may have moved the counters.
    return Ear([heard for _, heard in records], counters_before=read_counters())


def told(name: str) -> dict[str, list[tuple[str, int | None]]]:
    ear = hear(RECORDED[name])
    findings = ear.findings()
    return {
        "breaks": [(e.reason, e.line) for e in once(breaks.breaks_logged(ear, findings))],
        "skips": [(e.reason, e.line) for e in skips.skips(ear, findings)],
        "partitions": [(e.reason, e.line) for e in partitions.partitions(ear)],
    }


PARTITIONS = {
    "cpu_roundtrip": [("cpu ops", 8), ("cpu ops", None), ("DeviceCopy ops", 9)],
    "cond": [("Conditional ops", None)],
    "cpu_scalar_input": [("cpu ops", None), ("DeviceCopy ops", None)],
    "unsafe_op": [("CUDAGraph-unsafe custom ops", 12)],
    "nonzero+scalars": [("unbacked binding ops", 8), ("cpu ops", None)],
}
SKIPS = {
    "mutated_input": [("mutated inputs (1 instances)", 9)],
    "mutated_arg": [("mutated inputs (1 instances)", 8)],
    "cond": [("control flow operator: torch.cond", 8)],
}
BREAKS = {"item_break": 8, "nonzero": 8, "data_if": 8, "data_if+scalars": 8, "print_tensor": 8, "logging_call": 10}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_what_an_h200_said_is_told_once_and_with_its_line(name):
    facts = told(name)

    assert facts["partitions"] == PARTITIONS.get(name, [])
    assert facts["skips"] == SKIPS.get(name, [])
    assert [line for _, line in facts["breaks"]] == ([BREAKS[name]] if name in BREAKS else [])


def test_the_scheduler_tells_how_a_graph_is_split():
    (split,) = partitions.partitioned(hear(RECORDED["nonzero+scalars"]))

    assert (split.num_partitions, split.num_cudagraphable) == (4, 2)


def test_a_partition_names_the_operator():
    (event,) = partitions.partitions(hear(RECORDED["unsafe_op"]))

    assert (event.detail, event.count) == ("clx.unsafe.default", 2)


def test_a_node_in_one_record_is_read_as_torch_2_9_wrote_it():
    text = 'cudagraph partition due to DeviceCopy ops. Found from : \n   File "/a/m.py", line 3, in f\n    h.cpu()\n'
    (event,) = partitions.partitions(Ear([Heard("torch._inductor.utils.__perf_hints", text)]))

    assert (event.reason, event.path, event.line) == ("DeviceCopy ops", "/a/m.py", 3)


def test_a_skip_that_only_the_emitter_saw_is_an_event():
    ear = Ear(skips_emitted=["skipping cudagraphs due to cpp wrapper enabled"])

    assert [event.reason for event in skips.skips(ear, [])] == ["cpp wrapper enabled"]


def test_an_overwritten_output_is_told_by_its_exception():
    text = (
        "builtins.RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent "
        'run. Stack trace: File "/srv/g.py", line 68, in f\n    return sample(x)'
    )
    ear = Ear([Heard("exception", text)])

    assert [(e.path, e.line) for e in skips.overwritten(ear.findings())] == [("/srv/g.py", 68)]


def api(name: str, correlation: int, at: float) -> dict:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "ts": at,
        "dur": 1,
        "tid": 1,
        "args": {"correlation": correlation},
    }


def kernel(name: str, correlation: int) -> dict:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": 50,
        "dur": 1,
        "tid": 7,
        "args": {"correlation": correlation},
    }


def frame(name: str, begin: float, duration: float) -> dict:
    return {"ph": "X", "cat": "python_function", "name": name, "ts": begin, "dur": duration, "tid": 1}


def test_kernels_are_counted_by_who_launched_them():
    trace = [
        frame("/srv/app/model.py(12): decode", 0, 100),
        frame("torch/nn/modules/module.py(1): _call_impl", 1, 98),
        frame("torch/cuda/graphs.py(99): replay", 10, 10),
        api("cudaLaunchKernel", 1, 11),
        kernel("fill", 1),
        api("cudaGraphLaunch", 2, 12),
        kernel("mm", 2),
        kernel("relu", 2),
        api("cuLaunchKernel", 3, 40),
        kernel("triton_poi", 3),
        api("cudaLaunchKernelExC", 4, 41),
        kernel("triton_poi", 4),
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 1},
    ]

    measured = coverage_of(trace)
    assert (measured.kernels_in_graphs, measured.kernels, measured.graph_launches) == (2, 4, 1)
    assert (measured.replay_kernels, measured.percent) == (1, 50.0)
    assert [(k.name, k.count, k.path, k.line, k.function) for k in measured.outside] == [
        ("triton_poi", 2, "/srv/app/model.py", 12, "decode")
    ]


def test_kernels_that_follow_each_other_are_one_span_of_the_timeline():
    trace = [
        api("cudaGraphLaunch", 2, 12),
        kernel("mm", 2) | {"ts": 100, "dur": 4},
        kernel("relu", 2) | {"ts": 106, "dur": 2},
        api("cuLaunchKernel", 3, 40),
        kernel("sort", 3) | {"ts": 109, "dur": 5},
        kernel("late", 2) | {"ts": 150, "dur": 1},
    ]
    assert coverage_of(trace).timeline == (Span(0, 8, 2, True), Span(9, 14, 1, False), Span(50, 51, 1, True))


CALLERS = {
    ("torch/functional.py(7): sort", 40_000): Caller("/srv/app/model.py", 15, "torch_dynamo_resume_in_decode_at_14"),
    ("<built-in function run>", 60_000): Caller("/tmp/gen.py", 30, "call"),
}
PYTHON = [
    frame("/srv/app/model.py(12): decode", 0, 100),
    frame("torch/functional.py(7): sort", 40, 5),
    frame("/tmp/gen.py(20): call", 58, 10),
    frame("<built-in function run>", 60, 5),
]


def test_a_kernel_outside_has_the_line_that_called_what_launched_it():
    trace = [
        *PYTHON,
        api("cudaLaunchKernel", 1, 42),
        kernel("sort", 1),
        api("cudaLaunchKernel", 2, 90),
        kernel("add", 2),
    ]

    assert [(k.name, k.line, k.function, k.exact) for k in coverage_of(trace, CALLERS).outside] == [
        ("sort", 15, "decode", True),
        ("add", 12, "decode", False),  # an operator is no call: only the function is known
    ]


STACK = 'File "/srv/app/m.py", line 14, in decode\n  y = f(x)\nFile "/srv/app/ops.py", line 3, in f\n  x.cpu()\n'
COMMENT = "        # Topologically Sorted Source Nodes: [h, add], Original ATen: [aten.relu, aten.add]"


def outside(generated: Generated) -> list[tuple[str | None, int | None, str | None, bool]]:
    trace = [*PYTHON, api("cuLaunchKernel", 1, 61), kernel("triton_poi", 1)]
    return [(k.path, k.line, k.function, k.exact) for k in coverage_of(trace, CALLERS, generated).outside]


@pytest.fixture
def line_maps(monkeypatch):
    """Inductor's maps, whose answers it keeps."""
    cache = pytest.importorskip("torch._inductor.codecache").PyCodeCache
    cache.stack_frames_for_code.cache_clear()
    yield cache.linemaps
    cache.stack_frames_for_code.cache_clear()


def test_a_line_that_inductor_generated_is_told_as_the_users(line_maps, monkeypatch):
    monkeypatch.setitem(line_maps, "/tmp/gen.py", [(25, 40), (STACK, "")])

    assert outside(Generated(files={"/tmp/gen.py": ([], {})})) == [("/srv/app/ops.py", 3, "f", True)]


def test_a_line_that_inductor_keeps_no_map_for_is_told_by_its_comment(line_maps):
    lines = ["def partition_0(args):", *["        pass"] * 26, COMMENT, "        stream0 = get_raw_stream(0)", "run"]
    nodes = {"h": [("/srv/app/m.py", 20, "decode")], "add": [("/srv/app/m.py", 21, "decode")]}

    assert outside(Generated(files={"/tmp/gen.py": (lines, nodes)})) == [("/srv/app/m.py", 21, "decode", True)]


def test_a_line_that_called_generated_code_is_not_exact(line_maps):
    assert outside(Generated(files={"/tmp/gen.py": ([], {})})) == [("/srv/app/model.py", 12, "decode", False)]


def test_the_profiler_knows_the_line_of_every_call():
    def step(x):
        y = x.sin()
        return y.cos()

    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        step(torch.ones(2))

    first = step.__code__.co_firstlineno
    called = [caller for caller in callers_of(event_tree(profiler), 0).values() if caller.function == "step"]
    assert sorted(caller.line - first for caller in called) == [1, 2]


RECOMPILED = {
    "torch 2.13": """\
Recompiling function step in /srv/run.py:3
    triggered by the following guard failure(s):
    - 0/1: state.count == 1                               # y = x * state.count  # rv/model.py:9 in f (HINT: x)
    - User stack trace:
    -   File "/srv/run.py", line 4, in step
    -     return f(state)
    -   File "/srv/model.py", line 9, in f
    -     y = x * state.count
    - 0/0: state.count == 0                               # y = x * state.count  # rv/model.py:8 in f
""",
    "without a stack": """\
Recompiling function f in /srv/model.py:3
    triggered by the following guard failure(s):
    - 0/0: state.count == 1                               # y = x * state.count  # rv/model.py:9 in f
""",
}


@pytest.mark.parametrize("text", RECOMPILED.values(), ids=RECOMPILED)
def test_a_recompile_is_told_at_the_line_of_its_guard(text):
    event = breaks.recompile_of(text)

    assert (event.reason, event.path, event.line) == ("state.count == 1", "/srv/model.py", 9)


def test_a_recompile_without_any_stack_is_told_at_its_function():
    guard = "tensor 'x' size mismatch at index 0. expected 2, actual 3"
    event = breaks.recompile_of(f"Recompiling function f in /srv/model.py:3\n    - 0/0: {guard}")

    assert (event.path, event.line, event.reason) == ("/srv/model.py", 3, guard)


def test_a_counter_in_a_guard_is_one_event():
    events = [CompileEvent(CompileKind.RECOMPILE, f"state.count == {n}", "m.py", 9) for n in range(8)]

    assert [(event.reason, event.count) for event in once(events)] == [("state.count == 0", 8)]


def test_a_step_that_ran_into_the_recompile_limit_has_lost_its_graphs():
    limit = "torch._dynamo hit config.recompile_limit (8)\n   function: 'step' (/srv/run.py:3)\n"
    ear = Ear([Heard("torch._dynamo.guards.__recompiles", RECOMPILED["torch 2.13"]), Heard("torch._dynamo", limit)])
    skip = skips.silent(breaks.recompiles(ear, ear.findings()))

    assert (skip.kind, skip.reason, skip.line) == (CompileKind.SKIP, "the recompile limit is reached", 9)


RERECORDED = """\
[0/0] Re-recording function=partition_0, mode=INFERENCE, reason=static input data pointer changed.
input name: primals_2. data pointer changed from 140 to 150. input stack trace:   File "/srv/run.py", line 4, in step
    return model(x)
  File "/srv/model.py", line 14, in forward
    return h + self.front

"""


def test_a_graph_recorded_again_is_told_with_the_input_that_moved_and_its_line():
    trees = "torch._inductor.cudagraph_trees.__cudagraphs"
    recording = Heard(trees, "[0/0] Recording function=partition_0, mode=INFERENCE, cuda_graph_id=2, inputs: [0]: 4")
    ear = Ear([Heard(trees, RERECORDED), Heard(trees, RERECORDED), recording])
    (event,) = skips.rerecords(ear, ear.findings())

    assert event.count == 1  # the first "Re-recording" found another graph that fits
    assert skips.rerecords(Ear(ear.records[:2]), []) == ()

    assert (event.reason, event.detail) == ("static input data pointer changed", "input primals_2")
    assert (event.path, event.line) == ("/srv/model.py", 14)


def test_the_report_has_the_fields_of_the_contract():
    event = CompileEvent(CompileKind.GRAPH_BREAK, "Tensor.item", "model.py", 8)
    record = CompileReport(
        "NVIDIA H200", "2.11.0", (event,), buckets=(CompiledBucket(4, coverage=Coverage(120, 123, 2)),)
    ).as_json()

    assert record["graph_breaks"] == [
        {"reason": "Tensor.item", "path": "model.py", "line": 8, "detail": "", "count": 1, "bucket": None}
    ]
    assert {"skips", "partitions", "recompiles"} <= record.keys()
    assert record["coverage"] == {
        "kernels_in_graphs": 120,
        "kernels": 123,
        "graph_launches": 2,
        "replay_kernels": 0,
        "outside": (),
        "timeline": (),
    }


def test_a_break_that_several_sources_tell_is_one_event():
    logged = CompileEvent(CompileKind.GRAPH_BREAK, "Data-dependent branching", "m.py", 8)
    listed = CompileEvent(CompileKind.GRAPH_BREAK, "data-dependent control flow", "m.py", 8, "use torch.where")

    assert [(e.reason, e.detail, e.count) for e in once([logged, listed])] == [
        ("Data-dependent branching", "use torch.where", 2)
    ]
    assert Counter(type(e) for e in once([logged, listed])) == {CompileEvent: 1}


GIVEN_UP = """\
Graph break in user code at /srv/run.py:8
Graph Break Reason: Failed to handle graph break gracefully. Skipping the function and falling back to eager. \
Graph break encountered:

Backend compiler exception
  Explanation: Backend compiler `compiler_fn` failed with aten._local_scalar_dense.default

    While executing %getitem
    Original traceback:
      File "/srv/run.py", line 8, in step
        return model(x)
      File "/srv/model.py", line 14, in lookup
        return self.table[where]

    Use tlparse to see full graph.
  Hint: Report an issue to the backend compiler repo.
"""


def test_a_function_that_is_given_up_is_told_at_the_line_that_failed():
    event = breaks.event_of(GIVEN_UP, "/srv/run.py", 8)

    assert (event.path, event.line) == ("/srv/model.py", 14)
    assert event.reason == "the compiler fails with aten._local_scalar_dense.default"


def test_our_own_lines_are_never_blamed():
    event = breaks.event_of("Reason: x", str(data_directory("rules").parent / "capturelint" / "runtime" / "a.py"), 8)

    assert (event.path, event.line) == (None, None)
