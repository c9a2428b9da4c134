"""Paths -> source files -> text: what is checked, and how bytes become lines.

Everything hostile ends here: FIFOs, loops of symbolic links, unreadable or vanished files, binary data, unknown
encodings, huge files and broken notebooks become one ``SourceError`` each and never a traceback. The one surprise: a
file or directory that the user names is always taken, whatever ``.gitignore`` and ``exclude`` say of it.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from capturelint.errors import SourceError, UsageError
from capturelint.finding import Finding

MAX_NBYTES = 5_000_000
ENDINGS = (".py", ".ipynb")
DEFAULT_EXCLUDE = (
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".hg",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    ".pytest_cache",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    "__pycache__",
    "__pypackages__",
    "_build",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)
"""Directories that hold no code of the project, by name, at any depth below a checked path."""

SLOW_CODECS = frozenset({"idna", "punycode", "undefined"})  # quadratic in the length, or never decode
LINE_MAGIC = re.compile(r"(?P<indent>[ \t]*)(?:[%!].*|[\w.]+\?{1,2}\s*)\Z")
TIMING_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OnError = Callable[[SourceError], None]


@dataclass(frozen=True, slots=True)
class SourceText:
    """One decoded file. ``lines`` are without line ends; ``text`` has ``\\n`` for every line end.

    ``cells`` is empty for a plain file; for a notebook it holds, per code cell, the number of the cell (from 1, all
    kinds of cell counted) and the line of ``text`` at which it starts.
    """

    path: Path
    text: str
    lines: tuple[str, ...]
    encoding: str
    cells: tuple[tuple[int, int], ...] = ()

    def locate(self, line: int) -> tuple[int | None, int]:
        """The notebook cell of a line of ``text`` and the line in that cell; ``(None, line)`` in a plain file."""
        at = bisect_right([start for _, start in self.cells], line) - 1
        if at < 0:
            return None, line
        cell, start = self.cells[at]
        return cell, line - start + 1

    def column(self, line: int, utf8_offset: int) -> int:
        """The column, from 1 and in characters, of an offset as ``ast`` counts it: in bytes of UTF-8."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            return utf8_offset + 1
        return len(text.encode("utf-8", "surrogatepass")[:utf8_offset].decode("utf-8", "ignore")) + 1


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """The patterns of one ``.gitignore`` (or one list of excludes) and the directory that they speak about."""

    base: Path
    spec: GitIgnoreSpec

    def verdict(self, path: Path, directory: bool) -> bool | None:
        """Whether ``path`` (absolute) is ignored; ``None`` where these patterns do not mention it."""
        try:
            name = path.relative_to(self.base).as_posix()
        except ValueError:
            return None
        return self.spec.check_file(name + "/" if directory else name).include


def find_sources(
    paths: Sequence[Path],
    *,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    respect_gitignore: bool = True,
    root: Path | None = None,
    on_error: OnError | None = None,
) -> Iterator[Path]:
    """Every source file under ``paths``, once, in the order of absolute paths.

    ``exclude`` and ``include`` are patterns as in ``.gitignore``, relative to ``root`` (the configuration's
    directory; the working directory by default); ``include`` says which file names count as sources and replaces
    ``*.py`` and ``*.ipynb``. A directory that cannot be listed goes to ``on_error`` and the walk goes on.
    Raises ``UsageError`` for a path that does not exist and for a directory with no source file in it.
    """
    base = Path(os.path.abspath(root or Path.cwd()))
    excluded = [IgnoreFile(base, patterns(exclude))] if exclude else []
    wanted = IgnoreFile(base, patterns(include)) if include else None
    found: dict[str, Path] = {}
    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"no such file or directory: {path}")
        if not os.path.isdir(path):
            found.setdefault(os.path.abspath(path), path)
            continue
        top = Path(os.path.abspath(path))
        outer = enclosing_ignores(top) if respect_gitignore else []
        # Naming an ignored directory asks for its contents, so what ignores it as a whole is set aside.
        always, rules = ([rule for rule in group if not rule.verdict(top, True)] for group in (excluded, outer))
        below = list(walk(path, top, always, rules, wanted, respect_gitignore, on_error))
        if not below:
            raise UsageError(f"no Python files in {path}")
        for file in below:
            found.setdefault(os.path.abspath(file), file)
    return (found[key] for key in sorted(found))


