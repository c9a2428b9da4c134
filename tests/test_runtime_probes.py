"""Steps that replay right until memory is overwritten, rows are padded or buckets take turns."""

import pytest

pytest.importorskip("torch")

import torch
from runtime_here import CLEAN, messages_of, plan, write_target

from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.observations import BucketResult
from capturelint.runtime.poison import spoil
from capturelint.runtime.syntax import source_lines
from capturelint.vocabulary import Verdict

ALONE = ("inputs reallocated", "inputs alive", "outputs overwritten", "inputs varied")
TOGETHER = ("buckets in turns", "outputs held while others run")


def results(tmp_path, source, *buckets):
    """The last word on each bucket."""
    sent = messages_of(plan(write_target(tmp_path, source), buckets=buckets))
    return {each.size: each for each in sent if isinstance(each, BucketResult)}


def blamed(result, bucket=2):
    """Rule, code of the line and confidence of every finding."""
    found = blame(result.observations, bucket, Suspects())
    return [
        (each.rule, source_lines(str(each.place.path))[each.place.line - 1].decode().strip(), each.confidence.word)
        for each in found
    ]


def test_a_clean_step_passes_every_probe(tmp_path):
    found = results(tmp_path, CLEAN, 4, 1)
    assert [said.split(",")[0].removesuffix(" (by torch too)") for said in found[4].probes] == [
        *ALONE,
        "padding ignored",
        *TOGETHER,
    ]
    assert [said.split(",")[0].removesuffix(" (by torch too)") for said in found[1].probes] == [*ALONE, *TOGETHER]


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
    assert blamed(found) == [("pad-write", "return state(x) + x.mean()", "likely")]


HISTORY = """
import torch

def build(device):
    return torch.zeros(3, device=device)

def inputs(batch, step, device):
    return {"x": torch.full((batch, 8), 9.0 - step, device=device)}

def step(history, x):
    scale = history.amax() + 1
    history.copy_(history.roll(1))
    history[:1] = x.amax()  # of all rows
    return x / scale
"""


def test_a_statistic_of_all_rows_that_the_state_keeps_is_said_and_not_judged(tmp_path):
    found = results(tmp_path, HISTORY, 2)[2]
    assert found.verdict is Verdict.OK
    assert blamed(found) == [("pad-write", "history[:1] = x.amax()  # of all rows", "likely")]


PAGED = """
import torch

def build(device):
    return torch.zeros(4, 8, device=device)

def inputs(batch, step, device):
    slot = (torch.arange(batch) * 3 + step * STRIDE) % 4
    return {"x": torch.full((batch, 8), 1.0 + step, device=device), "slot": slot.to(device)}

def step(store, x, slot):
    store.index_copy_(0, slot, x)
    return store[:1] + x
"""


def test_a_padded_row_that_writes_into_a_live_one_is_blamed_on_the_write(tmp_path):
    found = results(tmp_path, PAGED.replace("STRIDE", "1"), 2)[2]
    assert found.verdict is Verdict.REPLAY_DIFFERS
    assert blamed(found) == [("pad-write", "store.index_copy_(0, slot, x)", "proven")]


BLOCKS = """
import torch
import torch.nn.functional as F

TABLE = torch.arange(16).view(4, 4)
OWNED

def build(device):
    g = torch.Generator().manual_seed(5)
    return {
        "embed": torch.randn(40, 16, generator=g).to(device),
        "kv": torch.zeros(16, 4, 16, device=device),  # [blocks, positions in a block, channels]
        "table": TABLE.to(device),
    }

def inputs(batch, step, device):
    g = torch.Generator().manual_seed(70 + step)
    token = torch.randint(0, 40, (batch,), generator=g)
    return {"token": token.to(device), "pos": torch.full((batch,), step).to(device)}

@torch.no_grad()
def step(state, token, pos):
    x, table = state["embed"][token], state["table"][: token.shape[0]]
    slot = table.gather(1, (pos // 4)[:, None])[:, 0] * 4 + pos % 4
    state["kv"].view(-1, 16).index_copy_(0, slot, x)
    kv = state["kv"][table].flatten(1, 2)
    live = torch.arange(16, device=x.device) <= pos[:, None]
    return F.scaled_dot_product_attention(x[:, None], kv, kv, attn_mask=live[:, None])[:, 0] @ state["embed"].t()
"""


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        ("", []),
        ("TABLE[1:] = 0  # rows without a request keep the block of row 0", ["pad-write"]),
        ("TABLE[1:] = 1  # a block that row 0 reads from its fifth position on", ["pad-write"]),
    ],
)
def test_a_padded_row_that_writes_into_a_live_block_of_a_paged_cache_is_found(tmp_path, owned, expected):
    found = results(tmp_path, BLOCKS.replace("OWNED", owned), 4)[4]
    assert [rule for rule, line, _ in blamed(found, 4) if "index_copy_" in line] == expected
    assert (found.verdict is Verdict.OK) is (not expected)


