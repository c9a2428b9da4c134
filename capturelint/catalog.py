"""The only reader of ``rules/*.yaml``: rules, operations, and nothing that decides.

A rule file says what an event means; ``operations.yaml`` says what a torch operation does. Both are checked here,
key by key, so that everything behind this module works with records and enums. The one surprise: rules are found
beside the package in an editable install and inside it in a wheel.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TypeVar

import yaml

from capturelint.errors import CatalogError, UsageError
from capturelint.vocabulary import EventKind, ObservationKind, Outcome, Phase

KEBAB = re.compile(r"[a-z]+(-[a-z]+)*\Z")
TABLES = {"operations.yaml", "aten.yaml", "messages.yaml"}
RULE_KEYS = (
    "name",
    "summary",
    "event",
    "where",
    "phase",
    "outcome",
    "message",
    "help",
    "why",
    "runtime",
    "sources",
    "since",
    "torch",
)
OPTIONAL_KEYS = {"where", "torch"}
Word = TypeVar("Word", bound=Enum)


@dataclass(frozen=True, slots=True)
class Rule:
    """What an event means: the record of one ``rules/<name>.yaml``.

    ``where`` maps a field of the event to the values that select it; ``runtime`` names the observations of
    ``verify`` that confirm the rule. ``message`` and ``help`` may use ``{code}`` and the event's fields.
    """

    name: str
    summary: str
    event: EventKind
    where: tuple[tuple[str, frozenset[str]], ...]
    phase: Phase
    outcome: Outcome
    message: str
    help: tuple[str, ...]
    why: str
    runtime: frozenset[ObservationKind]
    sources: tuple[str, ...]
    since: str
    torch: str | None = None


def data_directory(name: str) -> Path:
    """``rules`` or ``fixtures``: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@cache
def load_rules() -> Mapping[str, Rule]:
    """Every rule by name, in alphabetical order. Raises ``CatalogError``."""
    directory = data_directory("rules")
    files = sorted(path for path in directory.glob("*.yaml") if path.name not in TABLES)
    rules = [read_rule(path) for path in files]
    return {rule.name: rule for rule in rules}


def find_rules(names: Iterable[str]) -> frozenset[str]:
    """Check rule names given by a user. Raises ``UsageError`` with the nearest name."""
    known = load_rules().keys() | BUILT_IN
    chosen = frozenset(names)
    for name in sorted(chosen - known):
        raise UsageError(f"unknown rule '{name}'{nearest(name, known)}")
    return chosen


BUILT_IN = frozenset({"unused-ignore", "unexplained"})
"""Rules without a YAML file: they speak about capturelint's own answers, not about torch."""


def read_rule(path: Path) -> Rule:
    """One rule file. Raises ``CatalogError`` that names file, line and the nearest valid word."""
    record = read_mapping(path)
    for key in record:
        if key not in RULE_KEYS:
            raise CatalogError(f"{locate(path, key)}: unknown key '{key}'{nearest(key, RULE_KEYS)}")
    for key in RULE_KEYS:
        if key not in record and key not in OPTIONAL_KEYS:
            raise CatalogError(f"{path}: '{key}' is missing")
    name = text(path, record, "name")
    if not KEBAB.match(name) or name != path.stem:
        raise CatalogError(f"{locate(path, 'name')}: the name '{name}' must be kebab-case and the file's name")
    return Rule(
        name=name,
        summary=text(path, record, "summary"),
        event=word(path, "event", text(path, record, "event"), EventKind),
        where=conditions(path, record.get("where", {})),
        phase=word(path, "phase", text(path, record, "phase"), Phase),
        outcome=word(path, "outcome", text(path, record, "outcome"), Outcome),
        message=text(path, record, "message"),
        help=texts(path, record, "help"),
        why=text(path, record, "why").strip(),
        runtime=frozenset(word(path, "runtime", kind, ObservationKind) for kind in texts(path, record, "runtime")),
        sources=texts(path, record, "sources"),
        since=text(path, record, "since"),
        torch=text(path, record, "torch") if "torch" in record else None,
    )


def read_yaml(path: Path) -> object:
    """Parse a YAML file. Raises ``CatalogError``."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CatalogError(f"{path}: {error}") from error


def read_mapping(path: Path) -> dict[str, object]:
    """Parse a YAML file whose top level is a mapping with text keys. Raises ``CatalogError``."""
    loaded = read_yaml(path)
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise CatalogError(f"{path}: expected a mapping")
    return loaded


def text(path: Path, record: Mapping[str, object], key: str) -> str:
    """The text under ``key``."""
    value = record.get(key)
    if not isinstance(value, str):
        raise CatalogError(f"{locate(path, key)}: '{key}' must be text")
    return value


def texts(path: Path, record: Mapping[str, object], key: str) -> tuple[str, ...]:
    """The list of texts under ``key``."""
    value = record.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CatalogError(f"{locate(path, key)}: '{key}' must be a list of texts")
    return tuple(value)


def conditions(path: Path, value: object) -> tuple[tuple[str, frozenset[str]], ...]:
    """The ``where`` of a rule: field -> a value or a list of values."""
    if not isinstance(value, dict):
        raise CatalogError(f"{locate(path, 'where')}: 'where' must be a mapping")
    return tuple(
        (str(name), frozenset(map(str, wanted if isinstance(wanted, list) else [wanted])))
        for name, wanted in value.items()
    )


def word(path: Path, key: str, value: str, kind: type[Word]) -> Word:
    """``value`` as a member of a closed vocabulary."""
    known = [str(member.value) for member in kind]
    if value not in known:
        raise CatalogError(f"{locate(path, key)}: unknown {key} '{value}'{nearest(value, known)}")
    return kind(value)


def nearest(given: str, known: Iterable[str]) -> str:
    """`` ; did you mean 'x'?`` or nothing."""
    close = difflib.get_close_matches(given, list(known), 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def locate(path: Path, key: str) -> str:
    """``path:line`` of a top-level key, for messages."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = next((number for number, line in enumerate(lines, 1) if line.startswith(f"{key}:")), None)
    return f"{path}:{at}" if at else str(path)
