"""``[tool.capturelint]`` of a project -> ``Config``, and the torch that the project declares.

The nearest ancestor of the checked path wins, and in one directory ``capturelint.toml`` wins over ``pyproject.toml``.
Nothing of the project is run to learn this, and what happens to be installed does not count: a library's users have
other versions. Command-line options win over what is read here; that is the caller's part.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capturelint.catalog import find_rules, nearest
from capturelint.errors import ConfigError, UsageError
from capturelint.vocabulary import Confidence

if TYPE_CHECKING:
    from packaging.version import Version

Table = Mapping[str, object]

KEYS = (
    "baseline",
    "bind",
    "cache-dir",
    "confidence",
    "entry",
    "exclude",
    "follow",
    "ignore",
    "include",
    "per-file-ignores",
    "rules",
    "select",
    "torch",
)
LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml")


@dataclass(frozen=True, slots=True)
class Config:
    """What a project says about itself; every field has a default, so no file is needed.

    ``root`` is the directory that ``exclude``, ``include`` and ``per_file_ignores`` are relative to: the file's, or
    the one that was asked about. ``bind`` holds (parameter, ``module:class``). ``baseline`` and ``cache_dir`` are
    joined with ``root``.
    """

    root: Path
    path: Path | None = None
    entry: tuple[str, ...] = ()
    bind: tuple[tuple[str, str], ...] = ()
    follow: tuple[str, ...] = ()
    torch: str | None = None
    confidence: Confidence | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    rules: tuple[Path, ...] = ()
    baseline: Path | None = None
    cache_dir: Path | None = None
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()


def load_config(start: Path, explicit: Path | None = None) -> Config:
    """The configuration for a checked path, or the file that ``--config`` names.

    Raises ``ConfigError`` that names the file, the line, the key and the nearest valid key.
    """
    if explicit is not None:
        table = read_table(explicit, required=True)
        return parse(explicit, table if table is not None else {})
    begin = Path(os.path.realpath(start))
    for directory in (begin, *begin.parents):
        for name in ("capturelint.toml", "pyproject.toml"):
            path = directory / name
            table = read_table(path)
            if table is not None:
                return parse(path, table)
    return Config(root=begin if begin.is_dir() else begin.parent)


def read_table(path: Path, *, required: bool = False) -> Table | None:
    """The table of one file; ``None`` where the file is not there or does not speak to us.

    A file that only we read has to be readable; what another tool's file says to us is not known where it is not.
    """
    ours = required or path.name == "capturelint.toml"
    try:
        content = path.read_bytes()
    except OSError as error:
        if required or (ours and os.path.lexists(path)):
            raise unreadable(path, error) from error
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if ours or b"capturelint" in content:
            raise unreadable(path, error) from error
        return None
    if path.name == "capturelint.toml":
        return parse_toml(path, text)
    if not required and "capturelint" not in text:  # another tool's file: its faults are not ours to report
        return None
    tool = parse_toml(path, text).get("tool")
    table = tool.get("capturelint") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: 'tool.capturelint' must be a table")
    if table is None and required and path.name != "pyproject.toml":
        return parse_toml(path, text)
    return table


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> ConfigError:
    """The error for a file whose text is not known."""
    why = error.strerror if isinstance(error, OSError) else f"not valid utf-8: byte {error.object[error.start]:#04x}"
    return ConfigError(f"{path}: the configuration cannot be read: {why}")


TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)\Z")
"""How tomllib ends its messages; in a report the place stands in front."""


def parse_toml(path: Path, text: str) -> Table:
    """A TOML file. Raises ``ConfigError`` with line and column."""
    try:
        return load_toml(text)
    except (ValueError, RecursionError) as error:
        said = str(error)
        place = TOML_PLACE.search(said)
        where = f"{path}:{place[1]}:{place[2]}" if place else str(path)
        raise ConfigError(f"{where}: not valid TOML: {TOML_PLACE.sub('', said)}") from error


def load_toml(text: str) -> Table:
    """The table that a text is. Raises ``ValueError``."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    loaded: Table = tomllib.loads(text)
    return loaded


def parse(path: Path, table: Table) -> Config:
    """A table as a ``Config``."""
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{locate(path, key)}: unknown key '{key}'{nearest(key, KEYS)}")
    root = Path(os.path.realpath(path)).parent
    baseline, cache_dir = text_of(path, table, "baseline"), text_of(path, table, "cache-dir")
    return Config(
        root=root,
        path=path,
        entry=texts_of(path, table, "entry"),
        bind=bindings_of(path, table),
        follow=texts_of(path, table, "follow"),
        torch=torch_of(path, table),
        confidence=confidence_of(path, table),
        select=texts_of(path, table, "select"),
        ignore=texts_of(path, table, "ignore"),
        exclude=texts_of(path, table, "exclude"),
        include=texts_of(path, table, "include"),
        rules=tuple(root / name for name in texts_of(path, table, "rules")),
        baseline=root / baseline if baseline else None,
        cache_dir=root / cache_dir if cache_dir else None,
        per_file_ignores=per_file_ignores_of(path, table),
    )


