"""The message catalogue: literals that every match contains, and words that still stand in torch."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from capturelint.catalog import load_messages
from capturelint.vocabulary import Severity

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as parser
else:
    import sre_constants as codes
    import sre_parse as parser

MESSAGES = load_messages()
IDS = [message.id for message in MESSAGES]


def texts(pattern: Sequence) -> Iterable[str]:
    """Fixed texts that every match of a parsed pattern contains, as long as can be."""
    run = ""
    for code, value in pattern:
        if code is codes.LITERAL:
            run += chr(value)
        elif code is codes.SUBPATTERN and not value[1] and all(c is codes.LITERAL for c, _ in value[3]):
            run += "".join(chr(v) for _, v in value[3])
        elif code not in (codes.AT, codes.ASSERT, codes.ASSERT_NOT):
            if run:
                yield run
            run = ""
            if code is codes.SUBPATTERN and not value[1]:
                yield from texts(value[3])
            elif code is codes.MAX_REPEAT and value[0] > 0:
                yield from texts(value[2])
    if run:
        yield run


def every_match_contains_one_of(pattern: Sequence, literals: tuple[str, ...]) -> bool:
    if any(literal in text for text in texts(pattern) for literal in literals):
        return True
    for code, value in pattern:
        if code is codes.BRANCH and all(every_match_contains_one_of(branch, literals) for branch in value[1]):
            return True
        if code is codes.SUBPATTERN and not value[1] and every_match_contains_one_of(value[3], literals):
            return True
    return False


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_every_match_contains_a_literal(message):
    assert every_match_contains_one_of(parser.parse(message.pattern.pattern), message.literals)


def test_ids_are_unique():
    assert len(IDS) == len(set(IDS))


def test_a_message_that_is_located_by_groups_has_them():
    inline = [message for message in MESSAGES if message.location and message.location.value == "inline"]

    assert [message.id for message in inline if not {"file", "line"} <= message.pattern.groupindex.keys()] == []


def test_a_reason_is_told_by_the_pattern_or_by_what_follows():
    silent = {
        message.id
        for message in MESSAGES
        if message.severity is not Severity.INFO
        and message.reason_from is None
        and "reason" not in message.pattern.groupindex
    }

    assert {"dyn-wont-convert"} == silent


def minor(text: str) -> tuple[int, int]:
    major, second = text.split(".")[:2]
    return int(major), int(second)


def ranges(versions: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """``2.6-2.9`` and ``2.11+`` in a text, as first and last minor version."""
    found = re.findall(r"(?<![\d.])(\d\.\d+)(?:(\+)|-(\d\.\d+))?", versions)
    return [(minor(first), minor(last) if last else ((9, 99) if plus else minor(first))) for first, plus, last in found]


SOURCES = importlib.util.find_spec("torch")
TORCH = minor(version("torch")) if SOURCES else (0, 0)
# Written by C++ or the CUDA runtime, or put together from pieces: their words stand in no Python file.
NOT_IN_PYTHON = {"dyn-unsupported", "dyn-fail-recompile-limit", "dyn-recompile-error", "ind-skip-fail-list"}
PYTORCH = [
    message for message in MESSAGES if message.engine in ("pytorch-inductor", "pytorch-dynamo") and message.literals
]


def holds(message) -> bool:
    stated = ranges(message.versions)
    return not stated or any(first <= TORCH <= last for first, last in stated)


@pytest.fixture(scope="module")
def torch_text() -> str:
    assert SOURCES is not None
    assert SOURCES.origin is not None
    root = Path(SOURCES.origin).parent
    files = [file for part in ("_inductor", "_dynamo") for file in (root / part).rglob("*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    # Messages are often written as neighbouring string literals: join them, and blank out what is filled in.
    return re.sub(r"""["']\s*\n\s*[rfb]{0,2}["']""", "", text).lower()


def stands_in(text: str, fixed: str) -> bool:
    """The words of ``fixed``: each part between punctuation and numbers that formatting may fill."""
    parts = [part.strip() for part in re.split(r"[=:(){}%#\d]|due to ", fixed.lower())]
    return all(part in text for part in parts if len(part) > 3)


def pattern_stands_in(text: str, pattern: Sequence) -> bool:
    """All fixed texts of a parsed pattern, and of every choice at least one branch."""
    if not all(stands_in(text, fixed) for fixed in texts(pattern)):
        return False
    for code, value in pattern:
        if code is codes.BRANCH and not any(pattern_stands_in(text, branch) for branch in value[1]):
            return False
        if code is codes.SUBPATTERN and not pattern_stands_in(text, value[3]):
            return False
    return True


@pytest.mark.skipif(SOURCES is None, reason="torch is not installed, so it has no sources to compare with")
@pytest.mark.parametrize("message", [m for m in PYTORCH if m.id not in NOT_IN_PYTHON and holds(m)], ids=lambda m: m.id)
def test_the_fixed_words_of_a_message_stand_in_the_installed_torch(message, torch_text):
    assert pattern_stands_in(torch_text, parser.parse(message.pattern.pattern))


@pytest.mark.skipif(SOURCES is None, reason="torch is not installed, so it has no sources to compare with")
def test_words_that_never_stood_in_torch_are_told_apart(torch_text):
    assert not pattern_stands_in(torch_text, parser.parse("skipping cudagraphs due to user CUDA MemPool weather"))
