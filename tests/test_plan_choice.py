import json
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturelint.cli import main
from capturelint.errors import HistogramError
from capturelint.planning.histogram import Histogram, build
from capturelint.planning.measured import read_measured
from capturelint.planning.plan import Limits, Usage, choose, gain, speculate, use
from capturelint.planning.record import read_buckets
from capturelint.planning.units import parse_bytes

SKEWED = build([(1, 50), (3, 20), (4, 20), (7, 6), (30, 4)], "batches")


def measured_json(replay_ms: dict[int, float], **more: object) -> str:
    buckets = [
        {"size": size, "verdict": "ok", "replay_ms": {"p50": ms}, "eager_ms": {"p50": 20.0}, "capture_s": 0.05, **more}
        for size, ms in replay_ms.items()
    ]
    return json.dumps({"schema": 1, "gpu": "NVIDIA H200", "buckets": buckets})


@given(
    st.dictionaries(st.integers(1, 30), st.integers(1, 99), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 8]),
)
def test_no_multiples_pad_fewer_rows_than_the_plan(histogram, graphs, multiple):
    observed = build(histogram.items(), "drawn")
    plan = choose(observed, Limits(max_graphs=graphs, multiple_of=multiple))
    largest = -(-max(histogram) // multiple) * multiple
    multiples = range(multiple, largest + 1, multiple)
    rows = min(
        use(observed, sizes).computed_rows
        for number in range(1, graphs + 1)
        for sizes in combinations(multiples, min(number, len(multiples)))
        if sizes[-1] == largest
    )
    assert plan.usage.computed_rows == rows
    assert plan.usage.covered == 1
    assert all(size % multiple == 0 for size in plan.sizes)


def test_the_largest_batch_is_always_covered():
    assert choose(SKEWED, Limits(max_graphs=1)).sizes == (30,)


def test_a_batch_above_the_maximum_is_said_to_run_eagerly():
    plan = choose(SKEWED, Limits(max_graphs=2, max_batch=8))
    assert plan.sizes == (1, 7)
    assert (plan.usage.eager_steps, plan.usage.covered) == (4, 0.96)


def test_waste_is_padded_rows_over_computed_rows():
    usage = use(SKEWED, (4, 30))
    assert usage.padded_rows == 50 * 3 + 20 * 1 + 6 * 23
    assert usage.padding_waste == usage.padded_rows / (90 * 4 + 10 * 30)


def test_memory_limits_the_number_of_graphs():
    plan = choose(SKEWED, Limits(max_graphs=5, memory=100, bytes_per_graph=40))
    assert len(plan.sizes) == 2


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(max_graphs=4, memory=30, bytes_per_graph=40), "--memory 30 fits no graph: one takes 40 bytes"),
        (Limits(max_graphs=4, memory=30), "--memory needs --bytes-per-graph"),
    ],
)
def test_budgets_that_fit_no_graph_are_refused(limits, message):
    with pytest.raises(HistogramError, match=message):
        choose(SKEWED, limits)


def test_measured_times_decide_instead_of_rows():
    flat = read_measured(measured_json({1: 4.6, 8: 4.6, 32: 9.0}), "verify.json")
    plan = choose(SKEWED, Limits(max_graphs=5), flat)
    assert plan.by_time
    assert plan.sizes == (7, 30)  # below 8 every size takes as long, so one graph serves them all
    expected = (96 * 4_600_000 + 4 * flat.replay_ns.at(30)) / 100
    assert plan.usage.step_ns == expected


def test_a_gain_in_time_is_a_share_of_the_others_time():
    fast, slow = (Usage((8,), (10,), (80,), 0, step_ns=nanoseconds) for nanoseconds in (2.0e6, 8.0e6))
    assert gain(fast, slow, by_time=True) == 0.75
    assert gain(slow, fast, by_time=True) == -3.0
    assert gain(fast, slow, by_time=False) == 0.0


def test_rounding_costs_rows_that_no_number_of_graphs_saves():
    plan = choose(build([(3, 10), (6, 2), (8, 5)], "batches"), Limits(max_graphs=9, multiple_of=4))
    assert plan.rounded_rows == plan.usage.padded_rows == 10 * 1 + 2 * 2


def test_the_curve_holds_the_share_of_padded_rows():
    live, steps = 50 + 60 + 80 + 42 + 120, 100
    curve = choose(SKEWED, Limits(max_graphs=9)).curve
    assert (curve[0].cost, curve[-1].cost) == (1 - live / (30 * steps), 0.0)


