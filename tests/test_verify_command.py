"""The command line of ``verify``: what it refuses before any worker starts."""

import os

import pytest
from typer.testing import CliRunner

from capturelint.cli import app
from capturelint.errors import UsageError


def refusal(*arguments):
    """The message of a command line that cannot be carried out."""
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert isinstance(result.exception, UsageError), result.output
    return str(result.exception)


@pytest.mark.parametrize("buckets", ["0,2", "x", "2,x", "", "1,,2", "-1", "1.5", "²"])
def test_a_bucket_is_a_whole_number_from_1(tmp_path, buckets):
    target = tmp_path / "model.py"
    target.touch()
    assert refusal(target, "--buckets", buckets).startswith(f"--buckets {buckets}: ")


def test_a_missing_file_is_named():
    assert refusal("no/such.py") == "no/such.py: no such file; a target is a .py file, hf:DIRECTORY or hf:MODEL_TYPE"


def test_a_directory_is_no_target(tmp_path):
    assert "a directory; name the .py file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--steps", "4", "must be at least 5"),
        ("--max-length", "0", "must be at least 1"),
        ("--timeout", "0", "must be above 0"),
        ("--memory-limit", "-1", "must be above 0"),
        ("--tolerance", "-1", "must be at least 0"),
        ("--tolerance", "nan", "must be at least 0"),
        ("--reference", "eager", "is the eager counterpart of a --driver, and none is named"),
    ],
)
def test_a_number_out_of_range_is_refused(tmp_path, option, value, words):
    target = tmp_path / "model.py"
    target.touch()
    assert words in refusal(target, option, value)


def test_a_file_that_is_none_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.py")
    assert "model.py: not a regular file" in refusal(tmp_path / "model.py")


def test_the_file_of_a_reference_is_looked_for_first(tmp_path):
    target = tmp_path / "model.py"
    target.touch()
    words = ("--driver", "run", "--reference", tmp_path / "gone.py:eager")
    assert refusal(target, *words).startswith(f"{tmp_path}/gone.py: no such file")


def test_an_unknown_rule_is_named(tmp_path):
    target = tmp_path / "model.py"
    target.touch()
    assert "unknown rule 'host-synk'; did you mean 'host-sync'?" in refusal(target, "--select", "host-synk")


def test_suspects_must_be_the_json_of_check(tmp_path):
    target, suspects = tmp_path / "model.py", tmp_path / "check.json"
    target.touch()
    suspects.write_text('{"findings": [{"rule": 1}')
    assert f"--suspects {suspects}:1: not JSON: " in refusal(target, "--suspects", suspects)
    suspects.write_text("[]")
    assert "not what `capturelint check --format json` writes" in refusal(target, "--suspects", suspects)
    assert "No such file" in refusal(target, "--suspects", tmp_path / "gone.json")


def test_no_gpu_is_said_with_the_way_out(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from capturelint.runtime.machine import find

    assert find("cuda").message.startswith("no GPU: ")
    assert find("cuda").message.endswith("use --device emulated")
    assert find("auto").device == "emulated"