def text_of(path: Path, table: Table, key: str) -> str | None:
    """The text under a key."""
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise wrong_type(path, key, "text", value)
    return value


def texts_of(path: Path, table: Table, key: str) -> tuple[str, ...]:
    """The list of texts under a key; a single text stands for a list of one."""
    value = table.get(key, [])
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong_type(path, key, "a list of texts", value)
    return tuple(value)


def bindings_of(path: Path, table: Table) -> tuple[tuple[str, str], ...]:
    """``bind`` as a table (``model = "pkg.mod:Class"``) or as a list of ``PARAM=MODULE:CLASS``."""
    value = table.get("bind")
    if isinstance(value, dict) and all(isinstance(target, str) for target in value.values()):
        return tuple(value.items())
    pairs = [text.partition("=") for text in texts_of(path, table, "bind")]
    for parameter, equals, target in pairs:
        if not (parameter and equals and target):
            raise ConfigError(f"{locate(path, 'bind')}: 'bind' must hold PARAM=MODULE:CLASS, got '{parameter}'")
    return tuple((parameter.strip(), target.strip()) for parameter, _, target in pairs)


def torch_of(path: Path, table: Table) -> str | None:
    """A version or a range of torch."""
    value = text_of(path, table, "torch")
    if value is not None and not is_version_or_range(value):
        raise ConfigError(
            f"{locate(path, 'torch')}: 'torch' must be a version or a range such as '>=2.6', got '{value}'"
        )
    return value


def is_version_or_range(value: str) -> bool:
    """Whether a text is a version (``2.11``) or a range (``>=2.6,<3``)."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        SpecifierSet(value) if re.match(r"\s*[<>=!~]", value) else Version(value)
    except (InvalidSpecifier, InvalidVersion):
        return False
    return True


def confidence_of(path: Path, table: Table) -> Confidence | None:
    """A level that can be asked for."""
    value = text_of(path, table, "confidence")
    levels = {level.word: level for level in Confidence if level is not Confidence.PROVEN}
    if value is not None and value not in levels:
        raise ConfigError(
            f"{locate(path, 'confidence')}: unknown confidence '{value}'"
            + (nearest(value, levels) or f"; choose from {', '.join(levels)}")
        )
    return levels[value] if value else None


def per_file_ignores_of(path: Path, table: Table) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Patterns of files with the rules that are ignored there."""
    value = table.get("per-file-ignores", {})
    if not isinstance(value, dict):
        raise wrong_type(path, "per-file-ignores", "a table of pattern = [rules]", value)
    return tuple((pattern, texts_of(path, value, pattern)) for pattern in value)


def require_rules(config: Config) -> None:
    """Raise ``ConfigError`` for a rule that there is not; those that the project brings along are known by now."""
    chosen = [("select", config.select), ("ignore", config.ignore), *config.per_file_ignores]
    for key, rules in chosen:
        try:
            find_rules(rules)
        except UsageError as error:
            where = locate(config.path, key) if config.path is not None else key
            raise ConfigError(f"{where}: {error}") from error


def wrong_type(path: Path, key: str, wanted: str, value: object) -> ConfigError:
    """The error for a value of another type."""
    return ConfigError(f"{locate(path, key)}: '{key}' must be {wanted}, got {value!r}")


def locate(path: Path, key: str) -> str:
    """``path:line`` of a key, for messages; in ``pyproject.toml`` the search begins at our table."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    table = (n for n, line in enumerate(lines) if re.match(r"\s*\[\s*tool\s*\.\s*[\"']?capturelint\b", line))
    begin = next(table, 0)
    pattern = re.compile(rf"\s*(\[.*\.)?[\"']?{re.escape(key)}[\"']?\s*(=|\.|\])")
    at = next((n for n, line in enumerate(lines[begin:], begin + 1) if pattern.match(line)), None)
    return f"{path}:{at}" if at else str(path)


def declared_torch(start: Path) -> str | None:
    """The range of torch that the project around ``start`` declares, as a specifier (``>=2.4,<3``, ``==2.7.0``).

    Looked for in ``pyproject.toml``, ``setup.cfg``, ``requirements*.txt`` and lock files, in this order, from the
    checked path up to the root of its repository. A library that lists several ranges has the widest.
    ``None`` where torch is not declared or has no bound.
    """
    begin = Path(os.path.realpath(start))
    for directory in (begin, *begin.parents):
        for read in (pyproject_requirements, setup_requirements, text_requirements, locked_requirements):
            found = widest(read(directory))
            if found:
                return found
        if (directory / ".git").exists():
            return None
    return None


PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")


def is_in_project(start: Path) -> bool:
    """Whether a project is around a path: its users then have whatever torch it does not exclude."""
    begin = Path(os.path.realpath(start))
    for directory in (begin, *begin.parents):
        if any((directory / name).is_file() for name in PROJECT_FILES):
            return True
        if (directory / ".git").exists():
            return False
    return False


def widest(ranges: Iterable[str]) -> str | None:
    """The range with the lowest lower bound: what holds for it holds for the others' users too."""
    ranges = list(ranges)
    if not ranges:
        return None
    from packaging.specifiers import SpecifierSet

    distinct = sorted({str(SpecifierSet(text)) for text in ranges if is_range(text)}, key=lambda t: (lowest(t), t))
    return distinct[0] if distinct else None


