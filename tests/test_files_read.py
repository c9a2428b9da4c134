import json
import os
from pathlib import Path

import pytest

from capturelint.errors import SourceError
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.static.files import Sources, decode_source, in_cells, read_source
from capturelint.vocabulary import Confidence, Outcome

PATH = Path("m.py")


def refusal(content: bytes, path: Path = PATH) -> tuple[int | None, str]:
    with pytest.raises(SourceError) as caught:
        decode_source(path, content)
    return caught.value.line, caught.value.reason


def test_every_line_end_becomes_one():
    assert decode_source(PATH, b"a\r\nb\rc\n").lines == ("a", "b", "c", "")


def test_only_line_ends_of_python_split_lines():
    assert decode_source(PATH, "a\x0cb\x1c\u2028c".encode()).lines == ("a\x0cb\x1c\u2028c",)


def test_a_byte_order_mark_is_no_text():
    assert decode_source(PATH, b"\xef\xbb\xbfx = 1").text == "x = 1"


def test_an_encoding_cookie_is_obeyed():
    assert decode_source(PATH, b"# coding: latin-1\nx = '\xe9'").lines[1] == "x = '\xe9'"


def test_a_byte_that_is_not_utf_8_is_named_with_its_line():
    assert refusal(b"x = 1\n\ny = '\xe9'\n") == (3, "not valid utf-8: byte 0xe9")


def test_an_unknown_encoding_is_named():
    assert refusal(b"# coding: klingon\n") == (None, "unknown encoding: klingon")


def test_a_codec_that_is_no_encoding_of_text_is_refused():
    line, reason = refusal(b"# coding: rot13\n")
    assert (line, reason.split(":")[0]) == (None, "cannot be decoded as rot13")


def test_a_codec_that_takes_quadratic_time_is_refused():
    assert refusal(b"# coding: punycode\n" + b"a" * 1000)[1] == "the encoding 'punycode' is not used for source code"


def test_binary_data_is_refused_with_the_line():
    assert refusal(b"\x7fELF\n\x00\x00") == (2, "a NUL byte; this is not Python source")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SourceError, match="cannot be read: no such file or directory"):
        read_source(tmp_path / "gone.py")


def test_a_large_file_is_refused(tmp_path):
    (tmp_path / "big.py").write_text("x" * 101)
    with pytest.raises(SourceError, match=r"larger than 0\.0001 MB"):
        read_source(tmp_path / "big.py", max_nbytes=100)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(SourceError, match="not a regular file"):
        read_source(tmp_path / "pipe.py")


def test_columns_count_characters_and_not_bytes():
    source = decode_source(PATH, "s = '\xe9\u4e2d'; y".encode())
    assert source.column(1, len("s = '\xe9\u4e2d'; ".encode())) == len("s = '\xe9\u4e2d'; ") + 1


def notebook(*cells: tuple[str, str], **metadata: object) -> bytes:
    return json.dumps(
        {"nbformat": 4, "metadata": metadata, "cells": [{"cell_type": kind, "source": text} for kind, text in cells]}
    ).encode()


def test_a_line_of_a_notebook_maps_to_its_cell():
    source = decode_source(Path("n.ipynb"), notebook(("code", "a\nb"), ("markdown", "# t"), ("code", "c\nd")))
    assert source.text == "a\nb\nc\nd"
    assert [source.locate(line) for line in (1, 2, 3, 4)] == [(1, 1), (1, 2), (3, 1), (3, 2)]


def test_magics_keep_their_line_and_become_nothing():
    cells = ("code", "%matplotlib inline\nif x:\n    !ls\nx?"), ("code", "%%bash\nls | wc"), ("code", "%%time\ny")
    source = decode_source(Path("n.ipynb"), notebook(*cells))
    assert source.lines == ("pass", "if x:", "    pass", "pass", "", "", "pass", "y")


def test_a_notebook_in_another_language_has_no_lines():
    content = notebook(("code", "x <- 1"), kernelspec={"language": "R"})
    assert decode_source(Path("n.ipynb"), content).text == ""


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"[]", b'{"worksheets": []}', b"\xff\xfe"])
def test_what_is_not_a_notebook_is_refused(content):
    assert refusal(content, Path("n.ipynb"))[1].startswith("not a notebook")


def test_a_finding_in_a_notebook_names_cell_and_line():
    source = decode_source(Path("n.ipynb"), notebook(("code", "a\nb"), ("code", "c")))
    place = Place(Path("n.ipynb"), 3, 1, 3, 2)
    finding = Finding("host-sync", place, "message", (), Outcome.CAPTURE_ERROR, Confidence.CERTAIN)
    moved = in_cells(finding, source).place
    assert moved is not None
    assert (moved.cell, moved.line, moved.end_line) == (2, 1, 1)


def test_the_lines_of_one_cell_can_be_read(tmp_path):
    (tmp_path / "n.ipynb").write_bytes(notebook(("code", "a\nb"), ("markdown", "t"), ("code", "c")))
    assert Sources().lines(tmp_path / "n.ipynb", 1) == ("a", "b")
    assert Sources().lines(tmp_path / "n.ipynb", 3) == ("c",)
    assert Sources().lines(tmp_path / "gone.py", None) == ()
