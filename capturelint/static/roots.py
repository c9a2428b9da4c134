"""Runs an entry: sets the stage, runs the step until its state is the steady one, and hands back the events.

A step is run once as warm-up and then recorded until no host number turns out to change at every step; only the last
run's events count, so what happens once (lazy building in warm-up) is not reported and what happens at every step is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from capturelint.arguments import COUNTERS, TOKENS
from capturelint.catalog import Operations
from capturelint.static import classes, inheritance, scopes, steady, torch_calls
from capturelint.static.driver import Driver, Facts
from capturelint.static.events import Event
from capturelint.static.facts import CallFact, SlotFact, Watch, describe, slot_facts
from capturelint.static.homes import LENGTH, Objects, Sort, Step, Store
from capturelint.static.index import ClassDef, FunctionDef, Index, Module
from capturelint.static.interpret import FUEL, GUESSED_FUEL, Interpreter
from capturelint.static.records import replace
from capturelint.static.regions import CACHE_WORDS, Entry, EntryKind
from capturelint.static.state import Call
from capturelint.static.step_end import finish_step
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Device,
    Function,
    Home,
    Memory,
    Method,
    Number,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Union,
    Value,
    is_number,
    join,
    options,
    union,
)
from capturelint.vocabulary import Confidence, EventKind, Phase, Varies

MAX_RUNS = 4
MAX_RECORDS = 3
"""Records within records whose replacement is followed."""
CARRIED = frozenset([*TOKENS, *steady.CARRIED, "decoder_input_ids", "encoder_outputs", "timestep"])
"""What a step is given though it may be left out: tokens, a time, what earlier steps filled, what an encoder made."""


@dataclass(slots=True)
class Outcome:
    """What running one entry gave."""

    events: list[Event] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)
    exhausted: bool = False
    reached: list[FunctionDef] = field(default_factory=list)
    slots: list[SlotFact] = field(default_factory=list)
    calls: list[CallFact] = field(default_factory=list)
    arguments: list[tuple[str, str]] = field(default_factory=list)


def outcome_of(vm: Interpreter) -> Outcome:
    """What a machine knows after a run."""
    calls = list(vm.watch.calls.values()) if vm.watch is not None else []
    return Outcome(vm.found(), vm.unlisted, vm.fuel <= 0, list(vm.reached), slot_facts(vm), calls)


@dataclass(frozen=True, slots=True)
class Stage:
    """What an entry is run on: the analysed code, the catalogue, and the types that the user gave parameters."""

    index: Index
    catalog: Operations
    bind: Mapping[str, str] = field(default_factory=dict)
    watches: bool = False
    """Whether the values at every call are noted."""


def run_entry(stage: Stage, entry: Entry) -> Outcome:
    """Run one entry from a clean state."""
    stage.index.forget_globals()
    match entry.kind:
        case EntryKind.DRIVER:
            return run_driver(stage, entry)
        case EntryKind.PROTOCOL:
            return run_steps(stage, entry, protocol_step)
        case EntryKind.FUNCTION:
            return run_steps(stage, entry, function_step)
        case EntryKind.HANDED:
            return run_steps(stage, entry, handed_steps)


def machine(stage: Stage, entry: Entry) -> Interpreter:
    """An interpreter at the top of the entry's module."""
    vm = Interpreter(stage.index, stage.catalog)
    vm.stack.append(Call("<entry>", entry.module, None, None))
    vm.cap = Confidence.LIKELY if entry.capped else Confidence.CERTAIN
    vm.compiled = entry.compiled
    vm.watch = Watch() if stage.watches else None
    vm.fuel = GUESSED_FUEL if entry.capped else FUEL
    if any(m is not None and sets_default_device(m) for m in [entry.module]):
        vm.default_memory = Memory.EITHER
    return vm


def sets_default_device(module: Module) -> bool:
    """A module that changes torch's default device: plain factories may then make device tensors."""
    return "set_default_device" in module.text or "set_default_tensor_type" in module.text


# -------------------------------------------------------------------- steps


@dataclass(slots=True)
class Prepared:
    """A step that is ready to run: the function and its arguments."""

    function: Value
    args: list[Value]
    kwargs: dict[str, Value]
    node: ast.AST


Prepare: TypeAlias = Callable[["Stage", Interpreter, Entry], list[Prepared]]


