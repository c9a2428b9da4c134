from pathlib import Path

import pytest

from capturelint.catalog import load_rules
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.runtime.blame import DEFAULT_RULES, MESSAGES, SILENT, Suspects, blame, code_at
from capturelint.runtime.observations import Observation, Spot
from capturelint.vocabulary import Confidence, ObservationKind, Outcome

UNEXPLAINED = "unexplained"


@pytest.fixture
def model(tmp_path):
    def write(source: str) -> str:
        path = tmp_path / "model.py"
        path.write_text(source)
        return str(path)

    return write


def spot_of(path: str, code: str, line: int = 1) -> Spot:
    """The place of ``code`` on a line, as a traceback gives it."""
    column = Path(path).read_text().splitlines()[line - 1].index(code) + 1
    return Spot(path, line, "step", column, line, column + len(code))


def rule_of(path: str, code: str, kind=ObservationKind.HOST_READ, **fields) -> str:
    seen = Observation(kind, "seen", (spot_of(path, code),), step=3, **fields)
    return blame([seen], 2, Suspects())[0].rule


@pytest.mark.parametrize(
    ("source", "code", "rule"),
    [
        ("if x[0].item() == 2: pass", "x[0].item()", "host-sync"),
        ("y = x.cpu()", "x.cpu()", "host-sync"),
        ("if done.all(): pass", "done.all()", "tensor-branch"),
        ("if stale(x): pass", "stale(x)", "tensor-branch"),
        ("assert ok.all(), 'no'", "ok.all()", "tensor-branch"),
        ("y = a if flag else b", "flag", "tensor-branch"),
        ("y = flag and other", "flag", "tensor-branch"),
        ("if not flag: pass", "flag", "tensor-branch"),
        ("n = int(x)", "int(x)", "implicit-sync"),
        ("if EOS in tokens: pass", "EOS in tokens", "implicit-sync"),
        ("if int(x) > 2: pass", "int(x)", "implicit-sync"),
        ("s = f'{x}'", "{x}", "implicit-sync"),
        ("y = k[:, :n]", "k[:, :n]", "implicit-sync"),
        ("assert (x < 1).all()", "assert (x < 1).all()", "tensor-branch"),
        ("y = a if flag else b", "a if flag else b", "tensor-branch"),
        ("if x.any() or y.any(): pass", "if x.any() or y.any(): pass", "tensor-branch"),
        ("y = flag and other", "flag and other", "tensor-branch"),
        ("y = [r for r in rows if r]", "[r for r in rows if r]", "tensor-branch"),
        ("y = [int(r) for r in rows]", "[int(r) for r in rows]", "implicit-sync"),
        ("y = F.one_hot(x)", "F.one_hot(x)", "dynamic-shape"),
        ("y = x.unique_consecutive()", "x.unique_consecutive()", "dynamic-shape"),
    ],
)
def test_a_read_breaks_the_rule_that_its_line_says(model, source, code, rule):
    assert rule_of(model(source), code) == rule


@pytest.mark.parametrize(
    ("source", "rule"),
    [("y = x.tolist()", "host-sync"), ("y = x.cpu()", "host-sync"), ("y = torch.tensor(n)", "upload")],
)
def test_a_copy_that_is_refused_is_a_read_where_the_method_reads(model, source, rule):
    assert rule_of(model(source), source[4:], ObservationKind.PAGEABLE_COPY) == rule


def test_growth_of_a_home_is_cache_growth(model):
    path = model("k = torch.cat([self.k, k])")
    assert (
        rule_of(path, "torch.cat([self.k, k])", ObservationKind.SHAPE_CHANGED, call="mul", home="k") == "cache-growth"
    )
    assert rule_of(path, "torch.cat([self.k, k])", ObservationKind.SHAPE_CHANGED, call="cat") == "cache-growth"
    assert rule_of(path, "torch.cat([self.k, k])", ObservationKind.SHAPE_CHANGED, call="mul") == "baked-scalar"