def test_a_curve_of_times_holds_the_expected_step_of_each_plan_eager_steps_included():
    measured = read_measured(measured_json({1: 1.0, 8: 8.0}), "verify.json")
    for graphs in (1, 2, 3):
        plan = choose(SKEWED, Limits(max_graphs=graphs, max_batch=8), measured)
        assert plan.usage.eager_steps == 4
        assert plan.curve[len(plan.sizes) - 1].cost == pytest.approx(plan.usage.step_ns)


def test_the_curve_of_a_huge_histogram_has_points_of_the_whole_one(monkeypatch):
    observed = build([(size, size % 7 + 1) for size in range(1, 60)], "batches")
    whole = choose(observed, Limits(max_graphs=9)).curve
    monkeypatch.setattr("capturelint.planning.plan.WHOLE_CURVE", 9 * len(observed.sizes) - 1)
    known = choose(observed, Limits(max_graphs=9)).curve
    assert set(known) < set(whole)
    assert {9, 10} <= {point.graphs for point in known}


def test_memory_for_one_graph_is_enough():
    assert len(choose(SKEWED, Limits(max_graphs=5, memory=40, bytes_per_graph=40)).sizes) == 1


@pytest.mark.parametrize("memory", [100, 140])
def test_graphs_that_add_nothing_to_the_pool_need_the_pool_only(memory):
    limits = Limits(max_graphs=3, memory=memory, bytes_per_graph=0, pool_nbytes=100)
    assert len(choose(SKEWED, limits).sizes) == 3
    with pytest.raises(HistogramError, match="fits no graph"):
        choose(SKEWED, Limits(max_graphs=3, memory=99, bytes_per_graph=0, pool_nbytes=100))


def test_a_plan_says_where_its_times_and_its_memory_come_from():
    timed = read_measured(measured_json({1: 1.0, 8: 8.0, 16: 9.0}, pool_bytes=5), "verify.json")
    (times, memory) = choose(SKEWED, Limits(max_graphs=2), timed).histogram.notes
    assert times == ("step times measured on NVIDIA H200 at batch 1 to 16, interpolated between, extrapolated above")
    assert memory.startswith("memory is the pool that graphs share, as measured")
    assert choose(SKEWED, Limits(max_graphs=2)).histogram.notes == ()


def test_plans_that_run_other_steps_eagerly_are_not_compared():
    many = build([(1, 1000), (4, 300), (9, 300)], "batches")
    small, large = use(many, (1,)), use(many, (4,))
    assert gain(small, large, by_time=False) is gain(large, small, by_time=False) is None
    assert gain(use(many, (2,)), use(many, (3,)), by_time=False) == pytest.approx(1 / 3)


def test_the_curve_goes_one_graph_beyond_the_choice():
    histogram = Histogram((1, 2, 4, 8, 16), (5, 4, 3, 2, 1), "made up")
    assert [point.graphs for point in choose(histogram, Limits(max_graphs=3)).curve] == [1, 2, 3, 4]
    assert [point.graphs for point in choose(histogram, Limits(max_graphs=9)).curve] == [1, 2, 3, 4, 5]


def test_of_equally_good_plans_the_one_with_fewest_graphs_is_chosen():
    histogram = Histogram((2, 4), (5, 4), "made up")
    assert choose(histogram, Limits(max_graphs=9)).sizes == (2, 4)


def test_steps_above_the_largest_graph_are_timed_eagerly():
    measured = read_measured(measured_json({1: 1.0, 8: 1.0}, eager_ms={"p50": 10.0, "p99": 10.0}), "verify.json")
    plan = choose(Histogram((1, 8), (3, 1), "made up"), Limits(max_graphs=1, max_batch=1), measured)
    assert plan.usage.eager_steps == 1
    assert plan.usage.step_ns == pytest.approx((3 * 1.0 + 1 * 10.0) / 4 * 1e6)


def test_the_measured_pool_is_shared_and_grows_by_the_graph():
    buckets = [{"size": size, "verdict": "ok", "pool_bytes": nbytes} for size, nbytes in ((8, 900), (4, 20), (1, 0))]
    pool = read_measured(json.dumps({"buckets": buckets}), "verify.json").pool
    assert (pool.nbytes, pool.growth_nbytes) == (900, 20)
    limits = Limits(max_graphs=9, memory=940, bytes_per_graph=20, pool_nbytes=880)
    assert (limits.memory_of(1), limits.memory_of(3)) == (900, 940)
    assert len(choose(SKEWED, limits).sizes) == 3


def test_times_between_measured_sizes_are_interpolated_and_never_fall():
    series = read_measured(measured_json({8: 5.0, 16: 4.0, 32: 8.0}), "verify.json").replay_ns
    assert [series.at(size) for size in (1, 12, 24, 64)] == [5_000_000, 5_000_000, 6_500_000, 14_000_000]