def run_steps(stage: Stage, entry: Entry, prepare: Prepare) -> Outcome:
    """Warm up, then record until the host numbers have settled."""
    vm = machine(stage, entry)
    steps = prepare(stage, vm, entry)
    if not steps:
        return Outcome(exhausted=vm.fuel <= 0)
    made: list[Store] = []
    for run in range(MAX_RUNS):
        vm.heap.carry()
        vm.step = Step()
        vm.heap.measured.clear()
        vm.noted.clear()
        vm.log.clear()
        vm.checking.clear()
        vm.phase = Phase.WARM_UP if run == 0 else Phase.RECORDED
        before, known = vm.heap.snapshot(), set(vm.heap.per_step)
        vm.fuel = max(vm.fuel, 1)
        for step in steps:
            vm.call(step.function, list(step.args), dict(step.kwargs), step.node)
        if not vm.recording:
            made = [store for store in vm.step.stores if store.old == NONE and not (store.doubt or store.hidden)]
            forget_first_state(vm, before)
        else:
            finish_step(vm)
            settle(vm, before)
            if not news(vm, known) and not changed_kind(vm, before):
                break
    for store in made:
        vm.emit(EventKind.LAZY_INIT, store.site, "first-call", Confidence.LIKELY, name=str(store.home))
    outcome = outcome_of(vm)
    outcome.arguments = [(name, describe(value, vm)) for step in steps for name, value in step.kwargs.items()]
    return outcome


def forget_first_state(vm: Interpreter, before: Objects) -> None:
    """What warm-up may have built it has built: of "old or new" the new one is what capture finds."""
    for home, old, new in changed_slots(vm, before):
        if isinstance(old, (Const, Number)) and isinstance(new, Union):
            kept = [option for option in new.options if option != old]
        elif isinstance(old, Tensor) and isinstance(new, Union):  # a tensor that was read once: its number stays
            kept = list(filter(is_number, new.options))
        else:
            continue
        if kept:
            found = vm.heap.objects[home.owner]
            vm.heap.objects[home.owner] = replace(found, slots={**found.slots, home.key: union(kept)})


def settle(vm: Interpreter, before: Objects) -> None:
    """A host constant that one recorded step changes, the next one changes again."""
    for home, old, new in changed_slots(vm, before):
        vm.heap.per_step.update(changed_numbers(vm, before, home, old, new))


def changed_slots(vm: Interpreter, before: Objects) -> Iterator[tuple[Home, Value, Value]]:
    """Every slot that a run found and left with something else in it."""
    for oid, old in before.items():
        new = vm.heap.objects.get(oid)
        if new is None or new is old:
            continue
        for key, value in old.slots.items():
            now = new.slots.get(key)
            if now is not None and now is not value:
                yield Home(oid, key), value, now


def changed_numbers(
    vm: Interpreter, before: Objects, home: Home, old: Value, new: Value, depth: int = 0
) -> Iterator[Home]:
    """Where, under a slot, a constant became another one: a record or an object may have been replaced as a whole."""
    match old, new:
        case Const(), Const() if old.value is not None and old.value != new.value:
            yield home
        case Sequence(items=(*first,)), Sequence(items=(*second,)) if len(first) == len(second):
            for at, pair in enumerate(zip(first, second, strict=True)):
                yield from changed_numbers(vm, before, Home(home.owner, (home.key, at)), *pair, depth)
        case Ref(), Ref() if old.oid != new.oid and depth < MAX_RECORDS:
            held, made = before.get(old.oid), vm.heap.get(new)
            if held is not None and made is not None and held.cls == made.cls and held.sort is made.sort:
                for key in held.slots.keys() & made.slots.keys():
                    inner = held.slots[key], made.slots[key]
                    yield from changed_numbers(vm, before, Home(new.oid, key), *inner, depth + 1)
        case _:
            pass


def news(vm: Interpreter, known: set[Home]) -> bool:
    """True where a run found something to change at every step that it had taken for constant.

    A list that grows, and whose length nobody asked for, makes no difference to another run.
    """
    return any(home.key != LENGTH or home in vm.heap.measured for home in vm.heap.per_step - known)


def changed_kind(vm: Interpreter, before: Objects) -> bool:
    """True where the step filled a slot that was ``None``: the next run sees another state."""
    return any(
        old == NONE and new != NONE and home not in vm.heap.per_step for home, old, new in changed_slots(vm, before)
    )


