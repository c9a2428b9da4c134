"""Steps that replay right until memory is overwritten, rows are padded or buckets take turns."""

import pytest

pytest.importorskip("torch")

from runtime_here import CLEAN, messages_of, plan, write_target

from capturelint.runtime.observations import BucketResult
from capturelint.vocabulary import Verdict


def results(tmp_path, source, *buckets):
    """The last word on each bucket."""
    sent = messages_of(plan(write_target(tmp_path, source), buckets=buckets))
    return {each.size: each for each in sent if isinstance(each, BucketResult)}


def test_a_clean_step_passes_every_probe(tmp_path):
    found = results(tmp_path, CLEAN, 4, 1)
    assert found[4].probes == ("outputs overwritten", "padding ignored", "buckets in turns")
    assert found[1].probes == ("outputs overwritten", "buckets in turns")


def test_an_output_that_is_the_states_own_buffer_is_not_overwritten(tmp_path):
    source = CLEAN.replace("return state(x)", "state.total.add_(state(x)); return state.total").replace(
        "return torch.nn.Linear(4, 4).to(device)",
        "m = torch.nn.Linear(4, 4); m.register_buffer('total', torch.zeros(2, 4)); return m.to(device)",
    )
    assert results(tmp_path, source, 2)[2].verdict is Verdict.OK


def test_rows_that_depend_on_each_other_are_said_and_not_judged(tmp_path):
    found = results(tmp_path, CLEAN.replace("return state(x)", "return state(x) + x.mean()"), 2)[2]
    assert found.verdict is Verdict.OK
    assert found.probes[-1] == "padding changes live rows in step 3"


def test_an_output_that_is_only_written_in_part_is_found(tmp_path):
    source = CLEAN.replace(
        "return state(x)",
        "make = torch.empty_like if torch.cuda.is_current_stream_capturing() else torch.zeros_like\n    out = make(x)\n"
        "    out[:, :2] = state(x)[:, :2]\n    out[:, 2:].mul_(0)\n    return out",
    )
    found = results(tmp_path, source, 2)[2]
    assert found.verdict is Verdict.REPLAY_DIFFERS


def test_buckets_that_share_a_buffer_of_the_module_disturb_each_other(tmp_path):
    source = CLEAN.replace("import torch\n", "import torch\nSHARED = []\n").replace(
        "def step(state, x):",
        "def step(state, x):\n"
        "    if not SHARED: SHARED.append(torch.zeros(1, device=x.device))\n"
        "    if not hasattr(state, 'start'): state.start = True; SHARED[0].zero_()\n"
        "    SHARED[0].add_(1)\n"
        "    x = x * SHARED[0]",
    )
    found = results(tmp_path, source, 2, 1)
    assert {each.verdict for each in found.values()} == {Verdict.REPLAY_DIFFERS}


def test_a_step_in_inference_mode_is_probed_too(tmp_path):
    source = CLEAN.replace("def step(", "@torch.inference_mode()\ndef step(")
    assert "outputs overwritten" in results(tmp_path, source, 2)[2].probes


def test_random_draws_of_the_device_generator_agree_in_every_probe(tmp_path):
    source = CLEAN.replace("return state(x)", "return torch.multinomial(state(x).softmax(-1), 1)")
    found = results(tmp_path, source, 2, 1)
    assert [found[size].verdict for size in (1, 2)] == [Verdict.OK, Verdict.OK]
