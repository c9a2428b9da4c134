"""The pytest plugin in suites of its own."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

pytest_plugins = ["pytester"]

DECODER = """
import torch

class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(16, 8)
        self.register_buffer("cache", torch.zeros(4, 32, 8))
        self.position = 0

    @torch.no_grad()
    def step(self, token, position):
        h = self.embed(token)
        self.cache[: h.shape[0]].index_copy_(1, position, h[:, None])
        return self.cache[: h.shape[0]].sum(1)

    @torch.no_grad()
    def counted(self, token, position):
        self.position += 1
        return self.embed(token) * self.position

    @torch.no_grad()
    def read(self, token, position):
        return self.embed(token) * self.embed(token).max().item()

def inputs(batch, step):
    return {"token": torch.full((batch,), step % 16), "position": torch.tensor([step])}
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A suite beside the module ``decoder``; warnings of others are not its business."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pytester.makepyfile(decoder=DECODER)
    return pytester


def test_pytest_finds_the_plugin_by_its_entry_point():
    (found,) = entry_points(group="pytest11", name="capturelint")

    assert found.value == "capturelint.pytest_plugin"


# pytester forgets what is imported while its fixture is up, and torch cannot be imported twice: it is only looked for.
@pytest.mark.skipif(find_spec("torch") is None, reason="the fixture runs the step")
def test_a_step_is_captured_replayed_and_blamed_by_line(suite):
    suite.makepyfile(
        """
        import torch
        from decoder import Decoder, inputs

        def test_safe(capture_safe):
            capture_safe(Decoder().step, inputs, buckets=[1, 4])

        def test_baked(capture_safe):
            capture_safe(Decoder().counted, inputs, buckets=[2])

        def test_read(capture_safe):
            capture_safe(Decoder().read, inputs, buckets=[2])

        def test_function(capture_safe):
            capture_safe(lambda token, position: token * 2.0, inputs, buckets=[2])

        def test_built(capture_safe):
            capture_safe(lambda w, token, position: token * w, inputs, buckets=[2],
                         build=lambda device: torch.ones((), device=device))
        """
    )
    result = suite.runpytest_subprocess("-q")

    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "batch 2: replay-differs: *",
            "  decoder.py:19: baked-scalar: *",
            "batch 2: capture-error: *",
            "  decoder.py:23: host-sync: *",
        ]
    )


SKIPPING = """
import logging
import pytest

def skip(reason):
    logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs").warning("skipping cudagraphs due to " + reason)

def test_skips():
    skip('mutated inputs (1 instances). Found from : \\n   File "kv.py", line 7, in put\\n    x.add_(1)\\n')

def test_does_not():
    pass

@pytest.mark.allow_cudagraph_skip
def test_may():
    skip("cpu device (arg3_1)")

def test_fails_itself():
    skip("cpu device (arg3_1)")
    assert False, "its own reason"
"""


def test_a_skip_fails_the_test_that_it_happened_in(suite):
    suite.makepyfile(SKIPPING)
    result = suite.runpytest_subprocess("-q", "--fail-on-cudagraph-skip")

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "torch skipped CUDA graphs in this test:",
            "  kv.py:7: mutated inputs (1 instances); help: *",
            "*its own reason",
        ]
    )


def test_without_the_option_a_skip_fails_nothing(suite):
    suite.makepyfile(SKIPPING)

    suite.runpytest_subprocess("-q").assert_outcomes(passed=3, failed=1)


def test_the_plugin_loads_neither_torch_nor_the_analyser(suite):
    suite.makepyfile(
        """
        import sys

        def test_imports():
            assert "torch" not in sys.modules
            assert "libcst" not in sys.modules
        """
    )

    suite.runpytest_subprocess("-q").assert_outcomes(passed=1)