def protocol_step(stage: Stage, vm: Interpreter, entry: Entry) -> list[Prepared]:
    """``step(build(device), **inputs(batch, step, device))``."""
    module = entry.module
    scope = Scope(module)
    build, make, step = (scopes.global_name(vm, name, module) for name in ("build", "inputs", "step"))
    node = entry.function.node if entry.function is not None else ast.Pass()
    device = Device(Memory.DEVICE)
    state = vm.call(build, [device], {}, node, scope=scope)
    given = vm.call(make, [Number(Varies.PER_BUCKET), Number(Varies.PER_STEP), device], {}, node, scope=scope)
    exact: dict[str, Value] = {}
    for option in options(given):
        if isinstance(option, Ref) and (found := vm.heap.get(option)) is not None and found.sort is Sort.DICT:
            for key, value in found.slots.items():
                clean = static_input(vm, value)
                exact[str(key)] = join(exact[str(key)], clean) if str(key) in exact else clean
    return [Prepared(step, [state], exact, node)]


def static_input(vm: Interpreter, value: Value) -> Value:
    """An input as the step receives it: a tensor at a fixed address, refilled before every replay."""
    if isinstance(value, Tensor):
        return replace(
            value, deps=frozenset(), varies=Varies.NEVER, recorded=False, output=False, ident=vm.ident(), rows=None
        )
    return value


def function_step(stage: Stage, vm: Interpreter, entry: Entry) -> list[Prepared]:
    """A function or method on arguments that its signature, annotations and ``--bind`` describe."""
    definition = entry.function
    if definition is None:
        return []
    vm.decoding = True
    function: Value = Function(definition, definition.module, definition.owner)
    if definition.owner is not None and is_bound(definition):
        function = Method(function, classes.instance_of(vm, definition.owner))
    return [described_call(stage, vm, function, definition)]


def is_bound(definition: FunctionDef) -> bool:
    """Whether a function's first parameter is what it is a method of."""
    return [argument.arg for argument in definition.node.args.args[:1]] in (["self"], ["cls"])


def described_call(stage: Stage, vm: Interpreter, function: Value, definition: FunctionDef) -> Prepared:
    """A call of what ``definition`` defines, on arguments that its signature describes."""
    names = [argument.arg for argument in definition.node.args.args]
    names = names[1:] if is_bound(definition) and isinstance(function, (Method, Ref)) else names
    kwargs = {
        name: value for name, value in parameters(stage, vm, definition) if name in names or name not in ("self", "cls")
    }
    return Prepared(function, [], kwargs, definition.node)


def handed_steps(stage: Stage, vm: Interpreter, entry: Entry) -> list[Prepared]:
    """What the entry's function hands to a wrapper that captures it."""
    vm.wrappers, vm.fuel = entry.wrappers, GUESSED_FUEL
    with vm.silent():
        run_root(stage, vm, entry)
    vm.wrappers, vm.decoding = frozenset(), True
    found = [(value, called_definition(vm, value)) for value in dict.fromkeys(vm.handed)]
    steps = [described_call(stage, vm, value, definition) for value, definition in found if definition is not None]
    vm.fuel = FUEL if steps else vm.fuel
    return steps


def called_definition(vm: Interpreter, value: Value) -> FunctionDef | None:
    """What is run where a value is called: a function, a method, or the ``forward`` of a module."""
    match value:
        case Function(definition=definition):
            return definition
        case Method(function=Function(definition=definition)):
            return definition
        case Ref() if (found := vm.heap.get(value)) is not None and isinstance(found.cls, ClassDef):
            forward = inheritance.find_method(vm, found.cls, "forward")
            return forward[0] if forward is not None and isinstance(forward[0], FunctionDef) else None
        case _:
            return None


def parameters(stage: Stage, vm: Interpreter, definition: FunctionDef) -> Iterator[tuple[str, Value]]:
    """What each parameter of an entry holds."""
    spec = definition.node.args
    defaults = dict(zip([a.arg for a in reversed(spec.args)], reversed(spec.defaults), strict=False))
    defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
    tested = dict(only_cases(definition))
    for argument in [*spec.args, *spec.kwonlyargs]:
        if argument.arg in ("self", "cls"):
            continue
        bound = bound_type(stage, vm, argument.arg)
        if bound is not None:
            yield argument.arg, bound
            continue
        if argument.arg in tested:
            yield argument.arg, vm.quiet_eval(tested[argument.arg], Scope(definition.module))
            continue
        if vm.decoding and steady.comes_with_prompt(argument.arg):
            yield argument.arg, NONE
            continue
        value = described(vm, argument, definition.module)
        if argument.annotation is None and argument.arg in bounds_of_ranges(definition):
            value = Number()
        if value is UNKNOWN and argument.arg in written_in_place(vm, definition):
            value = Tensor(Memory.DEVICE, sure=Confidence.LIKELY, ident=vm.ident(), argument=True)
        default = defaults.get(argument.arg)
        if default is not None:
            given = vm.quiet_eval(default, Scope(definition.module))
            # What decode code does not usually pass (labels, output flags) keeps its default.
            usual = argument.arg in vm.catalog.parameters or argument.arg in (CACHE_WORDS | CARRIED)
            carried = argument.arg in CARRIED
            value = join(given, value) if carried or (usual and value is not UNKNOWN) else given
            value = present(value) if carried else value
        yield argument.arg, value


