import os
import sys
from pathlib import Path

import pytest

from capturelint.errors import SourceError, UsageError
from capturelint.static.files import find_sources


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    return root


def names(top: Path, **options: object) -> list[str]:
    return [path.relative_to(top).as_posix() for path in find_sources([top], **options)]


def test_sources_are_python_files_and_notebooks(tmp_path):
    write(tmp_path, "b.py", "a/c.py", "n.ipynb", "README.md", "stub.pyi")
    assert names(tmp_path) == ["a/c.py", "b.py", "n.ipynb"]


def test_order_of_paths_does_not_matter(tmp_path):
    write(tmp_path, "b/x.py", "a/y.py")
    forth = list(find_sources([tmp_path / "a", tmp_path / "b"]))
    back = list(find_sources([tmp_path / "b", tmp_path / "a", tmp_path]))
    assert forth == back


def test_directories_without_project_code_are_left_out(tmp_path):
    write(tmp_path, "m.py", ".venv/lib/a.py", "node_modules/b.py", "sub/__pycache__/c.py", "build/d.py")
    assert names(tmp_path) == ["m.py"]


def test_a_named_directory_is_walked_though_its_name_is_left_out(tmp_path):
    write(tmp_path, "site-packages/torch/a.py")
    assert names(tmp_path / "site-packages") == ["torch/a.py"]


def test_gitignore_of_every_level_is_respected(tmp_path):
    write(tmp_path, "m.py", "gen_a.py", "sub/gen_b.py", "sub/keep.py", "sub/deep/gen_c.py", "sub/deep/local.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("gen_*.py\n")
    (tmp_path / "sub/.gitignore").write_text("!gen_b.py\n")
    (tmp_path / "sub/deep/.gitignore").write_text("local.py\n")
    assert names(tmp_path) == ["m.py", "sub/gen_b.py", "sub/keep.py"]


def test_gitignore_above_the_checked_directory_counts(tmp_path):
    write(tmp_path, "sub/a.py", "sub/skipped.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("skipped.py\n")
    assert names(tmp_path / "sub") == ["a.py"]


def test_gitignore_can_be_switched_off(tmp_path):
    write(tmp_path, "a.py", "b.py")
    (tmp_path / ".gitignore").write_text("b.py\n")
    assert names(tmp_path, respect_gitignore=False) == ["a.py", "b.py"]


def test_an_ignored_directory_is_walked_when_it_is_named(tmp_path):
    write(tmp_path, "out/a.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("out/\n")
    assert names(tmp_path / "out") == ["a.py"]


def test_a_named_file_is_always_taken(tmp_path):
    write(tmp_path, "script", ".venv/a.py")
    (tmp_path / ".gitignore").write_text("*\n")
    taken = [tmp_path / ".venv/a.py", tmp_path / "script"]
    assert list(find_sources(taken, exclude=["script"])) == taken


def test_exclude_is_relative_to_its_root(tmp_path):
    write(tmp_path, "tests/old/a.py", "tests/b.py", "old/c.py")
    assert list(find_sources([tmp_path / "tests"], exclude=["tests/old"], root=tmp_path)) == [tmp_path / "tests/b.py"]


def test_include_says_what_a_source_is(tmp_path):
    write(tmp_path, "a.py", "b.pyw", "sub/c.pyw")
    assert names(tmp_path, include=["*.pyw"], root=tmp_path) == ["b.pyw", "sub/c.pyw"]


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(UsageError, match="no such file or directory: "):
        find_sources([tmp_path / "missing"])


def test_a_directory_without_python_is_named(tmp_path):
    with pytest.raises(UsageError, match="no Python files in "):
        find_sources([tmp_path])


def test_loops_of_links_end(tmp_path):
    write(tmp_path, "a/m.py")
    (tmp_path / "a/loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a/self.py").symlink_to(tmp_path / "a/self.py")
    assert names(tmp_path) == ["a/m.py"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_named_like_a_source_is_left_out(tmp_path):
    write(tmp_path, "m.py")
    os.mkfifo(tmp_path / "pipe.py")
    assert names(tmp_path) == ["m.py"]


def test_a_directory_that_vanishes_is_reported_and_the_walk_goes_on(tmp_path, monkeypatch):
    write(tmp_path, "m.py", "gone/a.py")
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "gone":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    errors: list[SourceError] = []
    assert names(tmp_path, on_error=errors.append) == ["m.py"]
    assert [error.reason for error in errors] == ["cannot list the directory: permission denied"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_text_survive(tmp_path):
    odd = os.fsencode(tmp_path) + b"/a\xff\n\x1b[2J.py"
    Path(os.fsdecode(odd)).write_text("x = 1\n")
    assert [os.fsencode(path) for path in find_sources([tmp_path])] == [odd]
