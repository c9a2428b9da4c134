"""What happens around the recorded step: warm-up, capture, replay, and what code does to a graph's memory afterwards.

The driver is run as ordinary code while these hooks watch. Its one surprise: it is run twice, because only after
the first run is it known which host values are changed between capture and replay; in the second run recorded code
reads those as numbers that change at every step.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from capturelint.static.events import Site
from capturelint.static.homes import Step, Store, fresh_tensors, homes_in, numbers_differ, tensors_of
from capturelint.static.values import (
    NONE,
    Const,
    Home,
    Memory,
    Number,
    Ref,
    Scope,
    Tensor,
    Value,
    deps_of,
    int_constant,
    options,
    tensor_in,
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
    keyed: set[Home] = field(default_factory=set)
    """Host slots that choose the graph, so that each graph is replayed with the value that it recorded."""
    regions: list[Site] = field(default_factory=list)


@dataclass(slots=True)
class Pending:
    """A store that is wrong if a replay follows."""

    kind: EventKind
    site: Site
    how: str
    name: str
    home: Home | None = None


class Driver:
    """The hooks. ``facts`` come from the first run; ``final`` says that this is the second."""

    def __init__(self, facts: Facts, final: bool) -> None:
        self.facts = facts
        self.final = final
        self.loops = 0
        self.captures = 0
        self.replays = 0
        self.loaded: set[Home] = set()
        self.loaded_now: set[Home] = set()
        self.values: dict[Home, Value] = {}
        self.idents: set[int] = set()
        self.copied: set[int] = set()
        self.called: set[object] = set()
        self.dirty: dict[Home, Site] = {}
        self.moved: set[Home] = set()
        self.pending: list[Pending] = []
        self.region: Site | None = None
        self.direct: set[object] = set()
        self.depth = 0
        self.replays_before = 0
        self.rows: dict[int, tuple[int, int]] = {}
        self.lookups: list[tuple[int, Site]] = []

    # ---------------------------------------------------------------- regions

    def begin(self, vm: Interpreter, node: ast.AST) -> None:
        """A recorded region starts."""
        self.region = vm.site(node)
        self.depth = len(vm.stack)
        self.direct = set()
        self.loaded_now = set()
        if self.region.place not in {site.place for site in self.facts.regions}:
            self.facts.regions.append(self.region)
        vm.heap.carry()
        vm.step = Step()
        vm.phase = Phase.RECORDED
        if vm.autocast is not None:
            vm.emit(EventKind.AUTOCAST, vm.autocast, "cache", Confidence.LIKELY)

    def end(self, vm: Interpreter) -> None:
        """The region is over: judge what only its end can tell."""
        finish_step(vm)
        self.moved |= set(vm.step.mutated)
        # A graph captured after the store has the new tensor; a buffer regrown for it was moved under older graphs.
        self.pending = [p for p in self.pending if p.kind is EventKind.LAZY_INIT or p.home not in self.loaded_now]
        vm.phase = Phase.REPLAY
        self.captures += 1
        self.replays_before = self.replays
        cold = bool(self.direct) and not self.direct & self.called
        if cold and self.final and self.region is not None and self.captures == 1:
            vm.emit(EventKind.COLD_CAPTURE, self.region, "no-warm-up", Confidence.LIKELY, phase=Phase.REPLAY)
        self.called |= self.direct

    # ---------------------------------------------------------------- hooks

    def on_call(self, vm: Interpreter, definition: object) -> None:
        """An analysed function is called."""
        if vm.recording:
            self.facts.recorded.add(definition)
            self.direct.add(definition)
        else:
            self.called.add(definition)

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
            if home in self.facts.late - self.facts.keyed:
                if isinstance(value, (Const, Number)):
                    return Number(Varies.PER_STEP, frozenset({home}))
                if isinstance(value, Tensor) and value.memory is Memory.HOST:
                    return replace(value, varies=Varies.PER_STEP, deps=frozenset({home}))
        return value

    def on_use(self, vm: Interpreter, tensor: Tensor) -> None:
        """Recorded device work reads a tensor that existed before: its address is in the graph."""
        if vm.recording and not tensor.recorded and tensor.ident:
            self.idents.add(tensor.ident)

    def on_store(
        self, vm: Interpreter, owner: Ref, key: object, old: Value | None, value: Value, node: ast.AST
    ) -> None:
        """A slot is written after the capture: what the graph recorded from it is now elsewhere."""
        home = Home(owner.oid, key)
        if vm.recording or not self.captures or home not in self.loaded:
            return
        before = self.values.get(home, NONE)
        fresh = [t for t in fresh_tensors(vm.heap, value) if t.ident not in self.idents]
        fresh += [
            t
            for t in tensors_of(vm.heap, value)
            if t.home is not None and t.home != home and t.ident not in self.idents
        ]
        if fresh and tensors_of(vm.heap, before):
            in_step = self.in_step(vm)
            kind = EventKind.LAZY_INIT if in_step else EventKind.INPUT_REBIND
            self.pending.append(Pending(kind, vm.site(node), "regrown" if in_step else "attribute", str(key), home))
        elif is_host_number(value) and numbers_differ(before, value) and not self.in_step(vm):
            self.facts.late.add(home)

    def on_bind(self, vm: Interpreter, scope: Scope, name: str, value: Value, node: ast.AST) -> None:
        """A local name is rebound after the capture that used its tensor."""
        if vm.recording or not self.captures:
            return
        before = scope.names.get(name)
        old, new = tensor_in(before) if before is not None else None, tensor_in(value)
        if old is None or new is None or old.ident == new.ident or old.ident not in self.idents:
            return
        if old.ident not in self.copied and not old.parameter:
            self.pending.append(Pending(EventKind.INPUT_REBIND, vm.site(node), "name", name))

    def on_mutate(self, vm: Interpreter, target: Tensor, source: Value | None, node: ast.AST) -> None:
        """An in-place write outside the recording: static inputs are filled, state is advanced or reset."""
        if target.negative and target.home is not None:
            self.mark_negative(vm, target)
        if vm.recording:
            return
        self.copied.add(target.ident)
        home = target.home
        if home is None:
            if target.parameter and not self.in_step(vm):
                self.dirty.clear()  # a walk over parameters or buffers that restores them
            return
        depends = source is not None and home in deps_of(source)
        if self.in_step(vm):
            if depends and not self.captures:
                outer = vm.stack[1] if len(vm.stack) > 1 else None
                self.dirty.setdefault(home, self.outer_site(vm, node) if outer is not None else vm.site(node))
        else:
            self.dirty.pop(home, None)
            if target.memory is Memory.HOST and self.captures and home in self.loaded:
                self.facts.late.add(home)

    def mark_negative(self, vm: Interpreter, target: Tensor) -> None:
        """A static input was filled with a negative number: an index that wraps."""
        assert target.home is not None
        found = vm.heap.objects.get(target.home.owner)
        held = found.slots.get(target.home.key) if found is not None else None
        if found is not None and isinstance(held, Tensor):
            slots = {**found.slots, target.home.key: replace(held, negative=True)}
            vm.heap.objects[target.home.owner] = replace(found, slots=slots)

    def outer_site(self, vm: Interpreter, node: ast.AST) -> Site:
        """The driver's own line under which a step runs."""
        for at, call in enumerate(vm.stack):
            if call.definition in self.facts.recorded and call.node is not None and at:
                caller = vm.stack[at - 1].module
                return Site(caller.place(call.node), caller.code(call.node))
        return vm.site(node)

    def on_replay(self, vm: Interpreter, node: ast.AST) -> None:
        """``graph.replay()``: what was pending is now wrong."""
        self.replays += 1
        for found in self.pending:
            phase = Phase.RECORDED if found.kind is EventKind.LAZY_INIT else Phase.REPLAY
            vm.emit(found.kind, found.site, found.how, Confidence.LIKELY, name=found.name, phase=phase)
        self.pending.clear()
        if self.replays == 1 and self.final:
            for home, site in self.dirty.items():
                if home in self.moved:
                    vm.emit(
                        EventKind.WARM_UP_STATE, site, "advanced", Confidence.LIKELY, name=str(home), phase=Phase.REPLAY
                    )

    def on_keep(self, vm: Interpreter, value: Value, node: ast.AST, how: str) -> None:
        """A value is kept across iterations: an output of the graph is overwritten by the next replay."""
        if vm.recording or self.replays == self.replays_before or not self.loops:
            return
        if any(tensor.recorded for tensor in tensors_of(vm.heap, value)):
            vm.emit(EventKind.STALE_OUTPUT, node, how, Confidence.LIKELY, phase=Phase.REPLAY)

    def on_register(self, vm: Interpreter, key: Value, value: Value) -> None:
        """A graph is kept under a key: host values in the key are the same whenever that graph is replayed."""
        held = [vm.heap.get(found) for _, found in vm.heap.reach(value) if isinstance(found, Ref)]
        if any(found is not None and found.cls == "torch.cuda.CUDAGraph" for found in held):
            self.facts.keyed |= deps_of(key)

    def on_rows(self, vm: Interpreter, tensor: Tensor, stop: int | None) -> None:
        """Recorded code uses the first rows of a buffer: the bucket's size, out of what the buffer can hold."""
        if tensor.rows is not None and stop is not None:
            held, most = self.rows.get(tensor.ident, (tensor.rows, 0))
            self.rows[tensor.ident] = (held, max(most, stop))

    def on_lookup(self, vm: Interpreter, values: list[Value], node: ast.Subscript) -> None:
        """A size is looked up in a list of sizes, with an index that may run off its end."""
        sizes = [int_constant(value) for value in values]
        known = [size for size in sizes if size is not None]
        if vm.recording or len(known) != len(sizes) or len(known) < 2 or is_guarded(vm, ast.unparse(node.value)):
            return
        self.lookups.append((max(known), vm.site(node)))

    def finish(self, vm: Interpreter) -> None:
        """The driver is over: is there a batch that fits the buffer and no bucket?"""
        for largest, site in self.lookups:
            if self.captures and any(most == largest < held for held, most in self.rows.values()):
                vm.emit(EventKind.BUCKET_GAP, site, "lookup", Confidence.LIKELY, name=str(largest), phase=Phase.REPLAY)