def only_cases(definition: FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of a test that pytest gives one value each: ``@pytest.mark.parametrize("kind", ["dense"])``."""
    for decorator in definition.node.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[ast.Constant(value=str(name)), ast.List(elts=[case]) | ast.Tuple(elts=[case])],
            ) if name.isidentifier():
                yield name, case
            case _:
                pass


def bounds_of_ranges(definition: FunctionDef) -> frozenset[str]:
    """The parameters that a function counts to or from: ``k`` of ``range(k, k + 100)`` is no key of an attention."""
    return frozenset(
        bound.id
        for node in ast.walk(definition.node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
        for bound in node.args
        if isinstance(bound, ast.Name)
    )


def written_in_place(vm: Interpreter, definition: FunctionDef) -> frozenset[str]:
    """The parameters that a function calls an in-place method of tensors on: ``keys`` of ``keys.index_copy_(...)``."""
    return frozenset(
        node.func.value.id
        for node in ast.walk(definition.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.attr.endswith("_")
        and node.func.attr not in torch_calls.UNWRITTEN
        and {node.func.attr, node.func.attr[:-1]} & (vm.catalog.results.keys() | vm.catalog.operations.keys())
    )


def present(value: Value) -> Value:
    """The same without ``None``, where it may be anything else."""
    kept = [option for option in options(value) if option != NONE]
    return union(kept) if kept else value


def described(vm: Interpreter, argument: ast.arg, module: Module) -> Value:
    """What a parameter's annotation, or where there is none its name, says."""
    value = UNKNOWN if argument.annotation is None else classes.annotated(vm, argument.annotation, module)
    if (
        isinstance(value, Number)
        and argument.arg in COUNTERS
        and ast.unparse(argument.annotation or ast.Pass()) == "int"
    ):
        return replace(value, varies=Varies.PER_STEP, sure=Confidence.LIKELY)
    if argument.annotation is None and argument.arg in vm.catalog.parameters:
        return Tensor(Memory.DEVICE, sure=Confidence.LIKELY, ident=vm.ident(), argument=True)
    return as_argument(value)


def as_argument(value: Value) -> Value:
    """The same value, as an argument of the entry."""
    match value:
        case Tensor():
            return replace(value, argument=True)
        case Union():
            return Union(tuple(map(as_argument, value.options)))
        case _:
            return value


def bound_type(stage: Stage, vm: Interpreter, name: str) -> Value | None:
    """The instance that ``--bind NAME=MODULE:CLASS`` asks for."""
    target = stage.bind.get(name)
    if target is None:
        return None
    module_name, _, class_name = target.partition(":")
    module = stage.index.find(module_name)
    found = scopes.global_name(vm, class_name, module) if module is not None else UNKNOWN
    return classes.instance_of(vm, found.definition) if isinstance(found, Class) else None


# -------------------------------------------------------------------- drivers


def run_driver(stage: Stage, entry: Entry) -> Outcome:
    """Run the code around a capture twice: the first run learns what changes between capture and replay."""
    facts = Facts()
    outcome = Outcome()
    for run in range(3):
        final = run == 2
        if run == 1 and not facts.arguments.offered:
            continue
        stage.index.forget_globals()
        vm = machine(stage, entry)
        vm.driver = Driver(facts, final)
        vm.phase = Phase.WARM_UP
        run_root(stage, vm, entry)
        if vm.recording:
            vm.driver.end(vm)
        vm.driver.finish()
        vm.driver.lost_outputs(vm)
        vm.driver.buckets.finish(vm, captured=vm.driver.captures > 0)
        outcome = outcome_of(vm)
    return outcome


def run_root(stage: Stage, vm: Interpreter, entry: Entry) -> None:
    """Call the outermost function around a capture."""
    definition = entry.function
    if definition is None:
        return
    function: Value = Function(definition, definition.module, definition.owner)
    given = dict(parameters(stage, vm, definition))
    if "device" in given and given["device"] is UNKNOWN:
        given["device"] = Device(Memory.DEVICE)
    if definition.owner is not None:
        function = Method(function, owner_of(vm, definition.owner))
    vm.call(function, [], given, definition.node)


def owner_of(vm: Interpreter, definition: ClassDef) -> Value:
    """The instance whose method captures."""
    return classes.instance_of(vm, definition)
