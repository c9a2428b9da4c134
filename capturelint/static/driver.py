"""What happens around the recorded step: warm-up, capture, replay, and what code does to a graph's memory afterwards.

The driver is run as ordinary code while these hooks watch. Its one surprise: it is run twice, because only after
the first run is it known which host values are changed between capture and replay; in the second run recorded code
reads those as numbers that change at every step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

from capturelint.arguments import COUNTERS
from capturelint.static import torch_calls
from capturelint.static.buckets import Buckets, is_guarded
from capturelint.static.events import Site
from capturelint.static.homes import LENGTH, Object, Step, fresh_tensors, numbers_differ, tensors_of
from capturelint.static.host_blocks import HostBlocks
from capturelint.static.index import FunctionDef
from capturelint.static.kept_arguments import KeptArguments
from capturelint.static.liveness import Reads, held
from capturelint.static.outputs import ANY, Outputs, torch_tensors, without_names
from capturelint.static.records import replace
from capturelint.static.state import Call, at_work
from capturelint.static.step_end import finish_step
from capturelint.static.trees import Trees
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Function,
    Home,
    Lambda,
    Memory,
    Method,
    Number,
    Partial,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Value,
    deps_of,
    int_constant,
    options,
    tensor_in,
    varies_of,
)
from capturelint.vocabulary import Confidence, EventKind, Phase, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


@dataclass(slots=True)
class Facts:
    """What the first run learned for the second."""

    late: set[Home] = field(default_factory=set)
    """Host slots that recorded code read and that are changed after the capture."""
    recorded: set[object] = field(default_factory=set)
    """Functions that run inside a recorded region."""
    negative: set[Home | int] = field(default_factory=set)
    """Static inputs, by slot or by tensor, that were filled with a negative number."""
    zero_padded: set[Home | int] = field(default_factory=set)
    """Static inputs whose rows are zero but for live ones, a live one being zero too."""
    keyed: set[Home] = field(default_factory=set)
    """Host slots that choose the graph, so that each graph is replayed with the value that it recorded."""
    parts: set[Value] = field(default_factory=set)
    """Host values in the keys of graphs, sizes aside: a slot that is given one of them may be what chooses."""
    arguments: KeptArguments = field(init=False)
    regions: list[Site] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arguments = KeptArguments(self.keyed)


@dataclass(slots=True)
class Pending:
    """A store that is wrong if a replay follows."""

    kind: EventKind
    site: Site
    how: str
    name: str
    home: Home | None = None
    fresh: frozenset[int] = frozenset()
    """The tensors that took the place: a graph captured with them is right."""
    copy: int = 0
    """The copy in the graph's memory that makes it right if it is filled before the replay."""


