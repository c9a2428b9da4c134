"""Comments -> suppressions: ``# capturelint: ignore[rule] reason``, and findings about those that do nothing.

Read with ``tokenize``, so a string that holds such text does not count. A comment covers the statement that it stands
in, from its first to its last line; alone on its line it covers the next statement, decorators included. The one
surprise: a suppression without a reason suppresses nothing.
"""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capturelint.catalog import BUILT_IN, load_rules, nearest
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.vocabulary import Confidence, Outcome

RULE = "unused-ignore"
DIRECTIVE = re.compile(
    r"#\s*capturelint:\s*(?P<word>[\w-]+)\s*(?P<bracket>\[(?P<rules>[^\]]*)\]?)?(?P<reason>(?:(?!\s#\s).)*)"
)
WORDS = ("ignore", "ignore-file")
LAYOUT = frozenset({tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER})


@dataclass(frozen=True, slots=True)
class Ignore:
    """One comment. ``first`` to ``last`` are the lines that it covers; both are 0 for a whole file."""

    word: str
    rules: tuple[str, ...]
    reason: str
    line: int
    column: int
    end_column: int
    first: int
    last: int
    in_head: bool
    """Whether nothing but comments stands above it, as ``ignore-file`` needs."""

    def covers(self, line: int) -> bool:
        """Whether a finding on ``line`` is meant."""
        return self.word == "ignore-file" or self.first <= line <= self.last


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment with a directive in it. ``statement`` is where the statement that it stands in begins."""

    directive: re.Match[str]
    line: int
    column: int
    statement: int | None
    in_head: bool


def apply_ignores(
    findings: Iterable[Finding], path: Path, text: str, *, known: Collection[str] | None = None
) -> list[Finding]:
    """The findings of one file, suppressed where a comment says so, then one for each comment that does nothing.

    Pass every finding of every rule and confidence: a suppression of a finding that is not shown is still used.
    Lines are those of ``text``, also for a notebook. ``known`` are the names of rules, by default the catalogue's.
    """
    given = list(findings)
    if "capturelint:" not in text:
        return given
    ignores = read_ignores(text)
    answered = [
        replace(finding, suppressed=True) if any(suppresses(ignore, finding) for ignore in ignores) else finding
        for finding in given
    ]
    return [*answered, *complaints(ignores, given, path, known or load_rules().keys() | BUILT_IN)]


def read_ignores(text: str) -> tuple[Ignore, ...]:
    """Every suppression in a source text, well formed or not, in order."""
    if "capturelint:" not in text:
        return ()
    comments, statements = scan(text)
    return tuple(parse(comment, statements) for comment in comments)


def scan(text: str) -> tuple[list[Comment], list[tuple[int, int, bool]]]:
    """Comments with a directive, and every statement as (first line, last line, is a decorator)."""
    comments: list[Comment] = []
    statements: list[tuple[int, int, bool]] = []
    start: int | None = None
    decorator = False
    for token in tokens(text):
        if token.type == tokenize.COMMENT:
            directive = DIRECTIVE.search(token.string)
            if directive and is_meant(directive):
                line, column = token.start
                comments.append(Comment(directive, line, column + 1, start, not statements and start is None))
        elif token.type == tokenize.NEWLINE and start is not None:
            statements.append((start, token.start[0], decorator))
            start = None
        elif token.type not in LAYOUT and token.type != tokenize.NEWLINE and start is None:
            start, decorator = token.start[0], token.string == "@"
    return comments, statements


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Tokens up to the first error; what cannot be parsed has no findings to suppress."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def is_meant(directive: re.Match[str]) -> bool:
    """Whether a comment is for us: prose after ``capturelint:`` is not, a misspelt ``ignore`` is."""
    word = directive["word"]
    return word in WORDS or directive["bracket"] is not None or bool(difflib.get_close_matches(word, WORDS, 1))


def parse(comment: Comment, statements: Sequence[tuple[int, int, bool]]) -> Ignore:
    """One comment as a suppression; the statement that it covers is the one around it or the next."""
    found = comment.directive
    rules = tuple(name.strip() for name in (found["rules"] or "").split(",") if name.strip())
    first, last = covered(comment, statements)
    return Ignore(
        word=found["word"],
        rules=rules,
        reason=found["reason"].strip(),
        line=comment.line,
        column=comment.column + found.start(),
        end_column=comment.column + len(found[0].rstrip()) + found.start(),
        first=first,
        last=last,
        in_head=comment.in_head,
    )


def covered(comment: Comment, statements: Sequence[tuple[int, int, bool]]) -> tuple[int, int]:
    """First and last line that a comment speaks about; a decorator takes the line that it decorates with it."""
    begin = comment.line if comment.statement is None else comment.statement
    first = last = 0
    for start, end, decorator in statements:
        if start >= begin:
            first, last = first or start, end
            if not decorator:
                break
    return first, last


def suppresses(ignore: Ignore, finding: Finding) -> bool:
    """Whether a comment answers a finding, with a reason."""
    return (
        fault(ignore) is None
        and finding.rule in ignore.rules
        and finding.place is not None
        and ignore.covers(finding.place.line)
    )


def complaints(
    ignores: Iterable[Ignore], findings: Sequence[Finding], path: Path, known: Collection[str]
) -> Iterator[Finding]:
    """A finding for each comment that cannot work and for each rule that it names in vain."""
    for ignore in ignores:
        problem = fault(ignore)
        if problem is not None:
            yield complaint(ignore, path, *problem)
            continue
        for name in ignore.rules:
            if name not in known:
                hint = nearest(name, known).removeprefix("; ") or "`capturelint explain` lists the rules"
                yield complaint(ignore, path, f"a suppression names the unknown rule `{name}`", hint)
            elif not any(suppresses(replace(ignore, rules=(name,)), finding) for finding in findings):
                yield complaint(ignore, path, f"no `{name}` to suppress here", "delete the suppression")


def fault(ignore: Ignore) -> tuple[str, str] | None:
    """What keeps a comment from working at all, and the cure."""
    if ignore.word not in WORDS:
        return f"`capturelint: {ignore.word}` is no suppression", "write `# capturelint: ignore[rule] reason`"
    if not ignore.rules:
        return "a suppression names no rule", f"write `# capturelint: {ignore.word}[rule] reason`"
    if not ignore.reason:
        wanted = f"`# capturelint: {ignore.word}[{', '.join(ignore.rules)}] reason`"
        return "a suppression gives no reason, so it suppresses nothing", f"write {wanted}"
    if ignore.word == "ignore-file" and not ignore.in_head:
        return "a suppression for the whole file stands below code", "move it to the top, above the first statement"
    return None


def complaint(ignore: Ignore, path: Path, message: str, cure: str) -> Finding:
    """A finding of ``unused-ignore`` at the comment."""
    place = Place(path, ignore.line, ignore.column, ignore.line, ignore.end_column)
    return Finding(RULE, place, message, (cure,), Outcome.NONE, Confidence.CERTAIN)
