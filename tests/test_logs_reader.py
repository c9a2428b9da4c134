"""Pages, prefixes, repeats: logs of any size and shape in constant memory."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturelint.catalog import load_messages
from capturelint.errors import LogError
from capturelint.logs import reader
from capturelint.logs.matcher import LogFinding, Matcher
from capturelint.logs.reader import read_log, read_pages
from capturelint.logs.record import MAX_LINE_BYTES, Record, Writer, read_records
from capturelint.logs.tally import MAX_LISTED, tally

SKIP = b"skipping cudagraphs due to bisector\n"
PATH = Path("ci.log")


def find(content: bytes) -> list[LogFinding]:
    matcher = Matcher(load_messages())
    return [found for page in read_log(io.BytesIO(content), PATH) for found in matcher.find(page, PATH)]


def read(line: str) -> Record:
    (record,) = read_records(line.encode(), 1)
    return record


def test_a_skip_far_into_a_log_has_its_line_number():
    filler = b"step 1 12.1 ms\n" * 300_000

    assert [finding.line for finding in find(filler + SKIP + filler + SKIP)] == [300_001, 600_002]


@pytest.mark.parametrize("shift", range(-400, 100, 37))
def test_a_stack_across_pages_is_still_the_messages(shift):
    head = b"skipping cudagraphs due to mutated inputs (1 instances). Found from : \n"
    stack = b'   File "/srv/app/kv.py", line 7, in put\n    self.buf[pos] = x\n\n'
    filler = b"x" * 63 + b"\n"
    num_lines = (reader.PAGE_BYTES + shift) // 64
    found = find(filler * num_lines + b"y" * (shift % 64) + b"\n" + head + stack + filler * 20_000)

    assert [str(finding.location) for finding in found] == ["/srv/app/kv.py:7"]


def test_a_line_without_end_is_read_in_bounded_memory():
    content = b"a" * (9 * reader.PAGE_BYTES) + b"\n" + SKIP
    pages = list(read_pages(io.BytesIO(content)))

    assert max(len(page.content) for page in pages) < 3 * reader.PAGE_BYTES
    assert [finding.line for finding in find(content)] == [2]


def test_the_ends_of_a_long_line_are_read():
    (record,) = read_records(b"skipping cudagraphs due to bisector" + b"." * 2 * MAX_LINE_BYTES + b"end", 1)

    assert (record.text[:8], record.text[-3:], len(record.text)) == ("skipping", "end", MAX_LINE_BYTES + 5)


@given(st.binary(max_size=300))
def test_no_bytes_stop_the_reader(content):
    for line in content.split(b"\n"):
        assert read_records(line, 1)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x1b\ufeff"), max_size=60))
def test_text_without_a_known_prefix_stays_as_it_is(text):
    plain = f"loss {text} ok"

    assert [record.text for record in read_records(plain.encode(), 1)] == [plain]


def test_torch_tells_pid_file_and_compile_id():
    record = read("[rank3]:W0612 09:14:02.118000 4101 torch/_inductor/u.py:201] [0/1] [__perf_hints]    File")

    assert (record.text, record.source, record.rank) == ("   File", "4101 torch/_inductor/u.py 0/1", 3)


def test_a_progress_bar_in_front_of_a_torch_prefix_is_not_its_text():
    record = read("  0%|   | 0/6 [00:00<?, ?it/s]W0612 09:14:02.118000 4101 torch/u.py:201] [0/0] [__cudagraphs] hello")

    assert record.text == "hello"


def test_an_engines_process_is_told():
    record = read("\x1b[1;36m(Worker_TP1 pid=412)\x1b[0;0m WARNING 07-21 04:58:26 [compilation.py:1409] text")

    assert (record.text, record.writer) == ("text", Writer(None, "Worker_TP1 pid=412"))


def test_tensorrt_llm_tells_a_rank_without_making_a_stream_of_it():
    record = read("[11/07/2026-07:20:59] [TRT-LLM] [RANK 2] [I] Creating CUDA graph instances")

    assert (record.rank, record.stream) == (2, (Writer(), ""))


def test_a_json_record_of_many_lines_is_many_records_of_one_line():
    records = read_records(rb'{"message": "a\n  b", "processName": "EngineCore", "process": 5, "rank": 1}', 9)

    assert [(r.line, r.text, r.writer) for r in records] == [
        (9, "a", Writer(1, "EngineCore 5")),
        (9, "  b", Writer(1, "EngineCore 5")),
    ]


def test_repeats_are_listed_a_few_times_and_then_counted():
    kept = tally(find(SKIP * 100))

    assert len(kept) == MAX_LISTED
    assert sum(finding.count for finding in kept) == 100


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04" + bytes(100), "compressed with zip; decompress it first"),
        (b"\x28\xb5\x2f\xfd....", "compressed with zstd; decompress it first"),
        (b"\x7fELF\0\0\0", "a binary file, not a log"),
        (gzip.compress(SKIP * 1000)[:-20], "the gzip file is cut off"),
        (b"\x1f\x8b" + b"rest" * 9, "not a valid gzip file: Unknown compression method"),
    ],
)
def test_what_is_no_log_is_told_with_its_reason(content, reason):
    with pytest.raises(LogError) as caught:
        find(content)

    assert str(caught.value) == f"ci.log: {reason}"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_with_a_byte_order_mark_is_read(encoding):
    mark = b"" if encoding == "utf-16" else b"\xfe\xff"

    assert [finding.line for finding in find(mark + ("x\n" + SKIP.decode()).encode(encoding))] == [2]


def test_gzip_is_read_whatever_its_name():
    assert [finding.line for finding in find(gzip.compress(b"x\n" + SKIP))] == [2]
