"""The tutorial and the guides, executed: their files, edits and commands, and what they say is printed."""

import re

import pytest
from executed_pages import DOCS, Ran, run, run_page

EXIT_CODES = [1, 1, 0, 0, 0]
"""Of the tutorial's commands, in order."""
CSV = re.findall(r"```csv[^\n]*\n(.*?)```", (DOCS / "engines.md").read_text(), re.DOTALL)[0]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> list[Ran]:
    return run_page(DOCS / "tutorial.md", tmp_path_factory.mktemp("tutorial"))


def alike(text: str) -> str:
    """The version of torch is that of the machine; which probes there are is told elsewhere."""
    text = re.sub(r"(probes at batch [\d, ]+:).*", r"\1", text)
    return re.sub(r"\(torch [^)]+\)", "(torch TORCH)", text)


def test_every_command_ends_as_the_tutorial_says(ran):
    assert [each.code for each in ran] == EXIT_CODES


def test_every_command_prints_what_the_tutorial_shows(ran):
    for each in ran:
        if each.shown:
            assert alike(each.printed) == alike(each.shown), each.command


def test_the_silent_error_is_seen_at_every_batch_size(ran):
    printed = next(each.printed for each in ran if each.command.startswith("verify"))
    assert printed.count("  replay-differs  ") == 2


def test_own_rules_and_operations_report_what_the_guide_shows(tmp_path):
    found = run_page(DOCS / "own-rules.md", tmp_path)
    assert [(each.code, each.printed) for each in found] == [(1, each.shown) for each in found]
    assert len(found) == 2


def test_the_guide_to_engines_shows_the_sizes_that_plan_chooses(tmp_path):
    (tmp_path / "batches.csv").write_text(CSV)
    chosen = run("$ capturelint plan batches.csv --max-graphs 6 --quiet", tmp_path)
    assert f"```text\n{chosen.printed}```" in (DOCS / "engines.md").read_text()


def test_every_flag_in_the_guide_to_engines_is_one_that_plan_writes(tmp_path):
    (tmp_path / "batches.csv").write_text(CSV)
    printed = "".join(
        run(f"$ capturelint plan batches.csv --max-graphs 6 --engine {name}", tmp_path).printed
        for name in ("vllm", "sglang", "tensorrt-llm")
    )
    flags = re.findall(r"\| `([^`]+)` \|$", (DOCS / "engines.md").read_text(), re.MULTILINE)
    assert len(flags) == 6
    assert [flag for flag in flags if flag not in printed] == []
