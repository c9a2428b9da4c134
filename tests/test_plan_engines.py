import pytest

from capturelint.errors import HistogramError
from capturelint.planning.engines import Request, default_lists, flags, parse_engine


def sizes_of(engine: str, request: Request) -> tuple[int, ...]:
    return default_lists([parse_engine(engine)], request)[0].sizes


@pytest.mark.parametrize(
    ("engine", "max_batch", "length", "last"),
    [
        ("vllm==0.8.5", 16, 67, 512),
        ("vllm==0.10.2", 256, 67, 512),
        ("vllm==0.11.2", 256, 51, 512),
        ("vllm", 256, 51, 512),
        ("vllm", 32, 11, 64),
        ("sglang==0.4.6.post5", 160, 23, 160),
        ("sglang==0.5.1", 512, 51, 512),
        ("sglang==0.5.6", 256, 36, 256),
        ("sglang", 512, 52, 512),
        ("sglang", 37, 9, 37),
        ("tensorrt-llm", 128, 34, 128),
    ],
)
def test_default_lists_are_the_engines_own(engine, max_batch, length, last):
    sizes = sizes_of(engine, Request(max_batch))
    assert (len(sizes), sizes[-1]) == (length, last)


def test_tensorrt_llm_has_a_list_with_padding_and_one_without():
    unpadded, padded, powers = default_lists([parse_engine("tensorrt-llm")], Request(128))
    assert (unpadded.pads, padded.pads, len(padded.sizes)) == (False, True, 19)
    assert powers.sizes == (1, 2, 4, 8, 16, 32, 64, 128)


def test_speculative_sizes_are_whole_requests_in_tokens():
    assert sizes_of("vllm", Request(4, 3)) == (3, 6, 9, 18, 24)
    assert sizes_of("sglang", Request(12, 3)) == (3, 6, 9, 12, 15, 18, 21, 24, 30, 36)


def text_of(engine: str, sizes: tuple[int, ...] = (1, 2, 4, 8), query_length: int = 1) -> str:
    (flag,) = flags([parse_engine(engine)], sizes, query_length)
    return flag.text


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("vllm==0.9.2", "--compilation-config '{\"cudagraph_capture_sizes\":[1,2,4,8]}'"),
        ("vllm==0.10.2", "--cuda-graph-sizes 1 2 4 8"),
        ("vllm==0.11.0", "--compilation-config '{\"cudagraph_capture_sizes\":[1,2,4,8]}'"),
        ("vllm==0.33.0", "--cudagraph-capture-sizes 1 2 4 8"),
        ("sglang==0.5.13", "--cuda-graph-bs 1 2 4 8 --cuda-graph-max-bs 8"),
        ("sglang==0.5.20", "--cuda-graph-bs-decode 1 2 4 8 --cuda-graph-max-bs-decode 8"),
    ],
)
def test_flags_are_spelled_for_the_version(engine, text):
    assert text_of(engine) == text


def test_a_single_size_is_never_given_as_a_maximum():
    assert text_of("vllm==0.10.2", (8,)) == "--compilation-config '{\"cudagraph_capture_sizes\":[8]}'"


def test_only_vllm_counts_tokens():
    assert text_of("vllm==0.33", (4, 8), 4) == "--cudagraph-capture-sizes 4 8"
    assert text_of("sglang==0.5.20", (4, 8), 4).startswith("--cuda-graph-bs-decode 1 2 ")


def test_tensorrt_llm_is_told_to_pad():
    before, since = flags([parse_engine("tensorrt-llm")], (1, 8))
    assert since.text == "cuda_graph_config: {batch_sizes: [1, 8], enable_padding: true}"
    assert before.text.splitlines()[-1] == "cuda_graph_padding_enabled: true"


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vlm", "unknown engine 'vlm'"),
        ("vllm==new", "'new' is not a version"),
        ("sglang==0.3", "the oldest known version is 0.4.6"),
    ],
)
def test_unknown_engines_and_versions_are_refused(engine, message):
    with pytest.raises(HistogramError, match=message):
        default_lists([parse_engine(engine)], Request(8))
