"""The HTML report in a real, headless Chromium: what is drawn, read, and reached by the keyboard.

Layout is compared in a font that is made here, every glyph a block: the pictures then depend on no machine's fonts.
To accept a new layout: delete ``fixtures/report/*.png`` and run the test twice.
"""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import browser_path
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image, ImageChops, ImageStat
from playwright.sync_api import Browser, Page, sync_playwright
from report_pages import EAGER_LINE, PAGES, REPLAY_LINE

pytestmark = pytest.mark.browser

REFERENCES = Path(__file__).parents[1] / "fixtures" / "report"
VIEWS = [(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]
PHONE, DESK = 360, 1280
SHRINK = 4
MAX_DIFFERENCE = 2.0
"""Mean over the picture, of 255 grey levels; a moved or missing block is far above, another rasteriser below."""

OVERFLOWING = """() => {
  const scrolled = (node) => {
    for (let at = node; at; at = at.parentElement)
      if (getComputedStyle(at).overflowX === 'auto') return true;
    return false;
  };
  return [...document.body.querySelectorAll('*')].filter((node) => {
    const box = node.getBoundingClientRect();
    return (box.right > innerWidth + 0.5 || box.left < -0.5) && !scrolled(node) && !node.matches('.skip');
  }).map((node) => node.tagName + '.' + (node.className.baseVal ?? node.className));
}"""
PALE = """() => {
  const channel = (part) => { part /= 255; return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4 };
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const colour = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll('*')].filter((node) => {
    if (node.closest('.skip') || ![...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim())) return false;
    const style = getComputedStyle(node), paper = behind(document.body);
    const ink = colour(node.closest('svg') ? style.fill : style.color);
    if (node.closest('svg') && ink.join() === paper.join()) return false;  // stands on a bar
    const [a, b] = [luminance(ink), luminance(behind(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  }).map((node) => node.tagName + ' ' + node.textContent.trim().slice(0, 40));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def block_font() -> str:
    """A font as a style sheet: each character is a block, half as wide as high."""
    pen = TTGlyphPen(None)
    for number, corner in enumerate([(50, 0), (50, 650), (450, 650), (450, 0)]):
        pen.lineTo(corner) if number else pen.moveTo(corner)
    pen.closePath()
    block, empty = pen.glyph(), TTGlyphPen(None).glyph()
    names = [".notdef", "space", "block"]
    characters = dict.fromkeys([*range(0x21, 0x250), *range(0x2000, 0x2600)], "block") | {0x20: "space"}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(characters)
    builder.setupGlyf({".notdef": empty, "space": empty, "block": block})
    builder.setupHorizontalMetrics(dict.fromkeys(names, (500, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "block", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, sTypoDescender=-200, usWinAscent=800, usWinDescent=200)
    builder.setupPost()
    written = io.BytesIO()
    builder.save(written)
    source = base64.b64encode(written.getvalue()).decode()
    return (
        f"@font-face {{ font-family: block; src: url(data:font/ttf;base64,{source}) }}"
        "* { font-family: block !important; font-synthesis: none }"
        # What the machine, the rules and their fixtures say is not layout.
        "dl, .why, .cured, .diff { display: none !important }"
    )


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page of the report in a view; what the page says wrong and asks for is in ``said``."""
    contexts = []

    def show(name: str, width: int = DESK, scheme: str = "light", style: str = "") -> tuple[Page, list[str]]:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
        path = tmp_path / f"{name}.html"
        path.write_text(PAGES[name], encoding="utf-8")
        page.goto(path.as_uri())
        if style:
            page.add_style_tag(content=style)
            page.evaluate("document.fonts.ready")
        return page, said

    yield show
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_silent_fits_and_can_be_read(opened, name):
    page, said = opened(name)
    for width, scheme in VIEWS:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate(PALE) == []
    assert said == []


def test_dark_is_dark_and_light_is_light(opened):
    page, _ = opened("measured")
    shades = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]


def test_every_chart_draws_its_figures_to_scale(opened):
    page, _ = opened("measured")

    def box(mark: str) -> dict[str, float]:
        return page.evaluate("id => { const b = document.getElementById(id).getBoundingClientRect();"
                             "return {width: b.width, height: b.height, left: b.left, top: b.top} }", mark)  # fmt: skip

    assert [figure.get_attribute("id") for figure in page.query_selector_all("figure")] == [
        "latency", "memory", "errors", "padding", "timeline",
    ]  # fmt: skip
    eager = box("latency-eager-2")["width"]
    for kind, milliseconds in (("captured", 5.0), ("compiled", 2.5), ("both", 2.2)):
        assert box(f"latency-{kind}-2")["width"] / eager == pytest.approx(milliseconds / 26, rel=0.03)
    assert box("memory-1")["width"] > 100
    assert box("errors-1")["width"] < box("errors-2")["width"]
    assert box("padding-1-2")["width"] == pytest.approx(box("padding-2-2")["width"])
    assert box("timeline-captured-in-graphs")["width"] / box("timeline-eager-outside")["width"] == pytest.approx(
        REPLAY_LINE.us / EAGER_LINE.us, rel=0.1
    )


def test_the_keyboard_reaches_the_findings_and_everything_that_scrolls(opened):
    page, _ = opened("measured", PHONE)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "to the findings"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    unreachable = page.evaluate(
        "[...document.querySelectorAll('*')].filter(n => getComputedStyle(n).overflowX === 'auto' && n.tabIndex < 0)"
        ".map(n => n.className)"
    )
    assert unreachable == []


def test_a_mark_in_the_margin_leads_to_its_finding_and_the_trail_back(opened):
    page, _ = opened("measured", PHONE)
    page.click(".margin a.proven")
    assert page.evaluate("location.hash + document.querySelector(':target').tagName") == "#finding-1ARTICLE"
    page.click("#finding-1 .trail a")
    assert page.evaluate("document.querySelector(':target').className") == ""


def test_paper_gets_black_on_white_without_scrolling(opened):
    page, _ = opened("measured", 720, "dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(
        "[...document.querySelectorAll('.source, .scroll')].every(n => n.scrollWidth <= n.clientWidth + 1"
        " || n.matches('.scroll'))"
    )


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("measured", PHONE, "dark"), ("measured", DESK, "light"), ("check", PHONE, "light")]
)
def test_the_layout_is_as_it_was(opened, block_font, name, width, scheme):
    page, _ = opened(name, width, scheme, block_font)
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("L")
    seen = shot.resize((shot.width // SHRINK, shot.height // SHRINK), Image.Resampling.BOX)
    reference = REFERENCES / f"{name}-{width}-{scheme}.png"
    if not reference.exists():
        reference.parent.mkdir(exist_ok=True)
        seen.save(reference, optimize=True)
        pytest.fail(f"{reference.name} was not there and is written; look at it and run the test again")
    with Image.open(reference) as expected:
        assert abs(seen.height - expected.height) <= 2
        height = min(seen.height, expected.height)
        pair = [picture.crop((0, 0, expected.width, height)) for picture in (seen, expected.convert("L"))]
        assert ImageStat.Stat(ImageChops.difference(*pair)).mean[0] <= MAX_DIFFERENCE
