"""Python-level constructs against what an H200 said of them (torch 2.11): captured, or refused.

Every refused construct but `torch.cond`, which imports the compiler, and a sixth of the others. The names in their
code are rebuilt here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

from capturelint.emulator import CaptureRefused, cuda

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "fixtures/recorded/constructs_emulator.jsonl").read_text().splitlines()
]
B, D = 4, 16


@pytest.fixture(autouse=True)
def validating(monkeypatch):
    """As in a fresh process: the first torch.compile in one switches validation off (torch/_dynamo/eval_frame.py)."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


def environment():
    """The tensors that the code calls ``e``."""
    return {
        "x": torch.randn(B, D, device="cuda"),
        "y": torch.randn(B, D, device="cuda"),
        "buf": torch.zeros(B, 8, D, device="cuda"),
        "m": torch.rand(B, D, device="cuda") > 0.5,
        "i": torch.arange(B, device="cuda"),
        "i2": torch.tensor([0, 2], device="cuda"),
        "one": torch.tensor(1, device="cuda"),
        "pos": torch.tensor([3], device="cuda"),
        "p": torch.rand(B, D, device="cuda").softmax(-1),
        "f": torch.tensor(0.5, device="cuda"),
        "cpu": torch.randn(B, D),
        "cpui": torch.tensor([0, 2]),
        "pinned": torch.randn(B, D).pin_memory(),
        "w2": torch.randn(2, D, D, device="cuda").bfloat16(),
        "offs": torch.tensor([2, 4], dtype=torch.int32, device="cuda"),
    }


def backward(e):
    with torch.enable_grad():
        weight = torch.ones(D, D, device="cuda", requires_grad=True)
        (e["x"] @ weight).sum().backward()
    return weight.grad


def side(e, join):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = e["x"] * 2
    if join:
        torch.cuda.current_stream().wait_stream(stream)
    return out


def autocast(e):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return e["x"] @ e["x"].T


def default_device(e):
    with torch.device("cuda"):
        return torch.tensor([1.0, 2.0])


def names():
    """Everything that the code may name."""
    return {
        "B": B,
        "D": D,
        "torch": torch,
        "np": np,
        "copy": copy,
        "cached": functools.lru_cache(lambda length: torch.arange(length, device="cuda")),
        "cond": lambda e: torch.cond(e["one"] > 0, lambda x: x + 1, lambda x: x - 1, (e["x"],)),
        "back": backward,
        "side": side,
        "ac": autocast,
        "dctx": default_device,
        "GEN": torch.Generator(device="cuda"),
        "GRU": torch.nn.GRU(D, 8, batch_first=True).cuda().eval(),
        "LSTM": torch.nn.LSTM(D, 8, batch_first=True).cuda().eval(),
        "e": environment(),
    }


def verdict(code):
    """What capture says of ``code``, after a run on a side stream."""
    known = names()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        eval(code, known)
    torch.cuda.current_stream().wait_stream(stream)
    known["e"] = environment()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            eval(code, known)
    except CaptureRefused:
        return "fails"
    graph.replay()
    return "ok"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_construct_gets_the_verdict_of_an_h200(row):
    with cuda(), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        assert verdict(row["code"]) == row["capture"]
