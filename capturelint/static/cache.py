"""What a run worked out, kept for the next one under all that it depends on.

Two kinds of record. A run's: everything that ``check`` found, under the contents of every checked file. A file's: its
entries and events, under its own content, and believed only where every name that its analysis looked for is found
where it was found then, with the same content; names that were not found must still be missing. Both are also under
the rules, the sources of capturelint itself, the version of Python and the options, so no key is ever reused for
something else. Times of files are not looked at: reading a thousand files and hashing them takes 0.1 s.
"""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from capturelint.catalog import data_directory, own_directories
from capturelint.errors import SourceError
from capturelint.finding import Finding
from capturelint.report.model import EntryRecord
from capturelint.static.index import Index
from capturelint.store import Store, digest

if TYPE_CHECKING:
    from capturelint.static.analyse import Analysed
    from capturelint.static.check import Options

Record = TypeVar("Record")
Contents = Callable[[Path], "str | None"]
"""The digest of a file's content; ``None`` where it cannot be read."""
Needs = dict[str, dict[str, "str | None"]]
"""What was looked up: by the root of the asking module, each name with the digest of what was found, or ``None``."""
Kept = tuple[int, tuple[EntryRecord, ...], tuple[Finding, ...], tuple[SourceError, ...], tuple[str, ...]]
"""What is kept of a run: the number of files, entries, findings, errors and notes."""
MAX_VARIANTS = 4
"""Results of one file that differ in what its imports were: two sets of checked paths, two branches."""


def tool_digest() -> str:
    """Everything of ours that a result depends on: rules, our own sources and the version of Python."""
    package = Path(__file__).parent.parent
    ours = [*package.glob("*.py"), *package.glob("static/*.py"), *package.glob("predicates/*.py")]
    rules = [
        path
        for place in (data_directory("rules"), *own_directories())
        for path in place.glob("*.yaml")
        if path.is_file()
    ]
    names = sorted(os.fspath(path) for path in (*ours, *rules))
    parts: list[str | bytes] = [sys.version, sys.implementation.name]
    for name in names:
        with open(name, "rb") as file:
            parts += [os.path.basename(name), file.read()]
    return digest(*parts)


class Cache:
    """The records of one run's options in a store."""

    def __init__(self, store: Store, options: Options) -> None:
        self.store = store
        bind = [part for pair in sorted(options.bind.items()) for part in pair]
        self.base = digest(tool_digest(), *bind, "\0", *options.follow)
        where = os.getcwd(), os.fspath(options.root)
        self.report_base = digest(self.base, *where, options.torch or "", str(options.configured), *options.entry)

    # ---------------------------------------------------------------- a whole run

    def run_key(self, index: Index, files: Sequence[Path], contents: Contents) -> str:
        """The key of a run over these files, all of which can be read."""
        return digest("run", self.report_base, *(identity(index, path, contents(path) or "") for path in files))

    def checked(self, key: str, index: Index, contents: Contents) -> Kept | None:
        """What the run of that key found, if all that it looked up outside of the checked files is as it was."""
        record = self.store.get(key)
        if record is None or not is_unchanged(record.get("needs"), index, contents):
            return None
        return cast("Kept | None", decode(cast(type[object], Kept), record.get("checked")))

    def keep_checked(self, key: str, index: Index, kept: Kept, found: Iterable[Analysed]) -> None:
        """Keep what a run found. Inside the checked files the key says all; elsewhere what was looked up must."""
        needs: Needs = {}
        for one in found if index.follow else ():
            for root, names in needs_of(one, index).items():
                needs.setdefault(root, {}).update(names)
        self.store.put(key, {"needs": needs, "checked": encode(kept)})

    # ---------------------------------------------------------------- one file

    def file_key(self, index: Index, path: Path, content: str, asked: Sequence[str]) -> str:
        """The key of one file's results."""
        return digest("file", self.base, *sorted(index.mentioned), "\0", *asked, identity(index, path, content))

    def analysed(self, index: Index, path: Path, asked: Sequence[str], contents: Contents) -> Analysed | None:
        """What a file gave, if all that its analysis looked up is as it was."""
        from capturelint.static.analyse import Analysed

        content = contents(path)
        record = self.store.get(self.file_key(index, path, content, asked)) if content is not None else None
        variants = record.get("variants") if record is not None else None
        for variant in variants if isinstance(variants, list) else []:
            if isinstance(variant, dict) and is_unchanged(variant.get("needs"), index, contents):
                return decode(Analysed, variant.get("analysed"))
        return None

    def keep_analysed(self, index: Index, found: Analysed, asked: Sequence[str]) -> None:
        """Keep what a file gave, before results of the same file with other imports."""
        if not found.complete:
            return
        key = self.file_key(index, found.path, found.digests[found.path], asked)
        record = self.store.get(key) or {}
        needs = needs_of(found, index)
        before = record.get("variants")
        others = [
            variant
            for variant in (before if isinstance(before, list) else [])
            if isinstance(variant, dict) and variant.get("needs") != needs
        ]
        kept = {"needs": needs, "analysed": encode(found)}
        self.store.put(key, {"variants": [kept, *others][:MAX_VARIANTS]})


