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
AROUND = (
    re.compile(r"\ufeff"),
    re.compile(rf"{ISO}(?: \d\d[OE][+ ]?| std(?:out|err) [FP])?(?: |$)"),  # GitHub, GitLab, Kubernetes
    re.compile(rf"\[{ISO}(?: (?:DP|TP|PP|EP|CP)\d+)*\](?: |$)"),  # Buildkite, SGLang
    re.compile(r"\[(?:rank|default|trainer|worker)(?P<rank>\d{1,6})\]: ?"),  # torch.distributed, torchrun
    re.compile(r"\[\d+,(?P<rank>\d{1,6})\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    re.compile(r"\((?P<process>[A-Za-z_][\w.:-]{0,80} (?:rank=\d+ )?pid=\d+(?:, ip=[\w.:]+)?)\)(?: |$)"),  # vLLM, Ray
    re.compile(r"(?P<process>[\w.-]{1,60}-\d+) +\| "),  # docker compose
    re.compile(
        r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] (?:\[TRT-LLM\] ?)?(?:\[RANK (?P<logged_rank>\d{1,6})\] ?)?(?:\[[A-Z]\] ?)?"
    ),
)
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
        return
    if (wrapped := read_json(record)) is not None:
        for text in wrapped.text.rstrip("\n").replace("\r\n", "\n").split("\n"):
            yield from peel(replace(wrapped, text=text))
        return
    yield peel_logger(record)


def peel_around(record: Record) -> Record:
    """Take off what CI systems, launchers and engines put in front."""
    text, writer = record.text, record.writer
    while found := next((match for prefix in AROUND if (match := prefix.match(text))), None):
        groups = found.groupdict()
        if groups.get("rank"):
            writer = replace(writer, rank=int(groups["rank"]))
        if groups.get("process"):
            writer = replace(writer, process=groups["process"])
        if groups.get("logged_rank"):
            record = replace(record, logged_rank=int(groups["logged_rank"]))
        text = text[found.end() :]
    return replace(record, text=text, writer=writer)


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
    if level := LEVEL.search(record.text):
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
        return replace(record, text=text, source="trace", message=glog.group())
    return replace(record, text=text, source=f"{glog['pid']} {glog['file']} {compile_id}", message=glog.group())