def walk(
    directory: Path,
    absolute: Path,
    always: Sequence[IgnoreFile],
    rules: Sequence[IgnoreFile],
    wanted: IgnoreFile | None,
    respect_gitignore: bool,
    on_error: OnError | None,
) -> Iterator[Path]:
    """Source files under a directory; symbolic links to directories are not entered, so a loop cannot form."""
    pending = [(directory, absolute, list(rules))]
    while pending:
        here, place, above = pending.pop()
        try:
            with os.scandir(here) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if on_error:
                on_error(SourceError(here, None, f"cannot list the directory: {reason(error)}"))
            continue
        own = read_ignore_file(place) if respect_gitignore and any(e.name == ".gitignore" for e in listed) else None
        active = [*above, own] if own else above
        for entry in listed:
            if is_directory(entry):
                at = place / entry.name
                if entry.name not in DEFAULT_EXCLUDE and not ignored(always, active, at, True):
                    pending.append((here / entry.name, at, active))
            elif is_source(entry, place, wanted) and not ignored(always, active, place / entry.name, False):
                yield here / entry.name


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory itself and not a link to one."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def is_source(entry: os.DirEntry[str], directory: Path, wanted: IgnoreFile | None) -> bool:
    """Whether an entry is a regular file (or a link to one) with a source's name."""
    try:
        if wanted is None:
            return entry.name.endswith(ENDINGS) and entry.is_file()
        named = wanted.verdict(directory / entry.name, False)
        if named is None:  # outside ``root``: only the name can be compared
            named = wanted.spec.match_file(entry.name)
        return bool(named) and entry.is_file()
    except OSError:
        return False