def test_an_emulated_run_gives_no_times():
    text = json.dumps({"device": "emulated", "buckets": [{"size": 1, "verdict": "ok"}]})
    measured = read_measured(text, "verify.json")
    assert (measured.replay_ns, measured.pool) == (None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no `buckets`"),
        ('{"buckets": [{"size": 1, "verdict": "crash"}]}', "no bucket with verdict `ok`"),
        ('{"buckets": [{"size": 0, "verdict": "ok"}]}', "`size` 0 is not a whole number from 1"),
        (measured_json({1: -1.0}), "`replay_ms.p50` -1.0 is not a positive number"),
        ("{", "not JSON"),
    ],
)
def test_measurements_that_cannot_be_used_are_refused(text, message):
    with pytest.raises(HistogramError, match=message):
        read_measured(text, "verify.json")


def test_eager_steps_make_rows_incomparable():
    plan = choose(SKEWED, Limits(max_graphs=4)).usage
    assert gain(plan, use(SKEWED, (1, 4)), by_time=False) is None
    assert gain(plan, use(SKEWED, (30,)), by_time=False) > 0.8


def test_a_list_without_padding_runs_unlisted_sizes_eagerly():
    usage = use(SKEWED, (1, 2, 4, 30), pads=False)
    assert (usage.padded_rows, usage.eager_steps) == (0, 26)


def test_speculative_requests_become_tokens():
    histogram = speculate(Histogram((1, 3), (5, 5), "batches"), 3)
    assert histogram.sizes == (4, 12)


@pytest.mark.parametrize(("text", "expected"), [("36MB", 36_000_000), ("2 GiB", 2 << 30), ("512", 512), ("1.5k", 1500)])
def test_sizes_in_bytes_have_units(text, expected):
    assert parse_bytes(text, "--memory") == expected


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["capturelint", "plan", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.fixture
def batches(tmp_path):
    path = tmp_path / "batches.csv"
    path.write_text("batch_size,count\n1,50\n3,20\n4,20\n7,6\n30,4\n")
    return path


def test_json_has_what_the_contract_names(capsys, monkeypatch, batches):
    code, out, _ = run(capsys, monkeypatch, str(batches), "--max-graphs", "3", "--format", "json")
    record = json.loads(out)
    assert code == 0
    assert record["schema"] == 1
    assert record["buckets"] == [1, 7, 30]
    assert record["covered"] == 1.0
    assert [bucket["share"] for bucket in record["per_bucket"]] == [0.5, 0.46, 0.04]
    assert record["compared_with"]["powers of two"]["graphs"] == 6
    assert record["flags"]["vllm"][">=0.11.1"] == "--cudagraph-capture-sizes 1 7 30"


def test_a_saved_plan_gives_its_buckets_back(capsys, monkeypatch, batches):
    _, out, _ = run(capsys, monkeypatch, str(batches), "--max-graphs", "3", "--format", "json")
    assert read_buckets(out, "plan.json") == (1, 7, 30)


@pytest.mark.parametrize("columns", [80, 200])
def test_text_fits_the_terminal_but_for_what_is_pasted(capsys, monkeypatch, batches, columns):
    monkeypatch.setattr("capturelint.cli.plan.width_of", lambda stream: columns)
    _, out, _ = run(capsys, monkeypatch, str(batches), "--bytes-per-graph", "36MB", "--engine", "vllm==0.33")
    assert all(len(line) <= columns for line in out.splitlines())
    assert "  --cudagraph-capture-sizes 1 3 4 7 30" in out.splitlines()


def test_a_gain_under_one_percent_is_said(capsys, monkeypatch, tmp_path):
    path = tmp_path / "eight.csv"
    path.write_text("batch_size,count\n8,1000\n1,1\n")
    _, out, _ = run(capsys, monkeypatch, str(path), "--engine", "vllm")
    assert "vLLM 0.14+: the same rows computed, with 3 graphs fewer" in " ".join(out.split())


def test_bad_input_is_one_line_and_exit_2(capsys, monkeypatch, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("batch_size,count\n1,-2\n")
    code, out, err = run(capsys, monkeypatch, str(path))
    assert (code, out) == (2, "")
    assert err == f"error: {path}:2: count '-2' is not a whole number of at most 15 digits\n"


def test_the_plot_is_well_formed_and_marks_the_choice(capsys, monkeypatch, batches, tmp_path):
    svg = tmp_path / "curve.svg"
    run(capsys, monkeypatch, str(batches), "--max-graphs", "3", "--plot", str(svg), "--quiet")
    circles = ElementTree.parse(svg).findall("{http://www.w3.org/2000/svg}circle")
    assert [circle.get("class") for circle in circles] == ["dot", "dot", "chosen", "dot"]
