"""Labelled excerpts of real formats, and what must not change what is read from them."""

from __future__ import annotations

import io
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from capturelint.catalog import data_directory, load_messages
from capturelint.logs.matcher import LogFinding, Matcher
from capturelint.logs.reader import read_log
from capturelint.logs.tally import tally
from capturelint.vocabulary import Severity

DIRECTORY = data_directory("fixtures") / "logs"
EXPECTED = yaml.safe_load((DIRECTORY / "expected.yaml").read_text(encoding="utf-8"))
MATCHER = Matcher(load_messages())
SLUGS = sorted(EXPECTED)
NO_JSON = [slug for slug in SLUGS if b'\n{"' not in b"\n" + (DIRECTORY / f"{slug}.log").read_bytes()]
ONE_RANK = [slug for slug in NO_JSON if not re.search(rb"\[(rank|default)\d", (DIRECTORY / f"{slug}.log").read_bytes())]


def find(content: bytes) -> list[LogFinding]:
    path = Path("ci.log")
    return tally(found for page in read_log(io.BytesIO(content), path) for found in MATCHER.find(page, path))


def facts(findings: list[LogFinding]) -> Counter[tuple[int, str, str | None, str | None]]:
    return Counter(
        (found.line, found.message.id, found.reason, str(found.location) if found.location else None)
        for found in findings
    )


@cache
def excerpt(slug: str) -> bytes:
    return (DIRECTORY / f"{slug}.log").read_bytes()


def expected(slug: str) -> Counter[tuple[int, str, str | None, str | None]]:
    return Counter((f["line"], f["id"], f["reason"], f["location"]) for f in EXPECTED[slug]["findings"])


@pytest.mark.parametrize("slug", SLUGS)
def test_an_excerpt_gives_the_labelled_lines_ids_reasons_and_places(slug):
    assert expected(slug) == facts(find(excerpt(slug)))


def test_every_message_stands_in_some_excerpt():
    seen = {f["id"] for want in EXPECTED.values() for kind in ("findings", "info") for f in want[kind]}

    assert {message.id for message in load_messages()} - seen == set()


@pytest.mark.parametrize("slug", [slug for slug in SLUGS if EXPECTED[slug]["info"]])
def test_progress_is_recognised_and_is_no_finding(slug):
    path = Path("ci.log")
    pages = list(read_log(io.BytesIO(excerpt(slug)), path))
    told = {
        (line, sighting[0].id)
        for page in pages
        for start, line in page.lines_with(MATCHER.literals)
        for record in page.records(start, line)
        if (sighting := MATCHER.first_match(record)) and sighting[0].severity is Severity.INFO
    }

    assert {(info["line"], info["id"]) for info in EXPECTED[slug]["info"]} <= told


def lines(content: bytes) -> list[bytes]:
    return content.removeprefix(b"\xef\xbb\xbf").split(b"\n")


TRANSFORMS = {
    "windows line ends": lambda line: line.removesuffix(b"\r") + b"\r",
    "github stamps": lambda line: b"2026-01-02T03:04:05.1234567Z " + line,
    "buildkite stamps": lambda line: b"\x1b_bk;t=1700000000000\x07" + line,
    "gitlab stamps": lambda line: b"2026-01-02T03:04:05.123456Z 01O " + line,
    "colours": lambda line: b"\x1b[33m" + line + b"\x1b[0m",
    "a rank": lambda line: b"[rank3]: " + line,
    "a Ray process": lambda line: b"(RayWorkerWrapper pid=77, ip=10.0.0.1) " + line,
    "mpirun": lambda line: b"[1,3]<stderr>:" + line,
}


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.sampled_from(NO_JSON), st.lists(st.sampled_from(sorted(TRANSFORMS)), min_size=1, max_size=3, unique=True))
def test_what_stands_around_lines_changes_no_finding(slug, names):
    changed = lines(excerpt(slug))
    for name in names:
        changed = [TRANSFORMS[name](line) for line in changed]

    assert expected(slug) == facts(find(b"\n".join(changed)))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.sampled_from(ONE_RANK), st.sampled_from(ONE_RANK), st.randoms(use_true_random=False))
def test_interleaved_ranks_come_apart(first, second, random):
    queues = {0: lines(excerpt(first)), 1: lines(excerpt(second))}
    number_of: dict[int, tuple[int, int]] = {}
    mixed: list[bytes] = []
    taken = Counter[int]()
    while any(queues.values()):
        rank = random.choice([rank for rank, queue in queues.items() if queue])
        taken[rank] += 1
        mixed.append(b"[rank%d]: " % rank + queues[rank].pop(0))
        number_of[len(mixed)] = (rank, taken[rank])

    apart = Counter(
        (rank, (line, *rest))
        for (number, *rest), count in facts(find(b"\n".join(mixed))).items()
        for rank, line in [number_of[number]]
        for _ in range(count)
    )
    wanted = Counter((rank, fact) for rank, slug in ((0, first), (1, second)) for fact in expected(slug).elements())
    assert wanted == apart


def test_ranks_are_told():
    found = find(excerpt("torch28-rank-interleaved"))

    assert [finding.rank for finding in found] == [0, 1]


def test_the_rank_of_a_json_record_is_told():
    assert [finding.rank for finding in find(excerpt("sglang-old-oom"))] == [None, None, None, None, 2]


def test_bare_stacks_that_interleave_are_told_as_uncertain():
    head = b"skipping cudagraphs due to mutated inputs (1 instances). Found from : \n"
    stack = b'   File "/srv/%s.py", line 1, in f\n    x.add_(1)\n'
    found = find(head + head + stack % b"a" + stack % b"b")

    assert [
        (str(finding.location) if finding.location else None, finding.location.certain if finding.location else None)
        for finding in found
    ] == [(None, None), ("/srv/b.py:1", False)]


def test_a_later_traceback_is_not_the_place_of_a_skip_without_a_stack():
    skip = b"skipping cudagraphs due to cpu device (arg3_1)\n"
    log = skip + b'Traceback (most recent call last):\n  File "/a.py", line 3, in f\n'

    assert [finding.location for finding in find(log)] == [None]


def test_source_that_a_traceback_echoes_is_no_message():
    log = b'  File "/a.py", line 3, in f\n    raise RuntimeError(prefix + "x" + exceeds available Mamba cache blocks)\n'

    assert find(log) == []