def ignored(always: Sequence[IgnoreFile], rules: Sequence[IgnoreFile], path: Path, directory: bool) -> bool:
    """Whether the innermost file of patterns that mentions ``path`` ignores it; excludes always win."""
    if any(rule.verdict(path, directory) for rule in always):
        return True
    verdicts = (rule.verdict(path, directory) for rule in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def enclosing_ignores(directory: Path) -> list[IgnoreFile]:
    """The ``.gitignore`` files above a directory, outermost first, up to the repository that it is in."""
    chain = [directory, *directory.parents]
    top = next((n for n, parent in enumerate(chain) if (parent / ".git").exists()), None)
    if top is None:
        return []
    files = [read_ignore_file(parent) for parent in chain[1 : top + 1]]
    own = read_ignore_file(chain[top], ".git/info/exclude")
    return [file for file in (own, *reversed(files)) if file]


def read_ignore_file(directory: Path, name: str = ".gitignore") -> IgnoreFile | None:
    """The patterns of one ignore file; a line that git would not understand is passed over, as git does."""
    try:
        lines = (directory / name).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return IgnoreFile(directory, patterns([line for line in lines if is_pattern(line)]))


def patterns(lines: Iterable[str]) -> GitIgnoreSpec:
    """Patterns as git reads them; the library is imported where there are any."""
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def is_pattern(line: str) -> bool:
    """Whether a line of an ignore file is a valid pattern."""
    try:
        patterns([line])
    except ValueError:
        return False
    return True


def read_source(path: Path, *, max_nbytes: int = MAX_NBYTES) -> SourceText:
    """Read and decode one file. Raises ``SourceError`` that names the file and, where there is one, the line."""
    return decode_source(path, read_content(path, max_nbytes=max_nbytes))


def read_content(path: Path, *, max_nbytes: int = MAX_NBYTES) -> bytes:
    """The bytes of one regular file. Raises ``SourceError``."""
    try:
        # Opened without waiting, so that a FIFO that takes a file's place between two calls blocks nothing.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise SourceError(path, None, "not a regular file")
        with open(handle, "rb") as file:
            content = file.read(max_nbytes + 1)
    except (OSError, ValueError) as error:
        raise SourceError(path, None, f"cannot be read: {reason(error)}") from error
    if len(content) > max_nbytes:
        raise too_large(path, max_nbytes)
    return content


def too_large(path: Path, max_nbytes: int) -> SourceError:
    """The fault of a file that no person wrote."""
    return SourceError(path, None, f"larger than {max_nbytes / 1e6:g} MB, not checked")


class Sources:
    """The files of one run: read from disk, or given by an editor that has not saved them yet.

    Only a few decoded texts are kept: a million lines are not held at once.
    """

    def __init__(self, unsaved: Mapping[Path, bytes] | None = None) -> None:
        self.unsaved = {os.path.abspath(path): content for path, content in (unsaved or {}).items()}
        self.source = lru_cache(maxsize=64)(self.decode)

    def holds(self, path: Path) -> bool:
        """Whether the content of a file was given."""
        return bool(self.unsaved) and os.path.abspath(path) in self.unsaved

    def content(self, path: Path) -> bytes:
        """The bytes of a file. Raises ``SourceError``."""
        if not self.holds(path):
            return read_content(path)
        content = self.unsaved[os.path.abspath(path)]
        if len(content) > MAX_NBYTES:
            raise too_large(path, MAX_NBYTES)
        return content

    def decode(self, path: Path) -> SourceText:
        """A file as text, without remembering it; ``source`` remembers. Raises ``SourceError``."""
        return decode_source(path, self.content(path))

    def text(self, path: Path) -> str:
        """The text of a file, as one module. Raises ``SourceError``."""
        return self.decode(path).text

    def lines(self, path: Path, cell: int | None = None) -> Sequence[str]:
        """The lines of a file or of one notebook cell for a report; none where the file cannot be read."""
        try:
            source = self.source(path)
        except SourceError:
            return ()
        return source.lines if cell is None else lines_of_cell(source, cell)


def decode_source(path: Path, content: bytes) -> SourceText:
    """Bytes -> lines, by the byte order mark and the encoding cookie of PEP 263. Raises ``SourceError``."""
    if path.suffix == ".ipynb":
        return read_notebook(path, content)
    nul = content.find(b"\0")
    if nul >= 0:
        raise SourceError(path, content.count(b"\n", 0, nul) + 1, "a NUL byte; this is not Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise SourceError(path, undecodable_line(content), str(error.msg)) from error
    if encoding in SLOW_CODECS:
        raise SourceError(path, None, f"the encoding '{encoding}' is not used for source code")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SourceError(path, line, f"not valid {encoding}: byte 0x{content[error.start]:02x}") from error
    except (LookupError, ValueError) as error:
        raise SourceError(path, None, f"cannot be decoded as {encoding}: {reason(error)}") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return SourceText(path, text, tuple(text.split("\n")), encoding)


def undecodable_line(content: bytes) -> int | None:
    """The line of the first byte that is not UTF-8."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return content.count(b"\n", 0, error.start) + 1
    return None


def read_notebook(path: Path, content: bytes) -> SourceText:
    """The code cells of a notebook, one under the other. Raises ``SourceError``.

    Lines for IPython (``%magic``, ``!shell``, ``name?``) become ``pass`` so that the rest of the cell can be parsed. A
    notebook in another language has no code cell here.
    """
    try:
        notebook = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(path, getattr(error, "lineno", None), "not a notebook: the JSON cannot be read") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise SourceError(path, None, "not a notebook of format 4: there is no list of cells")
    starts: list[tuple[int, int]] = []
    lines: list[str] = []
    for number, cell in enumerate(cells if in_python(notebook) else [], 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            starts.append((number, len(lines) + 1))
            lines += plain_python(cell_lines(cell.get("source")))
    return SourceText(path, "\n".join(lines), tuple(lines), "utf-8", tuple(starts))


def in_python(notebook: dict[str, object]) -> bool:
    """Whether a notebook's kernel speaks Python; one that does not say is taken for Python."""
    match notebook.get("metadata"):
        case {"language_info": {"name": str(language)}} | {"kernelspec": {"language": str(language)}}:
            return language.lower() in {"python", "python3", "ipython"}
        case _:
            return True


def cell_lines(source: object) -> list[str]:
    """The lines of a cell, which the format stores as one text or as a list of texts."""
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    text = source if isinstance(source, str) else ""
    return text.replace("\0", " ").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def plain_python(lines: list[str]) -> list[str]:
    """A cell without IPython's own syntax, line by line, so that line numbers stay."""
    first = lines[0].lstrip()
    if first.startswith("%%") and not first.startswith(TIMING_MAGICS):
        return [""] * len(lines)
    return [f"{magic['indent']}pass" if (magic := LINE_MAGIC.match(line)) else line for line in lines]


def lines_of_cell(source: SourceText, cell: int) -> tuple[str, ...]:
    """The lines of one cell of a notebook."""
    bounds = [*source.cells, (0, len(source.lines) + 1)]
    for (number, start), (_, end) in pairwise(bounds):
        if number == cell:
            return source.lines[start - 1 : end - 1]
    return ()


def in_cells(finding: Finding, source: SourceText) -> Finding:
    """The finding as a reader of the notebook sees it: cell and line in the cell. A plain file's stays as it is."""
    place = finding.place
    if place is None or not source.cells or place.path != source.path:
        return finding
    cell, line = source.locate(place.line)
    end_line = place.end_line and line + place.end_line - place.line
    return replace(finding, place=replace(place, cell=cell, line=line, end_line=end_line))


def reason(error: Exception) -> str:
    """The operating system's words, without the number and the path."""
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).lower()
