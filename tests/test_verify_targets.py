"""What is wrong with a target is said in one message, with the user's file and line."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from runtime_here import CLEAN, messages_of, plan, write_target

from capturelint.errors import TargetError
from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.observations import BucketResult
from capturelint.runtime.protocol import Done, Fault, Stage
from capturelint.vocabulary import Verdict

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "verify_targets.h200-torch2.11.json"
TARGETS = RECORDED.parents[1] / "targets"


@pytest.mark.parametrize("recorded", json.loads(RECORDED.read_text()), ids=lambda row: row["target"])
def test_the_emulator_says_what_an_h200_said(recorded):
    sent = messages_of(plan(TARGETS / recorded["target"]))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    found = blame(result.observations, 2, Suspects())
    assert result.verdict.value == recorded["verdict"]
    assert [[finding.rule, finding.place.line] for finding in found] == recorded["blamed"]


def fault_of(tmp_path, source):
    """The one fault of a target."""
    (fault,) = [each for each in messages_of(plan(write_target(tmp_path, source))) if isinstance(each, Fault)]
    return fault


def error_of(tmp_path, source):
    """The error that a target raises here and that the worker's main sends as a fault."""
    with pytest.raises(TargetError) as raised:
        messages_of(plan(write_target(tmp_path, source)))
    return str(raised.value)


def test_a_clean_target_is_ok_at_every_batch(tmp_path):
    sent = messages_of(plan(write_target(tmp_path, CLEAN), buckets=(4, 1)))
    results = {each.size: each for each in sent if isinstance(each, BucketResult)}
    assert {size: (each.verdict, each.max_error) for size, each in results.items()} == {
        4: (Verdict.OK, 0.0),
        1: (Verdict.OK, 0.0),
    }
    assert isinstance(sent[-1], Done)


def test_inputs_that_draw_without_a_seed_are_the_same_whenever_a_step_is_asked_for(tmp_path):
    source = CLEAN.replace("generator=g", "generator=None")
    *_, result = [each for each in messages_of(plan(write_target(tmp_path, source))) if isinstance(each, BucketResult)]
    assert (result.verdict, result.max_error) == (Verdict.OK, 0.0)


def test_inputs_that_no_seed_repeats_are_told_by_name(tmp_path):
    source = CLEAN.replace(".manual_seed(step)", "; g.seed()")
    assert "inputs gives other values for `x`" in error_of(tmp_path, source)


OWN_OUTPUT = """
import dataclasses

@dataclasses.dataclass(slots=True)
class Output:
    scores: object
    size: object

"""


@pytest.mark.parametrize(
    "returned",
    ["state(x), torch.tensor([5.0])", "Output(state(x), 3)", "state(x).to(torch.float8_e4m3fn)"],
    ids=["a host tensor beside", "an output class of its own", "eight-bit floats"],
)
def test_what_a_step_returns_may_be(tmp_path, returned):
    source = OWN_OUTPUT + CLEAN.replace("return state(x)", f"return {returned}")
    *_, result = [each for each in messages_of(plan(write_target(tmp_path, source))) if isinstance(each, BucketResult)]
    assert (result.verdict, result.max_error) == (Verdict.OK, 0.0)


def test_emulated_times_are_absent(tmp_path):
    sent = messages_of(plan(write_target(tmp_path, CLEAN)))
    *_, result = [each for each in sent if isinstance(each, BucketResult)]
    assert (result.eager_ms, result.replay_ms, result.capture_s, result.pool_bytes) == (None, None, None, None)


NESTED = """
from dataclasses import dataclass
import torch

@dataclass
class Meta:
    x: torch.Tensor

def build(device):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    x = torch.full((batch, 4), 1.0 + step, device=device)
    return {"given": GIVEN, "k": 2}

def step(state, given, k):
    return state(USED) * k
"""


@pytest.mark.parametrize(
    ("given", "used"),
    [('{"x": x, "more": (None, 1)}', 'given["x"]'), ("[(x, 3), ()]", "given[0][0]"), ("(x,)", "given[0]")],
)
def test_tensors_in_containers_of_the_inputs_have_static_buffers(tmp_path, given, used):
    source = NESTED.replace("GIVEN", given).replace("USED", used)
    *_, result = [each for each in messages_of(plan(write_target(tmp_path, source))) if isinstance(each, BucketResult)]
    assert result.verdict.value == "ok"


