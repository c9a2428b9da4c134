"""What a file with an entry imports from its own project and the run was not given: calls into it are not followed.

A check of one file would else be silent about a helper in the file beside it, and look as if it had been read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.report.model import relative
from capturelint.static.files import read_source
from capturelint.static.index import parse

MAX_SHOWN = 3
MAX_FILES = 8
"""Files with entries that are looked at. A run with more is given a project and not a few files of one."""


def unread(entries: Iterable[Path], given: Sequence[Path], followed: Iterable[str]) -> Iterator[str]:
    """A sentence for each file with an entry that imports files outside the given paths, where those are few."""
    roots, packages = [path.resolve() for path in given], frozenset(followed)
    asked = dict.fromkeys(entries)
    for path in asked if len(asked) <= MAX_FILES else ():
        files = dict.fromkeys(
            file for file in imported(path, packages) if not any(file == root or root in file.parents for root in roots)
        )
        if files:
            shown = [relative(file) for file in list(files)[:MAX_SHOWN]]
            more = [f"{len(files) - MAX_SHOWN} more"] if len(files) > MAX_SHOWN else []
            which = "it is" if len(files) == 1 else "they are"
            names = listed([*shown, *more])
            yield f"{relative(path)} imports {names}; calls from here to there are followed if {which} checked too"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def imported(path: Path, packages: frozenset[str]) -> Iterator[Path]:
    """The files of the same project that a file imports, ``packages`` left out, those that it cannot find too."""
    try:
        tree = parse(read_source(path).text, path)
    except SourceError:
        return
    beside = path.resolve().parent
    top = next(folder for folder in (beside, *beside.parents) if not (folder / "__init__.py").is_file())
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                bases = list((beside, *beside.parents)[level - 1 : level]) if level else [beside, top]
                words = module.split(".") if module else []
                spelled = [[*words, alias.name] for alias in names]
            case ast.Import(names=names):
                bases, spelled = [beside, top], [alias.name.split(".") for alias in names]
            case _:
                continue
        for name in spelled:
            if name[0] not in packages and (file := found(bases, name)) is not None:
                yield file


def found(bases: Sequence[Path], name: Sequence[str]) -> Path | None:
    """The file of a module, or of the module that a name is imported from."""
    for base in bases:
        for length in range(len(name), 0, -1):
            module = base.joinpath(*name[:length])
            for file in (module.with_suffix(".py"), module / "__init__.py"):
                if file.is_file():
                    return file
    return None
