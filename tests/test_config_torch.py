from pathlib import Path

import pytest

from capturelint.config import declared_torch


def declared(root: Path, **files: str) -> str | None:
    (root / ".git").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / name.replace("_lock", ".lock").replace("_", ".")).write_text(text)
    return declared_torch(root)


def test_nothing_declared_is_no_range(tmp_path):
    assert declared(tmp_path, pyproject_toml="[project]\ndependencies = ['numpy', 'torchvision>=0.2']\n") is None


def test_the_dependencies_of_the_project_count(tmp_path):
    assert declared(tmp_path, pyproject_toml="[project]\ndependencies = ['Torch >=2.4, <3']\n") == "<3,>=2.4"


def test_the_widest_of_several_ranges_counts(tmp_path):
    text = "[project]\ndependencies = ['torch>=2.4']\n[project.optional-dependencies]\ngpu = ['torch>=2.6']\n"
    assert declared(tmp_path, pyproject_toml=text) == ">=2.4"


def test_dependency_groups_count(tmp_path):
    assert declared(tmp_path, pyproject_toml="[dependency-groups]\ndev = ['torch==2.7.*', {include-group='x'}]\n") == (
        "==2.7.*"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("'^2.4'", "<3,>=2.4"),
        ("'~2.4.1'", "<2.5,>=2.4.1"),
        ("'2.4.1'", "==2.4.1"),
        ("'>=2.4'", ">=2.4"),
        ("{ version = '^2.4', source = 'x' }", "<3,>=2.4"),
        ("'*'", None),
    ],
)
def test_the_ranges_of_poetry_are_read(tmp_path, value, expected):
    assert declared(tmp_path, pyproject_toml=f"[tool.poetry.dependencies]\ntorch = {value}\n") == expected


def test_setup_cfg_counts(tmp_path):
    assert declared(tmp_path, setup_cfg="[options]\ninstall_requires =\n    numpy\n    torch>=2.3\n") == ">=2.3"


def test_requirements_files_count(tmp_path):
    text = "# comment\n-r base.txt\n--extra-index-url https://example.org\ntorch==2.5.1+cu121  # pinned\n"
    assert declared(tmp_path, requirements_txt=text) == "==2.5.1+cu121"


def test_a_marker_is_no_part_of_the_range(tmp_path):
    assert declared(tmp_path, requirements_txt="torch>=2.2; python_version >= '3.12'\n") == ">=2.2"


def test_a_lock_counts_where_no_range_is_given(tmp_path):
    lock = '[[package]]\nname = "torch"\nversion = "2.7.0"\n'
    assert declared(tmp_path, pyproject_toml="[project]\ndependencies = ['torch']\n", uv_lock=lock) == "==2.7.0"


def test_a_range_wins_over_the_lock(tmp_path):
    lock = '[[package]]\nname = "torch"\nversion = "2.7.0"\n'
    assert declared(tmp_path, pyproject_toml="[project]\ndependencies = ['torch>=2.4']\n", uv_lock=lock) == ">=2.4"


def test_the_search_ends_at_the_repository(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.1\n")
    (tmp_path / "repository/.git").mkdir(parents=True)
    assert declared_torch(tmp_path / "repository") is None


def test_the_checked_path_may_be_a_file_deep_below(tmp_path):
    declared(tmp_path, requirements_txt="torch>=2.6\n")
    (tmp_path / "src/pkg").mkdir(parents=True)
    assert declared_torch(tmp_path / "src/pkg") == ">=2.6"


def test_broken_files_of_others_say_nothing(tmp_path):
    assert declared(tmp_path, pyproject_toml="[torch\n", setup_cfg="torch\n", uv_lock="torch = [\n") is None
