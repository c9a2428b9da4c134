"""The only reader of ``rules/*.yaml``: rules, operations, and nothing that decides.

A rule file says what an event means; ``operations.yaml`` says what a torch operation does. Both are checked here,
key by key, so that everything behind this module works with records and enums. The one surprise: rules are found
beside the package in an editable install and inside it in a wheel.
"""

from __future__ import annotations

import difflib
import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TypeVar

from capturelint.errors import CatalogError, UsageError
from capturelint.store import Store, digest, user_directory
from capturelint.vocabulary import Effect, EventKind, Locate, ObservationKind, Outcome, Phase, ReasonFrom, Severity

KEBAB = re.compile(r"[a-z]+(-[a-z]+)*\Z")
OWN_RULES = "CAPTURELINT_RULES"
"""The variable that names directories of rules, separated as in ``PATH``; the configuration's ``rules`` fills it."""
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
    "compiled",
)
OPTIONAL_KEYS = {"where", "torch", "compiled"}
EVENT_FIELDS = frozenset({"code", "how", "name", "varies", "torch"})
"""What ``where``, ``message`` and ``help`` of a rule may ask of an event."""
Word = TypeVar("Word", bound=Enum)


@dataclass(frozen=True, slots=True)
class Rule:
    """What an event means: the record of one ``rules/<name>.yaml``.

    ``where`` maps a field of the event to the values that select it; ``runtime`` names the observations of
    ``verify`` that confirm the rule. ``compiled`` is the outcome where Inductor records the code; none: no hazard
    there. ``message`` and ``help`` may use ``{code}`` and the event's fields.
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
    compiled: Outcome | None = None


def data_directory(name: str) -> Path:
    """``rules`` or ``fixtures``: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def own_directories() -> tuple[Path, ...]:
    """Directories with rules and operations of the user's, as ``add_rules`` or the environment names them."""
    return tuple(Path(name) for name in os.environ.get(OWN_RULES, "").split(os.pathsep) if name)


def add_rules(directories: Iterable[Path]) -> None:
    """Also read the rules and operations of these directories, in this process and in those that it starts."""
    given = [os.fspath(path) for path in directories]
    if given:
        os.environ[OWN_RULES] = os.pathsep.join(given)
        load_rules.cache_clear()
        load_operations.cache_clear()


@cache
def load_rules() -> Mapping[str, Rule]:
    """Every rule by name, in alphabetical order. Raises ``CatalogError``."""
    rules: dict[str, Rule] = {}
    for directory in (data_directory("rules"), *own_directories()):
        if not directory.is_dir():
            raise CatalogError(f"{directory}: no such directory of rules")
        for path in sorted(path for path in directory.glob("*.yaml") if path.name not in TABLES):
            if path.stem in rules or path.stem in BUILT_IN:
                raise CatalogError(f"{path}: there is a rule '{path.stem}' already")
            rules[path.stem] = read_rule(path)
    return {name: rules[name] for name in sorted(rules)}


def find_rules(names: Iterable[str]) -> frozenset[str]:
    """Check rule names given by a user. Raises ``UsageError`` with the nearest name."""
    known = load_rules().keys() | BUILT_IN
    chosen = frozenset(names)
    for name in sorted(chosen - known):
        raise UsageError(f"unknown rule '{name}'{nearest(name, known) or LISTED}")
    return chosen


LISTED = "; `capturelint explain` lists the rules"
"""What a name that is like no rule's is answered with."""


BUILT_IN = frozenset(
    {
        "unused-ignore",
        "unexplained",
        "graph-break",
        "cudagraph-skip",
        "cudagraph-partition",
        "recompile",
        "rerecord",
        "overwritten-output",
    }
)
"""Rules without a YAML file: they speak about capturelint's own answers, or repeat what torch itself said."""


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
        message=template(path, "message", text(path, record, "message")),
        help=tuple(template(path, "help", each) for each in texts(path, record, "help")),
        why=text(path, record, "why").strip(),
        runtime=frozenset(word(path, "runtime", kind, ObservationKind) for kind in texts(path, record, "runtime")),
        sources=texts(path, record, "sources"),
        since=text(path, record, "since"),
        torch=text(path, record, "torch") if "torch" in record else None,
        compiled=word(path, "compiled", text(path, record, "compiled"), Outcome) if "compiled" in record else None,
    )


