"""A rule and its fixture -> the rule's page: what happens, the cure, bad and good code, sources, versions.

The examples on a page are the cases that the rule is tested by, so a page cannot show code that the rule does not
find. A line marked ``# error: [rule]`` is found, one marked ``# missed: [rule]`` is known to be missed.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capturelint.catalog import LISTED, Rule, data_directory, load_rules, nearest
from capturelint.errors import UsageError
from capturelint.report.model import counted
from capturelint.report.wrapping import rows
from capturelint.vocabulary import Outcome

HEADING = re.compile(r"#{1,6}\s+(?P<title>.*\S)")
FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})\s*(?P<words>[^`]*)\Z")
MARKER = re.compile(r"#\s*(?P<kind>error|missed):\s*\[(?P<rules>[^\]]*)\]")

CONSEQUENCES = {
    Outcome.CAPTURE_ERROR: "capture fails with an error",
    Outcome.SILENT_WRONG: "capture succeeds and replay computes other values than eager, without an error",
    Outcome.SKIP: "the step runs without a graph",
    Outcome.RECAPTURE: "the step is captured again and again",
    Outcome.SLOW: "the step is slower than it needs to be",
    Outcome.NONE: "nothing: the finding is about a comment for capturelint",
}


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A rule about capturelint's own answers, or about what torch said; it has no record in ``rules/``."""

    summary: str
    outcome: Outcome
    why: str


BUILT_IN = {
    "unused-ignore": BuiltIn(
        "a suppression comment that suppresses nothing",
        Outcome.NONE,
        "A comment `# capturelint: ignore[rule] reason` is kept only as long as it hides a finding. One that hides "
        "none, names no known rule or gives no reason is reported: a repaired line does not stay marked.",
    ),
    "unexplained": BuiltIn(
        "replay differs from eager and no rule explains it",
        Outcome.SILENT_WRONG,
        "`verify` saw a replayed step compute other values than the eager one and could not blame a line. Everything "
        "that is known of the difference is in the finding.",
    ),
    "graph-break": BuiltIn(
        "Dynamo splits the compiled step",
        Outcome.SLOW,
        "`torch.compile` could not trace a line, so the step is several graphs with Python between them: each is "
        "recorded and launched apart, and a host read in between waits for the device. Told by `verify --compile` and "
        "`logs`; `fullgraph=True` turns it into an error.",
    ),
    "cudagraph-skip": BuiltIn(
        "a compiled function, or the whole engine, runs without a CUDA graph",
        Outcome.SKIP,
        "`reduce-overhead` recorded nothing and ran eagerly, most often because the step writes into an input that is "
        "not static, or an engine switched its graphs off. torch prints one line, an engine perhaps none.",
    ),
    "cudagraph-partition": BuiltIn(
        "a part of the compiled step runs outside CUDA graphs",
        Outcome.SLOW,
        "Since torch 2.9 Inductor cuts what it cannot capture out of the step and records the rest: an operator on the "
        "CPU, a copy between devices, a shape that depends on values, a custom operator tagged unsafe. From torch 2.11 "
        "on nothing is printed and no skip is counted.",
    ),
    "recompile": BuiltIn(
        "a guard fails and the step is compiled again",
        Outcome.RECAPTURE,
        "A value that Dynamo took for constant has changed, so the step is traced, compiled and recorded again. After "
        "`recompile_limit` of them (8) the function runs eagerly from then on.",
    ),
    "rerecord": BuiltIn(
        "a CUDA graph is recorded again",
        Outcome.RECAPTURE,
        "A recorded graph did not fit its inputs: another shape, or a static input at another address. After 128 of "
        "them the function runs eagerly.",
    ),
    "overwritten-output": BuiltIn(
        "an output of a CUDA graph is read after a later replay overwrote it",
        Outcome.CAPTURE_ERROR,
        "Outputs of a graph stand in its own memory and the next replay writes there. torch raises when such a tensor "
        "is read; clone it outside the compiled function, or call `torch.compiler.cudagraph_mark_step_begin()`.",
    ),
}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of Python in a fixture. ``line`` is where its code starts in the Markdown file, from 1."""

    title: str
    words: tuple[str, ...]
    code: str
    line: int

    @property
    def runs(self) -> bool:
        """Whether the block is also captured and replayed."""
        return "run" in self.words

    def marked(self, rule: str, kind: str = "error") -> bool:
        """Whether some line expects (or is known to miss) a finding of the rule."""
        return any(
            found["kind"] == kind and rule in re.split(r"[,\s]+", found["rules"])
            for found in MARKER.finditer(self.code)
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that is known of one rule."""

    name: str
    summary: str
    outcome: Outcome
    why: str
    rule: Rule | None
    blocks: tuple[Block, ...]

    @property
    def bad(self) -> tuple[Block, ...]:
        """Examples in which the rule finds something."""
        return tuple(block for block in self.blocks if block.marked(self.name))

    @property
    def good(self) -> tuple[Block, ...]:
        """Examples in which no rule finds anything."""
        return tuple(block for block in self.blocks if not MARKER.search(block.code))

    @property
    def missed(self) -> tuple[Block, ...]:
        """Examples in which the rule is known to find nothing though it should."""
        return tuple(block for block in self.blocks if block.marked(self.name, "missed"))


