import json
import subprocess
import sys

import pytest

from capturelint.catalog import Rule
from capturelint.errors import UsageError
from capturelint.report.page import Page, blocks, list_json, list_text, page, page_json, page_markdown, page_text, pages
from capturelint.vocabulary import EventKind, Outcome, Phase

FIXTURE = """\
# host-sync

Some prose with `code`.

## A token is read

```py run
t.item()  # error: [host-sync]
```

## A shape is read

````python
t.shape[0]
```
````

## Through a lambda

```py
f = lambda: t.item()  # missed: [host-sync, upload]
```

```console
$ ls
```
"""
BLOCKS = tuple(blocks(FIXTURE.splitlines()))
RULE = Rule(
    name="host-sync",
    summary="a device read waits in recorded code",
    event=EventKind.SYNC,
    where=(),
    phase=Phase.RECORDED,
    outcome=Outcome.CAPTURE_ERROR,
    message="m",
    help=("compare on the device",),
    why="The host waits.",
    runtime=frozenset(),
    sources=("https://example.org/a",),
    since="0.1.0",
    torch="<2.6",
)
PAGE = Page("host-sync", RULE.summary, RULE.outcome, RULE.why, RULE, BLOCKS)


def test_blocks_have_title_words_code_and_line():
    assert [(b.title, b.words, b.line) for b in BLOCKS] == [
        ("A token is read", ("py", "run"), 8),
        ("A shape is read", ("python",), 14),
        ("Through a lambda", ("py",), 21),
    ]
    assert BLOCKS[0].code == "t.item()  # error: [host-sync]\n"


def test_a_longer_fence_holds_a_shorter_one():
    assert BLOCKS[1].code == "t.shape[0]\n```\n"


def test_only_marked_blocks_run():
    assert [block.runs for block in BLOCKS] == [True, False, False]


def test_examples_are_sorted_by_their_marks():
    assert [[b.title for b in group] for group in (PAGE.bad, PAGE.good, PAGE.missed)] == [
        ["A token is read"],
        ["A shape is read"],
        ["Through a lambda"],
    ]


def test_a_page_shows_outcome_cure_examples_sources_and_versions():
    assert page_text(PAGE).splitlines()[:11] == [
        "host-sync: a device read waits in recorded code",
        "",
        "outcome: capture-error, capture fails with an error",
        "compiled: no hazard where Inductor records the step",
        "since: capturelint 0.1.0, for torch <2.6",
        "",
        "The host waits.",
        "",
        "how to repair it",
        "  - compare on the device",
        "",
    ]
    assert page_text(PAGE).splitlines()[-4:-1] == ["sources", "  - https://example.org/a", ""]


def test_a_page_for_the_documentation_is_markdown():
    text = page_markdown(PAGE)
    assert text.startswith("# host-sync\n\nA device read waits in recorded code.\n")
    assert "### A token is read\n\n```python\nt.item()  # error: [host-sync]\n```" in text


def test_a_page_for_programs_has_the_examples():
    record = json.loads(page_json(PAGE))
    assert record["bad"] == [{"title": "A token is read", "code": "t.item()  # error: [host-sync]\n"}]


def test_long_pages_show_two_examples_of_a_kind():
    many = Page("host-sync", "s", RULE.outcome, "w", RULE, BLOCKS[:1] * 5)
    assert "(3 more bad; --all prints them)" in page_text(many)
    assert page_text(many, every=True).count("t.item()") == 5


def test_every_rule_has_a_page():
    for subject in pages():
        assert page_text(subject).startswith(f"{subject.name}: ")
        assert page_markdown(subject).startswith(f"# {subject.name}\n")


def test_the_list_ends_with_a_count():
    assert list_text().splitlines()[-1] == f"{len(pages())} rules"
    assert [rule["name"] for rule in json.loads(list_json())["rules"]] == [subject.name for subject in pages()]


def test_an_unknown_rule_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="unknown rule 'unused-ignor'; did you mean 'unused-ignore'"):
        page("unused-ignor")


def test_the_command_exits_with_2_for_an_unknown_rule():
    run = subprocess.run([sys.executable, "-m", "capturelint", "explain", "x"], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (
        2,
        "",
        "error: unknown rule 'x'; `capturelint explain` lists the rules\n",
    )
