"""The JSON of ``check`` back into findings, so that a run can confirm them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from capturelint.errors import UsageError
from capturelint.finding import Finding
from capturelint.place import Frame, Place
from capturelint.runtime.blame import Suspects
from capturelint.vocabulary import Confidence, Outcome


def read_suspects(path: Path) -> Suspects:
    """The findings in a file. Raises ``UsageError`` if it is no JSON of ``check``."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Suspects(tuple(finding(each) for each in record["findings"] if each.get("path")))
    except OSError as error:
        raise UsageError(f"--suspects {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"--suspects {path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--suspects {path}: not what `capturelint check --format json` writes") from error


def finding(record: Mapping[str, object]) -> Finding:
    """One finding; paths are relative to the working directory, as ``check`` writes them."""
    trail = record.get("trail") or []
    helps = record.get("help") or []
    assert isinstance(trail, list)
    assert isinstance(helps, list)
    return Finding(
        str(record["rule"]),
        Place(
            Path(str(record["path"])),
            number(record, "line"),
            number(record, "column"),
            number(record, "end_line"),
            number(record, "end_column"),
        ),
        str(record["message"]),
        tuple(map(str, helps)),
        Outcome(record["outcome"]),
        Confidence[str(record["confidence"]).upper()],
        tuple(Frame(Path(step["path"]), step["line"], step["name"]) for step in trail),
        str(record.get("fingerprint", "")),
        bool(record.get("suppressed", False)),
    )


def number(record: Mapping[str, object], key: str) -> int:
    """A line or a column; 0 where it is missing."""
    value = record.get(key, 0)
    return value if isinstance(value, int) else 0
