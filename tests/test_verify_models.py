"""A file that defines ``build`` alone: the tool makes inputs, positions, mask and cache."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from runtime_here import messages_of, plan, write_target

from capturelint.errors import TargetError
from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.observations import BucketResult
from capturelint.vocabulary import Verdict

MODELS = Path(__file__).parents[1] / "fixtures" / "generate"

FLAT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.place = nn.Embedding(64, 4)

    def forward(self, input_ids, positions):
        if input_ids.dim() != 1 or positions.shape != input_ids.shape:
            raise ValueError("flat tensors, please")
        return self.embed(input_ids) + self.place(positions)

def build(device):
    torch.manual_seed(0)
    return Model().to(device)
"""


def verdicts(target, **changes):
    sent = messages_of(plan(target, **changes))
    return list({each.size: each.verdict for each in sent if isinstance(each, BucketResult)}.values())


def error_of(tmp_path, source):
    with pytest.raises(TargetError) as raised:
        messages_of(plan(write_target(tmp_path, source)))
    return str(raised.value)


@pytest.mark.parametrize("name", ["gptfast.py", "decoder.py"])
def test_a_model_with_caches_of_either_kind_is_verified(name):
    assert verdicts(MODELS / name, buckets=(2, 1)) == [Verdict.OK, Verdict.OK]


def test_flat_tokens_and_positions_are_found_by_trying(tmp_path):
    assert verdicts(write_target(tmp_path, FLAT)) == [Verdict.OK]


def test_a_position_kept_in_python_is_found(tmp_path):
    source = FLAT.replace("positions.shape != input_ids.shape", "False").replace(
        "return self.embed(input_ids)",
        "self.n = getattr(self, 'n', 0) + 1\n        return self.n * self.embed(input_ids)",
    )
    assert verdicts(write_target(tmp_path, source)) == [Verdict.REPLAY_DIFFERS]


def test_a_parameter_that_cannot_be_filled_is_named(tmp_path):
    message = error_of(tmp_path, FLAT.replace("(self, input_ids, positions)", "(self, input_ids, positions, slots)"))
    assert "`forward` needs `slots`" in message
    assert "define inputs and step" in message


def test_a_model_without_token_ids_is_refused(tmp_path):
    assert "called like token ids" in error_of(tmp_path, FLAT.replace("input_ids", "hidden"))


def test_a_call_that_never_works_says_why(tmp_path):
    message = error_of(tmp_path, FLAT.replace("flat tensors, please", "never").replace("!= 1 or", "!= 9 or"))
    assert "no way of calling `forward" in message
    assert "ValueError: never" in message


def test_build_must_return_a_module(tmp_path):
    source = FLAT.replace("return Model().to(device)", "return [1]")
    assert "build returns list; without inputs and step it must return an nn.Module" in error_of(tmp_path, source)


def test_a_line_of_a_model_that_is_only_imported_is_blamed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    body = FLAT[: FLAT.index("def build")].replace(
        "return self.embed", "int(positions[0])  # here\n        return self.embed"
    )
    model = write_target(tmp_path / "elsewhere", body, "its_model.py")
    (tmp_path / "here").mkdir()
    source = f"import sys\nsys.path.insert(0, {str(model.parent)!r})\nfrom its_model import Model\n"
    source += "def build(device):\n    return Model().to(device)\n"
    sent = messages_of(plan(write_target(tmp_path / "here", source)))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    (found,) = blame(result.observations, 2, Suspects())
    line = next(number for number, text in enumerate(body.splitlines(), 1) if text.endswith("# here"))
    assert (found.rule, found.place.path.name, found.place.line) == ("implicit-sync", "its_model.py", line)


BLOCKS = """
import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)

    def setup_caches(self, max_batch_size, max_seq_length):
        self.max_seq_length = max_seq_length
        self.keys = torch.zeros(max_batch_size, max_seq_length, 4, device=self.embed.weight.device)

    def forward(self, mask: BlockMask, idx, input_pos):
        inner = mask.mask_mod
        mask.mask_mod = lambda batch, head, query, key: inner(batch, head, query + input_pos, key)
        x = self.embed(idx)
        self.keys[:, input_pos] = x
        places = torch.arange(self.max_seq_length, device=x.device)
        allowed = mask.mask_mod(0, 0, 0, places)
        weights = (x @ self.keys.mT).masked_fill(~allowed, float("-inf")).softmax(-1)
        return weights @ self.keys

def build(device):
    torch.manual_seed(0)
    return Model().to(device)
"""


def test_a_block_mask_is_made_afresh_for_every_step(tmp_path):
    assert verdicts(write_target(tmp_path, BLOCKS), buckets=(2, 1)) == [Verdict.OK, Verdict.OK]


START_POS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.register_buffer("keys", torch.zeros(4, 64, 4))

    def forward(self, tokens: torch.Tensor, start_pos: int):
        x = self.embed(tokens)
        self.keys[: x.shape[0], start_pos : start_pos + 1] = x  # here
        return (x @ self.keys[: x.shape[0], : start_pos + 1].mT).softmax(-1) @ self.keys[: x.shape[0], : start_pos + 1]

def build(device):
    torch.manual_seed(0)
    return Model().to(device)
"""


@pytest.mark.parametrize("annotation", [": int", ""])
def test_a_position_that_is_a_number_of_the_host_is_one_that_the_graph_freezes(tmp_path, annotation):
    source = START_POS.replace("start_pos: int", f"start_pos{annotation}")
    sent = messages_of(plan(write_target(tmp_path, source)))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    found = blame(result.observations, 2, Suspects())
    line = source[: source.index("# here")].count("\n") + 1
    assert (result.verdict, found[0].rule, found[0].place.line) == (Verdict.REPLAY_DIFFERS, "baked-scalar", line)
