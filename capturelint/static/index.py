"""The modules, classes and functions of the analysed code, found by name, each file parsed once and when first needed.

Built on ``ast`` and an import table of our own: nothing is imported or run. A file that cannot be parsed is kept as a
``SourceError`` and costs only itself. What is not in the index is an ``External`` name.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.place import Place

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Lookup = tuple[str, Path | None]
MAX_NAMESPACE = 6
"""Directories without ``__init__.py`` that a module's name may go through."""

WATCHED = (
    "set_default_device",
    "set_default_tensor_type",
    "with torch.device",
    "set_default_validate_args(False",
    "register_generator_state",
    "mark_static_address",
)
"""What changes all of a program from one place in it: what is analysed depends on any file that says one of these."""


@dataclass(frozen=True, slots=True)
class Import:
    """What a local name was imported from: a module, or an attribute of one."""

    module: str
    attribute: str | None = None


@dataclass(eq=False, slots=True)
class FunctionDef:
    """A function or method of the analysed code."""

    node: FunctionNode
    module: Module
    owner: ClassDef | None = None

    @property
    def name(self) -> str:
        """The bare name."""
        return self.node.name

    @property
    def qualified_name(self) -> str:
        """``Class.method`` or ``function``."""
        return f"{self.owner.name}.{self.name}" if self.owner else self.name


@dataclass(eq=False)
class ClassDef:
    """A class of the analysed code."""

    node: ast.ClassDef
    module: Module
    methods: dict[str, FunctionDef] = field(default_factory=dict)
    fields: dict[str, ast.AnnAssign | ast.Assign] = field(default_factory=dict)
    setters: dict[str, FunctionDef] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The bare name."""
        return self.node.name

    @cached_property
    def is_dataclass(self) -> bool:
        """True under ``@dataclass`` or as a ``NamedTuple``: ``__init__`` is made from the fields."""
        decorated = any("dataclass" in ast.unparse(decorator) for decorator in self.node.decorator_list)
        return decorated or any("NamedTuple" in ast.unparse(base) for base in self.node.bases)

    @cached_property
    def transforms(self) -> bool:
        """True under ``@dataclass_transform``: its subclasses are dataclasses."""
        return any("dataclass_transform" in ast.unparse(decorator) for decorator in self.node.decorator_list)


class Module:
    """One parsed file."""

    def __init__(self, path: Path, name: str, text: str, tree: ast.Module, is_package: bool) -> None:
        self.path = path
        self.name = name
        self.text = text
        self.tree = tree
        self.is_package = is_package
        self.imports: dict[str, Import] = {}
        self.functions: dict[str, FunctionDef] = {}
        self.classes: dict[str, ClassDef] = {}
        self.assignments: dict[str, ast.Assign | ast.AnnAssign] = {}
        self.globals: dict[str, object] = {}
        self.decorating: dict[FunctionDef, bool] = {}
        """Whether a function gives back what it decorates, as far as somebody asked."""
        self.naming: dict[FunctionDef, bool | None] = {}
        """What ``attributes.gives_names`` says of a ``__getattribute__``, as far as somebody asked."""
        self.settled: dict[ast.If, bool | None] = {}
        """What conditions say after a warm-up, as far as somebody asked."""
        self.mentioning: dict[str, list[FunctionDef]] = {}
        """The functions that read or write a name of the module, as far as somebody asked."""
        for statement in top_level(tree.body):
            self.add(statement)

    @cached_property
    def lines(self) -> list[str]:
        """The source lines, without their ends."""
        return self.text.split("\n")

    def add(self, statement: ast.stmt) -> None:
        """Enter one top-level statement into the tables."""
        match statement:
            case ast.Import():
                for alias in statement.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.imports[bound] = Import(alias.name if alias.asname else bound)
            case ast.ImportFrom():
                source = self.absolute(statement.module, statement.level)
                for alias in statement.names:
                    self.imports[alias.asname or alias.name] = Import(source, alias.name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[statement.name] = FunctionDef(statement, self)
            case ast.ClassDef():
                self.classes[statement.name] = self.class_definition(statement)
            case ast.Assign():
                for target in statement.targets:
                    for name in bound_names(target):
                        self.assignments[name] = statement
            case ast.AnnAssign(target=ast.Name(id=name)) if statement.value is not None:
                self.assignments[name] = statement
            case _:
                pass

    def class_definition(self, node: ast.ClassDef) -> ClassDef:
        """The record of one class statement."""
        definition = ClassDef(node, self)
        for statement in top_level(node.body):
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    # A property's setter has the getter's name.
                    sets = any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in statement.decorator_list)
                    kept = definition.setters if sets else definition.methods
                    kept[statement.name] = FunctionDef(statement, self, definition)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    definition.fields[name] = statement
                case ast.Assign(targets=[ast.Name(id=name)]):
                    definition.fields[name] = statement
                case ast.ClassDef():
                    self.classes.setdefault(statement.name, self.class_definition(statement))
                case _:
                    pass
        return definition

    def absolute(self, module: str | None, level: int) -> str:
        """The dotted name that ``from ..x import y`` speaks of."""
        if level == 0:
            return module or ""
        in_package = self.is_package or (self.path.parent / "__init__.py").is_file()
        parts = (self.name if in_package else spelled_names(self.path)[-1]).split(".")
        kept = parts[: len(parts) - level + (1 if self.is_package else 0)]
        return ".".join([*kept, *([module] if module else [])])

    def place(self, node: ast.AST) -> Place:
        """The source range of a node, columns in characters."""
        line, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", None)
        column = self.character(line, getattr(node, "col_offset", 0))
        end = end or line
        return Place(self.path, line, column + 1, end, self.character(end, getattr(node, "end_col_offset", 0)) + 1)

    def character(self, line: int, offset: int) -> int:
        """The character at a UTF-8 byte offset, which is what ``ast`` counts in."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))

    def code(self, node: ast.AST) -> str:
        """The source text of a node, on one line."""
        place = self.place(node)
        lines = self.lines[place.line - 1 : place.end_line]
        if not lines:
            return ""
        lines = [*lines[:-1], lines[-1][: place.end_column - 1]]
        lines[0] = lines[0][place.column - 1 :]
        return " ".join(line.strip() for line in lines)