class Driver:
    """The hooks. ``facts`` come from the first run; ``final`` says that this is the second."""

    def __init__(self, facts: Facts, final: bool) -> None:
        self.facts = facts
        self.final = final
        self.loops = 0
        self.captures = 0
        self.changed: dict[Home, int] = {}
        """Slots of host numbers that were written since the last capture that reads them, and under which doubts.

        A capture on one side of a condition leaves the graphs of the other side with the numbers that they have.
        """
        self.around: list[Call] = []
        """The calls in progress at a capture."""
        self.outputs = Outputs()
        self.loaded: set[Home] = set()
        self.loaded_now: set[Home] = set()
        self.values: dict[Home, Value] = {}
        self.idents: set[int] = set()
        self.idents_now: set[int] = set()
        self.copied: set[int] = set()
        self.called: set[object] = set()
        self.unread = False
        """True once code that nobody can read may have run what is captured later."""
        self.dirty: dict[Home, Site] = {}
        self.moved: set[Home] = set()
        self.pending: list[Pending] = []
        self.region: Site | None = None
        self.direct: set[object] = set()
        self.depth = 0
        self.replays_before = 0
        self.begun = 0
        """Replays before the running call, or round of a loop, began."""
        self.origins: dict[int, set[int]] = {}
        """What tensors were computed from, outside the recording, with all that came before."""
        self.blocks = HostBlocks()
        self.mapping: ast.AST | None = None
        """The last ``map`` whose function replayed a graph."""
        self.registered: set[int] = set()
        """Graphs that are kept under a key."""
        self.overwritten: list[tuple[int, int, Site]] = []
        """Outputs that a later capture replaced: their graphs, the replays before, and where."""
        self.rewritten: set[tuple[Home, bool]] = set()
        self.live_states: dict[int, int] = {}
        """What ``state_dict`` gave, by number, and the module whose very tensors are in it."""
        self.replaced: dict[Home, Ref] = {}
        """Objects that recorded code read, by the slots that hold another one since the capture."""
        self.compiled_from = 0
        """The number of the last tensor that was there before compiled code was called."""
        self.trees = Trees(self.outputs)
        self.reads = Reads()
        self.buckets = Buckets(facts.negative, facts.zero_padded)
        facts.arguments.start(final)

    # ---------------------------------------------------------------- regions

    def begin(self, vm: Interpreter, node: ast.AST, graph: Value = UNKNOWN) -> None:
        """A recorded region starts."""
        self.outputs.begin(graph)
        self.facts.arguments.on_begin(vm)
        self.region = vm.site(node)
        self.depth = len(vm.stack)
        self.direct = set()
        self.loaded_now = set()
        self.idents_now = set()
        if self.region.place not in {site.place for site in self.facts.regions}:
            self.facts.regions.append(self.region)
        vm.heap.carry()
        vm.step = Step(capturing=set(vm.stream_stack))
        vm.phase = Phase.RECORDED
        if vm.autocast is not None:
            vm.emit(EventKind.AUTOCAST, vm.autocast, "cache", Confidence.LIKELY)

    def end(self, vm: Interpreter) -> None:
        """The region is over: judge what only its end can tell."""
        finish_step(vm)
        self.moved |= set(vm.step.mutated)
        self.outputs.end(vm.step.mutated)
        # A graph captured after the store has the new tensor; a buffer regrown for it was moved under older graphs.
        self.pending = [
            p
            for p in self.pending
            if p.kind is EventKind.LAZY_INIT or not (p.home in self.loaded_now or p.fresh & self.idents_now)
        ]
        self.changed = {h: doubt for h, doubt in self.changed.items() if h not in self.loaded_now or doubt < vm.doubt}
        vm.phase = Phase.REPLAY
        self.captures += 1
        self.around += vm.stack
        self.replays_before = self.replays
        cold = bool(self.direct) and not self.direct & self.called
        if cold and self.final and self.region is not None and self.captures == 1:
            # Who calls a method may have run the same code before; a function sets up what it captures.
            sure = Confidence.POSSIBLE if is_method(vm.stack[1:2]) or self.unread else Confidence.LIKELY
            vm.emit(EventKind.COLD_CAPTURE, self.region, "no-warm-up", sure, phase=Phase.REPLAY)
        self.called |= self.direct

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Tensors that the graph reads and that nobody but it fills: theirs is no name that must stay."""
        copied_in = list(tensors)
        self.idents -= {tensor.ident for tensor in copied_in}
        self.loaded -= {tensor.home for tensor in copied_in if tensor.home is not None}
        for tensor in copied_in:
            self.reads.used.pop(tensor.ident, None)

    def lost_outputs(self, vm: Interpreter) -> None:
        """The driver is over: was a graph replayed whose output the next capture's had replaced?"""
        for graph, replays, site in self.overwritten:
            if graph in self.registered and self.outputs.last.get(graph, 0) > replays:
                vm.emit(EventKind.STALE_OUTPUT, site, "replaced", Confidence.LIKELY, phase=Phase.REPLAY)

    def finish(self) -> None:
        """A graph is replayed, or may have been: numbers that were written after its capture are other ones in it."""
        self.facts.late |= self.changed.keys()

    # ---------------------------------------------------------------- hooks

    def knows(self, ident: int) -> bool:
        """Whether something is known of a tensor that is not so of one like it."""
        known = self.idents, self.copied, self.outputs.made, self.buckets.padded
        return any(ident in those for those in (*known, self.blocks.in_flight, self.blocks.fetched))

    @property
    def situation(self) -> tuple[object, ...]:
        """What decides, outside the recording, what a call means; calls that change more than this are not kept."""
        waiting = bool(self.blocks.in_flight or self.blocks.fetched)
        counts = self.captures, self.loops, self.replays, self.replays_before, self.begun
        return *counts, waiting, bool(self.rewritten), self.trees.same_step

    @property
    def replays(self) -> int:
        """How many replays there were."""
        return self.outputs.clock

    def on_call(self, vm: Interpreter, definition: object, scope: Scope) -> int:
        """An analysed function is called; gives what ``begun`` is to be again when it is left."""
        begun, self.begun = self.begun, self.replays
        self.facts.arguments.on_call(vm, definition, scope, definition in self.facts.recorded)
        if vm.recording:
            self.facts.recorded.add(definition)
            self.direct.add(definition)
        else:
            self.called.add(definition)
            if not any(call.definition in self.facts.recorded for call in vm.stack[:-1]):
                self.rewritten.clear()
        return begun

    def on_unread_call(self, values: list[Value]) -> None:
        """Code that nobody can read is called: it runs the functions that it is given."""
        self.unread = self.unread or any(isinstance(value, (Function, Lambda, Method, Partial)) for value in values)

    def on_unknown_call(self, values: list[Value]) -> None:
        """Nobody knows what is called: given tensors, it may be a method of what is captured."""
        self.unread = self.unread or any(isinstance(value, Tensor) and value.on_device for value in values)
        self.on_unread_call(values)

    def on_return(self, begun: int) -> None:
        """An analysed function is left."""
        self.begun = begun
        self.facts.arguments.on_return()

    def in_step(self, vm: Interpreter) -> bool:
        """True inside a function that is also recorded."""
        return any(call.definition in self.facts.recorded for call in vm.stack)

    def on_load(self, vm: Interpreter, owner: Ref, key: object, value: Value) -> Value:
        """A slot is read."""
        home = Home(owner.oid, key)
        if not vm.recording:
            if isinstance(value, Tensor) and value.home is None and vm.heap.persistent(owner) is not None:
                return replace(value, home=home)
            return value
        if vm.heap.persistent(owner):
            self.loaded.add(home)
            self.loaded_now.add(home)
            self.values.setdefault(home, value)
            if is_parameter(value):
                self.reads.weights.setdefault(owner.oid, set()).add(self.outputs.graph)
            if home in self.facts.late - self.facts.keyed:
                if isinstance(value, (Const, Number)):
                    return Number(Varies.PER_STEP, frozenset({home}))
                if isinstance(value, Tensor) and value.memory is Memory.HOST:
                    return replace(value, varies=Varies.PER_STEP, deps=frozenset({home}))
        return value

    def on_walk(self, vm: Interpreter, owner: Ref, node: ast.AST) -> None:
        """Recorded code goes over the items of a container: there are as many in the graph as there are now."""
        home = Home(owner.oid, LENGTH)
        if vm.recording and vm.heap.persistent(owner):
            self.loaded.add(home)
            self.loaded_now.add(home)
            if home in self.facts.late:
                length = Number(Varies.PER_STEP, frozenset({home}), sure=Confidence.LIKELY)
                torch_calls.report_varying(vm, length, node, "loop")

    def on_resize(self, vm: Interpreter, owner: Ref) -> None:
        """A container gets more or fewer items after the capture."""
        home = Home(owner.oid, LENGTH)
        if self.captures and not vm.recording and home in self.loaded and not self.in_step(vm):
            vm.untold += 1
            self.changed[home] = vm.doubt

    def on_use(self, vm: Interpreter, tensor: Tensor) -> None:
        """Recorded device work reads a tensor that existed before: its address is in the graph."""
        if vm.recording and not tensor.recorded and tensor.ident:
            self.idents.add(tensor.ident)
            self.idents_now.add(tensor.ident)
            self.reads.on_use(tensor, self.outputs.graph)
            self.buckets.on_use(tensor)
        if tensor.kept is not None and tensor.kept[0] < self.outputs.written(tensor) and not vm.recording:
            vm.emit(EventKind.STALE_OUTPUT, tensor.kept[1], "name", Confidence.LIKELY, phase=Phase.REPLAY)

    def on_store(
        self, vm: Interpreter, owner: Ref, key: object, old: Value | None, value: Value, node: ast.AST
    ) -> None:
        """A slot is written after the capture: what the graph recorded from it is now elsewhere."""
        home = Home(owner.oid, key)
        if not vm.recording and self.captures and not self.in_step(vm):
            self.reads.on_replaced(vm, old, value, node)
        if vm.recording or not self.captures or home not in self.loaded:
            return
        vm.untold += 1
        before = self.values.get(home, NONE)
        fresh = [t for t in fresh_tensors(vm.heap, value) if t.ident not in self.idents]
        fresh += [
            t
            for t in tensors_of(vm.heap, value)
            if t.home is not None and t.home != home and t.ident not in self.idents
        ]
        if fresh and self.has_other_name(vm, before, home):
            return
        if fresh and tensors_of(vm.heap, before):
            in_step = self.in_step(vm)
            kind = EventKind.LAZY_INIT if in_step else EventKind.INPUT_REBIND
            self.pending.append(Pending(kind, vm.site(node), "regrown" if in_step else "attribute", str(key), home))
            return
        self.pending = [found for found in self.pending if found.home != home]  # put back before a replay
        if isinstance(before, Ref) and isinstance(value, Ref):
            self.replaced[home] = before
        elif is_host_number(value) and numbers_differ(before, value) and not self.in_step(vm):
            if not any(map(at_work, vm.stack)):
                self.changed[home] = vm.doubt
            if value in self.facts.parts and not self.keys_are_sizes():
                self.facts.keyed.add(home)

    def keys_are_sizes(self) -> bool:
        """Whether the numbers in the keys of graphs are all the rows of what graphs read."""
        numbers = [int_constant(part) for part in self.facts.parts]
        return bool(numbers) and {*numbers} <= {*self.buckets.rows.values()}

    def on_output_slot(
        self, vm: Interpreter, owner: Ref, key: object, old: Value | None, value: Value, node: ast.AST
    ) -> None:
        """A capture puts its output where an earlier one's is, and nobody else holds that."""
        before, new = tensor_in(old) if old is not None else None, tensor_in(value)
        if not vm.recording or before is None or new is None or not (before.output and new.output):
            return
        graph = self.outputs.made.get(before.ident, ANY)
        if graph in (ANY, self.outputs.graph) or self.is_held(vm, before, Home(owner.oid, key)):
            return
        self.overwritten.append((graph, self.replays, vm.site(node)))

    def has_other_name(self, vm: Interpreter, value: Value, home: Home) -> bool:
        """A name of a module, for a part of what has another name: it may be filled by that one."""
        owner = vm.heap.objects.get(home.owner)
        named = owner is not None and owner.cls == "#names"
        return named and isinstance(value, Tensor) and value.ident != 0 and self.is_held(vm, value, home)

    @staticmethod
    def is_held(vm: Interpreter, tensor: Tensor, home: Home) -> bool:
        """Whether another slot than this one holds a tensor."""
        return any(
            held.ident == tensor.ident
            for oid, found in vm.heap.objects.items()
            for key, value in [*found.slots.items(), ("[]", found.element)]
            if value is not None and Home(oid, key) != home
            for held in torch_tensors(value)
        )

    def on_bind(self, vm: Interpreter, scope: Scope, name: str, value: Value, node: ast.AST) -> Value:
        """A local name is bound after the capture: to another tensor than the graph's, or to an output."""
        if not vm.recording:
            self.reads.on_named(vm, value, node)
        if vm.recording or not self.captures:
            return self.alias(vm, value, node)
        outer = scope.holder(name) if name in scope.nonlocals else scope
        before = outer.names.get(name) if outer is not None else None
        self.reads.on_replaced(vm, before, value, node, name=True)
        old, new = tensor_in(before) if before is not None else None, tensor_in(value)
        rebound = old is not None and new is not None and old.ident in self.idents and new.ident not in (0, old.ident)
        # What a view is of may have another name, by which it is filled.
        rebound = rebound and old is not None and not old.view
        # A parameter of what is called later, and the name in a loop over a literal, are names of their own.
        chained = new is not None and new.output and self.replays == self.replays_before  # one capture after another
        own = name in scope.nonlocals or any(call is vm.stack[-1] for call in self.around)
        rebound = rebound and not chained and own and not walks_literal(node)
        if rebound and old is not None and old.ident not in self.copied and not old.parameter:
            vm.untold += 1
            fresh = frozenset({new.ident} if new is not None else ())
            self.pending.append(Pending(EventKind.INPUT_REBIND, vm.site(node), "name", name, fresh=fresh))
        return self.alias(vm, value, node)

    def grown(self, value: Value, node: ast.AST) -> Value:
        """``ids = torch.cat([ids, token], 1)`` in a loop: its rows are longer in every round."""
        if self.loops and isinstance(value, Tensor) and isinstance(node, ast.Assign) and lengthens(node):
            return replace(value, stretched=True, varies=Varies.PER_STEP)
        return value

    def on_compiled(self, vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> None:
        """Compiled code is called: a tensor that grows, and a view cut from one, has other strides in every round.

        So has a number that a loop counts another value.
        """
        if not vm.compiled:
            self.compiled_from = vm.idents
        written = node.args if isinstance(node, ast.Call) and len(node.args) == len(args) else [node] * len(args)
        named = {k.arg: k.value for k in node.keywords} if isinstance(node, ast.Call) else {}
        given = [*written, *(named.get(name, node) for name in kwargs)]
        for value, argument in zip([*args, *kwargs.values()], given, strict=True):
            tensor = tensor_in(value)
            if tensor is not None and self.trees.is_gone(tensor) and not (vm.recording or vm.compiled):
                vm.emit(EventKind.STALE_OUTPUT, argument, "fed", Confidence.LIKELY, phase=Phase.REPLAY)
            elif tensor is not None and (tensor.strided or tensor.stretched) and not vm.recording:
                how = "sliced" if tensor.strided else "grown"
                vm.emit(EventKind.STRIDE, argument, how, Confidence.LIKELY, phase=Phase.REPLAY)
            elif (
                argument is not node
                and is_host_number(value)
                and counted_in_loop(vm.stack[-1].definition, node, argument)
            ):
                vm.emit(EventKind.STRIDE, argument, "number", Confidence.LIKELY, phase=Phase.REPLAY)

    def alias(self, vm: Interpreter, value: Value, node: ast.AST) -> Value:
        """A name for an output, given at one replay: what it is used for after the next one is another step's.

        A name given once, to what the capture returned, is the static output itself and meant to change.
        """
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return value  # an item, and not what a replay gave
        again = self.loops > 0 or isinstance(getattr(node, "value", None), ast.Call)
        return self.named(vm, value, node, self.begun) if again else value

    def alias_in_slot(self, vm: Interpreter, value: Value, node: ast.AST) -> Value:
        """The same for an attribute or item, which is where a value that had a name before outlives that name."""
        found = self.alias(vm, value, node)
        if isinstance(found, Tensor) and found.kept is not None and found.kept[0] == self.replays:
            return replace(found, kept=(self.replays, vm.site(node)))
        return found

    def named(self, vm: Interpreter, value: Value, node: ast.AST, begun: int) -> Value:
        """The same value; an output of a replay since ``begun`` knows where it was given."""
        if vm.recording or not self.replays or not isinstance(value, Tensor):
            return value
        later = self.outputs.written(value) > max(self.replays_before, begun)
        if later and (value.output or value.home in self.moved):
            return replace(value, kept=(self.replays, vm.site(node)))
        return value

    def on_derive(self, vm: Interpreter, made: Tensor, sources: list[Tensor]) -> None:
        """A tensor is computed outside the recording: filling what it was computed from does not fill it."""
        if vm.recording:
            self.outputs.on_made(made.ident)
        idents = {source.ident for source in sources if source.ident}
        if not vm.recording and made.ident and idents:
            self.origins[made.ident] = idents.union(*(self.origins.get(ident, ()) for ident in idents))

    def on_swap(self, vm: Interpreter, tensor: Tensor, value: Value, node: ast.AST) -> None:
        """``tensor.data = value``, ``tensor.set_(value)``: the graph keeps the address that the tensor had."""
        new = tensor_in(value)
        if vm.recording or not self.captures or (new is not None and new.ident == tensor.ident != 0):
            return
        vm.untold += 1
        any_one = tensor.home is None or not tensor.ident  # from a walk over parameters, or kept from one
        walked = tensor.parameter and any_one and any(map(is_parameter, self.values.values()))
        if walked or tensor.home in self.loaded or tensor.ident in self.idents:
            self.pending.append(Pending(EventKind.INPUT_REBIND, vm.site(node), "data", "data", tensor.home))

    def on_move(self, vm: Interpreter, owner: Ref, memory: Memory | None, node: ast.AST) -> None:
        """A module is moved, cast or loaded by assignment: its parameters get new memory."""
        if vm.recording or not self.captures:
            return
        vm.untold += 1
        inside = {found.oid for _, found in vm.heap.reach(owner) if isinstance(found, Ref)}
        for home in self.loaded:
            held = self.values.get(home)
            if home.owner in inside and is_parameter(held) and (memory is None or held.memory is not memory):
                self.pending.append(Pending(EventKind.INPUT_REBIND, vm.site(node), "moved", str(home), home))
                return

    def on_load_state(self, vm: Interpreter, owner: Ref, saved: Value) -> None:
        """``load_state_dict``: everything in a module is filled with what was saved, or, uncopied, with itself."""
        vm.untold += 1
        itself = isinstance(saved, Ref) and self.live_states.get(saved.oid) == owner.oid
        if not vm.recording and not self.in_step(vm) and not itself:
            inside = {found.oid for _, found in vm.heap.reach(owner) if isinstance(found, Ref)}
            self.dirty = {home: site for home, site in self.dirty.items() if home.owner not in inside}

    def on_mutate(self, vm: Interpreter, target: Tensor, source: Value | None, node: ast.AST) -> None:
        """An in-place write outside the recording: static inputs are filled, state is advanced or reset."""
        if target.negative:
            self.buckets.on_negative(vm, target)
        if vm.recording:
            return
        vm.untold += 1
        if self.captures:
            self.overwrite(vm, target, node)
        self.copied.add(target.ident)
        home = target.home
        if home is None:
            if target.parameter and not self.in_step(vm):
                self.dirty.clear()  # a walk over parameters or buffers that restores them
            return
        filled = (home, False) in self.rewritten or (home, target.view) in self.rewritten
        depends = source is not None and home in deps_of(source) and not filled
        if self.in_step(vm):
            if depends and not self.captures:
                outer = vm.stack[1] if len(vm.stack) > 1 else None
                self.dirty.setdefault(home, self.outer_site(vm, node) if outer is not None else vm.site(node))
        else:
            self.dirty.pop(home, None)
            if target.memory is Memory.HOST and self.captures and home in self.loaded:
                self.facts.late.add(home)

    def on_rewrite(self, target: Tensor) -> None:
        """A tensor, or a part, is filled: what follows in this step does not depend on what that held."""
        if target.home is not None:
            self.rewritten.add((target.home, target.view))

    def overwrite(self, vm: Interpreter, target: Tensor, node: ast.AST) -> None:
        """A tensor is filled after the capture: a copy of it in the graph is not, a copy from it may be under way."""
        if target.ident in self.blocks.in_flight and not target.view and self.replays:
            vm.emit(EventKind.STAGING, node, "rewritten", Confidence.LIKELY, phase=Phase.RECORDED)
        self.pending = [found for found in self.pending if not found.copy or found.copy != target.ident]
        for copy in self.idents:
            if target.ident in self.origins.get(copy, ()) and target.ident not in self.idents:
                self.pending.append(Pending(EventKind.INPUT_REBIND, vm.site(node), "copied-before", "", copy=copy))

    def outer_site(self, vm: Interpreter, node: ast.AST) -> Site:
        """The driver's own line under which a step runs."""
        for at, call in enumerate(vm.stack):
            if call.definition in self.facts.recorded and call.node is not None and at:
                caller = vm.stack[at - 1].module
                return Site(caller.place(call.node), caller.code(call.node))
        return vm.site(node)

    def on_parameter_set(self, vm: Interpreter, owner: Value, value: Value, node: ast.AST) -> None:
        """``setattr(module, name, nn.Parameter(...))`` under any name: a weight is replaced that graphs read."""
        if vm.recording or not self.captures or not is_parameter(value) or value.home is not None:
            return
        modules = {option.oid for option in options(owner) if isinstance(option, Ref)}
        weights = [home for home in self.loaded if home.owner in modules and is_parameter(self.values.get(home))]
        if weights:
            self.pending.append(Pending(EventKind.INPUT_REBIND, vm.site(node), "data", "data", weights[0]))

    def on_let_go(self, vm: Interpreter, value: Value, node: ast.AST) -> None:
        """``del name``."""
        if self.captures and not vm.recording:
            self.reads.on_replaced(vm, value, NONE, node)

    def on_replay(self, vm: Interpreter, graph: Value) -> None:
        """``graph.replay()``: what was pending is now wrong."""
        for site, how in self.reads.freed(vm):
            vm.emit(EventKind.INPUT_REBIND, site, how, Confidence.LIKELY, phase=Phase.REPLAY)
        self.outputs.on_replay(graph)
        self.finish()
        for found in self.pending:
            phase = Phase.RECORDED if found.kind is EventKind.LAZY_INIT else Phase.REPLAY
            vm.emit(found.kind, found.site, found.how, Confidence.LIKELY, name=found.name, phase=phase)
        self.pending.clear()
        for home, captured in self.replaced.items():
            self.facts.late |= set(other_numbers(vm, home, captured))
        if self.replays == 1 and self.final:
            for home, site in self.dirty.items():
                if home in self.moved:
                    vm.emit(
                        EventKind.WARM_UP_STATE, site, "advanced", Confidence.LIKELY, name=str(home), phase=Phase.REPLAY
                    )

    def on_keep(self, vm: Interpreter, value: Value, node: ast.AST, how: str) -> Value:
        """A value is kept across iterations: an output of the graph is overwritten by the next replay.

        What a comprehension or generator hands on without a replay was kept before, by somebody else.
        """
        handed_on = how in ("comprehension", "yield") and self.replays <= self.begun
        if vm.recording or self.replays == self.replays_before or not self.loops or handed_on:
            return value
        if not any(tensor.output or tensor.home in self.moved for tensor in tensors_of(vm.heap, value)):
            return value
        vm.emit(EventKind.STALE_OUTPUT, node, how, Confidence.LIKELY, phase=Phase.REPLAY)
        return without_names(value)

    def on_listed(self, vm: Interpreter, node: ast.Call, value: Value) -> None:
        """``list(map(f, xs))`` with an ``f`` that replays: all that it gives is held at once."""
        outputs = [tensor for tensor in tensors_of(vm.heap, value) if tensor.output or tensor.home in self.moved]
        if outputs and self.mapping is node.args[0] and not vm.recording:
            vm.emit(EventKind.STALE_OUTPUT, node, "map", Confidence.LIKELY, phase=Phase.REPLAY)

    def on_result(self, vm: Interpreter, value: Value, node: ast.AST, begun: int) -> Value:
        """What a call gives that replayed a graph: an output, until the next replay."""
        return self.named(vm, value, node, begun)

    def on_missing(self, vm: Interpreter, table: Object, node: ast.Subscript) -> None:
        """A table of graphs by their size is asked for a size that it has not, and nobody looks first."""
        sizes = [key for key in table.slots if isinstance(key, int)]
        if vm.recording or len(sizes) < 2 or len(sizes) < len(table.slots):
            return
        graphs = held(vm, table.slots.values()).objects & self.registered
        if graphs and not is_guarded(vm, ast.unparse(node.value)):
            vm.emit(EventKind.BUCKET_GAP, node, "missing", Confidence.LIKELY, phase=Phase.REPLAY)

    def on_register(self, vm: Interpreter, key: Value, value: Value) -> None:
        """A graph is kept under a key: host values in the key are the same whenever that graph is replayed."""
        held = {found.oid: vm.heap.get(found) for _, found in vm.heap.reach(value) if isinstance(found, Ref)}
        graphs = {oid for oid, found in held.items() if found is not None and found.cls == "torch.cuda.CUDAGraph"}
        self.registered |= graphs
        if graphs:
            self.facts.keyed |= deps_of(key)
            parts = (key.items or (key.element,)) if isinstance(key, Sequence) else (key,)
            self.facts.parts |= {part for part in parts if is_host_number(part) and not is_size(part)}


def other_numbers(vm: Interpreter, home: Home, captured: Ref) -> Iterator[Home]:
    """The host numbers of a captured object that the object in its place has with another value."""
    old = vm.heap.get(captured)
    holder = vm.heap.objects.get(home.owner)
    held = holder.slots.get(home.key) if holder is not None else None
    new = vm.heap.get(held) if isinstance(held, Ref) else None
    if old is None or new is None or old.cls != new.cls:
        return
    for key in old.slots.keys() & new.slots.keys():
        pair = old.slots[key], new.slots[key]
        if all(map(is_host_number, pair)) and numbers_differ(*pair):
            yield Home(captured.oid, key)


def walks_literal(node: ast.AST) -> bool:
    """``for x in (a, b)``: the name goes over what other names hold."""
    return isinstance(node, ast.For) and isinstance(node.iter, (ast.Tuple, ast.List))


def lengthens(node: ast.Assign) -> bool:
    """A concatenation of the assigned name with something, along another dimension than the first."""
    call = node.value
    if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], (ast.List, ast.Tuple)):
        return False
    name = ast.unparse(call.func).rpartition(".")[2]
    dims = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg in ("dim", "axis"))]
    sideways = name in ("cat", "concat", "concatenate") and any(ast.unparse(dim) != "0" for dim in dims)
    parts = {ast.unparse(part) for part in call.args[0].elts}
    return (sideways or name == "hstack") and ast.unparse(node.targets[0]) in parts


