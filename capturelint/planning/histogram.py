"""How often each live batch size was run: read from CSV, JSON, an engine's log or a Prometheus dump.

The format is recognised by content, because logs have no reliable suffix. Everything behind this module may rely on
sizes that are whole, positive, distinct and ascending, and on counts that are whole and positive.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn, TypeAlias

from capturelint.errors import HistogramError
from capturelint.planning import observed

COLUMNS = ("batch_size", "count")
WHOLE = re.compile(r"\+?[0-9]{1,15}\Z", re.ASCII)
MAX_BATCH_SIZE = 1 << 20
"""An engine's own sizes are listed up to the largest batch: from a slip of the pen they would fill the memory."""
JSON_KEY = re.compile(r'"(?:[^"\\]|\\.)*"\s*:')


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` steps ran with ``sizes[i]`` live rows; ``notes`` say how they were counted."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps were observed."""
        return sum(self.counts)

    @property
    def rows(self) -> int:
        """How many live rows were computed in all steps."""
        return sum(size * count for size, count in zip(self.sizes, self.counts, strict=True))


Entry: TypeAlias = tuple[int, object, object]
"""Line, size and count as they were written: still text, or whatever JSON had."""


def read_histogram(text: str, name: str) -> Histogram:
    """The histogram in ``text``; ``name`` stands in messages. Raises ``HistogramError``."""
    text = text.removeprefix("\ufeff")
    if (counted := observed.count_batches(text, name)) is not None:
        return build(counted.counts.items(), name, counted.notes)
    entries = json_entries(text, name) if text.lstrip()[:1] in {"{", "["} else csv_entries(text, name)
    return build(check_entries(entries, name), name)


def build(pairs: Iterable[tuple[int, int]], name: str, notes: tuple[str, ...] = ()) -> Histogram:
    """A histogram of pairs that are already whole numbers; sizes with count 0 are dropped."""
    kept = sorted((size, count) for size, count in pairs if count)
    if not kept:
        raise HistogramError(f"{name}: the histogram is empty; expected lines of `batch_size,count`")
    sizes, counts = zip(*kept, strict=True)
    return Histogram(sizes, counts, name, notes)


def check_entries(entries: Iterable[Entry], name: str) -> Iterator[tuple[int, int]]:
    """Yield every entry as whole numbers. Raises ``HistogramError`` at the first that is none or is repeated."""
    lines: dict[int, int] = {}
    for line, written_size, written_count in entries:
        size = whole(written_size, "batch_size", line, name)
        count = whole(written_count, "count", line, name)
        if size == 0:
            raise HistogramError(f"{name}:{line}: batch_size 0 is not a batch; sizes start at 1")
        if size > MAX_BATCH_SIZE:
            raise HistogramError(f"{name}:{line}: batch_size {size} is beyond {MAX_BATCH_SIZE}, which no engine runs")
        if size in lines:
            raise HistogramError(f"{name}:{line}: batch_size {size} was already given in line {lines[size]}")
        lines[size] = line
        yield size, count


def whole(value: object, column: str, line: int, name: str) -> int:
    """``value`` as a whole number of at most 15 digits."""
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) <= 15:
        return int(value)  # nearly every value: a long CSV is read in half the time
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and WHOLE.match(value.strip()):
        return int(value)
    shown = quoted(value.strip()) if isinstance(value, str) else shortened(json.dumps(value))
    raise HistogramError(f"{name}:{line}: {column} {shown} is not a whole number of at most 15 digits")


def quoted(text: str) -> str:
    """Somebody else's text in a message: one line, not too long."""
    return repr(shortened(text))


def shortened(text: str) -> str:
    """At most 40 characters."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def csv_entries(text: str, name: str) -> Iterator[Entry]:
    """The rows below the header ``batch_size,count``, in either order of columns; empty lines are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
        header = next(rows, None)
        if header is None:
            raise HistogramError(f"{name}: the histogram is empty; expected lines of `batch_size,count`")
        line, cells = header
        columns = [cell.strip() for cell in cells]
        check_columns(columns, line, name)
        size, count = columns.index("batch_size"), columns.index("count")
        for line, cells in rows:
            if len(cells) != len(columns):
                raise HistogramError(
                    f"{name}:{line}: expected 2 values, found {len(cells)} in {quoted(','.join(cells))}"
                )
            yield line, cells[size], cells[count]
    except csv.Error as error:
        raise HistogramError(f"{name}:{reader.line_num}: {error}") from error


def check_columns(columns: list[str], line: int, name: str) -> None:
    """Both columns once and no other. Raises ``HistogramError``."""
    for column in columns:
        if column not in COLUMNS:
            reject_column(column, line, name)
        if columns.count(column) > 1:
            raise HistogramError(f"{name}:{line}: column '{column}' is given twice")
    for column in COLUMNS:
        if column not in columns:
            raise HistogramError(f"{name}:{line}: column '{column}' is missing; expected `batch_size,count`")


def reject_column(column: str, line: int, name: str) -> NoReturn:
    """Raise ``HistogramError`` with the nearest column."""
    close = get_close_matches(column, COLUMNS, 1)
    hint = f"did you mean '{close[0]}'?" if close else "expected `batch_size,count`, or a log that tells batch sizes"
    raise HistogramError(f"{name}:{line}: unknown column {quoted(column)}; {hint}")


def json_entries(text: str, name: str) -> Iterator[Entry]:
    """``{"8": 120, ...}`` or ``[{"batch_size": 8, "count": 120}, ...]``."""
    try:
        loaded = json.loads(text, object_pairs_hook=tuple)
    except json.JSONDecodeError as error:
        raise HistogramError(f"{name}:{error.lineno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise HistogramError(f"{name}:1: not a histogram: nested too deeply, or a number too long") from error
    if isinstance(loaded, tuple):
        lines = line_numbers(text, JSON_KEY)
        for (size, count), line in zip(loaded, lines, strict=False):
            yield line, size, count
        return
    lines = line_numbers(text, re.compile(r"\{"))
    for item in loaded:
        line = next(lines, 1)
        if not isinstance(item, tuple):
            found = shortened(json.dumps(item))
            raise HistogramError(f'{name}:{line}: expected {{"batch_size": ..., "count": ...}}, found {found}')
        check_columns([column for column, _ in item], line, name)
        record = dict(item)
        yield line, record["batch_size"], record["count"]


def line_numbers(text: str, pattern: re.Pattern[str]) -> Iterator[int]:
    """The line of each match, in order."""
    line, at = 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        yield line
