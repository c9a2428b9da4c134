import subprocess
from pathlib import Path

import pytest

from capturelint.errors import UsageError
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.static.changed import changed_since, on_changed_lines
from capturelint.vocabulary import Confidence, Outcome


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "m.py").write_text("a\nb\nc\nd\n")
    (tmp_path / "same.py").write_text("a\n")
    (tmp_path / 'odd "name\n.py').write_text("a\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def finding(path: Path, line: int, end_line: int = 0) -> Finding:
    place = Place(path, line, 1, end_line)
    return Finding("host-sync", place, "m", (), Outcome.CAPTURE_ERROR, Confidence.CERTAIN)


def reported(root: Path, *findings: Finding) -> list[tuple[str, int]]:
    kept = on_changed_lines(findings, changed_since("HEAD", root))
    return [(f.place.path.name, f.place.line) for f in kept if f.place]


def test_only_changed_lines_are_reported(repository):
    (repository / "m.py").write_text("a\nB\nc\nd\ne\n")
    lines = [finding(repository / "m.py", line) for line in range(1, 6)]
    assert reported(repository, *lines) == [("m.py", 2), ("m.py", 5)]


def test_a_statement_is_reported_when_one_of_its_lines_changed(repository):
    (repository / "m.py").write_text("a\nb\nC\nd\n")
    assert reported(repository, finding(repository / "m.py", 2, 4)) == [("m.py", 2)]


def test_a_deleted_line_reports_nothing(repository):
    (repository / "m.py").write_text("a\nc\nd\n")
    assert reported(repository, *(finding(repository / "m.py", line) for line in (1, 2, 3))) == []


def test_an_unchanged_file_reports_nothing(repository):
    assert reported(repository, finding(repository / "same.py", 1)) == []


def test_a_file_that_git_does_not_track_is_new(repository):
    (repository / "new.py").write_text("a\n")
    assert reported(repository, finding(repository / "new.py", 1)) == [("new.py", 1)]


def test_odd_names_are_matched_with_their_lines(repository):
    odd = repository / 'odd "name\n.py'
    odd.write_text("a\nb\n")
    (repository / "m.py").write_text("a\nb\nc\nD\n")
    assert reported(repository, finding(odd, 2), finding(odd, 1), finding(repository / "m.py", 4)) == [
        (odd.name, 2),
        ("m.py", 4),
    ]


def test_the_checked_path_may_lie_deep_in_the_repository(repository):
    (repository / "sub").mkdir()
    (repository / "sub/new.py").write_text("a\n")
    assert reported(repository / "sub", finding(repository / "sub/new.py", 1)) == [("new.py", 1)]


def test_an_unknown_revision_is_named(repository):
    with pytest.raises(UsageError, match=r"--diff-base: git diff: .*nowhere"):
        changed_since("nowhere", repository)


def test_an_option_is_no_revision(repository):
    with pytest.raises(UsageError, match="not a git revision"):
        changed_since("--output=/tmp/x", repository)


def test_a_directory_outside_a_repository_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a git repository"):
        changed_since("HEAD", tmp_path)
