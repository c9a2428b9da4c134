"""Where recorded code starts: the entries of each module, found in its syntax, and why they are taken for entries.

Nothing is run here. An entry names a function, a protocol module or a capturing driver; ``roots`` runs it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from capturelint.static.calls import GRAPH_MODES, compiles_with_graphs
from capturelint.static.index import ClassDef, FunctionDef, Import, Module, is_main_guard
from capturelint.static.steady import base_name

DECODE_NAME = re.compile(
    r"_?(forward_decode|decode_forward|decode_(one_)?(step|token)|decode_one|step_decode|single_token_decode|run_decode_step"
    r"|decode_next(_token)?|generate_one_token)(_\w+)?\Z"
)
PREFILL = re.compile(r"prefill(?!.*decode)", re.IGNORECASE)
"""What a class is called that runs prompts, which are not captured."""
GENERATING = frozenset(["generate", "generate_step", "prepare_inputs_for_generation"])
CACHE_WORDS = frozenset(
    [
        "past_key_values",
        "past_key_value",
        "past_kv",
        "past_kvs",
        "start_pos",
        "cache",
        "kv_cache",
        "kv_caches",
        "cache_position",
        "input_pos",
        "block_tables",
        "block_table",
        "cache_params",
        "k_cache",
        "v_cache",
        "key_cache",
        "value_cache",
        "slot_mapping",
        "inference_params",
        "caches",
        "past",
        "layer_past",
    ]
)
CAPTURE_WORDS = ("cuda.graph", "make_graphed_callables", "capture_begin", "graph(")
COMPILE_WORDS = (*GRAPH_MODES, "cudagraphs")
PROTOCOL = ("build", "inputs", "step")
MAX_MAKERS = 3
"""Functions through which a model that is compiled may have come."""


class EntryKind(Enum):
    """How an entry is run."""

    PROTOCOL = "protocol"
    FUNCTION = "function"
    DRIVER = "driver"
    HANDED = "handed"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where recorded code starts.

    ``capped`` entries are guesses from names and signatures: their findings are at most likely. ``compiled`` code is
    recorded by Inductor and not by a capture of the user's.
    """

    path: Path
    line: int
    name: str
    why: str
    kind: EntryKind
    module: Module
    function: FunctionDef | None = None
    capped: bool = False
    compiled: bool = False
    wrappers: frozenset[FunctionDef | ClassDef | str] = frozenset()
    """What captures the code that a ``HANDED`` entry's function gives it."""

    def __hash__(self) -> int:
        return hash((self.path, self.line, self.kind))


def find_entries(module: Module, handed: Iterable[Entry] = ()) -> list[Entry]:
    """The entries of a module, by the contract's order; guessing by signature only where nothing else is found.

    ``handed`` are those that are known from what other files do with this one's code.
    """
    if not mentions_torch(module):
        return list(handed)
    captured = [*drivers(module), *handed, *compiled(module), *compiled_callers(module)]
    entries = once([*captured, *protocol(module), *named(module)])
    return entries or list(by_signature(module))


DEFINITION = r"def[\s\\]+"
DEFINES_DECODE = re.compile(DEFINITION + DECODE_NAME.pattern.partition("(_\\w+)")[0])
DEFINES_FORWARD = re.compile(DEFINITION + r"forward\b")
DEFINES_BUILD = re.compile(DEFINITION + r"build\b")
NAMES_CACHE = re.compile(rf"\b(?:{'|'.join(sorted(CACHE_WORDS))})\b")


def may_have_entries(text: str) -> bool:
    """Whether ``find_entries`` could find one in this source: what has none need not be parsed into a tree."""
    if "torch" not in text:
        return False
    return bool(
        any(word in text for word in (*CAPTURE_WORDS, *COMPILE_WORDS))
        or DEFINES_DECODE.search(text)
        or DEFINES_BUILD.search(text)
        or (DEFINES_FORWARD.search(text) and NAMES_CACHE.search(text))
    )


