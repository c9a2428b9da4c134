"""The catalogue and the analyser against measurements: what an H200 with torch 2.11 captured and what it refused.

``fixtures/recorded/operators_counts.jsonl`` has 589 operators with the number of samples and of those refused (or
replayed with other values), ``constructs_static.jsonl`` 308 Python-level expressions with what their capture gave.
"""

import ast
import json
import re
from pathlib import Path

import pytest

from capturelint.catalog import load_operations
from capturelint.static.check import Options, check
from capturelint.vocabulary import Confidence, Effect

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded"


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (RECORDED / name).read_text().splitlines()]


OPERATORS = read("operators_counts.jsonl")
CONSTRUCTS = read("constructs_static.jsonl")
CATALOG = load_operations()


def test_every_measured_operator_is_listed():
    assert {row["operator"] for row in OPERATORS} <= CATALOG.operations.keys()


def test_counts_are_those_measured():
    listed = {name: (row.refused, row.samples) for name, row in CATALOG.operations.items() if row.source == "operators"}
    measured = {row["operator"]: (row["refused"], row["samples"]) for row in OPERATORS}
    assert listed == {name: measured[name] for name in listed}


def test_a_refused_operator_is_not_called_safe():
    refused = {row["operator"] for row in OPERATORS if row["refused"]}
    called_safe = {name for name in refused if all(c.effect is Effect.SAFE for c in CATALOG.operations[name].cases)}
    assert called_safe == set()


def test_an_operator_that_was_never_refused_is_safe_or_says_when_it_is_not():
    """A row that cites another source may know of calls that the samples did not have."""
    never = [CATALOG.operations[row["operator"]] for row in OPERATORS if not row["refused"]]
    accused = {
        row.name
        for row in never
        for case in row.cases
        if case.effect is not Effect.SAFE
        and row.source == "operators"
        and not (case.absent or case.given or case.device or case.host or case.torch or case.possible)
    }
    assert accused == set()


def test_constructs_have_the_measured_effect():
    listed = {name: row.cases[0].effect is Effect.SAFE for name, row in CATALOG.constructs.items()}
    assert listed == {row["name"]: row["capture"] == "ok" for row in CONSTRUCTS}


# ---------------------------------------------------------------- the analyser on every construct

PROGRAM = """\
import copy
import functools
import gc
import io
import logging
import math
import pickle

import numpy as np
import torch
from torch import nn

B, D, L = 4, 16, 8
GEN = torch.Generator(device="cuda")
GRU = nn.GRU(D, D, batch_first=True).cuda()
LSTM = nn.LSTM(D, D, batch_first=True).cuda()


def side(e, join):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = e["x"] * 2
    if join:
        torch.cuda.current_stream().wait_stream(stream)
    return y


def ac(e):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return e["x"] @ e["x"].T


def dctx(e):
    with torch.device("cuda"):
        return e["x"] + torch.tensor(1.0)


def cond(e):
    return torch.cond(e["one"] > 0, lambda x: x.sin(), lambda x: x.cos(), (e["x"],))


def back(e):
    x = e["x"].detach().requires_grad_()
    return torch.autograd.grad(x.sin().sum(), x)


@functools.lru_cache
def cached(size):
    return torch.zeros(size, device="cuda")


def build(device):
    return {
        "x": torch.randn(B, D, device=device),
        "y": torch.randn(B, D, device=device),
        "f": torch.full((), 0.5, device=device),
        "p": torch.full((B, D), 1.0 / D, device=device),
        "buf": torch.zeros(B, L, D, device=device),
        "m": torch.zeros(B, D, dtype=torch.bool, device=device),
        "i": torch.arange(B, device=device),
        "i2": torch.zeros(B, dtype=torch.long, device=device),
        "one": torch.full((), 3, dtype=torch.long, device=device),
        "pos": torch.zeros(1, dtype=torch.long, device=device),
        "w2": torch.zeros(2, D, D, dtype=torch.bfloat16, device=device),
        "offs": torch.full((2,), 2, dtype=torch.int32, device=device),
        "cpu": torch.zeros(B, D, device="cpu"),
        "cpui": torch.zeros(B, dtype=torch.long, device="cpu"),
        "pinned": torch.zeros(B, D, pin_memory=True),
    }


def inputs(batch, step, device):
    return {}


def step(e):
    CODE
"""

# Refused on the device and not found by the analyser, each with its reason.
MISSED = {
    "pickle": "only torch's own serialisers are known to read a tensor",
    "grouped_mm_f32": "refused for float32 only; element types are not followed that far",
    "matnorm_nuc": "refused for the nuclear norm only; the order is not looked at",
}

# Captured on the device and found by the analyser all the same, each with its reason.
ALARMS: dict[str, str] = {}


def statement(code: str) -> str:
    """An expression as a user writes it: ``x[:, pos] = 1.0`` for a call of ``__setitem__``, modules by their names."""
    code = re.sub(r"__import__\('(\w+)'\)", r"\1", code)
    match ast.parse(code, mode="eval").body:
        case ast.Call(func=ast.Attribute(value=target, attr="__setitem__"), args=[index, value]):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return f"{ast.unparse(target)}[{', '.join(map(subscript, parts))}] = {ast.unparse(value)}"
        case _:
            return f"return {code}"


def subscript(part: ast.expr) -> str:
    """``slice(a, b)`` as ``a:b``."""
    match part:
        case ast.Call(func=ast.Name(id="slice"), args=[ast.Constant(value=None)]):
            return ":"
        case ast.Call(func=ast.Name(id="slice"), args=[start, stop]):
            return f"{ast.unparse(start)}:{ast.unparse(stop)}"
        case _:
            return ast.unparse(part)


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> dict[str, bool]:
    """Construct -> whether the analyser shows a finding in it, for a project that declares the measured release."""
    path = tmp_path_factory.mktemp("constructs") / "construct.py"
    found = {}
    for row in CONSTRUCTS:
        path.write_text(PROGRAM.replace("CODE", statement(row["code"])))
        checked = check([path], Options(torch="==2.11.0", root=path.parent))
        found[row["name"]] = any(finding.confidence >= Confidence.LIKELY for finding in checked.findings)
    return found


def test_the_analyser_finds_what_is_refused(judged):
    missed = {row["name"] for row in CONSTRUCTS if row["capture"] != "ok" and not judged[row["name"]]}
    assert missed == MISSED.keys()


def test_the_analyser_is_silent_where_a_capture_works(judged):
    alarms = {row["name"] for row in CONSTRUCTS if row["capture"] == "ok" and judged[row["name"]]}
    assert alarms == ALARMS.keys()
