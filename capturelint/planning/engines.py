"""What vLLM, SGLang and TensorRT-LLM capture by default, and the flags that give them other sizes, by version.

Read from the engines' sources (vLLM 0.8.5 to 0.33.0, SGLang 0.4.6 to 0.5.23, TensorRT-LLM's main branch); a version
between two that were read is given the older one's list. The surprise: TensorRT-LLM does not pad by default, so every
size that is not in its list runs eagerly, without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from capturelint.errors import HistogramError


@dataclass(frozen=True, slots=True)
class Request:
    """What decides a default list: the largest batch in requests, and the tokens of one request in a step."""

    max_batch: int
    query_length: int = 1

    @property
    def speculative(self) -> bool:
        """Whether a step runs drafted tokens too."""
        return self.query_length > 1


@dataclass(frozen=True, slots=True)
class DefaultList:
    """What an engine captures without being asked. ``sizes`` are tokens, ascending."""

    name: str
    sizes: tuple[int, ...]
    pads: bool = True


@dataclass(frozen=True, slots=True)
class Flags:
    """What to paste for a range of versions."""

    engine: str
    versions: str
    text: str


@dataclass(frozen=True, slots=True)
class Generation:
    """One default list of an engine, from the first version that has it."""

    engine: str
    since: str
    name: str
    sizes: Callable[[Request], Iterable[int]]
    pads: bool = True


def up_to(limit: int, *runs: Iterable[int]) -> list[int]:
    """The sizes of all runs that do not exceed ``limit``."""
    return [size for run in runs for size in run if size <= limit]


def vllm_0_8(request: Request) -> list[int]:
    """Fixed, whatever ``max_num_seqs`` is."""
    return [1, 2, 4, *range(8, 513, 8)]


def vllm_0_10(request: Request) -> list[int]:
    """Steps of 8 up to twice ``max_num_seqs``."""
    return up_to(min(2 * request.max_batch, 512), (1, 2, 4), range(8, 513, 8))


def vllm_0_11(request: Request) -> list[int]:
    """Steps of 8 below 256, of 16 from there."""
    return up_to(min(2 * request.max_batch, 512), (1, 2, 4), range(8, 256, 8), range(256, 513, 16))


def vllm_0_14(request: Request) -> list[int]:
    """As 0.11, the limit in tokens; with speculative decoding rounded up to whole requests.

    0.33 goes on to 1,024 on sm100; which GPU serves is not known here.
    """
    query = request.query_length
    sizes = up_to(min(2 * request.max_batch * query, 512), (1, 2, 4), range(8, 256, 8), range(256, 513, 16))
    return [-(-size // query) * query for size in sizes]


def sglang_0_4_6(request: Request) -> list[int]:
    """Steps of 8 from 8; up to 160 on GPUs of at most 96 GB, else 256."""
    return in_tokens(request, up_to(request.max_batch, (1, 2, 4), range(8, 257, 8)), append_largest=False)


def sglang_0_5_1(request: Request) -> list[int]:
    """As 0.4.6, and steps of 16 from 256 (on a B200)."""
    sizes = up_to(request.max_batch, (1, 2, 4), range(8, 257, 8), range(272, 513, 16))
    return in_tokens(request, sizes, append_largest=False)


def sglang_0_5_6(request: Request) -> list[int]:
    """Finer up to 64 with speculative decoding, coarser from 256."""
    if request.speculative:
        fine = (range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8))
        return in_tokens(request, up_to(request.max_batch, *fine, range(272, request.max_batch + 1, 16)))
    coarse = (range(272, 497, 16), range(512, request.max_batch + 1, 32))
    return in_tokens(request, up_to(request.max_batch, (1, 2, 4, 8, 12), range(16, 257, 8), *coarse))


def tensorrt_llm_unpadded(request: Request) -> list[int]:
    """``enable_padding: false``, the default."""
    return in_tokens(request, up_to(request.max_batch, range(1, 32), (32, 64, 128), powers_of_two(256)))


def tensorrt_llm_padded(request: Request) -> list[int]:
    """``enable_padding: true``, in steps of 64 above 128."""
    return in_tokens(
        request, up_to(request.max_batch, (1, 2, 4), range(8, 129, 8), range(192, request.max_batch + 1, 64))
    )


def in_tokens(request: Request, requests: list[int], append_largest: bool = True) -> list[int]:
    """Sizes given in requests as tokens; SGLang (read in 0.5.12) and TensorRT-LLM append the largest batch."""
    largest = [request.max_batch] if append_largest else []
    return [size * request.query_length for size in (*requests, *largest)]


def powers_of_two(first: int) -> list[int]:
    """Up to a billion."""
    return [first << shift for shift in range(31 - first.bit_length())]


GENERATIONS = (
    Generation("vllm", "0.8", "vLLM 0.8", vllm_0_8),
    Generation("vllm", "0.10", "vLLM 0.10", vllm_0_10),
    Generation("vllm", "0.11", "vLLM 0.11", vllm_0_11),
    Generation("vllm", "0.14", "vLLM 0.14+", vllm_0_14),
    Generation("sglang", "0.4.6", "SGLang 0.4.6", sglang_0_4_6),
    Generation("sglang", "0.5.1", "SGLang 0.5.1", sglang_0_5_1),
    Generation("sglang", "0.5.6", "SGLang 0.5.6+", sglang_0_5_6),
    Generation("tensorrt-llm", "0", "TensorRT-LLM, no padding", tensorrt_llm_unpadded, pads=False),
    Generation("tensorrt-llm", "0", "TensorRT-LLM, padded", tensorrt_llm_padded),
)
ENGINES = tuple(dict.fromkeys(generation.engine for generation in GENERATIONS))


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that the user named, with the version if one was given."""

    name: str
    version: Version | None = None


