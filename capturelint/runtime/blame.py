"""An observation becomes a finding: the rule that fits, the line, and words that a reader can act on.

A static suspect on the same line whose rule the observation confirms wins and is ``proven``. Where no rule fits, the
finding says so under ``unexplained`` with everything known; an observation is never dropped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capturelint.catalog import Case, Rule, load_operations, load_rules
from capturelint.finding import Evidence, Finding
from capturelint.place import Frame, Place
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.syntax import parsed, source_lines
from capturelint.vocabulary import Confidence, Effect, ObservationKind, Outcome

MAX_CODE = 48
HOST_METHODS = re.compile(r"\.(item|tolist|cpu|numpy|to|synchronize|query)\(")
CAPTURE_WORDS = ("captur", "another stream")
"""Words of CUDA's refusals; what the target raises by itself has none of them."""

LOOK_UPS = re.compile(r"bisect|searchsorted|next\(|min\(|(graph|bucket|size)\w*\[|\bfor\b.+\bif\b.+\]\[-?\d+\]")
"""How the bucket of a live batch is looked up."""

GROWING = {"cat", "stack", "constant_pad_nd", "pad", "hstack", "vstack"}

EFFECT_RULES: Mapping[Effect, str] = {
    Effect.DYNAMIC_SHAPE: "dynamic-shape",
    Effect.UPLOAD: "upload",
    Effect.UNSAFE: "unsafe-operation",
}
"""What ``check`` calls an operation of that effect."""

DEFAULT_RULES: Mapping[ObservationKind, str] = {
    ObservationKind.HOST_READ: "host-sync",
    ObservationKind.PAGEABLE_COPY: "upload",
    ObservationKind.DYNAMIC_OUTPUT: "dynamic-shape",
    ObservationKind.SYNCHRONISED: "host-sync",
    ObservationKind.CHECKED_ERROR: "implicit-sync",
    ObservationKind.UNJOINED_STREAM: "stream-misuse",
    ObservationKind.FOREIGN_GENERATOR: "generator",
    ObservationKind.REFUSED: "unsafe-operation",
    ObservationKind.RAISED: "unexplained",
    ObservationKind.SCALAR_CHANGED: "baked-scalar",
    ObservationKind.TENSOR_CHANGED: "baked-scalar",
    ObservationKind.SHAPE_CHANGED: "baked-scalar",
    ObservationKind.CALL_CHANGED: "host-side-effect",
    ObservationKind.BRANCH_CHANGED: "baked-scalar",
    ObservationKind.ADDRESS_CHANGED: "state-rebind",
    ObservationKind.HOST_BYTES_CHANGED: "staging-reuse",
    ObservationKind.INPUT_MOVED: "input-rebind",
    ObservationKind.MEMORY_FREED: "freed-memory",
    ObservationKind.MEMORY_UNDEFINED: "lazy-init",
    ObservationKind.OUTPUT_OVERWRITTEN: "stale-output",
    ObservationKind.PADDING_LEAKED: "pad-write",
    ObservationKind.STATE_ADVANCED: "warm-up-state",
    ObservationKind.RANDOM_FROZEN: "host-random",
    ObservationKind.CAPTURE_DEPENDENT: "capture-dependent-maths",
    ObservationKind.VALUES_DIFFER: "unexplained",
}

