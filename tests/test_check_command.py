"""``capturelint check`` as a user and a CI job meet it: exit codes, what is chosen, what is said aloud, JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

SCHEMA = json.loads((Path(__file__).parents[1] / "docs/schemas/check.json").read_text())
CLEAN = """\
import torch


def decode_step(model, tokens: torch.Tensor):
    return tokens + 1
"""
READ = CLEAN.replace("tokens + 1", "tokens.tolist()")
TWO = """\
import torch


def decode_step(model, tokens: torch.Tensor):
    best = 1 if tokens.sum() > 0 else 2
    kept = tokens.tolist()
    return best, kept, torch.tensor(1.0, device=tokens.device)
"""
DRAWN = """\
import torch


def decode_step(model, probs: torch.Tensor):
    return torch.multinomial(probs, 1)
"""
NO_ENTRY = "import torch\n\n\ndef helper(x):\n    return x.item()\n"


@pytest.fixture
def write(tmp_path) -> Callable[..., None]:
    """Writes files: ``write(model=CLEAN)`` makes model.py."""

    def files(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)

    return files


def rules(out: str) -> list[tuple[str, int, str]]:
    """Path, line and rule of each finding of a JSON report."""
    return [(f["path"], f["line"], f["rule"]) for f in json.loads(out)["findings"] if not f["suppressed"]]


# ---------------------------------------------------------------- exit codes


def test_a_clean_file_exits_with_0(run, write):
    write(model=CLEAN)
    assert run("check", "model.py")[0] == 0


def test_a_finding_exits_with_1(run, write):
    write(model=READ)
    assert run("check", "model.py")[0] == 1


def test_exit_zero_hides_findings_from_the_exit_code_only(run, write):
    write(model=READ)
    code, out, _ = run("check", "model.py", "--exit-zero")
    assert (code, out.splitlines()[-1]) == (0, "1 finding in 1 file (1 capture error)")


@pytest.mark.parametrize("words", ["--exit-zero", "--write-baseline", "--diff", "--fix"])
def test_no_option_hides_an_unreadable_file(run, write, words):
    write(model=READ, broken="def (:\n")
    code, _, err = run("check", ".", words)
    assert (code, err.splitlines()[-1]) == (2, "error: broken.py:1: syntax error: invalid syntax")


def test_a_file_that_cannot_be_read_does_not_count_as_checked(run, write):
    write(broken="def (:\n")
    assert run("check", ".")[1] == "nothing was checked\nno findings in 0 files, 1 file not checked\n"
    write(clean=CLEAN)
    assert run("check", ".")[1].endswith("\nno findings in 1 file, 1 file not checked\n")


def test_a_broken_file_lets_the_others_be_reported(run, write):
    write(model=READ, broken="def (:\n")
    code, out, err = run("check", ".", "--format", "json")
    assert (code, rules(out)) == (2, [("model.py", 5, "host-sync")])
    assert err == "error: broken.py:1: syntax error: invalid syntax\n"


def test_a_wrong_confidence_is_a_usage_error(run, write):
    write(model=CLEAN)
    assert run("check", "model.py", "--confidence", "sure")[0] == 2


def test_an_unknown_option_is_a_usage_error(run, write):
    write(model=CLEAN)
    assert run("check", "model.py", "--fast")[0] == 2


# ---------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), ["tensor-branch", "host-sync", "upload"]),
        (("--select", "upload"), ["upload"]),
        (("--select", "upload,host-sync"), ["host-sync", "upload"]),
        (("--select", "upload", "--select", "host-sync"), ["host-sync", "upload"]),
        (("--ignore", "upload"), ["tensor-branch", "host-sync"]),
        (("--select", "upload,host-sync", "--ignore", "upload"), ["host-sync"]),
        (("--ignore", "tensor-branch, host-sync", "--ignore", "upload"), []),
    ],
)
def test_rules_can_be_chosen(run, write, words, found):
    write(model=TWO)
    code, out, _ = run("check", "model.py", "--format", "json", *words)
    assert ([rule for _, _, rule in rules(out)], code) == (found, int(bool(found)))


def test_the_configuration_chooses_rules_and_the_command_line_wins(run, write, tmp_path):
    write(model=TWO)
    (tmp_path / "capturelint.toml").write_text("select = ['upload']\n")
    assert [rule for *_, rule in rules(run("check", "model.py", "--format", "json")[1])] == ["upload"]
    chosen = run("check", "model.py", "--format", "json", "--select", "host-sync")[1]
    assert [rule for *_, rule in rules(chosen)] == ["host-sync"]


def test_the_configuration_may_name_the_files_that_a_rule_leaves_alone(run, write, tmp_path):
    write(model=READ, eager_model=READ)
    (tmp_path / "capturelint.toml").write_text("[per-file-ignores]\n'eager_*.py' = ['host-sync']\n")
    assert rules(run("check", ".", "--format", "json")[1]) == [("model.py", 5, "host-sync")]


def test_a_file_that_several_paths_name_is_checked_once(run, write):
    write(model=READ)
    report = json.loads(run("check", ".", "model.py", "./model.py", "--format", "json")[1])
    assert (report["files"], len(report["findings"])) == (1, 1)


# ---------------------------------------------------------------- torch


@pytest.mark.parametrize(
    ("words", "found"),
    [((), 0), (("--torch", "2.5"), 1), (("--torch", ">=2.4"), 1), (("--torch", "2.6"), 0), (("--torch", ">=2.6"), 0)],
)
def test_an_effect_of_old_releases_depends_on_the_declared_range(run, write, words, found):
    write(model=DRAWN)
    code, out, _ = run("check", "model.py", "--format", "json", *words)
    assert (len(rules(out)), code) == (found, found)


def test_the_range_of_the_project_counts(run, write, tmp_path):
    write(model=DRAWN)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = '1'\ndependencies = ['torch>=2.6']\n")
    assert run("check", "model.py", "--format", "json")[0] == 0
    assert run("check", "model.py", "--format", "json", "--torch", "2.4")[0] == 1


def test_a_guess_is_shown_when_asked_for(run, write):
    write(model=DRAWN)
    code, out, _ = run("check", "model.py", "--torch", "2.11", "--confidence", "possible", "--format", "json")
    assert (code, rules(out)) == (1, [("model.py", 5, "sampling")])


def test_the_message_names_the_releases(run, write):
    write(model=DRAWN)
    assert "torch <2.6" in run("check", "model.py", "--torch", ">=2.4", "--format", "concise")[1]


def test_what_an_undeclared_range_leaves_out_is_said_aloud(run, write):
    write(model=DRAWN)
    code, out, _ = run("check", "model.py")
    assert code == 0
    assert "model.py:5: `multinomial` is refused by torch <2.6; no torch is declared, see --torch" in out


# ---------------------------------------------------------------- entries


def test_no_entry_is_said_aloud(run, write):
    write(model=NO_ENTRY)
    code, out, _ = run("check", "model.py")
    assert code == 0
    assert "no entry" in out
    assert "--entry" in out


def test_an_entry_can_be_named(run, write):
    write(model=NO_ENTRY.replace("(x)", "(x: torch.Tensor)"))
    code, out, _ = run("check", "model.py", "--entry", "model:helper", "--format", "json")
    assert (code, rules(out)) == (1, [("model.py", 5, "host-sync")])
    assert [entry["why"] for entry in json.loads(out)["entries"]] == ["named by --entry"]


PROTOCOL = """\
import torch


