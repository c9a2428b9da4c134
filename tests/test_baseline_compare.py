import json
from pathlib import Path

import pytest

from capturelint.errors import ConfigError
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.static.baseline import apply_baseline, with_fingerprints, write_baseline
from capturelint.vocabulary import Confidence, Outcome

STEP = "def step(t):\n    t.item()\n    t.item()\n"


def findings_in(path: Path, text: str, needle: str = "t.item()", rule: str = "host-sync") -> list[Finding]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [
        Finding(rule, Place(path, number), "a device read", (), Outcome.CAPTURE_ERROR, Confidence.CERTAIN)
        for number, line in enumerate(text.split("\n"), 1)
        if needle in line
    ]


def prints(path: Path, text: str, **options: str) -> list[str]:
    return [f.fingerprint for f in with_fingerprints(findings_in(path, text, **options), path.parent)]


def test_moved_lines_keep_their_fingerprint(tmp_path):
    path = tmp_path / "m.py"
    assert prints(path, STEP) == prints(path, "import torch\n\n\n" + STEP)


def test_other_spacing_keeps_the_fingerprint(tmp_path):
    path = tmp_path / "m.py"
    assert prints(path, STEP) == prints(path, "def step(t):\n  t.item()\n  t.item()  \n")


def test_a_renamed_neighbour_keeps_the_fingerprint(tmp_path):
    path = tmp_path / "m.py"
    assert prints(path, "def before(): ...\n" + STEP) == prints(path, "def after(x): ...\n" + STEP)


def test_equal_lines_have_their_own_fingerprints(tmp_path):
    first, second = prints(tmp_path / "m.py", STEP)
    assert first != second


def test_another_function_rule_line_or_file_has_another_fingerprint(tmp_path):
    path = tmp_path / "m.py"
    found = {
        *prints(path, "def step(t):\n    t.item()\n"),
        *prints(path, "def other(t):\n    t.item()\n"),
        *prints(path, "class A:\n  def step(t):\n    t.item()\n"),
        *prints(path, "def step(t):\n    t.item()\n", rule="upload"),
        *prints(path, "def step(t):\n    u = t.item()\n"),
        *prints(tmp_path / "n.py", "def step(t):\n    t.item()\n"),
        *prints(path, "t.item()\n"),
        *prints(path, "u = t.item()\n"),
    }
    assert len(found) == 8


def test_a_checkout_elsewhere_has_the_same_fingerprints(tmp_path):
    assert prints(tmp_path / "a/m.py", STEP) == prints(tmp_path / "b/m.py", STEP)


def test_known_findings_are_left_out(tmp_path):
    path, baseline = tmp_path / "m.py", tmp_path / "baseline.json"
    known = with_fingerprints(findings_in(path, STEP), tmp_path)
    assert write_baseline(known, baseline, tmp_path) == 2
    changed = with_fingerprints(findings_in(path, STEP + "    x = t.item()\n"), tmp_path)
    compared = apply_baseline(changed, baseline)
    assert ([f.place.line for f in compared.findings], compared.num_known, compared.gone) == ([4], 2, ())


def test_entries_that_no_longer_occur_are_reported(tmp_path):
    path, baseline = tmp_path / "m.py", tmp_path / "baseline.json"
    write_baseline(with_fingerprints(findings_in(path, STEP), tmp_path), baseline, tmp_path)
    compared = apply_baseline((), baseline)
    assert [str(entry) for entry in compared.gone] == [
        "host-sync in m.py (line 2 then): a device read",
        "host-sync in m.py (line 3 then): a device read",
    ]


def test_entries_of_files_that_were_not_checked_are_not_gone(tmp_path):
    path, baseline = tmp_path / "m.py", tmp_path / "baseline.json"
    write_baseline(with_fingerprints(findings_in(path, STEP), tmp_path), baseline, tmp_path)
    assert apply_baseline((), baseline, checked=[tmp_path / "other"]).gone == ()


def test_suppressed_findings_are_not_written(tmp_path):
    suppressed = Finding("upload", None, "m", (), Outcome.SLOW, Confidence.CERTAIN, suppressed=True)
    assert write_baseline([suppressed], tmp_path / "baseline.json", tmp_path) == 0


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": 2, "findings": []}', '{"findings": [{}]}'])
def test_what_is_not_a_baseline_is_refused(tmp_path, content):
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(ConfigError, match=r"b\.json: "):
        apply_baseline((), tmp_path / "b.json")


def test_a_missing_baseline_says_how_to_create_one(tmp_path):
    with pytest.raises(ConfigError, match="create it with --write-baseline"):
        apply_baseline((), tmp_path / "b.json")


def test_the_file_is_json_with_a_schema(tmp_path):
    write_baseline((), tmp_path / "new/b.json", tmp_path)
    assert json.loads((tmp_path / "new/b.json").read_text()) == {"schema": 1, "findings": []}