def once(entries: list[Entry]) -> list[Entry]:
    """Each function by its first reason; a driver is another thing than the step in it."""
    kept: dict[tuple[FunctionDef | None, EntryKind], Entry] = {}
    for entry in entries:
        kept.setdefault((entry.function, entry.kind), entry)
    return list(kept.values())


def mentions_torch(module: Module) -> bool:
    """Files without torch have no decode step."""
    return "torch" in module.text


def functions(module: Module) -> Iterator[FunctionDef]:
    """Every function and method at the top level of a module."""
    yield from module.functions.values()
    for definition in module.classes.values():
        yield from definition.methods.values()


# -------------------------------------------------------------------- capture in this file


def drivers(module: Module) -> Iterator[Entry]:
    """The functions from which code with ``torch.cuda.graph`` is reached, outermost first."""
    if not any(word in module.text for word in CAPTURE_WORDS):
        return
    script = script_of(module, lambda call: begins_capture(call, module))
    if script is not None:
        line = min(node.lineno for node in capture_in(script, module))
        yield Entry(module.path, line, script.name, "in torch.cuda.graph", EntryKind.DRIVER, module, script)
    capturing = {function: found for function in functions(module) if (found := capture_in(function, module))}
    if not capturing:
        return
    for root in outermost(set(capturing), module):
        line = min(node.lineno for node in capturing[root]) if root in capturing else root.node.lineno
        yield Entry(module.path, line, root.qualified_name, "in torch.cuda.graph", EntryKind.DRIVER, module, root)