def test_tensors_in_objects_of_the_inputs_are_an_error_that_names_them(tmp_path):
    source = NESTED.replace("GIVEN", "Meta(x)").replace("USED", "given.x")
    with pytest.raises(TargetError, match="`given` as Meta"):
        messages_of(plan(write_target(tmp_path, source)))


@pytest.mark.parametrize("name", ["build", "inputs", "step"])
def test_a_missing_function_is_named(tmp_path, name):
    message = error_of(tmp_path, CLEAN.replace(f"def {name}(", f"def other_{name}("))
    assert f"no `{name}`" in message
    assert "step(state, **inputs)" in message


@pytest.mark.parametrize(
    ("old", "new", "stage", "words"),
    [
        ("import torch", "import torch; import no_such_module", Stage.LOAD, "the file, when it is loaded,"),
        ("torch.manual_seed(0)", "raise ValueError('not today')", Stage.BUILD, "`build` raises: ValueError: not today"),
        ("torch.manual_seed(0)", "import sys; sys.exit(3)", Stage.BUILD, "`build` calls sys.exit(3)"),
        ("g = torch.Generator()", "raise KeyError('x'); g = torch.Generator()", Stage.EAGER, "`inputs`, without"),
        ("return state(x)", "return state(x[:, :1])", Stage.EAGER, "`step`, without any capture, in step 0 raises"),
        ("return state(x)", "import sys; sys.exit()", Stage.EAGER, "`step`, without any capture, in step 0 calls"),
    ],
)
def test_what_a_target_raises_is_said_with_its_line(tmp_path, old, new, stage, words):
    source = CLEAN.replace(old, new, 1)
    fault = fault_of(tmp_path, source)
    line = source[: source.index(new)].count("\n") + 1
    assert fault.stage is stage
    assert words in fault.message
    assert f"model.py:{line}: " in fault.message


@pytest.mark.parametrize(
    ("source", "line"),
    [("import torch\ndef build(:\n", 2), ("import torch\n\0", 1)],
)
def test_a_syntax_error_is_said_with_its_line(tmp_path, source, line):
    fault = fault_of(tmp_path, source)
    assert f"model.py:{line}: the file, when it is loaded, raises: SyntaxError: " in fault.message
    assert "(model.py" not in fault.message


def test_a_driver_takes_the_device(tmp_path):
    target = write_target(tmp_path, "def drive():\n    return 1\n")
    with pytest.raises(TargetError, match="`drive` cannot be called with a device: too many positional arguments"):
        messages_of(plan(target, driver="drive", buckets=(0,)))


def test_inputs_must_be_a_mapping(tmp_path):
    assert "must return a dict" in error_of(
        tmp_path, CLEAN.replace('return {"x": ', "return [").replace(".to(device)}", ".to(device)]")
    )


def test_inputs_of_another_shape_are_refused(tmp_path):
    source = CLEAN.replace("torch.randn(batch, 4,", "torch.randn(batch + step // 2, 4,")
    assert "inputs changes `x` in step 2" in error_of(tmp_path, source)


def test_a_step_without_a_tensor_is_refused(tmp_path):
    assert "without a tensor to compare" in error_of(tmp_path, CLEAN.replace("return state(x)", "state(x)"))


def test_nan_without_any_capture_is_the_targets_fault(tmp_path):
    message = error_of(tmp_path, CLEAN.replace("return state(x)", "return state(x) * float('nan')"))
    assert "returns NaN without any capture, in step 0" in message


def test_eager_runs_that_do_not_agree_leave_nothing_to_compare(tmp_path):
    source = CLEAN.replace("import torch\n", "import torch\nCALLS = []\n").replace(
        "return state(x)", "CALLS.append(1); return x[:, : 1 + len(CALLS) // 9]"
    )
    assert "two eager runs from the same state" in error_of(tmp_path, source)


def test_a_state_that_knows_itself_by_its_id_is_built_again(tmp_path):
    source = CLEAN.replace(
        "return torch.nn.Linear(4, 4).to(device)",
        "m = torch.nn.Linear(4, 4).to(device)\n    m.me = id(m)\n    return m",
    )
    source = source.replace("return state(x)", "assert state.me == id(state)\n    return state(x)")
    *_, result = [each for each in messages_of(plan(write_target(tmp_path, source))) if isinstance(each, BucketResult)]
    assert result.verdict is Verdict.OK


def test_a_target_may_have_the_name_of_a_module(tmp_path):
    target = write_target(tmp_path, CLEAN.replace("import torch", "import random, torch"), "random.py")
    *_, result = [each for each in messages_of(plan(target)) if isinstance(each, BucketResult)]
    assert result.verdict is Verdict.OK
