"""One line of a log, without what loggers, launchers, engines and CI put around it.

Who wrote a line (rank, process, logger) is kept beside its text, because that is what tells interleaved ranks apart.
One physical line may hold several records: progress bars redraw themselves with carriage returns, and a JSON record
may carry a message of many lines. The surprise: torch repeats its prefix on every line of a message, so the prefix
also says which lines belong together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

MAX_LINE_BYTES = 64 * 1024
ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]_PX^][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links; APC: Buildkite's time stamps
    r"|[@-Z\\-_])"
)
ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
BRACKETS = (
    re.compile(rf"\[{ISO}(?: (?:DP|TP|PP|EP|CP)\d+)*\](?: |$)"),  # Buildkite, SGLang
    re.compile(r"\[(?:rank|default|trainer|worker)(?P<rank>\d{1,6})\]: ?"),  # torch.distributed, torchrun
    re.compile(r"\[\d+,(?P<rank>\d{1,6})\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    re.compile(
        r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] (?:\[TRT-LLM\] ?)?(?:\[RANK (?P<logged_rank>\d{1,6})\] ?)?(?:\[[A-Z]\] ?)?"
    ),
)
STAMP = (re.compile(rf"{ISO}(?: \d\d[OE][+ ]?| std(?:out|err) [FP])?(?: |$)"),)  # GitHub, GitLab, Kubernetes
PREFIXES = {
    "\ufeff": (re.compile(r"\ufeff"),),
    "[": BRACKETS,
    "(": (
        re.compile(
            r"\((?P<process>[A-Za-z_][\w.:-]{0,80} (?:rank=\d+ )?pid=\d+(?:, ip=[\w.:]+)?)\)(?: |$)"
        ),  # vLLM, Ray
    ),
    **dict.fromkeys("0123456789", STAMP),
}
"""What stands around a line, by its first character."""
SERVICE = re.compile(r"(?P<process>[\w.-]{1,60}-\d+) +\| ")  # docker compose
GLOG = re.compile(r"[VDIWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} (?P<pid>\d+) (?P<file>\S{1,400}):(?P<line>\d+)\](?: |$)")
GLOG_TAG = re.compile(r"(?:\[(?P<compile>!?\d+(?:/\d+)*(?:_\d+)?)\]|\[__\w+\])(?: |$)")
LEVEL = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[^\]\s]{1,200}:\d+\](?: |$)"
)
JSON_TEXT = ("message", "msg", "event", "log")


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a line: the rank and process that a launcher or an engine put in front of it."""

    rank: int | None = None
    process: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One message line. ``text`` keeps its indentation.

    ``source`` is the logger's part of the stream (pid, file and compile id), ``message`` what is the same on all
    lines of one message; both are empty for bare text. ``logged_rank`` is no part of the stream: TensorRT-LLM stamps
    its own records with it and nothing else that the same process writes.
    """

    line: int
    text: str
    writer: Writer = Writer()
    source: str = ""
    message: str = ""
    logged_rank: int | None = None

    @property
    def rank(self) -> int | None:
        """The rank that a launcher, or else the engine's logger, names."""
        return self.logged_rank if self.writer.rank is None else self.writer.rank

    @property
    def stream(self) -> tuple[Writer, str]:
        """Lines of one stream come from one place, in order."""
        return (self.writer, self.source)

    @property
    def bare(self) -> bool:
        """Nothing says who wrote this line."""
        return self.stream == (Writer(), "")

    @property
    def indent(self) -> int:
        """Leading white space, in characters."""
        return len(self.text) - len(self.text.lstrip())


def read_records(raw: bytes, line: int) -> tuple[Record, ...]:
    """The records of one physical line, at least one. The middle of a very long line is dropped."""
    if len(raw) > MAX_LINE_BYTES:
        raw = raw[: MAX_LINE_BYTES // 2] + b" ... " + raw[-MAX_LINE_BYTES // 2 :]
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = ESCAPE.sub("", text)
    return tuple(peel(Record(line, text)))


def peel(record: Record) -> Iterator[Record]:
    """Take prefixes off, outermost first, and split at carriage returns and at line ends inside JSON."""
    record = peel_around(record)
    if "\r" in record.text:
        segments = [segment for segment in record.text.split("\r") if segment.strip()] or [""]
        for segment in segments:
            yield from peel(replace(record, text=segment))
    elif record.text.startswith("{") and (wrapped := read_json(record)) is not None:
        for text in wrapped.text.rstrip("\n").replace("\r\n", "\n").split("\n"):
            yield from peel(replace(wrapped, text=text))
    else:
        yield peel_logger(record)


def peel_around(record: Record) -> Record:
    """Take off what CI systems, launchers and engines put in front."""
    text, rank, process, logged_rank = record.text, record.writer.rank, record.writer.process, record.logged_rank
    while found := match_prefix(text):
        groups = found.groupdict()
        rank = int(groups["rank"]) if groups.get("rank") else rank
        process = groups.get("process") or process
        logged_rank = int(groups["logged_rank"]) if groups.get("logged_rank") else logged_rank
        text = text[found.end() :]
    if text is record.text:
        return record
    return Record(record.line, text, Writer(rank, process), logged_rank=logged_rank)


def match_prefix(text: str) -> re.Match[str] | None:
    """The outermost prefix of a line."""
    for prefix in PREFIXES.get(text[:1], ()):
        if found := prefix.match(text):
            return found
    return SERVICE.match(text) if " | " in text[:80] else None


def read_json(record: Record) -> Record | None:
    """The message inside a line that is one JSON object, with its process; ``None`` if it is not."""
    text = record.text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = next((fields[key] for key in JSON_TEXT if isinstance(fields.get(key), str)), None)
    if message is None:
        return None
    process = " ".join(str(fields[key]) for key in ("processName", "process") if key in fields)
    rank = fields.get("rank")
    writer = Writer(
        rank if isinstance(rank, int) and not isinstance(rank, bool) else record.writer.rank,
        process or record.writer.process,
    )
    return replace(record, text=message, writer=writer)


def peel_logger(record: Record) -> Record:
    """Take off torch's or vLLM's own prefix, which a progress bar may stand in front of."""
    if glog := GLOG.search(record.text):
        return peel_glog(record, glog)
    if (level := LEVEL.search(record.text)) is not None:
        return replace(record, text=record.text[level.end() :], message=level.group())
    if record.text.startswith("\t"):
        # The payload of a TORCH_TRACE record: its header stands above, its lines start with a tab.
        return replace(record, text=record.text[1:], source="trace", message="payload")
    return record


def peel_glog(record: Record, glog: re.Match[str]) -> Record:
    """torch: ``W1129 21:57:47.923000 77 torch/f.py:207] [0/0] [__cudagraphs] text``."""
    text, compile_id = record.text[glog.end() :], ""
    while tag := GLOG_TAG.match(text):
        compile_id = compile_id or tag["compile"] or ""
        text = text[tag.end() :]
    if text.startswith('{"') and text.endswith("}"):
        return Record(record.line, text, record.writer, "trace", glog.group(), record.logged_rank)
    source = f"{glog['pid']} {glog['file']} {compile_id}"
    return Record(record.line, text, record.writer, source, glog.group(), record.logged_rank)