class State:
    def __init__(self, device):
        self.cache = torch.zeros(8, 4, device=device)
        self.position = 0


def build(device):
    return State(device)


def inputs(batch, step, device):
    return {"x": torch.ones(4, device=device)}


def step(state, x):
    state.cache[state.position] = x
    state.position += 1
    return state.cache.sum()


def capture(device):
    state, graph = build("cuda"), torch.cuda.CUDAGraph()
    print(step(state, torch.ones(4, device="cuda")).item())
    with torch.cuda.graph(graph):
        step(state, torch.ones(4, device="cuda"))
    return graph
"""


@pytest.mark.parametrize(("name", "found"), [("step", [("model.py", 19, "baked-scalar")]), ("capture", [])])
def test_a_named_entry_is_run_as_what_it_is(run, write, name, found):
    write(model=PROTOCOL)
    assert rules(run("check", "model.py", "--entry", f"model:{name}", "--format", "json")[1]) == found


@pytest.mark.parametrize("name", ["model:gone", "gone:helper", "model", "model:Gone.step"])
def test_an_entry_that_does_not_exist_is_a_usage_error(run, write, name):
    write(model=NO_ENTRY)
    code, out, err = run("check", "model.py", "--entry", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --entry {name}: ")
    assert err.count("\n") == 1


def test_a_configured_entry_may_be_in_a_file_that_is_not_checked(run, write, tmp_path):
    write(model=PROTOCOL, other=READ)
    (tmp_path / "capturelint.toml").write_text("entry = ['model:step']\n")
    code, out, err = run("check", "other.py")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "model:step is configured as an entry, and is in none of the checked files",
        "no entry found in 1 file, so no recorded code was checked; name one with --entry MODULE:NAME",
    ]
    assert rules(run("check", ".", "--format", "json")[1]) == [("model.py", 19, "baked-scalar")]


def test_a_configured_entry_that_a_checked_file_does_not_define_is_a_fault(run, write, tmp_path):
    write(model=PROTOCOL)
    (tmp_path / "capturelint.toml").write_text("entry = ['model:gone']\n")
    assert run("check", ".") == (2, "", "error: entry model:gone: no function or method 'gone' in model.py\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bind", "x=gone:Cache"), "x=gone:Cache binds nothing: no module 'gone' in the checked paths"),
        (("--bind", "x=model:Gone"), "x=model:Gone binds nothing: no class 'Gone' in model.py"),
        (("--follow", "gone"), "gone is not followed: no such package is checked or installed beside capturelint"),
    ],
)
def test_an_option_that_finds_nothing_says_so_every_time(run, write, words, said):
    write(model=READ)
    first, second = (run("check", "model.py", *words)[1].splitlines() for _ in range(2))
    assert said in first
    assert first == second


@pytest.mark.parametrize("words", [("--bind", "x=model:torch"), ("--follow", "model"), ("--follow", "json")])
def test_an_option_that_finds_something_is_quiet(run, write, words):
    write(model=READ)
    assert json.loads(run("check", "model.py", "--format", "json", *words)[1])["notes"] == []


def test_a_parameter_can_be_given_a_type(run, write):
    write(
        cache="class Cache:\n    def read(self, x):\n        return x.tolist()\n",
        model="import torch\n\n\ndef decode_step(cache, x: torch.Tensor):\n    return cache.read(x)\n",
    )
    assert run("check", ".")[0] == 0
    assert rules(run("check", ".", "--bind", "cache=cache:Cache", "--format", "json")[1]) == [
        ("cache.py", 3, "host-sync")
    ]


def test_a_binding_without_a_class_is_a_usage_error(run, write):
    write(model=CLEAN)
    assert run("check", "model.py", "--bind", "cache=Cache") == (
        2,
        "",
        "error: --bind cache=Cache: say PARAM=MODULE:CLASS\n",
    )


def test_calls_are_followed_into_other_files(run, write):
    write(
        layers="def norm(x):\n    return x / x.norm().item()\n",
        model="import torch\nimport layers\n\n\ndef decode_step(model, x: torch.Tensor):\n    return layers.norm(x)\n",
    )
    found = json.loads(run("check", ".", "--format", "json")[1])["findings"]
    assert [(f["path"], f["line"]) for f in found] == [("layers.py", 2)]
    assert [(step["path"], step["line"]) for step in found[0]["trail"]] == [("model.py", 6)]


# ---------------------------------------------------------------- suppression


def test_a_comment_with_a_reason_suppresses(run, write):
    write(model=READ.replace("tolist()", "tolist()  # capturelint: ignore[host-sync] only under a debugger"))
    code, out, _ = run("check", "model.py", "--format", "json")
    assert code == 0
    assert [(f["rule"], f["suppressed"]) for f in json.loads(out)["findings"]] == [("host-sync", True)]


def test_a_comment_without_a_reason_suppresses_nothing(run, write):
    write(model=READ.replace("tolist()", "tolist()  # capturelint: ignore[host-sync]"))
    code, out, _ = run("check", "model.py", "--format", "json")
    assert (code, [rule for *_, rule in rules(out)]) == (1, ["host-sync", "unused-ignore"])


def test_a_comment_that_suppresses_nothing_is_a_finding(run, write):
    write(model=CLEAN.replace("tokens + 1", "tokens + 1  # capturelint: ignore[host-sync] was a read"))
    code, out, _ = run("check", "model.py", "--format", "json")
    assert (code, rules(out)) == (1, [("model.py", 5, "unused-ignore")])


# ---------------------------------------------------------------- reports


@pytest.mark.parametrize("text", [CLEAN, READ, TWO, NO_ENTRY], ids=["clean", "read", "two", "no-entry"])
def test_json_is_valid_by_the_published_schema(run, write, text):
    write(model=text)
    jsonschema.validate(json.loads(run("check", "model.py", "--format", "json")[1]), SCHEMA)


def test_a_finding_carries_what_the_contract_promises(run, write):
    write(model=READ)
    [finding] = json.loads(run("check", "model.py", "--format", "json")[1])["findings"]
    place = {key: finding[key] for key in ("path", "line", "column", "end_line", "end_column")}
    assert place == {"path": "model.py", "line": 5, "column": 12, "end_line": 5, "end_column": 27}
    assert (finding["outcome"], finding["suppressed"], finding["trail"]) == ("capture-error", False, [])
    assert finding["fingerprint"]
    assert finding["help"]


def test_findings_are_ordered_by_place(run, write):
    write(a=TWO, b=READ)
    found = rules(run("check", "b.py", "a.py", "--format", "json")[1])
    assert found == sorted(found, key=lambda each: each[:2])


def test_two_runs_say_the_same(run, write):
    write(a=TWO, b=READ, c=DRAWN)
    first, second = run("check", ".", "--format", "json"), run("check", ".", "--no-cache", "--format", "json")
    assert first == second


def test_the_number_of_processes_changes_nothing(run, write):
    write(a=TWO, b=READ, c=DRAWN)
    assert run("check", ".", "-j", "1", "--format", "json") == run("check", ".", "-j", "2", "--format", "json")


def test_statistics_count_by_rule(run, write):
    write(a=READ, b=READ, c=TWO)
    out = run("check", ".", "--statistics")[1].splitlines()
    assert [line.split()[:2] for line in out if line[:1].isdigit()][:3] == [
        ["3", "host-sync"],
        ["1", "tensor-branch"],
        ["1", "upload"],
    ]


def test_quiet_is_silent_when_clean(run, write):
    write(model=CLEAN)
    assert run("check", "model.py", "--quiet") == (0, "", "")


def test_a_report_can_be_written_to_a_file(run, write, tmp_path):
    write(model=READ)
    code, out, _ = run("check", "model.py", "--format", "json", "--output", "report.json")
    assert (code, out) == (1, "")
    assert len(json.loads((tmp_path / "report.json").read_text())["findings"]) == 1


def test_a_cache_directory_that_is_refused_gets_one_note(run, write, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("CAPTURELINT_CACHE_DIR", str(tmp_path / "taken"))
    write(model=READ, other=CLEAN)
    for words in ([], ["--jobs", "2"]):
        code, _, err = run("check", ".", *words)
        assert code == 1
        assert err.startswith(f"note: results are not kept, {tmp_path}/taken: ")
        assert err.count("\n") == 1


def test_what_a_baseline_knows_stays_known_after_a_fix(run, write, tmp_path):
    write(model=READ)
    assert run("check", "model.py", "--write-baseline", "--baseline", "known.json")[0] == 0
    write(model=READ + "\n\ndef decode_token(x: torch.Tensor):\n    return x + torch.tensor(1.0, device=x.device)\n")
    code, out, err = run("check", "model.py", "--baseline", "known.json", "--fix", "--format", "concise", "--quiet")
    assert (code, out, err) == (0, "", "1 finding fixed in 1 file\n")