def identity(index: Index, path: Path, content: str) -> str:
    """A file as an analysis sees it: its path, the name that it is imported by, and its content."""
    name, root = index.name_of(path)
    return f"{path}\0{name}\0{root}\0{content}"


def needs_of(found: Analysed, index: Index) -> Needs:
    """What an analysis looked up."""
    needs: Needs = {}
    for (name, root), path in found.lookups.items():
        where = "" if root is None else os.fspath(root)
        known = None if path is None else digest(identity(index, path, found.digests[path]))
        needs.setdefault(where, {})[name] = known
    return needs


def is_unchanged(needs: object, index: Index, contents: Contents) -> bool:
    """Whether every name is still found where it was, in a file of the same name and content, or still missing."""
    if not isinstance(needs, dict):
        return False
    return all(
        wanted == current(index, name, Path(root) if root else None, contents)
        for root, names in needs.items()
        for name, wanted in names.items()
    )


def current(index: Index, name: str, root: Path | None, contents: Contents) -> str | None:
    """What a name is found as in this run: the digest of a file's identity, ``None`` where there is no such module."""
    path = index.resolve(name, root)
    content = contents(path) if path is not None else None
    if path is None:
        return None
    return digest(identity(index, path, content)) if content is not None else "unreadable"


# -------------------------------------------------------------------- records as JSON


def encode(value: object) -> object:
    """A record of ours as JSON: a dataclass is the list of its fields in order."""
    match value:
        case None | bool() | str():
            return value
        case Enum():
            return value.value
        case int() | float():
            return value
        case Path():
            return os.fspath(value)
        case SourceError():
            return [os.fspath(value.path), value.line, value.reason]
        case tuple() | list():
            return [encode(item) for item in value]
        case Mapping():
            return [[encode(key), encode(item)] for key, item in value.items()]
        case _ if is_dataclass(value):
            return [encode(getattr(value, field.name)) for field in fields(value) if field.name not in DROPPED]
        case _:
            raise TypeError(f"{type(value).__name__} has no place in a record")


DROPPED = frozenset({"lookups", "digests", "outcomes", "unlisted"})
"""Fields that are not kept: ``needs`` says what two of them say, the others are for ``facts``, which keeps nothing."""


def decode(kind: type[Record], value: object) -> Record | None:
    """The record that ``encode`` made; ``None`` for anything that it cannot have made."""
    try:
        return cast(Record, decoder(cast(Hashable, kind))(value))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


Decoder = Callable[[Any], object]


@cache
def decoder(kind: Any) -> Decoder:  # noqa: ANN401 - a type or a form of one: `str | None` is no type
    """How JSON becomes a value of a type: chosen once for each type, by its annotations."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (str, int, bool, float):
        return cast(Decoder, kind)
    if kind is Path:
        return lru_cache(maxsize=4096)(Path)
    if kind is SourceError:
        return lambda value: SourceError(Path(value[0]), value[1], value[2])
    if origin in (UnionType, typing.Union):
        [inner] = [decoder(argument) for argument in arguments if argument is not type(None)]
        return lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[-1] is Ellipsis:
        item = decoder(arguments[0])
        return lambda value: tuple([item(one) for one in value])
    if origin is tuple:
        items = [decoder(argument) for argument in arguments]
        return lambda value: tuple([read(one) for read, one in zip(items, value, strict=True)])
    if origin is not None and issubclass(origin, Mapping):
        key, item = (decoder(argument) for argument in arguments)
        return lambda value: {key(name): item(one) for name, one in value}
    if issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        return lambda value: members[value]
    return dataclass_decoder(kind)


def dataclass_decoder(kind: type[object]) -> Decoder:
    """How the list of its fields becomes a dataclass."""
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    kept = [(field.name, decoder(hints[field.name])) for field in fields(kind) if field.name not in DROPPED]  # type: ignore[arg-type]
    make = cast(Callable[..., object], kind)

    def read(value: list[object]) -> object:
        if len(value) != len(kept):
            raise ValueError(kind.__name__)
        return make(**{name: inner(one) for (name, inner), one in zip(kept, value, strict=True)})

    return read