def parse_engine(text: str) -> Engine:
    """``vllm`` or ``vllm==0.11.2``. Raises ``HistogramError``."""
    name, _, version = text.partition("==")
    if name not in ENGINES:
        raise HistogramError(f"--engine {text}: unknown engine '{name}'; known are {', '.join(ENGINES)}")
    try:
        return Engine(name, Version(version) if version else None)
    except InvalidVersion as error:
        raise HistogramError(f"--engine {text}: '{version}' is not a version") from error


def default_lists(engines: Iterable[Engine], request: Request) -> list[DefaultList]:
    """What the engines capture by default for ``request``, and powers of two."""
    powers = in_tokens(request, up_to(request.max_batch, powers_of_two(1)))
    chosen = [generation for engine in engines for generation in generations(engine)]
    lists = [DefaultList(one.name, ascending(one.sizes(request)), one.pads) for one in chosen]
    return [*lists, DefaultList("powers of two", ascending(powers))]


def generations(engine: Engine) -> list[Generation]:
    """The newest generation, or the one of the version; several where an option decides. Raises ``HistogramError``."""
    known = [one for one in GENERATIONS if one.engine == engine.name]
    old_enough = [one for one in known if engine.version is None or Version(one.since) <= engine.version]
    if not old_enough:
        raise HistogramError(f"--engine {engine.name}=={engine.version}: the oldest known version is {known[0].since}")
    return [one for one in old_enough if one.since == old_enough[-1].since]


def ascending(sizes: Iterable[int]) -> tuple[int, ...]:
    """Distinct sizes in order."""
    return tuple(sorted(set(sizes)))


@dataclass(frozen=True, slots=True)
class Spelling:
    """How sizes are given to the versions from ``since`` on, up to the next spelling."""

    engine: str
    since: str
    versions: str
    write: Callable[[tuple[int, ...]], str]


def spaced(sizes: tuple[int, ...]) -> str:
    """Sizes as arguments."""
    return " ".join(map(str, sizes))


def compilation_config(sizes: tuple[int, ...]) -> str:
    """vLLM's JSON, valid in every version."""
    return f"--compilation-config '{{\"cudagraph_capture_sizes\":[{','.join(map(str, sizes))}]}}'"


def cuda_graph_sizes(sizes: tuple[int, ...]) -> str:
    """vLLM 0.10 takes a single value for a maximum, not for a size."""
    return f"--cuda-graph-sizes {spaced(sizes)}" if len(sizes) > 1 else compilation_config(sizes)


SPELLINGS = (
    Spelling("vllm", "0", "<=0.9", compilation_config),
    Spelling("vllm", "0.10", "0.10", cuda_graph_sizes),
    Spelling("vllm", "0.11", "0.11.0", compilation_config),
    Spelling("vllm", "0.11.1", ">=0.11.1", lambda sizes: f"--cudagraph-capture-sizes {spaced(sizes)}"),
    Spelling(
        "sglang", "0", "<=0.5.13", lambda sizes: f"--cuda-graph-bs {spaced(sizes)} --cuda-graph-max-bs {sizes[-1]}"
    ),
    Spelling(
        "sglang",
        "0.5.14",
        ">=0.5.14",
        lambda sizes: f"--cuda-graph-bs-decode {spaced(sizes)} --cuda-graph-max-bs-decode {sizes[-1]}",
    ),
    Spelling(
        "tensorrt-llm",
        "0",
        "before pull request 5014 (mid-2025)",
        lambda sizes: (
            f"use_cuda_graph: true\ncuda_graph_batch_sizes: [{', '.join(map(str, sizes))}]\n"
            "cuda_graph_padding_enabled: true"
        ),
    ),
    Spelling(
        "tensorrt-llm",
        "0",
        "since pull request 5014 (mid-2025)",
        lambda sizes: f"cuda_graph_config: {{batch_sizes: [{', '.join(map(str, sizes))}], enable_padding: true}}",
    ),
)


def flags(engines: Iterable[Engine], sizes: tuple[int, ...], query_length: int = 1) -> list[Flags]:
    """What to paste for each engine: every spelling, or the one of the version.

    ``sizes`` are tokens, as vLLM counts them; the others count requests.
    """
    requests = ascending(-(-size // query_length) for size in sizes)
    return [
        Flags(engine.name, spelling.versions, spelling.write(sizes if engine.name == "vllm" else requests))
        for engine in engines
        for spelling in spellings(engine)
    ]


def spellings(engine: Engine) -> list[Spelling]:
    """All spellings of the engine, or those of its version."""
    known = [one for one in SPELLINGS if one.engine == engine.name]
    if engine.version is None:
        return known
    valid = [one for one in known if Version(one.since) <= engine.version]
    return [one for one in valid if one.since == valid[-1].since]
