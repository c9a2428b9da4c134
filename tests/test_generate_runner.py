"""Generated runners under the emulator: token for token what the step gives without graphs."""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from capturelint import emulator  # noqa: E402
from capturelint.cli import main  # noqa: E402
from capturelint.runtime.blame import Suspects  # noqa: E402
from capturelint.runtime.protocol import Plan  # noqa: E402
from capturelint.runtime.target import load_module  # noqa: E402
from capturelint.runtime.verify import Limits, verify  # noqa: E402
from capturelint.vocabulary import Verdict  # noqa: E402

FIXTURES = Path(__file__).parents[1] / "fixtures" / "generate"
TARGETS = {name: str(FIXTURES / f"{name}.py") for name in ("gptfast", "decoder", "counted")}
if find_spec("transformers"):
    TARGETS["qwen3"] = f"hf:{FIXTURES / 'qwen3'}"
PROMPTS = {"decoder": [[5, 6, 7], [8, 9], [1]], "qwen3": [[5, 6, 7], [8, 9], [1]]}
LEVEL = [[5, 6, 7], [8, 9, 10], [1, 2, 3]]
"""Prompts for models whose rows share their position."""


def generate(*arguments: str) -> int:
    """The command's exit code."""
    before = sys.argv
    sys.argv = ["capturelint", "generate", *arguments]
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.fixture(scope="module", params=TARGETS)
def generated(request, tmp_path_factory):
    """A runner's path and the prompts that it takes."""
    path = tmp_path_factory.mktemp("runner") / f"{request.param}_runner.py"
    sizes = ("--buckets", "1,2,4", "--max-batch", "5", "--max-length", "32")
    assert generate(TARGETS[request.param], "-o", str(path), *sizes, "--unsafe", "--quiet") == 0
    return path, PROMPTS.get(request.param, LEVEL)


