"""Bad input: one clear message, exit code 2, no traceback; and nothing of what is checked is ever run."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capturelint.report import Format

STEP = """\
import torch


def build(device):
    return torch.zeros(4, device=device)


def inputs(batch, step, device):
    return {"x": torch.zeros(batch, device=device)}


def step(state, x):
    return state + x.sum().item()
"""


def test_a_missing_path(run):
    assert run("check", "gone.py") == (2, "", "error: no such file or directory: gone.py\n")


def test_a_directory_without_python(run, tmp_path):
    (tmp_path / "docs").mkdir()
    assert run("check", "docs") == (2, "", "error: no Python files in docs\n")


def test_an_unknown_rule(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    code, out, err = run("check", "m.py", "--select", "host-synk")
    assert (code, out, err) == (2, "", "error: unknown rule 'host-synk'; did you mean 'host-sync'?\n")


def test_an_unknown_key_of_the_configuration(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    (tmp_path / "capturelint.toml").write_text("\nselct = []\n")
    code, out, err = run("check", "m.py")
    assert (code, out) == (2, "")
    assert err.endswith("capturelint.toml:2: unknown key 'selct'; did you mean 'select'?\n")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("broken.py", b"def step(:\n", "broken.py:1: "),
        ("python2.py", b"print 'hello'\n", "python2.py:1: "),
        ("binary.py", b"\x7fELF\x00\x00", "binary.py:1: a NUL byte; this is not Python source"),
        ("latin.py", b"# \xe9\n", "latin.py:1: "),
        ("deep.py", b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", "deep.py"),
        ("deep_call.py", b"x = " + b"f(" * 5000 + b")" * 5000 + b"\n", "deep_call.py"),
        ("long.py", b"x = '" + b"a" * 5_000_001 + b"'\n", "long.py: larger than 5 MB"),
        ("tabs.py", b"if x:\n\ty\n        z\n", "tabs.py:"),
        ("notebook.ipynb", b"{", "notebook.ipynb:1: not a notebook"),
    ],
)
def test_a_file_that_cannot_be_checked(run, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "model.py").write_text(STEP)
    code, out, err = run("check", ".", "--format", "json")
    record = json.loads(out)
    assert code == 2
    assert err.startswith(f"error: {said}")
    assert "Traceback" not in err
    assert [error["path"] for error in record["errors"]] == [name]
    assert [finding["path"] for finding in record["findings"]] == ["model.py"], "the other files are still checked"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xef\xbb\xbf", b"# coding: latin-1\nx = '\xe9'\n", b"x = 1\r\ny = 2\r\n"]
)
def test_odd_files_that_are_python(run, tmp_path, content):
    (tmp_path / "odd.py").write_bytes(content)
    code, _, err = run("check", "odd.py")
    assert (code, err) == (0, "")


def test_a_long_expression_is_read(run, tmp_path):
    (tmp_path / "sum.py").write_text("x = " + " + ".join(["1"] * 3000) + "\n")
    assert run("check", "sum.py")[0] in {0, 2}


def test_a_name_cannot_start_a_workflow_command(run, tmp_path):
    (tmp_path / "a\n::error::b.py").write_text(STEP)
    code, out, _ = run("check", ".", "--format", "github")
    assert code == 1
    assert [line for line in out.splitlines() if not line.startswith("::error title=capturelint")] == []


def test_the_configuration_says_what_is_checked(run, tmp_path):
    for name in ("m.py", "old/m.py", "m.pyw", "ignored.py", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(STEP)
    (tmp_path / ".gitignore").write_text("ignored.*\n")
    (tmp_path / "capturelint.toml").write_text("exclude = ['old']\ninclude = ['*.py', '*.pyw']\n")
    found = json.loads(run("check", ".", "--format", "json")[1])["findings"]
    assert [finding["path"] for finding in found] == ["m.py", "m.pyw"]


NASTY = "a\n::error::b\x1b[2J\u202e.py"


@pytest.mark.parametrize("format", [format.value for format in Format])
@pytest.mark.parametrize("words", [(), ("--statistics",)], ids=["findings", "statistics"])
def test_a_name_is_escaped_in_every_format(run, tmp_path, format, words):
    (tmp_path / NASTY).write_text(STEP)
    (tmp_path / f"broken{NASTY}").write_text("def (:\n")
    code, out, err = run("check", ".", "--format", format, *words)
    assert code == 2
    assert not {"\x1b", "\u202e"} & {*out, *err}
    assert not any(line.startswith("::error::b") for line in (out + err).splitlines())


def test_a_name_is_escaped_in_patches_and_errors(run, tmp_path):
    (tmp_path / NASTY).write_text(STEP.replace("state + x.sum().item()", "torch.tensor([1.0]).to(x.device)"))
    said = [
        run("check", ".", "--diff", "--unsafe-fixes"),
        run("check", ".", "--entry", NASTY),
        run("check", NASTY + "x"),
    ]
    assert not {"\x1b", "\u202e"} & set("".join(out + err for _, out, err in said))


@pytest.mark.parametrize("words", [("check", "m.py"), ("logs", "m.py"), ("plan", "sizes.csv")])
def test_an_output_file_that_cannot_be_written(run, tmp_path, words):
    (tmp_path / "m.py").write_text(STEP)
    (tmp_path / "sizes.csv").write_text("batch_size,count\n1,2\n")
    code, out, err = run(*words, "--output", "gone/report.txt")
    assert (code, out, err) == (2, "", "error: --output gone/report.txt: No such file or directory\n")


def test_nothing_of_what_is_checked_is_run(run, tmp_path):
    trap = "from pathlib import Path\nPath(__file__).with_suffix('.sprung').touch()\nraise SystemExit('sprung')\n"
    for name in (
        "model.py",
        "conftest.py",
        "setup.py",
        "sitecustomize.py",
        "pkg/__init__.py",
        "pkg/torch.py",
        "torch.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{trap}{STEP}\n\ndef read(state, x):\n    return step(state, x)\n")
    (tmp_path / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'setup'\nbackend-path = ['.']\n"
        "[tool.capturelint]\nentry = ['model:read']\n"
        "[project]\nname = 'trap'\ndependencies = ['torch>=2.6']\n"
    )
    code, _, err = run("check", ".", "--follow", "pkg")
    assert (code, err) == (1, "")
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".sprung" or path.name == "__pycache__"] == []


def test_findings_do_not_depend_on_the_order_of_paths(run, tmp_path):
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(STEP)
    forth, back = (
        json.loads(run("check", *names, "--format", "json")[1])
        for names in (["a.py", "b.py", "c.py"], ["c.py", "a.py", "b.py"])
    )
    assert forth == back


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_is_not_waited_for(run, tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    assert run("check", "pipe.py")[2] == "error: pipe.py: not a regular file\n"


def test_a_link_to_itself_is_no_file(run, tmp_path):
    (tmp_path / "loop.py").symlink_to("loop.py")
    assert run("check", "loop.py") == (2, "", "error: no such file or directory: loop.py\n")


def test_a_working_directory_that_is_gone(tmp_path):
    (tmp_path / "gone").mkdir()
    code = "import os, sys, capturelint.cli as cli; os.rmdir(os.getcwd()); sys.argv = ['', 'check', 'm.py']; cli.main()"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "gone", capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (2, "error: the working directory does not exist any more\n")


def test_a_pipe_of_ascii_shows_sources_all_the_same(tmp_path):
    (tmp_path / "m.py").write_text(STEP.replace("state + x", "'\u4e2d', x"), encoding="utf-8")
    command = [sys.executable, "-m", "capturelint", "check", "m.py"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "return '\\u4e2d', x.sum().item()" in ended.stdout


# ---------------------------------------------------------------- standard input


@pytest.fixture
def type_in(monkeypatch) -> Callable[[str], None]:
    """Puts a text on standard input."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_standard_input_is_checked_under_its_name(run, type_in):
    type_in(STEP)
    code, out, _ = run("check", "--stdin-filename", "pkg/m.py", "-", "--format", "json")
    assert (code, [(f["path"], f["line"]) for f in json.loads(out)["findings"]]) == (1, [("pkg/m.py", 13)])


