"""Import directions, read from the sources: what may know what, and where each heavy library may be used."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import capturelint

PACKAGE = Path(capturelint.__file__).parent
WORDS = {"vocabulary", "place", "errors", "escape", "arguments"}
RECORDS = WORDS | {"store", "catalog", "finding", "config"}

# Part of the package -> the other parts that it may import. What is not listed may import everything: the ends, `cli`
# and what stands beside it, which nothing imports.
ALLOWED = {
    "vocabulary": set(),
    "place": set(),
    "errors": set(),
    "escape": set(),
    "arguments": set(),
    "store": WORDS,
    "catalog": WORDS | {"store"},
    "finding": WORDS,
    "config": WORDS | {"catalog"},
    "predicates": RECORDS | {"static"},
    "static": RECORDS | {"predicates", "report"},
    "emulator": RECORDS,
    "compiler": RECORDS | {"logs"},
    "runtime": RECORDS | {"emulator", "compiler", "logs"},
    "logs": RECORDS,
    "planning": RECORDS,
    "report": RECORDS | {"logs", "runtime", "planning", "compiler"},
}
ENDS = {"cli", "__main__", "pytest_plugin", "lsp"}
LIBRARIES = {
    "yaml": {"catalog"},
    "typer": {"cli"},
    "click": {"cli"},
    "rich": {"cli", "report"},
    "torch": {"runtime", "emulator", "compiler"},
    "transformers": {"runtime"},
    "libcst": {"static"},
    "jinja2": {"report", "planning"},
    "matplotlib": {"report"},
    "pygls": {"lsp"},
    "lsprotocol": {"lsp"},
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import of a file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def part(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.name != "__init__.py"]


def test_every_import_points_down_the_table():
    wrong = []
    for path in FILES:
        own = part(path)
        for line, module in imports(path):
            words = module.split(".")
            if words[0] != "capturelint" or len(words) == 1 or own in ENDS:
                continue
            target = words[1]
            is_part = target in ALLOWED or target in ENDS
            if is_part and target != own and target not in ALLOWED.get(own, set()):
                wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {own} imports {target}")
    assert wrong == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_only_where_it_belongs(library):
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in FILES
        for line, module in imports(path)
        if module.split(".")[0] == library and part(path) not in LIBRARIES[library]
    ]
    assert wrong == []


def test_every_part_stands_in_the_table():
    assert {part(path) for path in FILES} - set(ALLOWED) <= ENDS


@pytest.mark.parametrize("heavy", ["torch", "numpy", "transformers", "jinja2", "matplotlib"])
def test_check_does_not_load(heavy):
    code = (
        "import sys, capturelint.cli.check, capturelint.report.text, capturelint.report.sarif, capturelint.config\n"
        "import capturelint.static.baseline, capturelint.static.ignores\n"
        f"sys.exit({heavy!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