def test_a_padded_row_that_stays_in_its_own_slot_is_harmless(tmp_path):
    found = results(tmp_path, PAGED.replace("STRIDE", "0"), 2)[2]
    assert "padding ignored" in found.probes


def test_an_input_that_is_read_past_its_static_buffer_is_found_though_its_address_came_again(tmp_path):
    source = CLEAN.replace("import torch\n", "import torch\nLAST = [None]\n").replace(
        'return {"x": torch.randn(batch, 4, generator=g).to(device)}',
        "LAST[0] = None\n    LAST[0] = torch.randn(batch, 4, generator=g).to(device)\n    return {'x': LAST[0]}",
    )
    found = results(tmp_path, source.replace("return state(x)", "return state(LAST[0])"), 2)[2]
    assert found.verdict is Verdict.REPLAY_DIFFERS
    assert blamed(found) == [("input-rebind", "return state(LAST[0])", "proven")]


def test_a_constant_input_that_the_host_reads_is_found_by_another_value(tmp_path):
    source = CLEAN.replace('{"x": ', '{"t": torch.full((1,), 2.0), "x": ').replace("(state, x)", "(state, x, t)")
    found = results(tmp_path, source.replace("return state(x)", "return state(x) / t.item()"), 2)[2]
    assert found.verdict is Verdict.REPLAY_DIFFERS
    assert blamed(found) == [("baked-scalar", "return state(x) / t.item()", "proven")]


def test_a_constant_input_that_cannot_be_varied_is_said(tmp_path):
    source = CLEAN.replace('{"x": ', '{"n": torch.full((1,), 2).to(device), "x": ').replace(
        "(state, x)", "(state, x, n)"
    )
    (said,) = [each for each in results(tmp_path, source, 2)[2].probes if each.startswith("inputs varied")]
    assert said == "inputs varied but for `n`, which never change"


def test_memory_that_the_captured_step_frees_is_blamed_on_the_line_that_frees_it(tmp_path):
    source = CLEAN.replace(
        "return state(x)",
        "scale = state.scale\n    state.scale = torch.ones(4, device=x.device)\n    return state(x) * scale",
    )
    source = source.replace(
        "return torch.nn.Linear(4, 4).to(device)",
        "m = torch.nn.Linear(4, 4).to(device)\n    m.scale = torch.ones(4, device=device)\n    return m",
    )
    found = results(tmp_path, source, 2)[2]
    assert found.verdict is Verdict.REPLAY_DIFFERS
    assert [rule for rule, _, _ in blamed(found)] == ["freed-memory"]


def test_an_output_that_another_bucket_overwrites_while_it_is_held_is_found(tmp_path):
    source = CLEAN.replace("import torch\n", "import torch\nOUT = []\n").replace("seed(step)", "seed(9 * step + batch)")
    source = source.replace(
        "return state(x)",
        "if not OUT: OUT.append(torch.zeros(4, 4, device=x.device))\n"
        "    OUT[0][: x.shape[0]].copy_(state(x))\n    return OUT[0][: x.shape[0]]",
    )
    found = results(tmp_path, source, 2, 1)
    assert found[2].verdict is Verdict.REPLAY_DIFFERS
    assert "is held is overwritten by another bucket's replay" in found[2].message
    assert [rule for rule, _, _ in blamed(found[2])] == ["stale-output"]


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
    assert ("warm-up-state", "SHARED[0].add_(1)", "proven") in blamed(found[2])