def without_graphs(module, prompt: list[int], new: int) -> list[int]:
    """Greedy tokens of one prompt alone, run eagerly."""
    runner = module.Runner(module.DecodeStep(module.build_model("cuda"), "cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runner.decode(runner.prefill([prompt]), new)[0].tolist()


def test_a_runner_decodes_what_eager_decodes(generated):
    with emulator.cuda():
        decode_like_eager(*generated)


@pytest.mark.gpu
def test_a_runner_decodes_what_eager_decodes_on_a_gpu(generated):
    decode_like_eager(*generated)


def decode_like_eager(path: Path, prompts: list[list[int]]) -> None:
    """Padded batch against each prompt alone, early stop, a batch above the largest bucket, no room."""
    module = load_module(path)
    runner = module.Runner(module.DecodeStep(module.build_model("cuda"), "cuda"))
    runner.warm_up()
    tokens = runner.decode(runner.prefill(prompts), 8)
    assert (dict(runner.hits), runner.num_eager_steps) == ({4: 8}, 0)
    assert tokens.tolist() == [without_graphs(module, prompt, 8) for prompt in prompts]

    stop = [row[2] for row in tokens.tolist()]
    runner.reset()
    stopped = runner.decode(runner.prefill(prompts), 8, stop=stop, check_every=4)
    assert stopped.shape[1] == 4  # every row has met a stop token in the first chunk
    assert sum(runner.hits.values()) == 4

    runner.reset()
    with pytest.warns(UserWarning, match="batch 5 runs eagerly: above the largest bucket") as told:
        above = runner.decode(runner.prefill([prompts[0]] * 5), 4)
    assert (len(told), runner.num_eager_steps, sum(runner.hits.values())) == (1, 4, 0)
    assert above.tolist() == [tokens[0, :4].tolist()] * 5

    with pytest.raises(ValueError, match="above 32"):
        runner.decode(above[:, -1], 40)
    with pytest.raises(ValueError, match="6 prompts, the longest 3 tokens, are above 5 rows of 32"):
        runner.prefill([prompts[0]] * 6)


def test_a_runner_passes_verify_emulated(generated):
    path, _ = generated
    plan = Plan(target=str(path), device="emulated", buckets=(1, 4), steps=6, warm_up=3, max_length=32)
    report = verify(plan, Limits(timeout_s=120, memory_gib=None), Suspects())
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.OK, Verdict.OK]
    assert report.findings == ()


@pytest.mark.gpu
def test_a_runner_passes_verify_on_a_gpu(generated):
    path, _ = generated
    plan = Plan(target=str(path), device="cuda", buckets=(1, 2, 4), steps=8, warm_up=3, max_length=32)
    report = verify(plan, Limits(timeout_s=120, memory_gib=None), Suspects())
    assert [bucket.verdict for bucket in report.buckets] == [Verdict.OK] * 3


def test_the_driver_equals_its_reference(generated):
    path, _ = generated
    with emulator.cuda():
        module = load_module(path)
        assert module.DRIVEN_BATCH == 3  # padded to 4
        got, expected = module.capture_and_run("cuda"), module.run_eager("cuda")
        assert torch.allclose(got, expected, atol=1e-5)


UNSAFE = """\
import torch


class State:
    def __init__(self, device):
        self.embed = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(device)


def build(device):
    return State(device)


def inputs(batch, step, device):
    return {"tokens": torch.full((batch,), step % 8, device=device)}


def step(state, tokens):
    x = state.embed[tokens]
    if x.sum().item() > 1e9:
        x = -x
    return x
"""


def test_an_unsafe_step_is_refused_with_its_findings(tmp_path, capsys):
    target, runner = tmp_path / "unsafe.py", tmp_path / "runner.py"
    target.write_text(UNSAFE)
    arguments = (str(target), "-o", str(runner), "--buckets", "2", "--max-length", "16")
    assert generate(*arguments) == 2
    captured = capsys.readouterr()
    assert "unsafe.py:19" in captured.out
    assert captured.err.endswith("the step is unsafe, so no runner is written; --unsafe writes it anyway\n")
    assert not runner.exists()
    assert generate(*arguments, "--unsafe") == 0
    assert runner.exists()


def test_an_existing_file_is_overwritten_only_by_force(tmp_path, capsys):
    runner = tmp_path / "runner.py"
    runner.write_text("mine")
    assert generate(TARGETS["counted"], "-o", str(runner), "--unsafe") == 2
    assert capsys.readouterr().err == f"error: --output {runner}: the file exists; --force overwrites it\n"
    assert runner.read_text() == "mine"
    assert generate(TARGETS["counted"], "-o", str(runner), "--unsafe", "--force", "--max-length", "64") == 0
    assert runner.read_text() != "mine"


def test_buckets_come_from_a_saved_plan(tmp_path):
    plan, runner = tmp_path / "plan.json", tmp_path / "runner.py"
    plan.write_text('{"schema": 1, "buckets": [3, 6]}')
    arguments = ("--plan", str(plan), "--max-length", "64", "--check-every", "32", "--unsafe")
    assert generate(TARGETS["counted"], "-o", str(runner), *arguments) == 0
    lines = runner.read_text().splitlines()
    assert "BUCKETS = (3, 6)" in lines
    assert any(line.startswith("CHECK_EVERY = 32 ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--buckets", "1,x"), "'x' is no batch size"),
        (("--buckets", "8", "--max-batch", "4"), "--max-batch 4 is too small; it must be at least 8"),
        (("--check-every", "0"), "--check-every 0 is too small"),
        (("--plan", "nowhere.json"), "nowhere.json: "),
        (("--buckets", "1", "--plan", "p.json"), "--buckets and --plan both name the sizes"),
    ],
)
def test_numbers_that_make_no_runner_are_refused(arguments, message, tmp_path, capsys):
    assert generate(TARGETS["counted"], "-o", str(tmp_path / "runner.py"), *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "nowhere.py: no such file"),
        ("hf:qwen3", "a model type needs --tiny"),
    ],
)
def test_targets_that_are_not_there_are_named(target, message, tmp_path, capsys):
    assert generate(target, "-o", str(tmp_path / "runner.py")) == 2
    assert message in capsys.readouterr().err
