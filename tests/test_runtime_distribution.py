"""Random numbers that cannot be compared one by one are compared in distribution, with a known error."""

import pytest

pytest.importorskip("torch")

import torch
from runtime_here import messages_of, plan, write_target

from capturelint.runtime import distribution
from capturelint.runtime.distribution import NUM_SAMPLES, distance, is_one_distribution, is_random, limit
from capturelint.runtime.observations import BucketResult


def drawn(scale=1.0, shift=0.0, frozen=False):
    """Runs that give three numbers, of which the first is never random."""

    def draw(seed):
        generator = torch.Generator().manual_seed(0 if frozen else seed)
        values = torch.randn(3, generator=generator) * scale + shift
        return [torch.cat((torch.ones(1), values[1:])), 2.0]

    return draw


@pytest.mark.parametrize(
    ("other", "same"),
    [(drawn(), True), (drawn(shift=1.0), False), (drawn(scale=3.0), False), (drawn(frozen=True), False)],
    ids=["the same", "moved", "wider", "frozen"],
)
def test_other_seeds_of_one_distribution_are_let_through_and_other_distributions_are_not(other, same):
    assert is_one_distribution(drawn(), other, 1e-4) is same


def test_what_is_not_random_must_be_equal():
    def off(seed):
        values, number = drawn()(seed)
        return [values + torch.tensor([0.1, 0.0, 0.0]), number]

    assert not is_one_distribution(drawn(), off, 1e-4)


def test_two_samples_of_one_distribution_stay_far_below_the_limit():
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(NUM_SAMPLES, 1000, generator=generator) for _ in range(2))
    assert float(distance(first, second).max()) < limit(NUM_SAMPLES, 1000)


@pytest.mark.parametrize(
    ("name", "random"),
    [("aten.native_dropout.default", True), ("aten.multinomial.default", True), ("aten.add.Tensor", False)],
)
def test_torch_tells_what_is_random(name, random):
    assert is_random(name) is random


OWN_NUMBERS = """
import random
import torch

LIBRARY = torch.library.Library("own_numbers", "DEF")
LIBRARY.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))

def noise(x):
    generator = torch.Generator().manual_seed(random.getrandbits(40))
    return x + torch.randn(x.shape, generator=generator)

LIBRARY.impl("noise", noise, "CPU")

def build(device):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    return {"x": torch.ones(batch, 4, device=device)}

def step(state, x):
    return torch.ops.own_numbers.noise(state(x))
"""


def test_an_operator_with_random_numbers_of_its_own_is_right_if_they_are_of_one_distribution(tmp_path, monkeypatch):
    """The capture draws one of them, so that no replay draws eager's."""
    monkeypatch.setattr(distribution, "NUM_SAMPLES", 128)
    sent = messages_of(plan(write_target(tmp_path, OWN_NUMBERS), steps=5))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    assert result.verdict.value == "ok"
    assert "of the same distribution" in result.probes[0]


def test_what_inputs_draws_is_no_random_number_of_the_step(tmp_path):
    """The step goes wrong by memory that no call of torch's touches, so that nothing else explains it."""
    source = """
import ctypes
import torch

def build(device):
    return {"x": torch.zeros(2, 4, device=device), "n": [0]}

def inputs(batch, step, device):
    return {"x": torch.randn(batch, 4).to(device)}

def step(state, x):
    ctypes.c_float.from_address(state["x"].data_ptr()).value += 1
    return state["x"] + x
"""
    sent = messages_of(plan(write_target(tmp_path, source), steps=5))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    assert result.verdict.value == "replay-differs"
    assert "distribution" not in result.message
