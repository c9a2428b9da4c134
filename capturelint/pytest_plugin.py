"""A pytest plugin: the fixture ``capture_safe`` and the option ``--fail-on-cudagraph-skip``.

pytest loads it in every run, so it imports neither torch nor the rest of capturelint until a test asks. The surprise:
a refused capture leaves a CUDA process unfit for the next one, so after one the fixture says so instead of guessing;
the emulated device has no such memory.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from capturelint.runtime.observations import BucketResult

Inputs = Mapping[str, object]
OPTION = "--fail-on-cudagraph-skip"
MARKER = "allow_cudagraph_skip"
SKIP_LOGGERS = (
    "torch._inductor.cudagraph_utils.__cudagraphs",  # torch 2.11+
    "torch._inductor.cudagraph_utils.__perf_hints",  # up to torch 2.10
    "torch._inductor.cudagraph_trees.__cudagraphs",
)
"""Exact names: none of them propagates to its parent. A handler may be set before torch is imported."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    group = parser.getgroup("capturelint")
    group.addoption(OPTION, action="store_true", help="fail a test during which torch skipped CUDA graphs")


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line("markers", f"{MARKER}: torch may skip CUDA graphs in this test despite {OPTION}")


class CaptureSafe(Protocol):
    """The fixture's type."""

    def __call__(
        self,
        step: Callable[..., object],
        inputs: Callable[..., Inputs],
        *,
        buckets: Sequence[int] = ...,
        build: Callable[[str], object] | None = ...,
        steps: int = ...,
        tolerance: float | None = ...,
    ) -> None:
        """Fail the test if ``step`` does not replay what it computes eagerly."""


@dataclass(slots=True)
class Fitness:
    """Whether this process can still capture on a real device; ``spoiled_by`` names the test that ended that."""

    spoiled_by: str = ""


@pytest.fixture(scope="session")
def capturelint_fitness() -> Fitness:
    """One for the process."""
    return Fitness()


@pytest.fixture
def capture_safe(request: pytest.FixtureRequest, capturelint_fitness: Fitness) -> CaptureSafe:
    """Capture a step for each batch size, replay it with other inputs, and compare with eager.

    ``step`` is a module, a method of one, or a function of tensors; with ``build`` it is a function whose first
    argument is what ``build(device)`` returns. ``inputs(batch, step)`` gives the arguments by name. The device is
    CUDA where there is one, else emulated.
    """

    def check(
        step: Callable[..., object],
        inputs: Callable[..., Inputs],
        *,
        buckets: Sequence[int] = (1, 2, 4),
        build: Callable[[str], object] | None = None,
        steps: int = 8,
        tolerance: float | None = None,
    ) -> None:
        __tracebackhide__ = True
        pytest.importorskip("torch", reason="capture_safe runs the step, so it needs torch")
        if capturelint_fitness.spoiled_by:
            pytest.fail(
                f"{capturelint_fitness.spoiled_by} left this process unfit to capture; run each such test in a process "
                "of its own (pytest-forked, or one file at a time)",
                pytrace=False,
            )
        from capturelint.runtime.in_process import as_target, verify_here

        target = as_target(step, inputs, build, Path.cwd())
        results, on_gpu = verify_here(target, sorted(buckets, reverse=True), steps, tolerance)
        told = [text for result in results for text in faults(result)]
        if told and on_gpu:
            capturelint_fitness.spoiled_by = request.node.nodeid
        if told:
            pytest.fail("\n".join(told), pytrace=False)

    return check


def faults(result: BucketResult) -> list[str]:
    """What is wrong with a bucket, each with its line and its cure; empty if nothing is."""
    from capturelint.runtime.blame import Suspects, blame
    from capturelint.vocabulary import Verdict

    if result.verdict is Verdict.OK:
        return []
    told = [f"batch {result.size}: {result.verdict.value}: {result.message}"]
    for finding in blame(result.observations, result.size, Suspects()):
        where = f"{os.path.relpath(finding.place.path)}:{finding.place.line}" if finding.place else "no line is known"
        told.append(f"  {where}: {finding.rule}: {finding.message}")
        told += [f"    help: {text}" for text in finding.help]
    return told


class SkipKeeper(logging.Handler):
    """Keeps what torch says of skipped graphs during one test."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, and show it where our handler is what keeps Python from showing it."""
        text = record.getMessage()
        self.texts.append(text)
        logger = logging.getLogger(record.name)
        if logger.handlers == [self] and not logger.propagate:
            print(text, file=sys.stderr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed although torch skipped CUDA graphs in it."""
    if not item.config.getoption(OPTION) or item.get_closest_marker(MARKER):
        return (yield)
    with skips_kept() as keeper:
        result = yield
    if told := skip_messages(keeper.texts):
        pytest.fail("torch skipped CUDA graphs in this test:\n" + "\n".join(told), pytrace=False)
    return result


@contextmanager
def skips_kept() -> Iterator[SkipKeeper]:
    """Listen at the loggers that tell of skips."""
    keeper = SkipKeeper()
    loggers = [logging.getLogger(name) for name in SKIP_LOGGERS]
    for logger in loggers:
        logger.addHandler(keeper)
    try:
        yield keeper
    finally:
        for logger in loggers:
            logger.removeHandler(keeper)


def skip_messages(texts: Sequence[str]) -> list[str]:
    """Reason and line of each skip that the texts tell, once."""
    from capturelint.catalog import load_messages
    from capturelint.logs.matcher import Matcher
    from capturelint.logs.reader import Page
    from capturelint.vocabulary import Severity

    matcher = Matcher(load_messages())
    told = []
    for text in texts:
        content = text.encode() + b"\n"
        for found in matcher.find(Page(content, 0, len(content), 1), Path("torch")):
            if found.message.severity in (Severity.SKIP, Severity.RERECORD, Severity.FALLBACK):
                where = f"{found.location}: " if found.location else ""
                told.append(f"  {where}{found.reason}; help: {found.message.fix}")
    return list(dict.fromkeys(told))
