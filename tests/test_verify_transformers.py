"""``hf:`` targets, where transformers is installed. The verdicts are those of a capture by hand on an H200."""

import sys

import pytest

pytest.importorskip("torch")

from runtime_here import messages_of, plan

from capturelint.errors import DeviceError, TargetError
from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.hf import shrunk
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


def test_sizes_that_must_agree_are_made_small_together():
    class Configuration:
        def __init__(self, hidden_size=4096, expand=2, num_heads=128, head_dim=64, vocab_size=32000):
            if hidden_size * expand != num_heads * head_dim:
                raise ValueError("hidden_size * expand must be num_heads * head_dim")
            self.hidden_size, self.expand, self.vocab_size = hidden_size, expand, vocab_size
            self.num_heads, self.head_dim = num_heads, head_dim

    assert vars(shrunk(Configuration)) == {
        "hidden_size": 64, "expand": 1, "num_heads": 4, "head_dim": 16, "vocab_size": 256,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "verdict", "file", "line"),
    [
        ("qwen3", "ok", None, None),
        ("mamba2", "ok", None, None),
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


@pytest.fixture
def saved_model(tmp_path):
    """A directory as ``save_pretrained`` leaves it, and the model that it holds."""
    transformers = pytest.importorskip("transformers", minversion="5")
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def test_a_directory_with_weights_is_verified_with_them(saved_model):
    from capturelint.runtime.hf import configuration, load

    directory, model = saved_model
    loaded = load(str(directory), configuration(str(directory), tiny=False)).state_dict()
    assert {name: tensor.equal(loaded[name]) for name, tensor in model.state_dict().items()} == dict.fromkeys(
        model.state_dict(), True
    )
    sent = messages_of(plan(f"hf:{directory}", buckets=(2, 1), max_length=64))
    results = {each.size: each for each in sent if isinstance(each, BucketResult)}
    assert {size: each.verdict.value for size, each in results.items()} == {2: "ok", 1: "ok"}
    assert "inputs varied" in results[1].probes


def test_a_directory_without_weights_is_verified_with_random_ones(saved_model):
    directory, _ = saved_model
    (directory / "model.safetensors").unlink()
    sent = messages_of(plan(f"hf:{directory}", max_length=64))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    assert result.verdict.value == "ok"
