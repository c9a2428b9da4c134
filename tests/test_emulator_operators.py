"""Operators against what an H200 said of their capture and replay (torch 2.11), on torch's own samples.

Most operators with a refused sample and a sixteenth of the others. Samples differ between torch versions: one of
another shape than the one measured is left out.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from capturelint.emulator import CaptureRefused, cuda

pytest.importorskip("expecttest", reason="torch's operator samples need it")

ROWS = defaultdict(list)
for line in (Path(__file__).parent.parent / "fixtures/recorded/operators_emulator.jsonl").read_text().splitlines():
    row = json.loads(line)
    ROWS[row["operator"]].append(row)

KNOWN = {
    # Shapes alike, but other arguments in torch 2.13 than in 2.11.
    ("histc", 0), ("masked.var", 1),
}  # fmt: skip


@functools.cache
def samples_of():
    """Operator name -> torch's description of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    described = {}
    for operator in op_db:
        variant = f".{operator.variant_test_name}" if operator.variant_test_name else ""
        described.setdefault(operator.name + variant, operator)
    return described


def shapes(sample):
    tensors = [
        leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    return str([tuple(tensor.shape) for tensor in tensors])


def same(first, second):
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    return all(
        torch.allclose(a.detach().cpu(), b.detach().cpu(), rtol=1e-3, atol=1e-4, equal_nan=True)
        for a, b in pairs
        if isinstance(a, torch.Tensor) and a.layout is torch.strided
    )


def verdict(operator, sample):
    def run():
        return operator(sample.input, *sample.args, **sample.kwargs)

    expected = tree_map_only(torch.Tensor, torch.clone, run())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            out = run()
    except CaptureRefused:
        return "fails"
    graph.replay()
    return "ok" if same(expected, out) else "differs"


def answers(operator, rows):
    """Sample number -> verdict, up to the first refusal, after which the device is unfit."""
    got = {}
    with cuda(), torch.no_grad():
        torch.manual_seed(0)
        made = list(operator.sample_inputs("cuda", getattr(torch, rows[0]["dtype"]), requires_grad=False))
        # The measurement took four samples, evenly spread.
        chosen = made[:: max(1, len(made) // 4)][:4]
        for row in rows:
            number = row["sample"]
            is_there = number < len(chosen) and shapes(chosen[number]) == row["shapes"]
            got[number] = verdict(operator, chosen[number]) if is_there else None
            if got[number] == "fails":
                break
    return got


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(ROWS))
def test_an_operator_gets_the_verdict_of_an_h200(name):
    rows = [row for row in ROWS[name] if (name, row["sample"]) not in KNOWN]
    expected = {row["sample"]: row["capture"] for row in rows}
    got = {}
    while left := [row for row in rows if row["sample"] not in got]:
        got |= answers(samples_of()[name], left)
    assert {number: verdict for number, verdict in got.items() if verdict not in (None, expected[number])} == {}
