"""Places, words and look-ups of blame, where columns are known and where they are not (Python 3.10)."""

from pathlib import Path

import pytest

from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.runtime.blame import Suspects, blame, code_at
from capturelint.runtime.observations import Observation, Spot
from capturelint.vocabulary import Confidence, ObservationKind, Outcome


@pytest.fixture
def model(tmp_path):
    def write(source: str) -> str:
        path = tmp_path / "model.py"
        path.write_text(source)
        return str(path)

    return write


def blamed(kind: ObservationKind, spot: Spot, text: str = "seen", **fields):
    (finding,) = blame([Observation(kind, text, (spot,), step=3, **fields)], 2, Suspects())
    return finding


def test_a_place_keeps_the_line_that_its_expression_ends_on(model):
    path = model("y = (\n    x.cpu()\n)\n")
    place = blamed(ObservationKind.HOST_READ, Spot(path, 1, "step", 5, 3, 2)).place
    assert (place.line, place.column, place.end_line, place.end_column) == (1, 5, 3, 2)


def test_a_place_without_columns_is_its_line(model):
    place = blamed(ObservationKind.HOST_READ, Spot(model("y = x.cpu()\n"), 1, "step")).place
    assert (place.path.name, place.line, place.column, place.end_line) == ("model.py", 1, 1, 1)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("n = len(torch.nonzero(x).tolist())\n", "host-sync"),
        ("n = torch.nonzero(x)\n", "dynamic-shape"),
        ("if flag: pass\n", "tensor-branch"),
        ("n = int(x)\n", "implicit-sync"),
    ],
)
def test_where_columns_are_unknown_the_line_decides(model, source, rule):
    assert blamed(ObservationKind.HOST_READ, Spot(model(source), 1, "step")).rule == rule


@pytest.mark.parametrize(
    ("source", "rule"), [("if 0 < x in t: pass\n", "tensor-branch"), ("if x in t: pass\n", "implicit-sync")]
)
def test_the_first_comparison_of_a_chain_tells_membership(model, source, rule):
    path = model(source)
    end = source.index(":") + 1
    assert blamed(ObservationKind.HOST_READ, Spot(path, 1, "step", 4, 1, end)).rule == rule


def test_a_frozen_number_is_told_with_what_it_was(model):
    path = model("x[n] = 1\n")
    spot = Spot(path, 1, "step", 1, 1, 5)
    assert "frozen at 3" in blamed(ObservationKind.SCALAR_CHANGED, spot, before="3", after="4").message
    assert "frozen at its first value" in blamed(ObservationKind.SCALAR_CHANGED, spot).message


@pytest.mark.parametrize("error", ["IndexError: list index out of range", "KeyError: 12", "StopIteration"])
def test_a_look_up_of_sizes_that_runs_off_their_end_is_a_gap_between_buckets(model, error):
    path = model("size = self.sizes[bisect.bisect_left(self.sizes, rows)]\n")
    assert blamed(ObservationKind.REFUSED, Spot(path, 1, "run", 8, 1, 20), error).rule == "bucket-gap"
    assert blamed(ObservationKind.REFUSED, Spot(path, 1, "run", 8, 1, 20), "ValueError: x").rule == "unexplained"


def test_any_other_look_up_that_fails_is_not_a_gap(model):
    path = model("y = table[rows]\n")
    assert blamed(ObservationKind.REFUSED, Spot(path, 1, "run", 5, 1, 16), "KeyError: 12").rule == "unexplained"


def test_what_is_not_sure_is_likely(model):
    spot = Spot(model("y = x.cpu()\n"), 1, "step", 5, 1, 12)
    assert blamed(ObservationKind.HOST_READ, spot, sure=False).confidence is Confidence.LIKELY


def test_the_trail_is_what_led_there(model):
    path = model("a()\nb()\nx.cpu()\n")
    spots = tuple(Spot(path, line, name) for line, name in ((1, "step"), (2, "forward"), (3, "attend")))
    (finding,) = blame([Observation(ObservationKind.HOST_READ, "seen", spots)], 2, Suspects())
    assert [(frame.path, frame.line, frame.name) for frame in finding.trail] == [
        (Path(path), 1, "step"),
        (Path(path), 2, "forward"),
    ]


