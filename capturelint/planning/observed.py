"""Live batch sizes counted from what a serving engine wrote: a log, or dumps of its Prometheus metrics.

An engine's log samples its batch (vLLM every few seconds, SGLang every 40 decode steps), so a count is a number of
samples, and only vLLM's ``--cudagraph-metrics`` table counts every step. Each histogram says which it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from capturelint.errors import HistogramError

SGLANG_DECODE = re.compile(r"Decode batch(?: \[\d{1,15}\])?[.,] #running-req: (\d{1,15})\b")
VLLM_RUNNING = re.compile(r"throughput: [\d.]{1,20} tokens/s, Running: (\d{1,15}) reqs")
VLLM_TABLE_HEAD = re.compile(
    r"\| *Unpadded Tokens *\| *Padded Tokens *\| *Num Paddings *\| *Runtime Mode *\| *Count *\|"
)
VLLM_TABLE_ROW = re.compile(r"\| *(\d{1,15}) *\| *\d{1,15} *\| *\d{1,15} *\| *(\w{1,30}) *\| *(\d{1,15}) *\|")
GAUGE = re.compile(r"^(?:vllm:num_requests_running|sglang:num_running_reqs)(\{.{0,2000}\})? (\S{1,40})", re.MULTILINE)
EDGE = re.compile(r"^vllm:iteration_tokens_total_bucket\{(.{0,2000})\} (\S{1,40})", re.MULTILINE)
LESS_OR_EQUAL = re.compile(r'(?:^|,)le="([^"]{1,40})"')
RANK = re.compile(r'\b(?:tp|pp)_rank="(?!0")[^"]+"|\bpriority="[^"]+"')


@dataclass(frozen=True, slots=True)
class Counted:
    """Batch size -> count, and how it was counted."""

    counts: dict[int, int]
    notes: tuple[str, ...]


def count_batches(text: str, name: str) -> Counted | None:
    """Count the batches that ``text`` reports, or ``None`` if it is no log and no metrics dump.

    Raises ``HistogramError`` for a metric whose value is not a whole number.
    """
    readers: tuple[Callable[[str, str], Counted | None], ...] = (
        vllm_table,
        sglang_log,
        vllm_log,
        gauges,
        iteration_tokens,
    )
    return next((counted for reader in readers if (counted := reader(text, name)) is not None), None)


def vllm_table(text: str, name: str) -> Counted | None:
    """The table of ``--cudagraph-metrics`` (vLLM 0.13 and later): sizes in tokens, every step counted."""
    if not VLLM_TABLE_HEAD.search(text):
        return None
    counts: Counter[int] = Counter()
    without_graph = 0
    for tokens, mode, count in VLLM_TABLE_ROW.findall(text):
        if mode == "NONE":
            without_graph += int(count)
        else:
            counts[int(tokens)] += int(count)
    notes = ["every step of vLLM's cudagraph metrics, in tokens"]
    if without_graph:
        notes.append(f"{without_graph:,} steps without a graph are left out: a prefill and a large batch look the same")
    return Counted(positive(counts), tuple(notes))


def sglang_log(text: str, name: str) -> Counted | None:
    """``Decode batch. #running-req: N`` lines."""
    counts = Counter(map(int, SGLANG_DECODE.findall(text)))
    return Counted(positive(counts), ("samples of SGLang's decode log, not every step",)) if counts else None


def vllm_log(text: str, name: str) -> Counted | None:
    """``Running: N reqs`` lines."""
    counts = Counter(map(int, VLLM_RUNNING.findall(text)))
    return Counted(positive(counts), ("samples of vLLM's throughput log, not every step",)) if counts else None


def gauges(text: str, name: str) -> Counted | None:
    """The gauges of running requests, one sample for each dump; a single one says little, see ``iteration_tokens``."""
    found = [match for match in GAUGE.finditer(text) if not RANK.search(match[1] or "")]
    if not found or (len(found) == 1 and EDGE.search(text)):
        return None
    counts = Counter(metric(match, name, 2) for match in found)
    return Counted(positive(counts), ("samples of a gauge of running requests, one for each scrape",))


def iteration_tokens(text: str, name: str) -> Counted | None:
    """vLLM's cumulative ``iteration_tokens_total`` histogram; of several dumps the last counts."""
    series: dict[str, dict[int | None, int]] = {}
    for match in EDGE.finditer(text):
        edge = LESS_OR_EQUAL.search(match[1])
        if edge is not None:
            labels = LESS_OR_EQUAL.sub("", match[1])
            series.setdefault(labels, {})[edge_value(edge[1])] = metric(match, name, 2)
    if not series:
        return None
    counts: Counter[int] = Counter()
    beyond = 0
    for edges in series.values():
        below = 0
        for size, cumulative in sorted((size, count) for size, count in edges.items() if size is not None):
            counts[size] += max(0, cumulative - below)
            below = max(below, cumulative)
        beyond += max(0, edges.get(None, below) - below)
    notes = ["vLLM's tokens per step, prefill included, each step counted at the upper edge of its range"]
    if beyond:
        notes.append(f"{beyond:,} steps above the last edge are left out")
    return Counted(positive(counts), tuple(notes))


def edge_value(text: str) -> int | None:
    """An upper edge as a whole number, ``None`` for infinity."""
    return None if text == "+Inf" else int(float(text))


def metric(match: re.Match[str], name: str, group: int) -> int:
    """A metric's value as a whole number. Raises ``HistogramError`` that names the line."""
    try:
        value = float(match[group])
        if value >= 0 and value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    line = match.string.count("\n", 0, match.start()) + 1
    raise HistogramError(f"{name}:{line}: '{match[group]}' is not a whole number of requests or steps")


def positive(counts: Counter[int]) -> dict[int, int]:
    """Without size 0: an idle engine runs no step."""
    return {size: count for size, count in counts.items() if size}
