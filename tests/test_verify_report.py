"""What ``verify`` prints, from results made here and from one recorded on an H200."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capturelint.cli.verify import render
from capturelint.finding import Evidence, Finding
from capturelint.place import Place
from capturelint.report import Format
from capturelint.report.verify_json import render_verify_json
from capturelint.report.verify_text import render_verify_text
from capturelint.runtime.observations import BucketResult, Floor, Machine, Times
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "verify_qwen3_0_6b.h200-torch2.11.json"
EMULATED = Machine("emulated", "2.13.0+cpu")
OK = BucketResult(1, Verdict.OK, 13, 0.0, 0.0, 1e-4)
WRONG = BucketResult(2, Verdict.REPLAY_DIFFERS, 4, 0.5, 0.0, 1e-4, "replay differs from eager from step 4 on")
FINDING = Finding(
    "baked-scalar",
    Place(Path("model.py"), 3, 5, 3, 9),
    "a number in `x[n]` is frozen at 3",
    ("keep it in a tensor",),
    Outcome.SILENT_WRONG,
    Confidence.PROVEN,
    evidence=Evidence("`select` was captured with 3 and takes 4 in step 4", 2, 4),
)


def text(report, **options):
    return render_verify_text(report, lambda path, cell: ["", "", "    x[n] = 1"], **options)


def from_json(record) -> VerifyReport:
    """A report from its JSON, as far as the figures go."""
    buckets = []
    for bucket in record["buckets"]:
        figures = {
            "pool_bytes",
            "capture_s",
            "graph_nodes",
            "steps",
            "max_error",
            "noise",
            "tolerance",
            "argmax_flips",
            "busy_share",
            "kernels",
            "argmax_margin",
        }
        names = ("eager_ms", "replay_ms", "host_ms", "eager_host_ms")
        times = {name: Times(**bucket[name]) for name in names if name in bucket}
        fields = {name: bucket.get(name) for name in figures} | {"probes": tuple(bucket["probes"])}
        buckets.append(BucketResult(bucket["size"], Verdict(bucket["verdict"]), **fields, **times))
    floor = Floor(record["floor"]["bytes"], record["floor"]["bandwidth"])
    machine = Machine(record["device"], record["torch"], record["gpu"], record.get("driver"))
    return VerifyReport(record["target"], machine, tuple(buckets), (), floor)


def test_the_first_line_says_that_a_run_is_emulated():
    first = text(VerifyReport("model.py", EMULATED, (OK,), ())).splitlines()[0]
    assert first == "model.py emulated on the CPU (torch 2.13.0+cpu): verdicts only, no times"


def test_an_emulated_report_has_no_times():
    report = VerifyReport("model.py", EMULATED, (OK,), ())
    record = json.loads(render_verify_json(report))
    assert record["buckets"] == [
        {"size": 1, "verdict": "ok", "max_error": 0.0, "noise": 0.0, "tolerance": 1e-4, "steps": 13}
    ]
    assert not {"gpu", "floor", "launch_bound"} & record.keys()
    assert " ms" not in text(report)


def test_the_last_line_is_a_count():
    assert text(VerifyReport("model.py", EMULATED, (OK,), ())).splitlines()[-1] == "safe: 1 bucket"
    unsafe = VerifyReport("model.py", EMULATED, (OK, WRONG), (FINDING,))
    assert text(unsafe).splitlines()[-1] == "unsafe: 1 of 2 buckets, 1 finding (1 silent)"


def test_quiet_leaves_the_findings():
    assert text(VerifyReport("model.py", EMULATED, (OK,), ()), quiet=True) == ""
    quiet = text(VerifyReport("model.py", EMULATED, (OK, WRONG), (FINDING,)), quiet=True)
    assert quiet.startswith("model.py:3:5 baked-scalar ")
    assert "safe" not in quiet


def test_a_finding_in_json_has_its_evidence_bucket_and_step():
    (found,) = json.loads(render_verify_json(VerifyReport("model.py", EMULATED, (WRONG,), (FINDING,))))["findings"]
    wanted = {"rule", "path", "line", "message", "evidence", "bucket", "step", "outcome", "confidence"}
    assert wanted <= found.keys()
    assert (found["evidence"], found["bucket"], found["step"]) == (FINDING.evidence.text, 2, 4)
    assert (found["outcome"], found["confidence"]) == ("silent-wrong", "proven")


def test_an_infinite_error_is_valid_json():
    worst = BucketResult(1, Verdict.REPLAY_DIFFERS, 1, float("inf"), 0.0, 0.0)
    record = json.loads(
        render_verify_json(VerifyReport("model.py", EMULATED, (worst,), ())), parse_constant=pytest.fail
    )
    assert record["buckets"][0]["max_error"] == "inf"


def test_a_fault_of_the_target_is_no_unsafe_verdict():
    crash = BucketResult(2, Verdict.CRASH, message="no", fault=True)
    assert VerifyReport("model.py", EMULATED, (OK, crash), ()).verdict == "fault"
    assert VerifyReport("model.py", EMULATED, (WRONG, crash), ()).verdict == "unsafe"


def test_a_recorded_run_is_printed_with_its_speed_up_and_floor():
    record = json.loads(RECORDED.read_text())
    report = from_json(record)
    printed = text(report)
    assert "on NVIDIA H200 (torch 2.11.0+cu130)" in printed.splitlines()[0]
    assert "launch-bound: graphs pay, 6.77x at batch 1; floor 0.29 ms to read its bytes once; an eager step" in printed
    again = json.loads(render_verify_json(report))
    assert [bucket | again["buckets"][at] for at, bucket in enumerate(record["buckets"])] == again["buckets"]
    assert (again["floor"], again["launch_bound"]) == (record["floor"], True)


def test_the_readme_shows_the_recorded_run():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert text(from_json(json.loads(RECORDED.read_text()))) in readme


def test_the_recorded_replay_is_within_two_percent_of_a_graph_captured_by_hand():
    record = json.loads(RECORDED.read_text())
    by_hand = {row["batch"]: row["replay_ms_p50"] for row in record["hand_captured"]}
    ratios = {bucket["size"]: bucket["replay_ms"]["p50"] / by_hand[bucket["size"]] for bucket in record["buckets"]}
    assert all(abs(ratio - 1) < 0.02 for ratio in ratios.values()), ratios


def test_the_recorded_buckets_share_the_largest_ones_memory():
    pools = [bucket["pool_bytes"] for bucket in json.loads(RECORDED.read_text())["buckets"]]
    assert sum(pools) <= 1.3 * max(pools)


TRANSFORMERS = RECORDED.with_name("verify_transformers5.17.h200-torch2.11.jsonl")
ARCHITECTURES = [json.loads(line) for line in TRANSFORMERS.read_text().splitlines()]


def named(row) -> set[str]:
    """The lines that a recorded run blames, as ``file:line`` inside transformers."""
    return {f"{found['path'].removeprefix('transformers/')}:{found['line']}" for found in row["findings"]}


def test_the_recorded_verdicts_on_transformers_are_those_of_a_capture_by_hand():
    """The two others fail where the window is full, beyond the four steps that were made by hand."""
    others = [row for row in ARCHITECTURES if row["verdict"] != row["by_hand"]]
    assert [row["architecture"] for row in others] == ["modernbert-decoder", "vaultgemma"]
    assert all("replay fails in step 10" in row["message"] for row in others)


def test_every_recorded_refusal_names_its_line():
    refused = [row for row in ARCHITECTURES if row["by_hand"] == "capture-error"]
    assert [row["architecture"] for row in refused if not named(row) & set(row["refused_at"])] == []


def test_every_recorded_silent_difference_names_the_windows_cursor():
    wrong = [row for row in ARCHITECTURES if row["verdict"] == "replay-differs"]
    assert len(wrong) == 11
    assert all("cache_utils.py:548" in named(row) for row in wrong)
    assert all(any("cumulative_length_int" in found["evidence"] for found in row["findings"]) for row in wrong)


def measured(eager_ms, replay_ms, floor_ms):
    """The judgement on one measured bucket."""
    times = {"eager_ms": Times(eager_ms, eager_ms), "replay_ms": Times(replay_ms, replay_ms)}
    bucket = replace(OK, **times, kernels=12, busy_share=0.94)
    floor = Floor(int(floor_ms * 1e9), 1e12)
    return text(VerifyReport("model.py", Machine("cuda", "2.11", "H200"), (bucket,), (), floor)).splitlines()[-3]


def test_the_judgement_names_what_a_step_waits_for():
    activity = "; an eager step launches 12 kernels, and the GPU works 94% of it"
    assert measured(5.0, 1.0, 0.5).startswith("launch-bound: graphs pay, 5.0x at batch 1; floor 0.50 ms")
    assert measured(1.05, 1.0, 0.8) == (
        f"bandwidth-bound: graphs gain 1.05x at most; floor 0.80 ms to read its bytes once{activity}"
    )
    assert measured(1.05, 1.0, 0.1).startswith("kernel-bound: graphs gain 1.05x at most")


@pytest.mark.parametrize("form", [form for form in Format if form is not Format.JSON], ids=lambda form: form.value)
@pytest.mark.parametrize("quiet", [False, True], ids=["whole", "quiet"])
def test_no_format_is_silent_about_a_verdict_without_a_line(form, quiet):
    full = BucketResult(8, Verdict.OUT_OF_MEMORY, message="a graph of 9 nodes does not fit")
    report = VerifyReport("model.py", EMULATED, (OK, full), ())
    assert "a graph of 9 nodes does not fit" in render(report, form, quiet, colour=False, width=None)
