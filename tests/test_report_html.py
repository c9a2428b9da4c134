import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.finding import Evidence, Finding
from capturelint.place import Frame, Place
from capturelint.report import CheckReport, EntryRecord
from capturelint.report.html import check_html, verify_html
from capturelint.runtime.observations import BucketResult, Floor, Machine, Times
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

SOURCE = (
    "def step(state, token):",
    "\ttoken = state.model(token)",
    "    if token.item() == 2 and '<b>':",
    "        return None",
)
FINDING = Finding(
    rule="host-sync",
    place=Place(Path("model.py"), 3, 8, 3, 20),
    message="`token.item()` waits for the device",
    help=("compare on the device",),
    outcome=Outcome.CAPTURE_ERROR,
    confidence=Confidence.CERTAIN,
    trail=(Frame(Path("model.py"), 1, "step"),),
    evidence=Evidence("3 differs from 4 & 5"),
)
CHECK = CheckReport("0.1.0", None, 2, (EntryRecord(Path("model.py"), 1, "step", "plain protocol"),), (FINDING,))
MEASURED = VerifyReport(
    target="model.py",
    machine=Machine("cuda", "2.11.0+cu130", "NVIDIA H200"),
    buckets=(
        BucketResult(
            1, Verdict.OK, 8, 0.0, 0.0, 0.001, eager_ms=Times(26.0, 27.9), replay_ms=Times(4.6, 4.7), pool_bytes=10**6
        ),
        BucketResult(
            2, Verdict.REPLAY_DIFFERS, 8, 0.5, 0.0, 0.001, "differs", eager_ms=Times(26, 28), replay_ms=Times(5, 6)
        ),
    ),
    findings=(FINDING,),
    floor=Floor(1_192_099_840, 4.1e12),
)
EMULATED = VerifyReport(
    "model.py", Machine("emulated", "2.13.0"), (BucketResult(1, Verdict.OK, 8, 0.0, 0.0, 0.001),), findings=()
)
VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Every tag with its attributes, and whether they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    assert parsed.open == []
    return parsed


def read(path: Path, cell: int | None) -> tuple[str, ...]:
    return SOURCE


PAGES = {
    "check": check_html(CHECK, read, ["capturelint", "check", "."]),
    "clean": check_html(replace(CHECK, findings=()), read, []),
    "measured": verify_html(MEASURED, read, ["capturelint", "verify", "my model.py"], "0.1.0"),
    "emulated": verify_html(EMULATED, read, [], "0.1.0"),
}


def test_every_page_is_well_formed_and_asks_for_nothing():
    for page in PAGES.values():
        parsed = outline(page)
        assert not [tag for tag, _ in parsed.tags if tag in {"script", "link", "img", "iframe"}]
        assert not [a for _, a in parsed.tags if "src" in a or (a.get("href") or "#")[0] != "#"]
        assert "url(" not in page
        assert "@import" not in page


def test_every_page_follows_the_reader():
    for page in PAGES.values():
        assert "prefers-color-scheme: dark" in page
        assert 'name="viewport" content="width=device-width' in page
        assert '<html lang="en">' in page


def test_a_finding_shows_source_trail_evidence_and_cure():
    page = PAGES["check"]
    assert "<mark>token.item()</mark>" in page
    assert "via step (model.py:1)" in page
    assert "3 differs from 4 &amp; 5" in page
    assert "<li>compare on the device</li>" in page


def test_source_cannot_become_html():
    assert "&#39;&lt;b&gt;&#39;" in PAGES["check"]
    odd = replace(FINDING, message="<script>\x1b[2J", place=Place(Path("<img>\n.py"), 3))
    page = check_html(replace(CHECK, findings=(odd,), errors=(SourceError(Path("<a>"), 1, "b"),)), read, [])
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page


def test_the_verdict_stands_first():
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", PAGES["measured"])
    assert heading is not None
    assert heading[1] == "model.py: unsafe: 1 of 2 buckets, 1 finding (1 capture error)"


def test_the_chart_has_two_bars_a_batch_size_and_says_them_in_words():
    parsed = outline(PAGES["measured"])
    assert [a["class"] for tag, a in parsed.tags if tag == "rect"] == ["eager", "replay"] * 2
    (picture,) = [a for tag, a in parsed.tags if tag == "svg"]
    assert picture["aria-label"] == (
        "batch 1: eager 26.00 ms, replay 4.60 ms; batch 2: eager 26.00 ms, replay 5.00 ms; "
        "the dashed line is the floor, 0.29 ms"
    )


def test_what_was_not_measured_is_absent():
    page = PAGES["emulated"]
    assert "<svg" not in page
    assert "speed-up" not in page
    assert "eager ms" not in page


def test_the_command_can_be_pasted():
    assert "capturelint verify &#39;my model.py&#39;" in PAGES["measured"]