class Index:
    """Modules by dotted name: the checked files, and the sources of followed packages.

    ``lookups`` are the names that were looked for since it was last emptied, each with the directory that the asking
    module's name is relative to, and the file that was found or ``None``: what an analysis depends on beside its file.
    ``mentioned`` are the words of ``WATCHED`` that any checked file contains.
    """

    def __init__(self, read: Callable[[Path], str], follow: Iterable[str] = ()) -> None:
        self.read = read
        self.paths: dict[str, list[Path]] = {}
        self.namespaces: dict[str, list[Path]] = {}
        self.modules: dict[Path, Module | None] = {}
        self.errors: dict[Path, SourceError] = {}
        self.roots: dict[str, Path] = {}
        self.follow = tuple(follow)
        self.names: dict[Path, tuple[str, Path]] = {}
        self.packages: dict[str, tuple[str, Path]] = {}
        self.resolved: dict[Lookup, Path | None] = {}
        self.lookups: dict[Lookup, Path | None] = {}
        self.mentioned: frozenset[str] = frozenset()

    def add(self, path: Path) -> None:
        """Make a checked file importable by the name that its package gives it."""
        name, root = self.name_of(path)
        self.resolved.clear()
        self.paths.setdefault(name, []).append(path)
        for longer in spelled_names(path):
            # A module inside a package has no shorter name: `utils/torch.py` of a package is not `torch`.
            if longer == name or longer.endswith(f".{name}"):
                self.namespaces.setdefault(longer, []).append(path)
        self.roots.setdefault(name.partition(".")[0], root)

    def name_of(self, path: Path) -> tuple[str, Path]:
        """The dotted name of a file and the directory that this name is relative to."""
        found = self.names.get(path)
        if found is None:
            real = os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path)
            directory, file = os.path.split(real)
            if directory not in self.packages:
                self.packages[directory] = package_of(Path(directory))
            package, root = self.packages[directory]
            stem = "" if file == "__init__.py" else os.path.splitext(file)[0]
            found = ".".join(filter(None, [package, stem])) or Path(directory).name, root
            self.names[path] = found
        return found

    def load(self, path: Path) -> Module | None:
        """The module of a checked file; ``None`` where it cannot be read or parsed (see ``errors``)."""
        if path not in self.modules:
            self.modules[path] = None  # an import cycle meets an absent module, not itself
            self.modules[path] = self.parse(path, self.name_of(path)[0])
        return self.modules[path]

    def find(self, name: str, beside: Module | None = None) -> Module | None:
        """The module of that dotted name, parsed on first use.

        Where several checked directories have one of that name (scripts that import their neighbours), the one beside
        the importing module is meant.
        """
        root = self.names[beside.path][1] if beside is not None and beside.path in self.names else None
        path = self.lookups[name, root] = self.resolve(name, root)
        return self.load(path) if path is not None else None

    def resolve(self, name: str, root: Path | None) -> Path | None:
        """The file of that dotted name as a module whose own name is relative to ``root`` means it."""
        if (name, root) not in self.resolved:
            candidates = self.paths.get(name) or self.namespaces.get(name, [])
            if len(candidates) > 1 and root is not None:
                candidates = [path for path in candidates if self.names[path][1] == root] or candidates
            self.resolved[name, root] = candidates[0] if candidates else self.followed(name)
        return self.resolved[name, root]

    def mentions(self, *words: str) -> bool:
        """Whether any checked file contains one of these words of ``WATCHED``, wherever: in a comment too."""
        return not self.mentioned.isdisjoint(words)

    def keep(self, used: Iterable[Path], max_num_characters: int) -> list[Path]:
        """Forget the modules that were not used for longest where the sources of all are larger than that."""
        for path in used:
            if path in self.modules:
                self.modules[path] = self.modules.pop(path)
        total = sum(len(module.text) for module in self.modules.values() if module is not None)
        forgotten = []
        for path, module in list(self.modules.items()):
            if total <= max_num_characters:
                break
            if module is not None:
                total -= len(module.text)
                forgotten.append(path)
                del self.modules[path]
        return forgotten

    def forget_globals(self) -> None:
        """Drop the values of module-level names: they point into the heap of the run that made them."""
        for module in self.modules.values():
            if module is not None:
                module.globals.clear()

    def followed(self, name: str) -> Path | None:
        """The file of a module in a followed package, looked up beside the checked code and then on ``sys.path``."""
        top, *rest = name.split(".")
        if top not in self.follow:
            return None
        if top not in self.roots:
            found = PathFinder.find_spec(top)
            where = Path(found.origin).parent.parent if found and found.origin else None
            if where is None:
                return None
            self.roots[top] = where
        base = self.roots[top].joinpath(top, *rest)
        return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)

    def parse(self, path: Path, name: str) -> Module | None:
        """Read and parse one file; a fault is noted and ``None`` returned."""
        try:
            text = self.read(path)
            tree = parse(text, path)
        except SourceError as error:
            self.errors[path] = error
            return None
        return Module(path, name, text, tree, path.name == "__init__.py")