def pages() -> list[Page]:
    """Every rule's page, by name."""
    return [page(name) for name in sorted(load_rules().keys() | BUILT_IN)]


def page(name: str) -> Page:
    """The page of one rule. Raises ``UsageError`` with the nearest name."""
    rule = load_rules().get(name)
    if rule is not None:
        blocks = read_blocks(data_directory("fixtures") / "rules" / f"{name}.md")
        return Page(name, rule.summary, rule.outcome, " ".join(rule.why.split()), rule, blocks)
    built_in = BUILT_IN.get(name)
    if built_in is None:
        raise UsageError(f"unknown rule '{name}'{nearest(name, load_rules().keys() | BUILT_IN) or LISTED}")
    return Page(name, built_in.summary, built_in.outcome, built_in.why, None, ())


def read_blocks(path: Path) -> tuple[Block, ...]:
    """The Python blocks of a fixture, in order; none where the rule has no fixture."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(blocks(lines))


def blocks(lines: Sequence[str]) -> Iterator[Block]:
    """Fenced blocks whose first word is ``py`` or ``python``, each with the heading above it."""
    title = ""
    opened: tuple[str, tuple[str, ...], int] | None = None
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if opened is None:
            heading = HEADING.match(line)
            title = heading["title"] if heading else title
            if fence:
                opened = (fence["fence"], tuple(fence["words"].split()), number + 1)
        elif fence and not fence["words"] and fence["fence"].startswith(opened[0]):
            words, start = opened[1], opened[2]
            opened = None
            if words and words[0] in {"py", "python"}:
                yield Block(title, words, "\n".join(lines[start:number]) + "\n", start + 1)


def page_text(subject: Page, *, width: int | None = None, every: bool = False) -> str:
    """A page for the terminal; two bad and two good examples unless ``every`` is true."""
    lines = [
        *rows(f"{subject.name}: {subject.summary}", width),
        "",
        *rows(f"outcome: {subject.outcome.value}, {CONSEQUENCES[subject.outcome]}", width),
    ]
    if subject.rule is not None:
        lines += rows(f"compiled: {compiled(subject.rule)}", width)
        affected = f", for torch {subject.rule.torch}" if subject.rule.torch else ""
        lines.append(f"since: capturelint {subject.rule.since}{affected}")
    lines += ["", *rows(subject.why, width, 0)]
    if subject.rule is not None:
        lines += ["", "how to repair it"]
        for cure in subject.rule.help:
            lines += rows(f"  - {cure}", width)
    for label, examples in (("bad", subject.bad), ("good", subject.good), ("known to be missed", subject.missed)):
        chosen = examples if every else examples[:2]
        for block in chosen:
            lines += ["", f"{label}: {block.title}" if block.title else label, ""]
            lines += textwrap.indent(block.code.rstrip(), "    ").splitlines()
        if len(chosen) < len(examples):
            lines += ["", f"({len(examples) - len(chosen)} more {label}; --all prints them)"]
    if subject.rule is not None:
        lines += ["", "sources", *(f"  - {source}" for source in subject.rule.sources)]
    lines += ["", counts_line(subject)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def counts_line(subject: Page) -> str:
    """``3 bad, 2 good, 1 known to be missed``: how many examples there are of each kind."""
    counts = ((len(subject.bad), "bad"), (len(subject.good), "good"), (len(subject.missed), "known to be missed"))
    said = ", ".join(f"{number} {kind}" for number, kind in counts if number)
    return f"{counted(sum(number for number, _ in counts), 'example')}{f' ({said})' if said else ''}"


def page_markdown(subject: Page, *, every: bool = True) -> str:
    """A page for the documentation, with every example; without ``every``, two of each kind."""
    lines = [f"# {subject.name}", "", f"{sentence(subject.summary)}", ""]
    lines += [f"**Outcome:** `{subject.outcome.value}`, {CONSEQUENCES[subject.outcome]}.", ""]
    if subject.rule is not None:
        lines += [f"**Under `torch.compile`:** {compiled(subject.rule)}.", ""]
    if subject.rule is not None and subject.rule.torch:
        lines += [f"**Holds for:** torch {subject.rule.torch}.", ""]
    lines += ["## Why", "", subject.why, ""]
    if subject.rule is not None:
        lines += ["## How to repair it", "", *(f"- {cure}" for cure in subject.rule.help), ""]
    examples = (("Bad", subject.bad), ("Good", subject.good), ("Known to be missed", subject.missed))
    for heading, chosen in examples:
        if chosen:
            lines += [f"## {heading}", ""]
        for block in chosen if every else chosen[:2]:
            lines += [*([f"### {block.title}", ""] if block.title else []), "```python", block.code.rstrip(), "```", ""]
    if subject.rule is not None:
        lines += ["## Sources", "", *(f"- {source}" for source in subject.rule.sources), ""]
        lines += [f"Since capturelint {subject.rule.since}.", ""]
    return "\n".join(lines)


def compiled(rule: Rule) -> str:
    """What becomes of the hazard where Inductor records the step."""
    if rule.compiled is None:
        return "no hazard where Inductor records the step"
    return f"{rule.compiled.value}, {CONSEQUENCES[rule.compiled]}"


def sentence(text: str) -> str:
    """A summary as a sentence of its own."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def page_record(subject: Page) -> dict[str, object]:
    """A page for programs."""
    record: dict[str, object] = {
        "name": subject.name,
        "summary": subject.summary,
        "outcome": subject.outcome.value,
        "why": subject.why,
    }
    if subject.rule is not None:
        rule = subject.rule
        record |= {"event": rule.event.value, "phase": rule.phase.value, "message": rule.message}
        record |= {"help": list(rule.help), "runtime": sorted(kind.value for kind in rule.runtime)}
        record |= {"sources": list(rule.sources), "since": rule.since, "torch": rule.torch}
        record["compiled"] = rule.compiled.value if rule.compiled else None
    for key, chosen in (("bad", subject.bad), ("good", subject.good), ("missed", subject.missed)):
        record[key] = [{"title": block.title, "code": block.code} for block in chosen]
    return record


def list_text(width: int | None = None) -> str:
    """One line a rule, then a count."""
    found = pages()
    name = max(len(subject.name) for subject in found)
    outcome = max(len(subject.outcome.value) for subject in found)
    lines = [
        row
        for subject in found
        for row in rows(
            f"{subject.name:<{name}}  {subject.outcome.value:<{outcome}}  {subject.summary}", width, name + outcome + 4
        )
    ]
    return "\n".join([*lines, f"{len(found)} rules"]) + "\n"


def list_json() -> str:
    """Every rule's page as JSON."""
    return json.dumps({"schema": 1, "rules": [page_record(subject) for subject in pages()]}, indent=2) + "\n"


def page_json(subject: Page) -> str:
    """One rule's page as JSON."""
    return json.dumps({"schema": 1} | page_record(subject), indent=2) + "\n"
