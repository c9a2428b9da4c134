"""``hf:`` targets, where transformers is installed. The verdicts are those of a capture by hand on an H200."""

import sys

import pytest

pytest.importorskip("torch")

from runtime_here import messages_of, plan

from capturelint.errors import DeviceError, TargetError
from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.observations import BucketResult


def test_transformers_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DeviceError, match=r"pip install 'capturelint\[transformers\]'"):
        messages_of(plan("hf:qwen3", tiny=True))


def test_an_unknown_model_type_is_refused():
    pytest.importorskip("transformers")
    with pytest.raises(TargetError, match="no causal language model of this transformers has that type"):
        messages_of(plan("hf:no_such_model", tiny=True))


def test_a_directory_needs_a_configuration(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(TargetError, match=r"no config\.json in it"):
        messages_of(plan(f"hf:{tmp_path}"))


@pytest.mark.parametrize(
    ("kind", "verdict", "file", "line"),
    [
        ("qwen3", "ok", None, None),
        ("gptj", "capture-error", "masking_utils.py", 604),
        ("gemma3_text", "replay-differs", "cache_utils.py", 548),
    ],
)
def test_an_architecture_gets_the_verdict_of_the_gpu(kind, verdict, file, line):
    pytest.importorskip("transformers", minversion="5.17")
    sent = messages_of(plan(f"hf:{kind}", tiny=True, max_length=256))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    found = {(each.place.path.name, each.place.line) for each in blame(result.observations, 2, Suspects())}
    assert result.verdict.value == verdict
    assert file is None or (file, line) in found
