import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturelint.errors import HistogramError
from capturelint.planning.arrivals import simulate
from capturelint.planning.histogram import read_histogram

BAD = {
    "batch_size,count\n1,2\n-4,3\n": "batches:3: batch_size '-4' is not a whole number",
    "batch_size,count\n1,2.5\n": "batches:2: count '2.5' is not a whole number",
    "batch_size,count\n1,1_000\n": "batches:2: count '1_000' is not a whole number",
    "batch_size,count\n1,9999999999999999\n": "batches:2: count '9999999999999999' is not a whole number",
    "batch_size,count\n1,2\n\n1,3\n": "batches:4: batch_size 1 was already given in line 2",
    "batch_size,count\n0,2\n": "batches:2: batch_size 0 is not a batch",
    "batch_size,count\n1048577,2\n": "batches:2: batch_size 1048577 is beyond 1048576, which no engine runs",
    "batch_size,count\n1\n": "batches:2: expected 2 values, found 1 in '1'",
    "batch_size,counts\n1,2\n": "batches:1: unknown column 'counts'; did you mean 'count'?",
    "batch_size,count,count\n": "batches:1: column 'count' is given twice",
    "batch_size\n4\n": "batches:1: column 'count' is missing",
    "batch_size,count\n": "batches: the histogram is empty",
    "batch_size,count\n4,0\n": "batches: the histogram is empty",
    "": "batches: the histogram is empty",
    '{"4": 1,\n "4": 2}': "batches:2: batch_size 4 was already given in line 1",
    '{"4": true}': "batches:1: count true is not a whole number",
    '{"4": 1.0}': "batches:1: count 1.0 is not a whole number",
    '[{"batch_size": 4, "count": 1},\n{"batch_size": 5}]': "batches:2: column 'count' is missing",
    '[{"batch_size": 4,': "batches:1: not JSON",
    "[4]": 'batches:1: expected {"batch_size": ..., "count": ...}, found 4',
    "[" * 100_000: "batches:1: not",
    "(EngineCore pid=1) INFO 07-21 04:58:26 [loggers.py:1] started\n": (
        "batches:1: unknown column '(EngineCore pid=1) INFO 07-21 04:58:2...'; expected `batch_size,count`, or a log"
    ),
    '"batch\nsize",count\n': "batches:2: unknown column 'batch\\nsize'; did you mean 'batch_size'?",
    '{"4": ' + "9" * 5_000 + "}": "batches:1: not a histogram",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=[message[:40] for message in BAD.values()])
def test_bad_input_is_named_by_line_and_value(text, message):
    with pytest.raises(HistogramError) as caught:
        read_histogram(text, "batches")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "batch_size,count\n2,5\n1,3\n",
        "\ufeffcount, batch_size\r\n5,2\r\n\r\n3,1\r\n",
        '{"2": 5, "1": 3}',
        '[{"batch_size": 2, "count": 5}, {"count": 3, "batch_size": 1}]',
        "batch_size,count\n2,5\n1,3\n7,0\n",
    ],
)
def test_csv_and_json_say_the_same(text):
    histogram = read_histogram(text, "batches")
    assert (histogram.sizes, histogram.counts) == ((1, 2), (3, 5))


SGLANG = """\
[2026-04-05 20:02:50] Decode batch. #running-req: 3, #token: 21179, token usage: 0.30, cuda graph: True, gen th
[2026-04-05 20:02:51] Prefill batch. #new-seq: 2, #new-token: 8, #running-req: 9, #queue-req: 0
2026-04-05 20:35:53 INFO 151972 [metrics.py:287] Decode batch [88], #running-req: 48, #token: 3894, cuda graph: False
[2026-04-05 20:02:52] Decode batch. #running-req: 3, #token: 21200, token usage: 0.30, cuda graph: True, gen th
"""
VLLM = """\
(APIServer pid=1) INFO 07-21 04:58:26 [loggers.py:248] Engine 000: Avg prompt throughput: 10.0 tokens/s, \
Avg generation throughput: 523.1 tokens/s, Running: 5 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%
(APIServer pid=1) INFO 07-21 04:58:36 [loggers.py:248] Engine 000: Avg prompt throughput: 0.0 tokens/s, \
Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%
"""
VLLM_TABLE = """\
INFO **CUDAGraph Stats:**
| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |
|-----------------|---------------|--------------|--------------|-------|
| 6               | 8             | 2            | FULL         | 31    |
| 3               | 4             | 1            | PIECEWISE    | 2     |
| 415             | 415           | 0            | NONE         | 1     |
"""
GAUGES = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="0",priority="3"} 2.0
sglang:num_running_reqs{model_name="m",tp_rank="0"} 7.0
"""
EDGES = """\
vllm:num_requests_running{engine="0"} 2.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 10.0
vllm:iteration_tokens_total_bucket{engine="0",le="8.0"} 30.0
vllm:iteration_tokens_total_bucket{engine="0",le="16.0"} 30.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 33.0
vllm:iteration_tokens_total_sum{engine="0"} 400.0
"""


@pytest.mark.parametrize(
    ("text", "expected", "note"),
    [
        (SGLANG, {3: 2, 48: 1}, "samples of SGLang's decode log"),
        (VLLM, {5: 1}, "samples of vLLM's throughput log"),
        (VLLM_TABLE, {3: 2, 6: 31}, "every step of vLLM's cudagraph metrics"),
        (GAUGES, {4: 1, 7: 1}, "samples of a gauge"),
        (EDGES, {1: 10, 8: 20}, "vLLM's tokens per step"),
    ],
    ids=["sglang", "vllm", "vllm-table", "gauges", "edges"],
)
def test_engines_are_counted_and_said_how(text, expected, note):
    histogram = read_histogram(text, "engine.log")
    assert dict(zip(histogram.sizes, histogram.counts, strict=True)) == expected
    assert histogram.notes[0].startswith(note)


def test_steps_without_a_known_size_are_told():
    assert read_histogram(VLLM_TABLE, "log").notes[1].startswith("1 steps without a graph are left out")
    assert read_histogram(EDGES, "metrics").notes[1] == "3 steps above the last edge are left out"


def test_a_fractional_gauge_is_named_by_its_line():
    with pytest.raises(HistogramError, match=r"metrics:2: '2\.5' is not a whole number of requests"):
        read_histogram("# gauge\nvllm:num_requests_running 2.5\n", "metrics")


@given(st.one_of(st.text(), st.text('0123456789,\n-.eb_[]{}:"|', max_size=60)))
def test_any_text_is_a_histogram_or_one_message(text):
    for head in ("", "batch_size,count\n", "vllm:num_requests_running "):
        message = "any:"
        try:
            read_histogram(head + text, "any")
        except HistogramError as error:
            message = str(error)
        assert message.startswith("any:")


def test_a_simulation_is_repeatable_and_near_its_load():
    first = simulate(20, 500, 64, seed=7)
    assert first == simulate(20, 500, 64, seed=7)
    assert abs(first.rows / 100_000 - 10) < 0.5


def test_a_saturated_queue_keeps_the_batch_full():
    assert simulate(100, 1_000, 8).sizes == (8,)