def read_yaml(path: Path) -> object:
    """The content of a YAML file, from the user's cache where it was parsed before. Raises ``CatalogError``.

    JSON is read many times faster, and the YAML library is not even imported.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from error
    directory = user_directory()
    if directory is None:
        return parse_yaml(path, content)
    store, key = Store(directory), digest("yaml", content)
    record = store.get(key)
    if record is not None and "loaded" in record:
        return record["loaded"]
    loaded = parse_yaml(path, content)
    if is_plain(loaded):
        store.put(key, {"loaded": loaded})
    return loaded


def parse_yaml(path: Path, content: bytes) -> object:
    """Parse the content of a YAML file. Raises ``CatalogError``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(content.decode("utf-8"), Loader=loader)
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path}: not valid utf-8: byte {content[error.start]:#04x}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        raise CatalogError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise CatalogError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def is_plain(value: object) -> bool:
    """Whether JSON gives a value back as it is: text for keys, no dates."""
    match value:
        case dict():
            return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
        case list():
            return all(map(is_plain, value))
        case _:
            return value is None or isinstance(value, (str, int, float))


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
    for name in value.keys() - EVENT_FIELDS:
        raise CatalogError(f"{locate(path, 'where')}: no event has a field '{name}'{nearest(str(name), EVENT_FIELDS)}")
    return tuple(
        (str(name), frozenset(map(str, wanted if isinstance(wanted, list) else [wanted])))
        for name, wanted in value.items()
    )


def template(path: Path, key: str, text: str) -> str:
    """A text with fields of an event in braces, checked. Raises ``CatalogError``."""
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        for name in names - EVENT_FIELDS:
            raise CatalogError(f"{locate(path, key)}: no event has a field '{name}'{nearest(name, EVENT_FIELDS)}")
        text.format_map(dict.fromkeys(EVENT_FIELDS, ""))
    except ValueError as error:
        raise CatalogError(f"{locate(path, key)}: '{key}' is no text with fields in braces: {error}") from error
    return text


def word(path: Path, key: str, value: str, kind: type[Word], row: str = "") -> Word:
    """``value`` as a member of a closed vocabulary; ``key`` is of the file, or of a ``row`` in it."""
    known = [str(member.value) for member in kind]
    if value not in known:
        raise CatalogError(f"{locate(path, row or key)}: unknown {key} '{value}'{nearest(value, known)}")
    return kind(value)


def nearest(given: str, known: Iterable[str]) -> str:
    """`` ; did you mean 'x'?`` or nothing."""
    close = difflib.get_close_matches(given, list(known), 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def locate(path: Path, key: str) -> str:
    """``path:line`` of a key, of the top level where it stands there too, for messages."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [at for at, line in enumerate(lines, 1) if line.lstrip().startswith(f"{key}:")]
    at = next((at for at in found if lines[at - 1].startswith(key)), next(iter(found), None))
    return f"{path}:{at}" if at else str(path)


MESSAGE_KEYS = frozenset(
    {
        "id",
        "engine",
        "pattern",
        "literals",
        "severity",
        "rule",
        "logger",
        "versions",
        "meaning",
        "fix",
        "source_file",
        "reason_from",
        "location",
        "context",
        "veto",
        "duplicate_of",
    }
)


@dataclass(frozen=True, slots=True)
class Nearby:
    """A pattern that must (context) or must not (veto) stand within ``num_lines`` lines of the same stream."""

    pattern: re.Pattern[str]
    num_lines: int


@dataclass(frozen=True, slots=True)
class Message:
    """One log message: a record of ``rules/messages.yaml``, whose header says what the fields mean.

    Every line that ``pattern`` matches contains one of ``literals``.
    """

    id: str
    engine: str
    pattern: re.Pattern[str]
    literals: tuple[str, ...]
    severity: Severity
    rule: str
    versions: str
    meaning: str
    fix: str
    source_file: str
    reason_from: ReasonFrom | None
    location: Locate | None
    context: Nearby | None
    veto: Nearby | None
    duplicate_of: str | None


RULE_OF_SEVERITY = {
    Severity.SKIP: "cudagraph-skip",
    Severity.DISABLED: "cudagraph-skip",
    Severity.DOWNGRADE: "cudagraph-skip",
    Severity.FALLBACK: "cudagraph-skip",
    Severity.PARTITION: "cudagraph-partition",
    Severity.RERECORD: "rerecord",
    Severity.GRAPH_BREAK: "graph-break",
    Severity.RECOMPILE: "recompile",
    Severity.OOM: "unexplained",
    Severity.ERROR: "unexplained",
    Severity.INFO: "unexplained",
}
"""The rule of a message that names none of its own."""


@cache
def load_messages() -> tuple[Message, ...]:
    """Every log message in the file's order, which is their priority. Raises ``CatalogError``."""
    path = data_directory("rules") / "messages.yaml"
    loaded = read_yaml(path)
    if not isinstance(loaded, list):
        raise CatalogError(f"{path}: expected a list")
    messages = tuple(read_message(path, record) for record in loaded)
    known = {message.id for message in messages}
    for message in messages:
        if message.duplicate_of is not None and message.duplicate_of not in known:
            raise CatalogError(f"{path}: '{message.id}' duplicates the unknown '{message.duplicate_of}'")
    return messages


def read_message(path: Path, record: object) -> Message:
    """One record of ``messages.yaml``. Raises ``CatalogError``."""
    if not isinstance(record, dict):
        raise CatalogError(f"{path}: a message must be a mapping")
    for key in record:
        if key not in MESSAGE_KEYS:
            raise CatalogError(f"{path}: {record.get('id')}: unknown key '{key}'{nearest(str(key), MESSAGE_KEYS)}")
    severity = word(path, "severity", text(path, record, "severity"), Severity)
    reason_from, location, duplicate_of = (record.get(key) for key in ("reason_from", "location", "duplicate_of"))
    return Message(
        id=text(path, record, "id"),
        engine=text(path, record, "engine"),
        pattern=expression(path, record, "pattern"),
        literals=texts(path, record, "literals"),
        severity=severity,
        rule=text(path, record, "rule") if "rule" in record else RULE_OF_SEVERITY[severity],
        versions=text(path, record, "versions"),
        meaning=text(path, record, "meaning"),
        fix=text(path, record, "fix"),
        source_file=text(path, record, "source_file"),
        reason_from=None if reason_from is None else word(path, "reason_from", str(reason_from), ReasonFrom),
        location=None if location is None else word(path, "location", str(location), Locate),
        context=nearby(path, record.get("context"), "lines_before"),
        veto=nearby(path, record.get("veto"), "lines_after"),
        duplicate_of=None if duplicate_of is None else str(duplicate_of),
    )


def nearby(path: Path, record: object, key: str) -> Nearby | None:
    """A ``context`` or ``veto`` of a message."""
    if record is None:
        return None
    if not isinstance(record, dict) or not isinstance(record.get(key), int):
        raise CatalogError(f"{path}: expected 'regex' and '{key}', got {record!r}")
    return Nearby(expression(path, record, "regex"), record[key])


def expression(path: Path, record: Mapping[str, object], key: str) -> re.Pattern[str]:
    """The regular expression under ``key``."""
    pattern = text(path, record, key)
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CatalogError(f"{path}: {pattern}: {error}") from error


@dataclass(frozen=True, slots=True)
class Case:
    """One effect of an operation and the condition on its arguments under which it holds.

    ``torch`` is a PEP 440 range, empty for every version; ``possible`` marks effects that the arguments do not tell.
    """

    effect: Effect
    absent: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    device: frozenset[str] = frozenset()
    host: frozenset[str] = frozenset()
    torch: str = ""
    possible: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of ``operations.yaml``: ``params`` by position, and the cases, the first that holds wins.

    ``refused`` of ``samples`` captures were refused where it was measured.
    """

    name: str
    params: tuple[str, ...]
    cases: tuple[Case, ...]
    source: str
    refused: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Operations:
    """All of ``operations.yaml``. ``results`` and ``modules`` map a name to the sorts that it is listed under."""

    operations: Mapping[str, Operation]
    constructs: Mapping[str, Operation]
    results: Mapping[str, frozenset[str]]
    modules: Mapping[str, str]
    parameters: frozenset[str]


OPERATION_KEYS = {"effect", "when", "params", "cases", "torch", "sure", "refused", "samples", "source", "code"}
CASE_KEYS = {"effect", "when", "torch", "sure"}
WHEN_KEYS = ("absent", "given", "device", "host")


def own_operations() -> Iterator[tuple[str, Operation]]:
    """Rows of the user's ``operations.yaml``; they win over ours. ``sources`` may be left out there."""
    for directory in own_directories():
        path = directory / "operations.yaml"
        if path.is_file():
            record = read_mapping(path)
            sources = {path.name: "", **section(path, {"sources": {}, **record}, "sources")}
            rows = section(path, record, "operations")
            given = {name: {"source": path.name, **row} if isinstance(row, dict) else row for name, row in rows.items()}
            yield from read_operations(path, given, sources).items()


@cache
def load_operations() -> Operations:
    """The operation catalogue. Raises ``CatalogError``."""
    path = data_directory("rules") / "operations.yaml"
    record = read_mapping(path)
    sources = section(path, record, "sources")
    results: dict[str, set[str]] = {}
    for sort, names in section(path, record, "results").items():
        for name in names if isinstance(names, list) else []:
            results.setdefault(str(name), set()).add(sort)
    return Operations(
        operations=read_operations(path, section(path, record, "operations"), sources) | dict(own_operations()),
        constructs=read_operations(path, section(path, record, "constructs"), sources),
        results={name: frozenset(sorts) for name, sorts in results.items()},
        modules={
            str(name): sort
            for sort, names in section(path, record, "modules").items()
            for name in (names if isinstance(names, list) else [])
        },
        parameters=frozenset(texts(path, record, "parameters")),
    )


def section(path: Path, record: Mapping[str, object], key: str) -> dict[str, object]:
    """The mapping under a top-level key."""
    value = record.get(key)
    if not isinstance(value, dict):
        raise CatalogError(f"{path}: '{key}' must be a mapping")
    return value


def read_operations(path: Path, rows: Mapping[str, object], sources: Mapping[str, object]) -> dict[str, Operation]:
    """The rows of one table, each checked key by key."""
    return {name: read_operation(path, str(name), row, sources) for name, row in rows.items()}


def read_operation(path: Path, name: str, row: object, sources: Mapping[str, object]) -> Operation:
    """One row. Raises ``CatalogError`` for an unknown key, effect or source."""
    if not isinstance(row, dict):
        raise wrong_row(path, name, "must be a mapping")
    for key in row.keys() - OPERATION_KEYS:
        raise wrong_row(path, name, f"has the unknown key '{key}'{nearest(key, OPERATION_KEYS)}")
    if row.get("source") not in sources:
        raise wrong_row(path, name, f"needs a 'source', one of {', '.join(sources)}")
    cases = row["cases"] if "cases" in row else [{key: row[key] for key in CASE_KEYS & row.keys()}]
    params = row.get("params", [])
    if not isinstance(cases, list) or not isinstance(params, list) or not all(isinstance(c, dict) for c in cases):
        raise wrong_row(path, name, "has 'params' that are no list, or 'cases' that are no list of mappings")
    return Operation(
        name=name,
        params=tuple(map(str, params)),
        cases=tuple(read_case(path, name, case) for case in cases),
        source=str(row["source"]),
        refused=int(row.get("refused", 0)),
        samples=int(row.get("samples", 0)),
    )


def wrong_row(path: Path, name: str, what: str) -> CatalogError:
    """The error for a row that cannot be understood."""
    return CatalogError(f"{locate(path, name)}: operation '{name}' {what}")


def read_case(path: Path, name: str, case: Mapping[str, object]) -> Case:
    """One effect with its condition."""
    when = case.get("when", {})
    known = {key: names for key, names in when.items() if isinstance(names, list)} if isinstance(when, dict) else {}
    if known != when or not known.keys() <= set(WHEN_KEYS):
        raise wrong_row(path, name, f"has a 'when' that is no mapping of {', '.join(WHEN_KEYS)} to lists of names")
    absent, given, device, host = (frozenset(map(str, known.get(key, ()))) for key in WHEN_KEYS)
    return Case(
        effect=word(path, "effect", str(case.get("effect")), Effect, name),
        absent=absent,
        given=given,
        device=device,
        host=host,
        torch=str(case.get("torch", "")),
        possible=case.get("sure") == "possible",
    )


@dataclass(frozen=True, slots=True)
class AtenRow:
    """What CUDA refuses about ATen operators while capturing: one row of ``rules/aten.yaml``.

    ``when`` names a condition of ``emulator/refusal.py``; ``argument`` is the schema argument that it looks at.
    """

    operators: tuple[str, ...]
    effect: Effect
    when: str
    argument: str | None
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class AtenTable:
    """``rules/aten.yaml``: refusals, and the arguments that operators take on the host beside device ones."""

    refusals: tuple[AtenRow, ...]
    host_arguments: Mapping[str, frozenset[str]]


@cache
def load_aten() -> AtenTable:
    """What ATen operators do to a capture. Raises ``CatalogError``."""
    path = data_directory("rules") / "aten.yaml"
    record = read_mapping(path)
    rows = record.get("refusals")
    if not isinstance(rows, list):
        raise CatalogError(f"{path}: 'refusals' must be a list")
    hosts = section(path, record, "host_arguments")
    return AtenTable(
        tuple(read_aten_row(path, row) for row in rows),
        {name: frozenset(texts(path, hosts, name)) for name in hosts},
    )


def read_aten_row(path: Path, row: object) -> AtenRow:
    """One refusal."""
    if not isinstance(row, dict):
        raise CatalogError(f"{path}: a refusal must be a mapping")
    for key in row:
        if key not in AtenRow.__slots__:
            raise CatalogError(f"{path}: unknown key '{key}'{nearest(str(key), AtenRow.__slots__)}")
    return AtenRow(
        operators=texts(path, row, "operators"),
        effect=word(path, "effect", text(path, row, "effect"), Effect),
        when=text(path, row, "when"),
        argument=text(path, row, "argument") if "argument" in row else None,
        why=text(path, row, "why"),
        source=text(path, row, "source"),
    )