LONG = " + ".join(["alpha"] * 60)
"""Longer than any code that is shown."""


def test_code_is_what_stands_between_its_columns(model):
    path = model("skip = 0\nx = alpha(beta) + gamma\ny = f(a)[0]\n")
    assert code_at(Spot(path, 2, "step", 5, 2, 16)) == "alpha(beta)"
    assert code_at(Spot(path, 2, "step", 5, 0, 16)) == "alpha(beta)"
    assert code_at(Spot(path, 2, "step", 5, 3, 16)) == "x = alpha(beta) + gamma"
    assert code_at(Spot(path, 2, "step")) == "x = alpha(beta) + gamma"
    assert code_at(Spot(path, 1, "step")) == "skip = 0"
    assert [code_at(Spot(path, line, "step")) for line in (0, 4)] == ["", ""]
    assert code_at(Spot(path, 3, "step", 5, 3, 9)) == "f(a)"


@pytest.mark.parametrize(("source", "shown"), [("x" * 48, "x" * 48), ("x" * 49, "x" * 45 + "...")])
def test_code_of_more_than_48_characters_is_cut(model, source, shown):
    assert code_at(Spot(model(source), 1, "step")) == shown


def test_a_read_or_a_look_up_far_to_the_right_is_seen(model):
    path = model(f"y = {LONG} + t.item()\nz = {LONG} + bisect(sizes, n)\n")
    assert blamed(ObservationKind.HOST_READ, Spot(path, 1, "step")).rule == "host-sync"
    assert blamed(ObservationKind.HOST_READ, Spot(path, 1, "step", 5, 1, 493)).rule == "host-sync"
    assert blamed(ObservationKind.REFUSED, Spot(path, 2, "step", 5, 2, 9), "IndexError: no").rule == "bucket-gap"


@pytest.mark.parametrize(("line", "rule"), [(1, "implicit-sync"), (2, "tensor-branch"), (3, "implicit-sync")])
def test_a_condition_on_another_line_is_not_asked(model, line, rule):
    path = model("n = int(x)\nif x: pass\nm = int(x)\n")
    assert blamed(ObservationKind.HOST_READ, Spot(path, line, "step")).rule == rule


@pytest.mark.parametrize(("before", "rule"), [("None", "lazy-init"), ("0x7f", "state-rebind"), ("", "state-rebind")])
def test_a_slot_that_was_empty_before_is_filled_too_late(model, before, rule):
    spot = Spot(model("self.x = y\n"), 1, "step")
    assert blamed(ObservationKind.ADDRESS_CHANGED, spot, before=before).rule == rule


@pytest.mark.parametrize(("line", "is_on"), [(1, False), (2, True), (3, True), (4, True), (5, False)])
def test_a_suspect_stands_on_all_its_lines_of_its_file(model, tmp_path, line, is_on):
    path = model("\n" * 9)
    place = Place(Path(path), 2, 1, 4, 1)
    suspects = Suspects([Finding("upload", place, "m", (), Outcome.CAPTURE_ERROR, Confidence.LIKELY)])
    assert bool(suspects.on(Spot(path, line, "step"))) is is_on
    for other in ("a.py", "z.py"):
        assert suspects.on(Spot(str(tmp_path / other), line, "step")) == []


def suspect(path: str, line: int, confidence: Confidence = Confidence.LIKELY) -> Finding:
    return Finding("host-sync", Place(Path(path), line), f"line {line}", (), Outcome.CAPTURE_ERROR, confidence)


def test_the_innermost_line_confirms_a_suspect(model):
    path = model("step(x)\ny = x.item()\n")
    seen = Observation(ObservationKind.HOST_READ, "seen", (Spot(path, 1, "run"), Spot(path, 2, "step")))
    (finding,) = blame([seen], 2, Suspects([suspect(path, 1), suspect(path, 2)]))
    assert (finding.message, finding.confidence) == ("line 2", Confidence.PROVEN)


def test_without_a_line_only_the_surest_suspects_are_named(model):
    path = model("a\nb\n")
    known = Suspects([suspect(path, 1, Confidence.POSSIBLE), suspect(path, 2)])
    found = blame([Observation(ObservationKind.HOST_READ, "seen")], 2, known)
    assert [finding.message for finding in found] == ["line 2"]