def script_of(module: Module, wanted: Callable[[ast.Call], bool]) -> FunctionDef | None:
    """The statements that run when a file is run, as a function without parameters, where a wanted call is in them.

    What the file's functions read of them is global.
    """
    body = [statement for statement in run_statements(module.tree.body) if not isinstance(statement, DEFINITIONS)]
    if not any(isinstance(node, ast.Call) and wanted(node) for node in walked(body)):
        return None
    bound = {node.id for node in walked(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    read = {node.id for f in functions(module) for node in ast.walk(f.node) if isinstance(node, ast.Name)}
    shared = sorted(bound & read)
    first = [ast.copy_location(ast.Global(shared), body[0])] if shared else []
    node = ast.FunctionDef("<script>", EMPTY, [*first, *body], [], None)
    return FunctionDef(ast.copy_location(node, body[0]), module)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
EMPTY = ast.arguments([], [], None, [], [], None, [])


def run_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a file, with those that run only where it is the program."""
    for statement in body:
        if isinstance(statement, ast.If) and is_main_guard(statement.test):
            yield from statement.body
        else:
            yield statement


def walked(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of some statements, those of functions and classes that they define aside."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, DEFINITIONS)]


UNNAMED_CALLS = frozenset(["__init__", "__call__", "__enter__"])
"""Methods that are called by another name than their own: whoever builds an instance may."""


def outermost(inner: set[FunctionDef], module: Module) -> list[FunctionDef]:
    """The functions from which others are reached and that no other such function calls, in the file's order."""
    reached = inner
    while True:
        names = {name for function in reached for name in calling_names(function, module)}
        wider = reached | {function for function in functions(module) if names & called_names(function)}
        if wider == reached:
            break
        reached = wider
    called = {name for function in reached for name in called_names(function)}
    first = [f for f in reached if f.owner is None and f.name not in called]
    roots = first or [f for f in reached if f.owner is None] or list(inner)
    return sorted(roots, key=lambda function: function.node.lineno)


def calling_names(function: FunctionDef, module: Module) -> set[str]:
    """The names by which a function is called: of a method that building an instance calls, those of its classes."""
    if function.owner is None or function.name not in UNNAMED_CALLS:
        return {function.name}
    names = {function.owner.name}
    while True:
        derived = {d.name for d in module.classes.values() if names & set(base_names(d))} - names
        if not derived:
            return names
        names |= derived


def capture_in(function: FunctionDef, module: Module) -> list[ast.expr]:
    """The calls in a function that begin a capture."""
    return [node for node in ast.walk(function.node) if isinstance(node, ast.Call) and begins_capture(node, module)]


def begins_capture(node: ast.Call, module: Module) -> bool:
    """``torch.cuda.graph(...)``, ``make_graphed_callables(...)``, ``g.capture_begin()``."""
    match node.func:
        case ast.Attribute(attr="capture_begin" | "make_graphed_callables"):
            return True
        case ast.Attribute(attr="graph", value=ast.Attribute(attr="cuda")):
            return True
        case ast.Attribute(attr="graph", value=ast.Name(id=name)):
            return module.imports.get(name) in (Import("torch", "cuda"), Import("torch.cuda"))
        case ast.Name(id=name):
            found = module.imports.get(name)
            return found is not None and (found.module, found.attribute) in (
                ("torch.cuda", "graph"),
                ("torch.cuda.graphs", "graph"),
                ("torch.cuda", "make_graphed_callables"),
            )
        case _:
            return False


def called_names(function: FunctionDef) -> frozenset[str]:
    """The bare names that a function calls."""
    names = set()
    pending: list[object] = [function.node]
    while pending:  # half the time of `ast.walk`, which looks fields up by name
        node = pending.pop()
        if type(node) is ast.Call:
            called = node.func
            if type(called) is ast.Name:
                names.add(called.id)
            elif type(called) is ast.Attribute:
                names.add(called.attr)
        for value in vars(node).values():
            if type(value) is list:
                pending += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and type(value) is not ast.Load:
                pending.append(value)
    return frozenset(names)


# -------------------------------------------------------------------- the other entries


def compiled(module: Module) -> Iterator[Entry]:
    """Functions under ``torch.compile`` with a graph mode, by decorator or by call."""
    if not any(word in module.text for word in COMPILE_WORDS):
        return
    seen: set[FunctionDef] = set()
    for function in functions(module):
        if any(compiles_with_graphs(decorator) for decorator in function.node.decorator_list):
            seen.add(function)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and compiles_with_graphs(node) and node.args:
            seen |= set(compiled_functions(node.args[0], module))
    for function in sorted(seen, key=lambda found: found.node.lineno):
        yield Entry(
            module.path, function.node.lineno, function.qualified_name, "compiled for CUDA graphs",
            EntryKind.FUNCTION, module, function, compiled=True,
        )  # fmt: skip


def compiled_callers(module: Module) -> Iterator[Entry]:
    """The outermost functions around a loop that calls compiled code.

    What it hands over decides whether a graph can be recorded and used again, and what it keeps is overwritten; nothing
    else about it is judged.
    """
    if not any(word in module.text for word in COMPILE_WORDS):
        return
    names = {f.name for f in functions(module) if any(map(compiles_with_graphs, f.node.decorator_list))}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and compiles_with_graphs(node.value):
            names |= {name for target in node.targets for name in called_as(target)}
    looping = {f for f in functions(module) if names & called_names(f) and names & names_in_loops(f)}
    for root in outermost(looping, module) if looping else ():
        yield Entry(
            module.path, root.node.lineno, root.qualified_name, "calls code compiled for CUDA graphs",
            EntryKind.DRIVER, module, root,
        )  # fmt: skip


def called_as(target: ast.expr) -> Iterator[str]:
    """The bare names by which what is assigned to a target is called: a module's ``forward`` by the module's name."""
    owner, _, name = ast.unparse(target).rpartition(".")
    yield name
    if name == "forward" and owner:
        yield owner.rpartition(".")[2]


def names_in_loops(function: FunctionDef) -> frozenset[str]:
    """The bare names that a function calls in loops and comprehensions."""
    loops = [node for node in ast.walk(function.node) if isinstance(node, (ast.For, ast.While, ast.ListComp))]
    calls = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return frozenset(ast.unparse(call.func).rpartition(".")[2] for call in calls)


def compiled_functions(argument: ast.expr, module: Module) -> Iterator[FunctionDef]:
    """The functions that what is passed to ``torch.compile`` may be, in this module."""
    match argument:
        case ast.Name(id=name) if name in module.functions:
            yield module.functions[name]
        case ast.Name(id=name):
            for value in assigned_values(name, module):
                yield from built_forward(value, module)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            for definition in module.classes.values():
                if name in definition.methods:
                    yield definition.methods[name]
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            for value in (*assigned_values(name, module), *assigned_values(owner, module)):
                yield from built_forward(value, module)
        case ast.Attribute(attr=name):
            for value in assigned_values(name, module):
                yield from built_forward(value, module)
        case _:
            yield from built_forward(argument, module)


def assigned_values(name: str, module: Module) -> Iterator[ast.expr]:
    """What is assigned to a name, or to an attribute of that name, anywhere in a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and any(
            (isinstance(t, ast.Name) and t.id == name) or (isinstance(t, ast.Attribute) and t.attr == name)
            for t in node.targets
        ):
            yield node.value


def built_forward(value: ast.expr, module: Module, depth: int = 0) -> Iterator[FunctionDef]:
    """``forward`` of what an expression builds: ``Decoder(...).to(device).eval()``, or a call of what returns one."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
        return
    definition = module.classes.get(value.func.id)
    if definition is not None and "forward" in definition.methods:
        yield definition.methods["forward"]
    maker = module.functions.get(value.func.id)
    for node in ast.walk(maker.node) if maker is not None and depth < MAX_MAKERS else ():
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        names = [node.value.id] if isinstance(node.value, ast.Name) else []
        for given in (node.value, *(value for name in names for value in assigned_values(name, module))):
            yield from built_forward(given, module, depth + 1)


def protocol(module: Module) -> Iterator[Entry]:
    """The plain protocol: ``build``, ``inputs`` and ``step`` at the top level."""
    if all(name in module.functions for name in PROTOCOL):
        step = module.functions["step"]
        yield Entry(module.path, step.node.lineno, "step", "plain protocol", EntryKind.PROTOCOL, module, step)


def named(module: Module) -> Iterator[Entry]:
    """Functions whose name says decode and that call no other such function (those are the loops around it)."""
    found = [function for function in functions(module) if DECODE_NAME.match(function.name)]
    names = {function.name for function in found}
    for function in found:
        parameters = [a.arg for a in function.node.args.args if a.arg not in ("self", "cls")]
        called = called_names(function) - ({function.name} if is_handed_down(function) else set())
        if not parameters or called & names or called & TEXT_MAKERS or is_stub(function):
            continue
        if gives_something(function) and not gives_text(function) and not chooses_graph(function):
            yield Entry(
                module.path, function.node.lineno, function.qualified_name, "named like a decode step",
                EntryKind.FUNCTION, module, function,
            )  # fmt: skip


def is_handed_down(function: FunctionDef) -> bool:
    """A module's method whose parts have one of the same name: ``for layer in layers: h = layer.decode_step(h)``.

    Elsewhere who calls a step of the same name is the engine around it.
    """
    owner = function.owner
    return owner is not None and any(name.endswith("Module") for name in base_names(owner))


def gives_text(function: FunctionDef) -> bool:
    """Whether a function returns ``"".join(...)``: it decodes tokens into text."""
    return any(
        isinstance(node, ast.Return)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "join"
        and isinstance(node.value.func.value, ast.Constant)
        for node in ast.walk(function.node)
    )


TEXT_MAKERS = frozenset(["chr", "bytes", "bytearray"])
"""What a function calls that decodes tokens into text and not a step."""


CHOOSES_GRAPH = re.compile(r"_*(can_run|can_use|use|allow)_?(cuda_?)?graphs?\Z")
"""What a function asks, or reports, that runs a step as a graph or without one."""


def gives_something(function: FunctionDef) -> bool:
    """Whether a function gives a value back or fills a tensor that it did not make.

    What does neither moves the state of an engine from one step to the next, on the host.
    """
    if any(argument.arg == "o" or argument.arg.startswith("out") for argument in function.node.args.args):
        return True
    nodes = list(ast.walk(function.node))
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return any(returns_value(node) or not made.issuperset(filled(node) or made) for node in nodes)


def returns_value(node: ast.AST) -> bool:
    """``return value``, ``yield``."""
    if isinstance(node, ast.Return):
        return not (node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None))
    return isinstance(node, (ast.Yield, ast.YieldFrom))


def filled(node: ast.AST) -> set[str]:
    """The name through which a statement fills a tensor: ``x`` of ``x[i] = value``, ``x.a.copy_(value)``, ``out=x``."""
    match node:
        case ast.Subscript(value=target, ctx=ast.Store()) | ast.keyword(arg="out", value=target):
            return {base_name(target)}
        case ast.Call(func=ast.Attribute(value=target, attr=name)) if name.endswith("_") and not name.endswith("__"):
            return {base_name(target)}
        case _:
            return set()


def chooses_graph(function: FunctionDef) -> bool:
    """Whether a function asks if a graph can be used: it is then the code around the recorded one."""
    nodes = list(ast.walk(function.node))
    names = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    names += [node.id for node in nodes if isinstance(node, ast.Name)]
    return any(map(CHOOSES_GRAPH.match, names))


def is_stub(function: FunctionDef) -> bool:
    """Abstract methods and protocols have nothing to record."""
    body = [s for s in function.node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return not body or all(isinstance(s, (ast.Pass, ast.Raise)) for s in body)


def by_signature(module: Module) -> Iterator[Entry]:
    """``forward`` of a module class that no other class builds and that handles a cache or a position.

    Where some of them generate tokens, only those take decode steps: a classifier over the same model handles a cache
    because the model does.
    """
    handling = [definition for definition in module.classes.values() if handles_cache(definition)]
    if not handling:
        return
    built = built_names({definition.name for definition in handling}, module)
    based = {name for definition in module.classes.values() for name in base_names(definition)}
    outermost = [
        one for one in handling if one.name not in built and one.name not in based and not PREFILL.search(one.name)
    ]
    for definition in list(filter(generates, outermost)) or outermost:
        forward = definition.methods["forward"]
        yield Entry(
            module.path, forward.node.lineno, forward.qualified_name, "handles a cache or a position",
            EntryKind.FUNCTION, module, forward, capped=True,
        )  # fmt: skip


def generates(definition: ClassDef) -> bool:
    """Whether a class has a method that generates, or a base that is named after that."""
    own = GENERATING & definition.methods.keys()
    return bool(own) or any("Generation" in name for name in base_names(definition))


def built_names(names: set[str], module: Module) -> set[str]:
    """Those of some classes that a method of the module builds; methods are read until all are found."""
    sought = {name for name in names if re.search(rf"(?<!class )\b{name}[\s\\)]*\(", module.text)}
    built: set[str] = set()
    methods = [method for definition in module.classes.values() for method in definition.methods.values()]
    for method in sorted(methods, key=lambda method: method.name != "__init__"):
        if built == sought:
            break
        built |= sought & called_names(method)
    return built


def handles_cache(definition: ClassDef) -> bool:
    """Whether a class has a ``forward`` that takes a cache or a position."""
    forward = definition.methods.get("forward")
    if forward is None:
        return False
    return not CACHE_WORDS.isdisjoint(a.arg for a in (*forward.node.args.args, *forward.node.args.kwonlyargs))


def base_names(definition: ClassDef) -> Iterator[str]:
    """The bare names of a class's bases."""
    for base in definition.node.bases:
        match base:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case _:
                pass
