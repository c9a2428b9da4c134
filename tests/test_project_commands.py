import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capturelint.cli import app
from capturelint.cli.doctor import Answer, lines
from capturelint.config import load_config
from capturelint.errors import UsageError


def run(*words: str) -> list[str]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_doctor_says_what_is_there():
    answers = json.loads("\n".join(run("doctor", "--format", "json")))["answers"]
    found = {answer["name"]: answer["found"] for answer in answers}
    assert found["check, logs, plan"] == "ready"
    assert found["verify, emulated"] == ("ready" if found["torch"] else None)


def test_doctor_says_what_is_missing_and_counts_it():
    answers = [Answer("python", "3.12"), Answer("gpu", None, "torch finds no CUDA device")]
    assert list(lines(answers)) == ["python  3.12", "gpu     missing; torch finds no CUDA device", "1 missing"]


def test_init_writes_nothing_unless_asked(tmp_path):
    assert run("init", str(tmp_path))[-1] == "nothing written; --yes writes 2 files"
    assert list(tmp_path.iterdir()) == []


def test_init_writes_configuration_and_stanzas(tmp_path):
    (tmp_path / ".git").mkdir()
    run("init", str(tmp_path), "--yes")
    written = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert written == [".github/workflows/capturelint.yml", ".pre-commit-config.yaml", "capturelint.toml"]


def test_what_init_writes_can_be_loaded(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    run("init", str(tmp_path), "--yes")
    assert load_config(tmp_path).path == tmp_path / "pyproject.toml"
    assert (tmp_path / "pyproject.toml").read_text().startswith("[project]\nname = 'x'\n")


def test_init_has_nothing_to_do_twice(tmp_path):
    run("init", str(tmp_path), "--yes")
    assert run("init", str(tmp_path), "--yes") == ["nothing to write"]


def test_init_does_not_touch_an_existing_hook_file(tmp_path):
    hooks = tmp_path / ".pre-commit-config.yaml"
    hooks.write_text("repos: []\n")
    shown = run("init", str(tmp_path), "--yes")
    assert f"--- {hooks} (exists; to paste)" in shown
    assert hooks.read_text() == "repos: []\n"


def test_init_writes_a_gitlab_job_where_the_remote_is_gitlab(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text('[remote "origin"]\n\turl = git@gitlab.example.org:a/b.git\n')
    run("init", str(tmp_path), "--yes")
    assert "junit: capturelint.xml" in (tmp_path / ".gitlab-ci.yml").read_text()
    assert not (tmp_path / ".github").exists()


def test_init_needs_a_directory():
    with pytest.raises(UsageError, match="no such directory"):
        CliRunner().invoke(app, ["init", str(Path("missing"))], catch_exceptions=False)
