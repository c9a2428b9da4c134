"""The HTML report as text: well formed, self-contained, escaped. What a browser makes of it is another test's."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from report_pages import CHECK, FINDING, PAGES, read

from capturelint.errors import SourceError
from capturelint.place import Place
from capturelint.report.html import check_html

VOID = {"meta", "link", "br", "path", "use", "rect", "line", "circle"}


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
        if tag not in VOID:
            assert self.open.pop() == tag

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    assert parsed.open == []
    return parsed


def test_every_page_is_well_formed_and_asks_for_nothing():
    for page in PAGES.values():
        parsed = outline(page)
        assert not [tag for tag, _ in parsed.tags if tag in {"script", "img", "iframe"}]
        assert not [a for _, a in parsed.tags if "src" in a or (a.get("href") or "#")[0] not in "#d"]
        assert [a["href"] for tag, a in parsed.tags if tag == "link"] == ["data:,"]
        assert "@import" not in page
        assert not re.search(r"url\((?!#)", page)


def test_every_id_is_one_and_every_link_leads_somewhere():
    for page in PAGES.values():
        parsed = outline(page)
        assert len(parsed.ids) == len(set(parsed.ids))
        links = [a.get("href") or a.get("xlink:href") for tag, a in parsed.tags if tag in {"a", "use"}]
        used = re.findall(r"url\(#([^)]+)\)", page)
        assert {link.removeprefix("#") for link in links if link} | set(used) <= set(parsed.ids)


def test_every_page_follows_the_reader():
    for page in PAGES.values():
        assert "prefers-color-scheme: dark" in page
        assert "@media print" in page
        assert 'name="viewport" content="width=device-width' in page
        assert '<html lang="en">' in page


def test_a_finding_shows_source_trail_evidence_help_and_cure():
    page = PAGES["check"]
    assert "<mark>token.item()</mark>" in page
    assert "3 differs from 4 &amp; 5" in page
    assert "<li>compare on the device</li>" in page
    assert "The sampled token is read to stop early → The comparison stays on the device" in page
    assert '<span class="minus">-     finished = int(token[0].item() == state[&#34;eos&#34;])</span>' in page


def test_the_users_own_line_rewritten_is_the_better_cure():
    patch = "--- model.py\n+++ model.py\n@@ -3,1 +3,1 @@\n-    if token.item():\n+    if True:\n"
    page = check_html(CHECK, read, [], {FINDING: patch})
    assert '<span class="plus">+     if True:</span>' in page
    assert "The sampled token" not in page


def test_the_trail_leads_to_lines_of_the_page():
    page = PAGES["check"]
    found = re.search(r'<a href="#(source-\d+-7)">other \(model.py:7\)</a>', page)
    assert found is not None
    assert f'id="{found[1]}"' in page


def test_the_margin_tells_proven_from_suspected():
    page = PAGES["measured"]
    assert re.findall(r'<a class="(\w+)" href="#finding-(\d)"', page) == [("suspected", "2"), ("proven", "1")]


def test_the_decode_path_shows_a_function_once():
    assert re.findall(r"<h3>(model.py, from line \d)</h3>", PAGES["measured"]) == [
        "model.py, from line 6",
        "model.py, from line 1",
    ]


def test_source_cannot_become_html():
    assert "&#39;&lt;b&gt;&#39;" in PAGES["check"]
    odd = replace(FINDING, message="<script>\x1b[2J", place=Place(Path("<img>\n.py"), 3))
    page = check_html(replace(CHECK, findings=(odd,), errors=(SourceError(Path("<a>"), 1, "b"),)), read, [])
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page


def test_the_verdict_stands_first_as_a_sentence():
    headings = {name: re.search(r"<h1[^>]*>(.*?)</h1>", page) for name, page in PAGES.items()}
    assert {name: found and found[1] for name, found in headings.items()} == {
        "check": "1 finding in 1 file (1 capture error).",
        "clean": "Nothing to fix: no findings in 2 files.",
        "measured": "model.py is not safe to capture: 1 of 2 batch sizes went wrong (replay-differs at 2).",
        "emulated": "model.py is safe to capture: replay equals eager at 1 batch size.",
    }


def test_five_figures_matter_and_say_where_they_were_not_measured():
    tile = re.compile(r'<li><span class="dim">([^<]+)</span><b class="[^"]*">([^<]+)</b>')
    assert tile.findall(PAGES["measured"]) == [
        ("speed-up", "5.7x"),
        ("coverage", "98 %"),
        ("worst error", "0.5"),
        ("graph memory", "1.0 MB"),
        ("floor", "0.29 ms"),
    ]
    assert [value for _, value in tile.findall(PAGES["emulated"])] == [
        "not measured", "not measured", "0", "not measured", "not measured",
    ]  # fmt: skip


def test_every_chart_has_a_mark_for_each_figure():
    ids = set(outline(PAGES["measured"]).ids)
    assert {f"latency-{kind}-{size}" for kind in ("eager", "captured") for size in (1, 2)} <= ids
    assert {"latency-compiled-2", "latency-both-2", "latency-floor"} <= ids
    assert {"memory-1", "memory-2", "errors-1", "errors-2", "errors-tolerance"} <= ids
    assert {"padding-1-1", "padding-1-2", "padding-2-2", "timeline-eager-outside", "timeline-compiled-in-graphs"} <= ids


def test_charts_are_told_in_words():
    labels = [a["aria-label"] for tag, a in outline(PAGES["measured"]).tags if a.get("role") == "img"]
    assert labels[0] == (
        "Milliseconds of one step: batch 1: eager 26.00 ms (p99 27.90), captured 4.60 ms (p99 4.70); "
        "batch 2: eager 26.00 ms (p99 28.00), captured 5.00 ms (p99 6.00), compiled 2.50 ms (p99 2.60), "
        "compiled, captured 2.20 ms (p99 2.30); the dashed line is the floor, 0.29 ms"
    )
    assert labels[4] == (
        "Timeline of one step: eager: 0.89 ms, 100 kernels and copies run for 0.00 ms in graphs and 0.30 ms outside, "
        "nothing for 0.59 ms; captured: 0.15 ms, 3 kernels and copies run for 0.14 ms in graphs and 0.00 ms outside, "
        "nothing for 0.01 ms; compiled: 0.12 ms, 123 kernels and copies run for 0.10 ms in graphs and 0.01 ms outside, "
        "nothing for 0.01 ms"
    )


def test_charts_take_their_colours_from_the_page():
    assert not re.search(r"#0[0-9a]0[0-9a]0[0-9a]", PAGES["measured"])
    assert "fill: var(--captured)" in PAGES["measured"]


def test_what_was_not_measured_is_absent():
    page = PAGES["emulated"]
    assert [a["id"] for tag, a in outline(page).tags if tag == "figure"] == ["order"]
    assert "eager ms" not in page


def test_an_emulated_step_shows_its_operations_in_order_and_says_that_there_are_no_times():
    (label,) = [a["aria-label"] for tag, a in outline(PAGES["emulated"]).tags if a.get("role") == "img"]
    assert label == (
        "Operations of one step: 17 operations inside the graph and 2 before it, which copy the inputs; "
        "the inputs 2, Decoder.forward 5, Attention.forward 12"
    )
    assert "in order and without times, which need a GPU" in PAGES["emulated"]
    ids = {a["id"] for tag, a in outline(PAGES["emulated"]).tags if "id" in a}
    assert {"order-outside-0", "order-in-graphs-1", "order-in-graphs-2"} <= ids


def test_the_environment_can_be_reproduced():
    page = PAGES["measured"]
    assert "capturelint verify &#39;my model.py&#39;" in page
    for said in ("580.159.04", "NVIDIA H200", "2.11.0+cu130"):
        assert f"<dd>{said}</dd>" in page
