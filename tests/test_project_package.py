"""The wheel, installed where nothing else is: what a user gets from ``pip install capturelint``."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import capturelint
from capturelint.catalog import data_directory

ROOT = Path(__file__).parent.parent
BAD_STEP = """\
import torch


def build(device):
    return torch.zeros(4, device=device)


def inputs(batch, step, device):
    return {"token": torch.zeros(batch, dtype=torch.long, device=device)}


def step(state, token):
    return state + token.sum().item()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


def dependencies(requirements: Iterable[str]) -> Iterator[Distribution]:
    """The installed distributions that a list of requirements leads to, extras left out."""
    seen: set[str] = set()
    pending = list(requirements)
    while pending:
        requirement = Requirement(pending.pop())
        marker = requirement.marker
        if requirement.name in seen or (marker and not marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        found = distribution(requirement.name)
        pending += found.requires or []
        yield found


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory) -> Path:
    """The Python of a new environment that holds the wheel, what it declares to need, and nothing else.

    The dependencies are linked from this environment, so no network is needed.
    """
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (metadata,) = site.glob("capturelint-*.dist-info")
    for found in dependencies(Distribution.at(metadata).requires or []):
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    return home / "bin/python"


def run(python: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run([str(python), *words], capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def test_the_wheel_holds_the_rules_and_their_fixtures(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"capturelint/rules/{path.name}" for path in data_directory("rules").glob("*.yaml")}
    expected |= {f"capturelint/fixtures/rules/{path.name}" for path in (ROOT / "fixtures/rules").glob("*.md")}
    assert expected <= names
    assert "capturelint/py.typed" in names


def test_the_wheel_holds_nothing_of_the_repository_besides(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"capturelint", f"capturelint-{capturelint.__version__}.dist-info"}


def test_the_base_install_asks_for_no_torch(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"capturelint-{capturelint.__version__}.dist-info/METADATA").decode()
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not [line for line in needed if re.search(r"\b(torch|transformers|numpy)\b", line)]


def test_check_runs_from_the_wheel(clean, tmp_path):
    (tmp_path / "model.py").write_text(BAD_STEP)
    checked = run(clean, "-m", "capturelint", "check", "model.py", "--format", "concise", cwd=tmp_path)
    assert checked.returncode == 1, checked.stderr
    assert checked.stdout.splitlines()[0].startswith("model.py:13:")
    assert "host-sync" in checked.stdout


def test_the_clean_environment_has_the_wheels_package_and_no_torch(clean, tmp_path):
    code = "import capturelint, importlib.util; print(capturelint.__file__, importlib.util.find_spec('torch'))"
    shown = run(clean, "-c", code, cwd=tmp_path).stdout.split()
    assert (Path(shown[0]).is_relative_to(clean.parent.parent), shown[1]) == (True, "None")


def test_rules_are_explained_from_the_wheel(clean, tmp_path):
    explained = run(clean, "-m", "capturelint", "explain", "host-sync", cwd=tmp_path)
    assert explained.returncode == 0, explained.stderr
    assert explained.stdout.startswith("host-sync: ")


def test_every_command_has_help_without_torch(clean, tmp_path):
    code = (
        "import typer\n"
        "from capturelint.cli import app\n"
        "from typer.testing import CliRunner\n"
        "group = typer.main.get_command(app)\n"
        "names = group.list_commands(typer.Context(group))\n"
        "print(*(name for name in names if CliRunner().invoke(app, [name, '--help']).exit_code))"
    )
    asked = run(clean, "-c", code, cwd=tmp_path)
    assert (asked.returncode, asked.stdout.split()) == (0, [])


def test_the_version_is_one_in_package_and_metadata():
    assert f'version = "{capturelint.__version__}"' in (ROOT / "pyproject.toml").read_text()
