"""Programs that nobody would write, and real ones that were damaged: one report each, never a traceback or a hang.

The examples are always the same ones. ``CAPTURELINT_FUZZ=5000`` tries so many others instead.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capturelint.errors import SourceError
from capturelint.report import CheckReport, Format, render
from capturelint.static.analyse import check_syntax
from capturelint.static.check import Options, check
from capturelint.static.files import Sources
from capturelint.static.index import Index, parse
from capturelint.static.regions import find_entries, may_have_entries

ROOT = Path(__file__).parents[1]
REAL = sorted(
    path.read_bytes() for folder in ("clean", "targets") for path in (ROOT / "fixtures" / folder).glob("*.py")
)
NUM_EXAMPLES = int(os.environ.get("CAPTURELINT_FUZZ", "0"))
MAX_FILE_S = 20.0
fuzz = settings(
    max_examples=NUM_EXAMPLES or 50,
    derandomize=not NUM_EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

NAMES = st.sampled_from(["x", "n", "self", "cache", "torch", "tokens", "graph", "f", "__class__", "len", "super"])
FIELDS = st.sampled_from(
    ["item", "cpu", "shape", "cuda", "tolist", "to", "k", "graph", "data_ptr", "__init__", "size", "append", "weight"]
)
ATOMS = st.one_of(
    NAMES,
    st.integers(-3, 2**70).map(str),
    st.sampled_from(["None", "True", "...", "1.5", "2j", "b'a'", "'a'", "f'{x}{n!r:>{n}}'", "[]", "{}", "()", "1e999"]),
)


def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions around expressions."""
    shapes = [
        "({0}).{f}", "({0})({1})", "({0})(*{1}, **{0})", "({0})[{1}]", "({0})[{1}:{0}, ...]", "({0}) + ({1})",
        "({0}) @ ({1})", "-({0})", "not ({0})", "({0}) < ({1}) < 3", "({0}) if ({1}) else ({0})", "lambda x, *n: ({0})",
        "[({0}) for x in ({1}) if x]", "{{({0}): ({1}) for n in x}}", "(n := ({0}))", "[*({0}), ({1})]", "{{**({0})}}",
        "torch.tensor({0}, device={1})", "torch.cat([{0}, {1}], dim={0})", "({0}).{f}({1})", "isinstance({0}, {1})",
        "torch.where({0}, {1}, 0.0)", "getattr({0}, 'k', {1})", "super().{f}({0})", "({0}) in ({1})", "await ({0})",
        "({0}) << ({1})", "({0}) ** ({1})", "range({0})", "zip({0}, {1})", "torch.compile({0}, mode='reduce-overhead')",
        "torch.cuda.graph({0})", "type({0})({1})", "f'{{({0})}}'", "(yield ({0}))",
    ]  # fmt: skip
    return st.builds(lambda shape, a, b, f: shape.format(a, b, f=f), st.sampled_from(shapes), inner, inner, FIELDS)


EXPRESSIONS = st.recursive(ATOMS, wider, max_leaves=8)


def indented(block: str) -> str:
    return "\n".join(f"    {line}" for line in block.split("\n"))


def blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Statements around statements."""
    shapes = [
        "if {e}:\n{b}\nelse:\n{c}", "for {n} in {e}:\n{b}\nelse:\n{c}", "while {e}:\n{b}", "with {e} as {n}:\n{b}",
        "try:\n{b}\nexcept {e} as x:\n{c}\nfinally:\n{c}", "def {n}(x, n={e}, *self, **cache):\n{b}", "{b}\n{c}",
        "class {n}(torch.nn.Module):\n{b}",
        "match {e}:\n    case {{'a': x, **n}} | [x, *n] if x:\n    {b}\n    case _:\n    {c}",
        "@torch.compile(mode={e})\ndef forward(self, x, past_key_values=None):\n{b}", "async def {n}(x):\n{b}",
        "with torch.cuda.graph(graph):\n{b}", "while True:\n{b}\n    break", "for x.k in {e}:\n{b}\n    continue",
    ]  # fmt: skip
    return st.builds(
        lambda shape, e, n, b, c: shape.format(e=e, n=n, b=indented(b), c=indented(c)),
        st.sampled_from(shapes), EXPRESSIONS, NAMES, inner, inner,
    )  # fmt: skip


SIMPLE = st.builds(
    lambda shape, a, b, n, f: shape.format(a, b, n=n, f=f),
    st.sampled_from(
        ["{n} = {0}", "{n}.{f} = {0}", "{n}[{0}] = {1}", "{n} += {0}", "({n}, *x), n = {0}", "return {0}",
         "del {n}.{f}",
         "assert {0}, {1}", "raise {0}", "global {n}", "{0}", "import {n}.{f}", "from . import {n}", "{n}: {0} = {1}",
         "from torch import {f} as {n}", "nonlocal {n}", "pass", "print({0})", "{n}.append({0})", "{n}.k[:, n] = {0}"]
    ),
    EXPRESSIONS, EXPRESSIONS, NAMES, FIELDS,
)  # fmt: skip
STATEMENTS = st.recursive(SIMPLE, blocks, max_leaves=10)


def survives(content: bytes, name: str = "model.py") -> None:
    """Check a text and write the report in every format."""
    sources = Sources({Path(name): content})
    checked = check([Path(name)], Options(sources=sources, max_file_s=MAX_FILE_S))
    assert not any("takes longer" in note for note in checked.notes)
    report = CheckReport("0", None, checked.files, checked.entries, checked.findings, checked.errors, 0, checked.notes)
    for format in Format:
        assert "\x1b" not in render(report, format, read=sources.lines)


def agree(text: str) -> None:
    """What is asked of a text is what its tree says: whether it can be parsed, and whether entries may be in it."""
    faults: list[str] = []
    for parsed in (parse, check_syntax):
        try:
            parsed(text, Path("model.py"))
        except SourceError as error:
            faults.append(str(error))
    assert faults == faults[:1] * 2
    module = Index(lambda _: text).load(Path("model.py"))
    assert module is None or not find_entries(module) or may_have_entries(text)


@fuzz
@given(st.lists(STATEMENTS, min_size=1, max_size=4), st.lists(STATEMENTS, max_size=2))
def test_any_program_has_a_report(step, around):
    body = indented("\n".join(step))
    text = (
        "import torch\n"
        + "\n".join(around)
        + f"\ndef decode_step(self, x: torch.Tensor, n: int, cache=None):\n{body}\n"
    )
    survives(text.encode())
    agree(text)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real program with pieces of it taken out, doubled, moved, or overwritten by anything."""
    content = draw(st.sampled_from(REAL))
    lines = content.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 6))):
        at, to = draw(st.integers(0, max(len(lines) - 1, 0))), draw(st.integers(0, max(len(lines) - 1, 0)))
        match draw(st.sampled_from(["drop", "double", "move", "bytes", "indent", "word"])):
            case "drop":
                del lines[at : at + 1]
            case "double":
                lines[at:at] = lines[at : at + 3]
            case "move":
                lines[at:at] = lines[to : to + 2]
            case "bytes":
                lines[at:at] = [draw(st.binary(max_size=12))]
            case "indent":
                lines[at:at] = [b"\t" + line for line in lines[to : to + 1]]
            case "word":
                words = [draw(EXPRESSIONS).encode(), b"torch.cuda.graph(g)", b"self", b"=", b":", b"("]
                lines[at:at] = [draw(st.sampled_from(words))]
    return b"".join(lines)


@fuzz
@given(damaged())
def test_a_damaged_program_has_a_report(content):
    survives(content)
    agree(content.decode("utf-8", "replace").replace("\0", ""))


@fuzz
@given(st.binary(max_size=400), st.sampled_from(["model.py", "model.ipynb"]))
def test_any_bytes_have_a_report(content, name):
    survives(content, name)
