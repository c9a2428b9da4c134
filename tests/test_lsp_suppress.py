"""Where a suppression is written, so that it covers the statement and stays Python."""

import ast

import pytest

from capturelint.lsp.suppress import suppression
from capturelint.static.ignores import read_ignores


def applied(text: str, line: int) -> str | None:
    edit = suppression(text, line, "host-sync", "a reason")
    if edit is None:
        return None
    lines = text.split("\n")
    row = lines[edit.line - 1]
    lines[edit.line - 1] = row[: edit.column - 1] + edit.text + row[edit.column - 1 :]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("x = t.item()\n", 1, "x = t.item()  # capturelint: ignore[host-sync] a reason\n"),
        ("x = 1  # note\n", 1, "x = 1  # note  # capturelint: ignore[host-sync] a reason\n"),
        ("if a:\n    x = f(\n        t.item()\n    )\n", 3,
         "if a:\n    # capturelint: ignore[host-sync] a reason\n    x = f(\n        t.item()\n    )\n"),
        ("x = 1 + \\\n    t.item()\n", 2, "# capturelint: ignore[host-sync] a reason\nx = 1 + \\\n    t.item()\n"),
        ("s = '''\n'''; x = t.item()\n", 2, "# capturelint: ignore[host-sync] a reason\ns = '''\n'''; x = t.item()\n"),
        ("x = 1  # capturelint: ignore[upload] why\n", 1, "x = 1  # capturelint: ignore[upload, host-sync] why\n"),
    ],
)  # fmt: skip
def test_a_suppression_covers_its_statement(text, line, expected):
    after = applied(text, line)
    assert after == expected
    ast.parse(after)
    shift = after.count("\n") - text.count("\n")
    assert any(ignore.covers(line + shift) and "host-sync" in ignore.rules for ignore in read_ignores(after))


def test_a_statement_is_suppressed_once():
    assert applied("x = t.item()  # capturelint: ignore[host-sync] a reason\n", 1) is None