def test_a_step_in_inference_mode_is_probed_too(tmp_path):
    source = CLEAN.replace("def step(", "@torch.inference_mode()\ndef step(")
    assert "outputs overwritten" in results(tmp_path, source, 2)[2].probes


def test_random_draws_of_the_device_generator_agree_in_every_probe(tmp_path):
    source = CLEAN.replace("return state(x)", "return torch.multinomial(state(x).softmax(-1), 1)")
    found = results(tmp_path, source, 2, 1)
    assert [found[size].verdict for size in (1, 2)] == [Verdict.OK, Verdict.OK]


COUNTED = """
import torch

class Chain(list):
    calls = 0

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.said, self.chain = torch.nn.Linear(4, 4), 0, [], Chain()
        self.table = None
        self.register_buffer("amax", torch.ones(4))

    def forward(self, x):
        y = self.layer(x)
        COUNT
        return y * self.amax

CALLS = 0

def build(device):
    torch.manual_seed(0)
    return Model().to(device)

def inputs(batch, step, device):
    g = torch.Generator().manual_seed(step)
    return {"x": torch.randn(batch, 4, generator=g).to(device)}

def step(state, x):
    return state(x)
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("self.calls += 1\nif self.calls <= 2:\n    y = y + 1", "if self.calls <= 2:"),
        ("self.calls += 1\nif self.calls % 64 == 2:\n    y = y + 1", "if self.calls % 64 == 2:"),
        ("y = y * min(self.calls, 2)\nself.calls += 1", "y = y * min(self.calls, 2)"),
        ("self.chain.calls += 1\nif self.chain.calls < 2:\n    y = y + 1", "if self.chain.calls < 2:"),
        ("self.said.append(0)\nif len(self.said) < 2:\n    y = y + 1", "if len(self.said) < 2:"),
        ("global CALLS\nCALLS += 1\nif CALLS < 2:\n    y = y + 1", "if CALLS < 2:"),
        ("self.calls += 1\nif self.calls <= 2:\n    print('early')", None),
        (
            "if not torch.cuda.is_current_stream_capturing():\n    self.calls += 1\n    y = y + (self.calls <= 2)",
            None,
        ),
        ("self.calls = min(self.calls + 1, 2)\nif self.calls < 2:\n    y = y + 1", None),
        ("if self.calls == 0:\n    self.table = torch.ones_like(x)\nself.calls += 1\ny = y + self.table", None),
    ],
    ids=["counted", "periodic", "clamped", "derived", "length", "global", "printed", "guarded", "settled", "lazy"],
)
def test_what_a_step_does_while_a_count_is_low_is_not_used_up_by_the_warm_up(tmp_path, code, expected):
    found = results(tmp_path, COUNTED.replace("COUNT\n", code.replace("\n", "\n        ") + "\n"), 2)[2]
    assert found.verdict is (Verdict.REPLAY_DIFFERS if expected else Verdict.OK)
    assert [line for _, line, _ in blamed(found)] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("values", "spoiled"),
    [
        (torch.tensor([3, 0, -1, 70_000]), torch.ones(4, dtype=torch.int64)),
        (torch.tensor([3, 0, 7, 9], dtype=torch.int32), torch.tensor([1, 0, 1, 0], dtype=torch.int32)),
        (torch.tensor([0.5, -2.0, 0.0, 1e-9]), torch.full((4,), torch.nan)),
        (torch.full((8,), 0.25, dtype=torch.bfloat16), torch.full((8,), torch.nan, dtype=torch.bfloat16)),
        (torch.zeros(4), torch.full((4,), torch.nan)),
    ],
    ids=["indices", "32-bit indices", "floats", "halves", "zeros"],
)
def test_free_memory_is_spoiled_as_what_it_holds(values, spoiled):
    spoil(values.view(torch.uint8))
    assert torch.equal(values.nan_to_num(7.0), spoiled.nan_to_num(7.0))