MESSAGES: Mapping[ObservationKind, str] = {
    ObservationKind.HOST_READ: "`{code}` reads the device, which a capture refuses",
    ObservationKind.PAGEABLE_COPY: "`{code}` copies pageable host memory, which a capture refuses",
    ObservationKind.DYNAMIC_OUTPUT: "`{code}` sizes its result by values, which a capture refuses",
    ObservationKind.SYNCHRONISED: "`{code}` waits for the device, which a capture refuses",
    ObservationKind.CHECKED_ERROR: "`{code}` reads its own error code, which a capture refuses",
    ObservationKind.UNJOINED_STREAM: "`{code}` starts work that the capture's stream never waits for",
    ObservationKind.FOREIGN_GENERATOR: "`{code}` draws from a generator that the graph does not know",
    ObservationKind.REFUSED: "`{code}` fails while it is captured",
    ObservationKind.RAISED: "`{code}` fails outside any capture",
    ObservationKind.SCALAR_CHANGED: "a number in `{code}` is frozen at {before}",
    ObservationKind.TENSOR_CHANGED: "the choice of `{before}` in `{code}` is frozen",
    ObservationKind.SHAPE_CHANGED: "a shape in `{code}` is frozen at {before}",
    ObservationKind.BRANCH_CHANGED: "the branch at `{code}` is frozen as it went at capture",
    ObservationKind.CALL_CHANGED: "the branch at `{code}` is frozen as it went at capture",
    ObservationKind.ADDRESS_CHANGED: "`{code}` rebinds state, which no replay repeats",
    ObservationKind.HOST_BYTES_CHANGED: "`{code}` copies host memory whose content no replay renews",
    ObservationKind.INPUT_MOVED: "`{code}` leaves the memory that the graph reads as it was",
    ObservationKind.MEMORY_FREED: "`{code}` frees memory that the graph reads",
    ObservationKind.MEMORY_UNDEFINED: "`{code}` leaves memory that a replay reads undefined",
    ObservationKind.OUTPUT_OVERWRITTEN: "`{code}` keeps an output that the next replay overwrites",
    ObservationKind.PADDING_LEAKED: "padded rows change live ones at `{code}`",
    ObservationKind.STATE_ADVANCED: "`{code}` moves state that nobody rewinds",
    ObservationKind.RANDOM_FROZEN: "the random number in `{code}` is drawn once, at capture",
    ObservationKind.CAPTURE_DEPENDENT: "`{code}` takes another way while it is captured",
    ObservationKind.VALUES_DIFFER: "replay differs from eager",
}

MOVED = "`{code}` moves a number that the graph froze"
GROWN = "`{code}` lengthens `{home}`, which no replay repeats"

SILENT = {
    ObservationKind.SCALAR_CHANGED,
    ObservationKind.TENSOR_CHANGED,
    ObservationKind.SHAPE_CHANGED,
    ObservationKind.CALL_CHANGED,
    ObservationKind.BRANCH_CHANGED,
    ObservationKind.ADDRESS_CHANGED,
    ObservationKind.HOST_BYTES_CHANGED,
    ObservationKind.INPUT_MOVED,
    ObservationKind.MEMORY_FREED,
    ObservationKind.MEMORY_UNDEFINED,
    ObservationKind.OUTPUT_OVERWRITTEN,
    ObservationKind.PADDING_LEAKED,
    ObservationKind.STATE_ADVANCED,
    ObservationKind.RANDOM_FROZEN,
    ObservationKind.CAPTURE_DEPENDENT,
    ObservationKind.VALUES_DIFFER,
}


class Blanks(dict[str, str]):
    """Template fields; an event's field that no run can know shows as dots."""

    def __missing__(self, key: str) -> str:
        return "..."


@dataclass(frozen=True, slots=True)
class Suspects:
    """Static findings, from the JSON of ``check``."""

    findings: Sequence[Finding] = field(default_factory=tuple)

    def on(self, spot: Spot) -> list[Finding]:
        """The suspects on a line."""
        path = Path(spot.path).resolve()
        return [
            finding
            for finding in self.findings
            if finding.place is not None
            and finding.place.line <= spot.line <= max(finding.place.end_line, finding.place.line)
            and finding.place.path.resolve() == path
        ]

    def explaining(self, kind: ObservationKind) -> list[Finding]:
        """The suspects whose rule says that a run may show ``kind``, the surest ones."""
        rules = load_rules()
        fitting = [each for each in self.findings if each.rule in rules and kind in rules[each.rule].runtime]
        best = max((each.confidence for each in fitting), default=Confidence.POSSIBLE)
        return [each for each in fitting if each.confidence is best]


def blame(observations: Iterable[Observation], bucket: int, suspects: Suspects) -> list[Finding]:
    """One finding an observation."""
    return [finding for observation in observations for finding in findings_of(observation, bucket, suspects)]