def is_method(calls: list[Call]) -> bool:
    """A method that others call, and no initialiser."""
    definition = calls[0].definition if calls else None
    return isinstance(definition, FunctionDef) and definition.owner is not None and definition.name != "__init__"


def counted_in_loop(definition: object, call: ast.AST, argument: ast.AST) -> bool:
    """Whether a loop around a call gives one of the names in an argument another value in each round."""
    if not isinstance(definition, FunctionDef):
        return False
    names = {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
    loops = [node for node in ast.walk(definition.node) if isinstance(node, (ast.For, ast.While))]
    around = [loop for loop in loops if any(inner is call for inner in ast.walk(loop))]
    return any(names & set(counted(loop)) for loop in around)


def counted(loop: ast.For | ast.While) -> Iterator[str]:
    """The numbers that a loop moves on: ``pos += 1``, ``scale *= 0.9``, and the position that a range counts."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
    match loop:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))) if name in COUNTERS:
            yield name
        case _:
            pass


def is_parameter(value: Value | None) -> TypeGuard[Tensor]:
    """A parameter of a module."""
    return isinstance(value, Tensor) and value.parameter


def is_size(value: Value) -> bool:
    """A number that the batch decides."""
    return varies_of(value) is Varies.PER_BUCKET


def is_host_number(value: Value) -> bool:
    """A host number, flag or text, whichever alternative."""
    return all(isinstance(option, (Const, Number)) for option in options(value))