def is_host_number(value: Value) -> bool:
    """A host number, flag or text, whichever alternative."""
    return all(isinstance(option, (Const, Number)) for option in options(value))


def is_guarded(vm: Interpreter, text: str) -> bool:
    """Whether the running function compares something with the list, its length or its last item."""
    definition = vm.stack[-1].definition
    tree = getattr(definition, "node", None)
    if tree is None:
        return False
    return any(isinstance(node, ast.Compare) and text in ast.unparse(node) for node in ast.walk(tree))


# -------------------------------------------------------------------- the end of a step


def finish_step(vm: Interpreter) -> None:
    """Emit what a whole run of recorded code showed: growth, rebinding, lazy building, unjoined streams."""
    for store in vm.step.stores:
        judge_store(vm, store)
    for side in vm.side_streams.values():
        if not side.joined:
            vm.emit(EventKind.STREAM, side.site, "unjoined")
    vm.side_streams.clear()


def judge_store(vm: Interpreter, store: Store) -> None:
    """One tensor that was put into a slot that outlives the step."""
    if all(tensor.memory is Memory.HOST for tensor in tensors_of(vm.heap, store.new)):
        return  # no graph holds the address of pageable memory
    grown = [t for t in tensors_of(vm.heap, store.new) if t.extends is not None and t.made is not None]
    sure = Confidence.LIKELY if store.doubt else Confidence.CERTAIN
    if store.hidden:
        sure = Confidence.POSSIBLE
    for tensor in grown:
        assert tensor.made is not None
        vm.emit(EventKind.GROWTH, tensor.made, "concatenation", min(sure, tensor.sure), name=str(tensor.extends))
    if grown:
        return
    if store.outside:
        return
    if store.home.key == "append":
        vm.emit(EventKind.HOST_EFFECT, store.site, "append", min(sure, Confidence.LIKELY))
        return
    old = homes_in(vm.heap, store.old)
    exchanged = {t.home for t in tensors_of(vm.heap, store.new) if t.home is not None and not t.view} - old
    if (old | exchanged) & vm.step.used:
        # Under a host condition that nobody knows, steady decode may never come here (tables that grow on demand).
        sure = Confidence.POSSIBLE if store.doubt else sure
        vm.emit(EventKind.REBIND, store.site, "attribute", sure, name=str(store.home))
    elif store.old == NONE and isinstance(store.home.key, str):
        sure = Confidence.POSSIBLE if store.doubt else Confidence.LIKELY
        vm.emit(EventKind.LAZY_INIT, store.site, "first-use", sure, name=str(store.home))