def findings_of(observation: Observation, bucket: int, suspects: Suspects) -> list[Finding]:
    """The finding that an observation proves; without a line, the suspects that would explain it, unproven."""
    if not observation.spots and (found := suspects.explaining(observation.kind)):
        evidence = Evidence(observation.text, bucket, observation.step)
        return [replace(suspect, evidence=evidence) for suspect in found]
    return [finding_of(observation, bucket, suspects)]


def finding_of(observation: Observation, bucket: int, suspects: Suspects) -> Finding:
    """The finding that an observation proves."""
    evidence = Evidence(observation.text, bucket, observation.step)
    rules = load_rules()
    if not observation.spots:
        name = rule_name(observation, None)
        return written(observation, name, rules.get(name), None, evidence)
    spot = observation.spots[-1]
    observation = as_read(observation, spot)
    for suspect in suspects.on(spot):
        if observation.kind in (rules[suspect.rule].runtime if suspect.rule in rules else ()):
            return confirmed(suspect, evidence)
    name = rule_name(observation, spot)
    return written(observation, name, rules.get(name), spot, evidence)


def as_read(observation: Observation, spot: Spot) -> Observation:
    """The observation, a read where a method that reads was refused: torch's error is the same for both directions."""
    is_copy = observation.kind is ObservationKind.PAGEABLE_COPY and spot.column
    if is_copy and any(case.effect is Effect.READ for case in cases_at(spot)):
        return replace(observation, kind=ObservationKind.HOST_READ)
    return observation


def confirmed(suspect: Finding, evidence: Evidence) -> Finding:
    """A suspect that a run has proven."""
    return replace(suspect, confidence=Confidence.PROVEN, evidence=evidence)


def written(observation: Observation, name: str, rule: Rule | None, spot: Spot | None, evidence: Evidence) -> Finding:
    """A finding in our own words; the cure is the rule's."""
    silent = observation.kind in SILENT
    code = code_at(spot) if spot else ""
    template = words_of(observation)
    message = template.format_map(
        Blanks(code=code, before=observation.before or "its first value", home=observation.home)
    )
    if not code:
        message = "no line is known: " + observation.text
    trail = tuple(Frame(Path(each.path), each.line, each.name) for each in observation.spots[:-1])
    return Finding(
        name,
        place_of(spot) if spot else None,
        message,
        filled(rule.help, code) if rule else (),
        Outcome.SILENT_WRONG if silent else Outcome.CAPTURE_ERROR,
        Confidence.PROVEN if observation.sure else Confidence.LIKELY,
        trail,
        evidence=evidence,
    )


def words_of(observation: Observation) -> str:
    """The message's template. With a home, the observation names the store that a frozen thing comes from."""
    match observation.kind:
        case ObservationKind.SCALAR_CHANGED if observation.home:
            return MOVED
        case ObservationKind.CALL_CHANGED if observation.home:
            return GROWN
        case kind:
            return MESSAGES[kind]


def filled(texts: Sequence[str], code: str) -> tuple[str, ...]:
    """A rule's help with the code put in."""
    return tuple(text.format_map(Blanks(code=code)) for text in texts)


def rule_name(observation: Observation, spot: Spot | None) -> str:
    """The rule that an observation confirms."""
    match observation.kind:
        case ObservationKind.HOST_READ if spot is not None:
            return operation_rule(observation.kind, spot) or read_rule(spot)
        case ObservationKind.SHAPE_CHANGED if observation.home or observation.call in GROWING:
            return "cache-growth"
        case ObservationKind.ADDRESS_CHANGED if observation.before == "None":
            return "lazy-init"
        case ObservationKind.REFUSED | ObservationKind.RAISED if spot and is_missing_bucket(observation, spot):
            return "bucket-gap"
        case ObservationKind.REFUSED if not any(words in observation.text for words in CAPTURE_WORDS):
            return "unexplained"
        case ObservationKind.REFUSED if "another stream" in observation.text:
            return "stream-misuse"
        case kind:
            return DEFAULT_RULES[kind]


