"""Kept results: the same findings cold, warm and in any order, and nothing kept that no longer holds."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from capturelint.static import check as checking
from capturelint.static.check import Checked, Options, check
from capturelint.store import Store

LAYERS = "def norm(x):\n    return x / x.norm().item()\n"
QUIET_LAYERS = "def norm(x):\n    return x\n"
MODEL = "import torch\nimport layers\n\n\ndef decode_step(model, x: torch.Tensor):\n    return layers.norm(x)\n"
OTHER = "import torch\n\n\ndef decode_step(model, x: torch.Tensor):\n    return x.tolist()\n"
BROKEN = "def (:\n"
Run = Callable[..., Checked]


@pytest.fixture
def options(tmp_path, monkeypatch) -> Options:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return Options(root=tmp_path / "project", torch=">=2.6", store=Store(tmp_path / "cache"))


def write(**texts: str) -> None:
    for name, text in texts.items():
        Path(f"{name}.py").write_text(text)


def said(checked: Checked) -> tuple[object, ...]:
    """Everything that a report is made of."""
    return checked.files, checked.entries, checked.findings, [str(e) for e in checked.errors], checked.notes


def places(checked: Checked) -> list[tuple[str, int]]:
    return [(finding.place.path.name, finding.place.line) for finding in checked.findings if finding.place]


def analysed(options: Options, monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...] = (".",)) -> list[str]:
    """The files that a run analyses afresh."""
    made: list[str] = []
    original = checking.analyse_missing

    def spy(missing, *rest):
        made.extend(path.name for path, _ in missing)
        return original(missing, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(checking, "analyse_missing", spy)
        check([Path(path) for path in paths], options)
    return made


def test_a_warm_run_says_what_the_cold_one_said(options):
    write(layers=LAYERS, model=MODEL, other=OTHER, broken=BROKEN)
    cold, warm = check([Path(".")], options), check([Path(".")], options)
    assert cold.analysed
    assert not warm.analysed
    assert said(cold) == said(warm) == said(check([Path(".")], replace(options, store=None)))


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_findings_are_the_same_cold_and_warm_with_any_jobs_and_any_order(options, jobs):
    write(layers=LAYERS, model=MODEL, other=OTHER, broken=BROKEN)
    names = [Path(name) for name in ("broken.py", "layers.py", "model.py", "other.py")]
    plain = said(check(names, replace(options, store=None)))
    assert said(check(names[::-1], replace(options, jobs=jobs))) == plain
    write(other=OTHER + "\n")
    check(names, replace(options, jobs=jobs))
    write(other=OTHER)
    assert said(check([*names[2:], *names[:2]], replace(options, jobs=jobs))) == plain


def test_only_what_a_change_can_reach_is_analysed_again(options, monkeypatch):
    write(layers=LAYERS, model=MODEL, other=OTHER)
    assert analysed(options, monkeypatch) == ["layers.py", "model.py", "other.py"]
    assert analysed(options, monkeypatch) == []
    write(other=OTHER + "# changed\n")
    assert analysed(options, monkeypatch) == ["other.py"]
    write(layers=QUIET_LAYERS)
    assert analysed(options, monkeypatch) == ["layers.py", "model.py"]


def test_a_change_of_an_import_changes_the_findings(options):
    write(layers=LAYERS, model=MODEL)
    assert places(check([Path(".")], options)) == [("layers.py", 2)]
    write(layers=QUIET_LAYERS)
    assert places(check([Path(".")], options)) == []


def test_a_change_back_is_remembered(options, monkeypatch):
    for text in (LAYERS, QUIET_LAYERS):
        write(layers=text, model=MODEL)
        check([Path(".")], options)
    write(layers=LAYERS, extra=OTHER)
    assert analysed(options, monkeypatch) == ["extra.py"]


def test_a_module_that_was_missing_is_looked_for_again(options):
    write(model=MODEL)
    assert places(check([Path(".")], options)) == []
    write(layers=LAYERS)
    assert places(check([Path(".")], options)) == [("layers.py", 2)]
    Path("layers.py").unlink()
    assert places(check([Path(".")], options)) == []


def test_a_directory_that_becomes_a_package_changes_names(options):
    write(layers=LAYERS, model=MODEL.replace("import layers", "from . import layers"))
    before = check([Path(".")], replace(options, store=None))
    check([Path(".")], options)
    Path("__init__.py").touch()
    after = said(check([Path(".")], options))
    assert after == said(check([Path(".")], replace(options, store=None)))
    assert before.files + 1 == after[0]


def test_a_word_that_changes_the_whole_program_is_seen_in_any_file(options, monkeypatch):
    write(model=OTHER, settings="x = 1\n")
    check([Path(".")], options)
    write(settings="import torch\ntorch.set_default_device('cuda')\n")
    assert analysed(options, monkeypatch) == ["model.py", "settings.py"]


@pytest.mark.parametrize(
    "other",
    [
        {"torch": "2.4"},
        {"entry": ("model:helper",)},
        {"bind": {"x": "model:Cache"}},
        {"follow": ("json",)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_options_are_another_result(options, other):
    write(model=OTHER + "\n\nclass Cache:\n    pass\n\n\ndef helper(x: torch.Tensor):\n    return x.item()\n")
    check([Path(".")], options)
    changed = replace(options, **other)
    assert said(check([Path(".")], changed)) == said(check([Path(".")], replace(changed, store=None)))


def test_a_followed_package_outside_is_part_of_the_result(options, tmp_path, monkeypatch):
    package = tmp_path / "elsewhere" / "layers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    write(model=MODEL)
    following = replace(options, follow=("layers",))
    assert [len(check([Path(".")], following).findings) for _ in range(2)] == [1, 1]
    (package / "__init__.py").write_text(QUIET_LAYERS)
    assert check([Path(".")], following).findings == ()


def test_the_same_file_elsewhere_is_another_file(options, tmp_path, monkeypatch):
    write(model=OTHER)
    check([Path("model.py")], options)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "model.py").write_text(OTHER)
    monkeypatch.chdir(tmp_path / "copy")
    moved = replace(options, root=tmp_path / "copy")
    assert said(check([Path("model.py")], moved)) == said(check([Path("model.py")], replace(moved, store=None)))


def test_a_file_of_the_same_size_and_time_is_read_again(options):
    write(model=OTHER)
    check([Path(".")], options)
    before = os.stat("model.py")
    write(model=OTHER.replace("x.tolist()", "x.detach()"))
    os.utime("model.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert check([Path(".")], options).findings == ()


def test_a_result_that_a_limit_cut_short_is_not_kept(options):
    write(model=OTHER + "x = [1, 2, 3]\n" * 8_000)
    hurried = replace(options, max_file_s=1e-6)
    for _ in range(2):
        checked = check([Path(".")], hurried)
        assert checked.findings == ()
        assert checked.notes == ("model.py: takes longer than 1e-06 s of processor time; it was not analysed",)
    assert len(check([Path(".")], options).findings) == 1


def test_damaged_records_are_worked_out_again(options):
    write(layers=LAYERS, model=MODEL)
    cold = said(check([Path(".")], options))
    for path in options.store.directory.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-5])
    assert said(check([Path(".")], options)) == cold


def test_a_read_only_directory_is_read(options):
    write(model=OTHER)
    cold = said(check([Path(".")], options))
    options.store.writable = False
    assert said(check([Path(".")], options)) == cold
    write(model=OTHER + "\n")
    assert places(check([Path(".")], options)) == [("model.py", 5)]


def test_a_file_that_cannot_be_decoded_keeps_its_error(options):
    write(model=OTHER, nul="x = 1\0\n")
    first, second = check([Path(".")], options), check([Path(".")], options)
    assert said(first) == said(second)
    assert [error.reason for error in second.errors] == ["a NUL byte; this is not Python source"]


def test_a_suppression_in_a_kept_run_stays_one(options):
    write(model=OTHER.replace("tolist()", "tolist()  # capturelint: ignore[host-sync] for the log"))
    cold, warm = check([Path(".")], options), check([Path(".")], options)
    assert [f.suppressed for f in warm.findings] == [True]
    assert said(cold) == said(warm)
