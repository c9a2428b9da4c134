"""What is said of files that an entry's file imports and the run was not given."""

import os

import pytest

from capturelint.static.unread import unread

FILES = {
    "pkg/__init__.py": "",
    "pkg/ops.py": "",
    "pkg/deep/__init__.py": "",
    "pkg/deep/step.py": "import torch\nfrom ..ops import norm\nfrom . import cache\nimport pkg.top, other, missing\n",
    "pkg/deep/cache.py": "",
    "pkg/top.py": "",
    "other.py": "",
}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(tree, *given, followed=()):
    return list(unread([tree / "pkg/deep/step.py"], [tree / each for each in given], followed))


def test_files_of_the_project_that_were_not_given_are_named(tree):
    assert said(tree, "pkg/deep/step.py") == [
        "pkg/deep/step.py imports pkg/ops.py, pkg/deep/cache.py, pkg/top.py and 1 more; "
        "calls from here to there are followed if they are checked too"
    ]


@pytest.mark.parametrize(
    ("given", "followed", "names"),
    [
        (("pkg/deep",), (), "pkg/ops.py, pkg/top.py and other.py"),
        (("pkg",), (), "other.py"),
        (("pkg/deep", "other.py"), ("pkg",), "pkg/ops.py"),
    ],
)
def test_what_was_given_or_is_followed_is_not(tree, given, followed, names):
    (sentence,) = said(tree, *given, followed=followed)
    assert sentence.startswith(f"pkg/deep/step.py imports {names}; ")


def test_nothing_is_said_where_all_is_checked_or_the_file_is_gone(tree):
    assert said(tree, ".") == []
    os.remove(tree / "pkg/deep/step.py")
    assert said(tree, "pkg/deep/step.py") == []