def is_missing_bucket(observation: Observation, spot: Spot) -> bool:
    """Whether a look-up among captured sizes ran off their end."""
    ran_off = observation.text.startswith(("IndexError", "KeyError", "StopIteration", "ValueError: min() "))
    return ran_off and LOOK_UPS.search(code_at(replace(spot, column=0), MAX_CODE * 100)) is not None


def operation_rule(kind: ObservationKind, spot: Spot) -> str:
    """The rule about the operation called at ``spot``, where a run that shows ``kind`` confirms it; empty if none.

    CUDA's error is the same for a count that sizes a result and for any other read; the catalogue tells them apart.
    Where columns are unknown (3.10), a method on the line that reads by its name comes first.
    """
    if not spot.column and HOST_METHODS.search(code_at(spot, MAX_CODE * 100)):
        return ""
    rules = load_rules()
    named = (EFFECT_RULES.get(case.effect, "") for case in cases_at(spot))
    return next((rule for rule in named if rule and kind in rules[rule].runtime), "")


def cases_at(spot: Spot) -> Iterator[Case]:
    """What the catalogue says of the operation called at ``spot``."""
    operations = load_operations().operations
    for node in ast.walk(parsed(spot.path)):
        if isinstance(node, ast.Call) and is_at(node, spot):
            words = ast.unparse(node.func).split(".")
            known = (operations.get(".".join(words[at:])) for at in range(len(words)))
            yield from next((row.cases for row in known if row is not None), ())


def read_rule(spot: Spot) -> str:
    """Which of the rules about reads a line breaks: by its method, as a condition, or implicitly."""
    code = code_at(spot, MAX_CODE * 100)
    if HOST_METHODS.search(code):
        return "host-sync"
    return "tensor-branch" if is_condition(spot) else "implicit-sync"


def is_condition(spot: Spot) -> bool:
    """Whether the expression at ``spot`` decides a branch; the whole line where columns are unknown."""
    tested: list[ast.expr | ast.stmt]
    for node in ast.walk(parsed(spot.path)):
        match node:
            # Python charges the jump to the whole statement or expression: always an assertion's and a
            # short-circuit's, and the others' too before 3.12.
            case ast.Assert(test=test) | ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                tested = [test, node]
            case ast.BoolOp(values=values):
                tested = [*values, node]
            case ast.ListComp(generators=loops) | ast.SetComp(generators=loops) | ast.GeneratorExp(generators=loops):
                tested = [condition for loop in loops for condition in loop.ifs]
                tested += [node] if tested else []
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                tested = [operand, node]
            case _:
                continue
        if any(decides(each, spot) for each in tested):
            return True
    return False


def decides(tested: ast.expr | ast.stmt, spot: Spot) -> bool:
    """Whether a condition is the expression at ``spot``; ``x in tensor`` reads by itself."""
    if isinstance(tested, ast.Compare) and isinstance(tested.ops[0], (ast.In, ast.NotIn)):
        return False
    return is_at(tested, spot)


def is_at(node: ast.expr | ast.stmt, spot: Spot) -> bool:
    """Whether ``node`` is what stands at ``spot``; whatever starts on its line where columns are unknown."""
    if not spot.column:
        return node.lineno == spot.line
    return (node.lineno, node.col_offset + 1, (node.end_col_offset or 0) + 1) == (
        spot.line,
        spot.column,
        spot.end_column,
    )


def code_at(spot: Spot, limit: int = MAX_CODE) -> str:
    """The expression at ``spot``, else its line, shortened to ``limit`` characters."""
    lines = source_lines(spot.path)
    if not 0 < spot.line <= len(lines):
        return ""
    line = lines[spot.line - 1]
    if spot.column and spot.end_line in (0, spot.line) and spot.end_column > spot.column:
        # Columns count bytes, as Python's do.
        line = line[spot.column - 1 : spot.end_column - 1]
    text = " ".join(line.decode("utf-8", errors="replace").split()).removesuffix(":")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def place_of(spot: Spot) -> Place:
    """A spot as a finding's place."""
    return Place(Path(spot.path), spot.line, spot.column or 1, spot.end_line or spot.line, spot.end_column)