def test_standard_input_is_checked_in_place_of_the_file(run, type_in, tmp_path):
    (tmp_path / "m.py").write_text("x = 1\n")
    type_in(STEP)
    assert "13 |     return state + x.sum().item()" in run("check", "--stdin-filename", "m.py", "-")[1]


def test_a_notebook_on_standard_input(run, type_in):
    cells = [{"cell_type": "markdown", "source": "text"}, {"cell_type": "code", "source": STEP}]
    type_in(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}))
    assert run("check", "--stdin-filename", "n.ipynb", "-")[1].startswith("n.ipynb:cell 2:13:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-",), "-: name what is on standard input with --stdin-filename NAME"),
        (("m.py", "--stdin-filename", "m.py"), "--stdin-filename: give - for the path, which is standard input"),
        (("-", "m.py", "--stdin-filename", "m.py"), "-: standard input is checked alone"),
        (("-", "--stdin-filename", "m.py", "--fix"), "-: --fix and --diff rewrite files, not standard input"),
    ],
)
def test_standard_input_has_one_name_and_stands_alone(run, words, said):
    assert run("check", *words) == (2, "", f"error: {said}\n")


# ---------------------------------------------------------------- kept results


def test_the_directory_of_kept_results_is_the_projects_own_where_it_says_so(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    (tmp_path / "capturelint.toml").write_text("cache-dir = '.capturelint_cache'\n")
    assert run("cache", "dir")[1] == f"{tmp_path.resolve() / '.capturelint_cache'}\n"
    first, second = run("check", "m.py"), run("check", "m.py")
    assert first == second
    assert run("cache", "clear")[1].startswith("2 records removed from ")
    assert run("cache", "clear")[1].startswith("0 records removed from ")


def test_no_cache_writes_nothing(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    (tmp_path / "capturelint.toml").write_text("cache-dir = 'kept'\n")
    assert run("check", "m.py", "--no-cache")[0] == 1
    assert not (tmp_path / "kept").exists()


@pytest.mark.skipif(getattr(os, "getuid", lambda: 0)() == 0, reason="root may read everything")
def test_an_unreadable_file(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    (tmp_path / "m.py").chmod(0)
    assert run("check", "m.py")[2] == "error: m.py: cannot be read: permission denied\n"


def test_a_baseline_is_written_and_used(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    assert run("check", "m.py", "--write-baseline", "--baseline", "known.json")[0] == 0
    code, out, _ = run("check", "m.py", "--baseline", "known.json")
    assert (code, out.splitlines()[-1]) == (0, "no findings in 1 file, 1 in the baseline")


def test_an_entry_that_is_repaired_is_reported_as_gone(run, tmp_path):
    (tmp_path / "m.py").write_text(STEP)
    run("check", "m.py", "--write-baseline", "--baseline", "known.json")
    (tmp_path / "m.py").write_text(STEP.replace(".item()", ""))
    code, out, _ = run("check", "m.py", "--baseline", "known.json")
    assert code == 0
    assert "no longer found, remove from the baseline: host-sync in m.py (line 13 then)" in out


def test_a_suppressed_finding_does_not_count(run, tmp_path: Path):
    (tmp_path / "m.py").write_text(STEP.replace(".item()", ".item()  # capturelint: ignore[host-sync] a test"))
    code, out, _ = run("check", "m.py")
    assert (code, out.splitlines()[-1]) == (0, "no findings in 1 file, 1 suppressed")


def test_a_finding_in_a_notebook_names_cell_and_line(run, tmp_path):
    cells = [
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": STEP.splitlines(keepends=True)},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}))
    code, out, _ = run("check", "n.ipynb")
    assert code == 1
    assert out.startswith("n.ipynb:cell 2:13:")
    assert "13 |     return state + x.sum().item()" in out