def test_an_observation_without_a_line_is_never_dropped():
    finding = blame([Observation(ObservationKind.VALUES_DIFFER, "differs by 0.5", step=4)], 2, Suspects())[0]
    assert (finding.rule, finding.place) == (UNEXPLAINED, None)
    assert "differs by 0.5" in finding.message
    assert finding.evidence.text == "differs by 0.5"


def test_what_a_run_shows_is_proven(model):
    path = model("y = x.cpu()")
    finding = blame([Observation(ObservationKind.HOST_READ, "seen", (spot_of(path, "x.cpu()"),))], 2, Suspects())[0]
    assert (finding.confidence, finding.outcome) == (Confidence.PROVEN, Outcome.CAPTURE_ERROR)
    assert (finding.place.line, finding.place.column, finding.place.end_column) == (1, 5, 12)


def suspect(path: str, rule: str, line: int = 1) -> Finding:
    return Finding(rule, Place(Path(path), line, 1, line, 5), "said", (), Outcome.CAPTURE_ERROR, Confidence.LIKELY)


def test_a_confirmed_suspect_keeps_its_words_and_is_proven(model):
    path = model("y = int(x)")
    seen = Observation(ObservationKind.HOST_READ, "seen", (spot_of(path, "int(x)"),))
    finding = blame([seen], 2, Suspects((suspect(path, "host-sync"),)))[0]
    assert (finding.rule, finding.message, finding.confidence) == ("host-sync", "said", Confidence.PROVEN)


def test_a_suspect_of_another_kind_or_line_is_not_confirmed(model):
    path = model("y = int(x)\nz = 1")
    seen = Observation(ObservationKind.HOST_READ, "seen", (spot_of(path, "int(x)"),))
    for other in (suspect(path, "state-rebind"), suspect(path, "host-sync", 2)):
        assert blame([seen], 2, Suspects((other,)))[0].rule == "implicit-sync"


def test_every_kind_has_a_rule_and_words():
    assert set(DEFAULT_RULES) == set(MESSAGES) == set(ObservationKind)
    assert set(ObservationKind) >= SILENT


@pytest.mark.parametrize("kind", [kind for kind, rule in DEFAULT_RULES.items() if rule != UNEXPLAINED])
def test_the_rule_for_a_kind_is_one_that_the_kind_confirms(kind):
    assert kind in load_rules()[DEFAULT_RULES[kind]].runtime


def test_finding_text_is_one_line_of_at_most_90_characters(model):
    path = model("value = some_module.some_function(argument_number_one, argument_number_two, argument_three)")
    for kind in ObservationKind:
        message = blame([Observation(kind, "seen", (Spot(path, 1, "step"),))], 2, Suspects())[0].message
        assert len(message) <= 112, message  # the code alone may take 48
        assert not message.endswith(".")


def test_code_is_cut_from_bytes_so_that_accents_do_not_shift_it(model):
    path = model("é = x.cpu()")
    assert code_at(Spot(path, 1, "step", 6, 1, 13)) == "x.cpu()"


def test_a_source_that_is_gone_leaves_the_finding(tmp_path):
    seen = Observation(ObservationKind.HOST_READ, "read", (Spot(str(tmp_path / "gone.py"), 3, "step"),))
    assert blame([seen], 2, Suspects())[0].place.line == 3


def test_without_a_line_a_suspect_that_would_explain_it_is_named_and_not_proven(model):
    path = model("self.state = new")
    seen = Observation(ObservationKind.VALUES_DIFFER, "differs by 0.5", step=4)
    (finding,) = blame([seen], 2, Suspects((suspect(path, "state-rebind"), suspect(path, "host-sync"))))
    assert (finding.rule, finding.confidence) == ("state-rebind", Confidence.LIKELY)
    assert finding.evidence.text == "differs by 0.5"