def parse(text: str, path: Path) -> ast.Module:
    """The syntax tree of a file. Raises ``SourceError`` that names the line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in checked code are not ours to report
            return ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise SourceError(path, error.lineno, f"syntax error: {error.msg}") from error
    except (RecursionError, MemoryError, SystemError) as error:  # SystemError: of the tree builder of CPython 3.11
        raise SourceError(path, None, "nested too deeply to parse") from error
    except ValueError as error:
        raise SourceError(path, None, str(error)) from error


def package_of(directory: Path) -> tuple[str, Path]:
    """The dotted name of a directory, empty where it is no package, and the directory that this name is relative to."""
    here = Path(os.path.realpath(directory))
    parts: list[str] = []
    while (here / "__init__.py").is_file():
        parts.insert(0, here.name)
        here = here.parent
    return ".".join(parts), here


def spelled_names(path: Path) -> list[str]:
    """The names that a file may have through directories without ``__init__.py``, shortest first."""
    *parts, file = os.path.realpath(path).split(os.sep)
    parts += [] if file == "__init__.py" else [os.path.splitext(file)[0]]
    return [".".join(parts[-length:]) for length in range(1, min(len(parts), MAX_NAMESPACE) + 1)]


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body, looking into ``if``, ``try`` and ``with`` (optional imports, version switches)."""
    for statement in body:
        match statement:
            case ast.If() if is_main_guard(statement.test):
                continue
            case ast.If():
                yield from top_level(statement.body)
                yield from top_level(statement.orelse)
            case ast.Try():
                for handler in statement.handlers:
                    yield from top_level(handler.body)
                yield from top_level(statement.orelse)
                yield from top_level(statement.finalbody)
                yield from top_level(statement.body)  # last: the body's names win over a handler's stand-ins
            case ast.With():
                yield from top_level(statement.body)
            case _:
                yield statement


def is_main_guard(test: ast.expr) -> bool:
    """``if __name__ == "__main__"``."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def bound_names(target: ast.expr) -> Iterator[str]:
    """The names that an assignment target binds."""
    match target:
        case ast.Name():
            yield target.id
        case ast.Tuple() | ast.List():
            for item in target.elts:
                yield from bound_names(item)
        case ast.Starred():
            yield from bound_names(target.value)
        case _:
            pass
