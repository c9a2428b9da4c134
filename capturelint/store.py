"""A directory of records under content keys: what was worked out once is read back by the next run.

A record is one file, a line with its checksum and then JSON, written beside its place and moved there, so two runs may
share the directory and a reader never sees half a record. Nothing here can fail a run: what is missing, damaged or of
another version is worked out again, and a directory that cannot be written is not written. Records that no run has
read for a month are removed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

LAYOUT = "1"
"""Changes when records are laid out differently; an older layout is never read."""
TAG = "CACHEDIR.TAG"
TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by capturelint, https://bford.info/cachedir/\n"
KEY_NBYTES = 20
UNREAD_S = 30 * 24 * 3600.0
DAY_S = 24 * 3600.0
VARIABLE = "CAPTURELINT_CACHE_DIR"

Json = dict[str, object]


def digest(*parts: str | bytes) -> str:
    """A key made of parts, none of which can run into the next."""
    state = blake2b(digest_size=KEY_NBYTES)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()


def user_directory() -> Path | None:
    """The directory of this user, ``CAPTURELINT_CACHE_DIR`` where that is set; ``None`` for a user without a home."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(os.path.abspath(chosen))
    if sys.platform == "linux":  # as platformdirs has it, without the 10 ms of its import
        base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")
        found = Path(base) / "capturelint"
    else:
        from platformdirs import user_cache_path

        found = user_cache_path("capturelint", appauthor=False)
    return found if found.is_absolute() else None


class Store:
    """The records of one directory. ``now`` gives seconds since 1970."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self.now = now
        self.writable = True
        self.prepared = False
        self.refusal = ""
        """Why the directory cannot be written, once that is known."""

    def path(self, key: str) -> Path:
        """Where a record is."""
        return self.directory / LAYOUT / key[:2] / f"{key[2:]}.json"

    def get(self, key: str) -> Json | None:
        """The record of a key; ``None`` where there is none that can be trusted."""
        path = os.fspath(self.path(key))
        try:
            with open(path, "rb") as file:
                checksum, _, content = file.read().partition(b"\n")
                age = self.now() - os.fstat(file.fileno()).st_mtime
        except (OSError, ValueError):
            return None
        if checksum.decode("ascii", "replace") != digest(key, content):
            return None
        try:
            record = json.loads(content)
        except (ValueError, RecursionError):
            return None
        if age > DAY_S:
            self.mark_read(path)
        return record if isinstance(record, dict) else None

    def mark_read(self, path: str) -> None:
        """Note that a record is in use, once a day."""
        try:
            os.utime(path)
        except OSError:
            return

    def put(self, key: str, record: Json) -> bool:
        """Keep a record; whether that was possible. The first failure is the last attempt."""
        if not self.writable:
            return False
        content = json.dumps(record, separators=(",", ":")).encode("ascii")
        path = self.path(key)
        try:
            self.prepare()
            path.parent.mkdir(exist_ok=True)
            self.write(path, digest(key, content).encode("ascii") + b"\n" + content)
        except (OSError, ValueError) as error:
            self.refuse(error)
        return self.writable

    def ready(self) -> bool:
        """Make the directory before workers share it; whether it can be written."""
        try:
            self.prepare()
        except (OSError, ValueError) as error:
            self.refuse(error)
        return self.writable

    def refuse(self, error: OSError | ValueError) -> None:
        """Remember that the directory cannot be written, and why."""
        self.writable = False
        self.refusal = (error.strerror if isinstance(error, OSError) else None) or str(error)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file that is either there as a whole or not at all."""
        # Of this process and this moment alone, so that nobody else writes it; made anew, so that it is no link.
        name = f"{path.parent}/.{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}.tmp"
        with open(name, "xb") as file:
            try:
                file.write(content)
                file.close()
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise

    def prepare(self) -> None:
        """Make the directory, mark it as a cache for backups and for git, and drop what nobody reads any more."""
        if self.prepared:
            return
        self.prepared = True
        self.directory.mkdir(parents=True, exist_ok=True)
        tagged = (self.directory / TAG).is_file()
        if not tagged and listed(self.directory):
            raise OSError("a directory with other files in it")
        (self.directory / LAYOUT).mkdir(exist_ok=True)
        if not tagged:
            (self.directory / TAG).write_text(TAG_TEXT, encoding="ascii")
            (self.directory / ".gitignore").write_text("*\n", encoding="ascii")
            (self.directory / "pruned").touch()
        elif self.now() - (self.directory / "pruned").stat().st_mtime > DAY_S:
            (self.directory / "pruned").touch()
            self.remove(lambda entry: self.now() - entry.stat(follow_symlinks=False).st_mtime > UNREAD_S)

    def clear(self) -> int:
        """Remove every record of every layout; how many there were. What is not a cache of ours is left alone."""
        return self.remove(lambda entry: True) if (self.directory / TAG).is_file() else 0

    def remove(self, is_unwanted: Callable[[os.DirEntry[str]], bool]) -> int:
        """Remove the records that are not wanted, never through a link and never what is not named like a record."""
        removed = 0
        for entry in self.records():
            try:
                if is_unwanted(entry):
                    os.unlink(entry.path)
                    removed += entry.name.endswith(".json")
            except OSError:
                continue
        return removed

    def records(self) -> Iterable[os.DirEntry[str]]:
        """Every record of every layout, and what a run that was killed left beside them."""
        for layout in listed(self.directory):
            if layout.name.isdigit() and layout.is_dir(follow_symlinks=False):
                for shelf in listed(Path(layout.path)):
                    if len(shelf.name) == 2 and shelf.is_dir(follow_symlinks=False):
                        yield from (entry for entry in listed(Path(shelf.path)) if is_record(entry))


def listed(directory: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory; none where it cannot be listed."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def is_record(entry: os.DirEntry[str]) -> bool:
    """Whether a file is named as records and their unfinished copies are."""
    stem, _, ending = entry.name.lstrip(".").rpartition(".")
    return (ending == "json" and len(stem) == 2 * KEY_NBYTES - 2) or (ending == "tmp" and entry.name.startswith("."))