def is_range(text: str) -> bool:
    """Whether a text is a non-empty specifier."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return bool(str(SpecifierSet(text)))
    except InvalidSpecifier:
        return False


def lowest(text: str) -> Version:
    """The lower bound of a range; zero where there is none."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    bounds = [
        Version(part.version.removesuffix(".*"))
        for part in SpecifierSet(text)
        if part.operator in {">=", ">", "==", "~="}
    ]
    return max(bounds, default=Version("0"))


TORCH = re.compile(
    r"\s*torch\s*(?:\[[^\]]*\])?\s*\(?\s*(?P<specifier>[^;()@]*?)\s*\)?\s*(?:;.*)?", re.IGNORECASE | re.DOTALL
)
"""A requirement on torch; the library for requirements of any kind takes 40 ms to import."""


def torch_range(requirement: str) -> str | None:
    """The specifier of a requirement on torch; ``None`` for another package and for what is no requirement."""
    found = TORCH.fullmatch(requirement)
    if found is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return str(SpecifierSet(found["specifier"]))
    except InvalidSpecifier:
        return None


def torch_ranges(requirements: Iterable[object]) -> Iterator[str]:
    """The specifiers of the requirements on torch in a list."""
    for requirement in requirements:
        found = torch_range(requirement) if isinstance(requirement, str) else None
        if found:
            yield found


def pyproject_requirements(directory: Path) -> Iterator[str]:
    """Ranges in ``pyproject.toml``: the project's own, its extras and groups, and Poetry's tables."""
    record = quiet_toml(directory / "pyproject.toml")
    project = table_of(record, "project")
    yield from torch_ranges(list_of(project, "dependencies"))
    for groups in (table_of(project, "optional-dependencies"), table_of(record, "dependency-groups")):
        for name in groups:
            yield from torch_ranges(list_of(groups, name))
    poetry = table_of(table_of(record, "tool"), "poetry")
    tables = [poetry, *(table_of(table_of(poetry, "group"), name) for name in table_of(poetry, "group"))]
    for table in tables:
        found = poetry_range(table_of(table, "dependencies").get("torch"))
        if found:
            yield found


def poetry_range(value: object) -> str | None:
    """Poetry's ``^2.4``, ``~2.4``, ``2.4.*`` and ``{version = ...}`` as a specifier."""
    if isinstance(value, dict):
        value = value.get("version")
    if not isinstance(value, str) or value.strip() in {"", "*"}:
        return None
    text = value.strip()
    if re.match(r"[<>=!]|~=", text):
        return text
    match = re.fullmatch(r"([\^~]?)\s*(\d+(?:\.\d+)*)", text)
    if match is None or not match[1]:
        return f"=={text}"
    release = [int(part) for part in match[2].split(".")]
    upper = [release[0] + 1] if match[1] == "^" or len(release) == 1 else [release[0], release[1] + 1]
    return f">={match[2]},<{'.'.join(map(str, upper))}"


def setup_requirements(directory: Path) -> Iterator[str]:
    """Ranges in ``setup.cfg``."""
    if not (directory / "setup.cfg").is_file():
        return
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(directory / "setup.cfg", encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return
    if parser.has_option("options", "install_requires"):
        yield from torch_ranges(parser.get("options", "install_requires").splitlines())
    if parser.has_section("options.extras_require"):
        for _, value in parser.items("options.extras_require"):
            yield from torch_ranges(value.splitlines())


def text_requirements(directory: Path) -> Iterator[str]:
    """Ranges in ``requirements*.txt`` and ``requirements/*.txt``."""
    for path in (*sorted(directory.glob("requirements*.txt")), *sorted(directory.glob("requirements/*.txt"))):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        yield from torch_ranges(re.split(r"\s#|\s--hash|\\$", line)[0].strip() for line in lines)


def locked_requirements(directory: Path) -> Iterator[str]:
    """The version in a lock file."""
    for name in LOCKS:
        record = quiet_toml(directory / name)
        for package in (*list_of(record, "package"), *list_of(record, "packages")):
            match package:
                case {"name": "torch", "version": str(version)}:
                    yield f"=={version}"
                case _:
                    continue


def quiet_toml(path: Path) -> Table:
    """A TOML file of another tool; one that is missing or broken says nothing."""
    try:
        text = path.read_text(encoding="utf-8")
        return load_toml(text) if "torch" in text.lower() else {}
    except (OSError, ValueError, RecursionError):
        return {}


def table_of(table: Table, key: str) -> Table:
    """The table under a key, or an empty one."""
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def list_of(table: Table, key: str) -> list[object]:
    """The list under a key, or an empty one."""
    value = table.get(key)
    return value if isinstance(value, list) else []
