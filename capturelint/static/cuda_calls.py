"""``torch.cuda``: graphs, streams, events, and the context managers that decide where device work goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from capturelint.static import transfers
from capturelint.static.driver import is_method
from capturelint.static.homes import Object, Sort, as_slots, tensors_of
from capturelint.static.state import Stream
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    CaptureQuery,
    Const,
    Device,
    External,
    Memory,
    Number,
    Ref,
    Scope,
    Sequence,
    Text,
    Value,
    constant,
    options,
)
from capturelint.vocabulary import Confidence, EventKind, Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


GRAPHED = "#graphed"
"""The class of what ``make_graphed_callables`` gives: its calls copy the arguments in, replay, and give the outputs."""


def graphed(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.cuda.make_graphed_callables(f, sample_args)``: runs and records ``f``, or each of several."""
    samples = args[1] if len(args) > 1 else kwargs.get("sample_args", UNKNOWN)
    if not args or samples is UNKNOWN or vm.driver is None:
        return args[0] if args else UNKNOWN
    several, given = (vm.items(value) if isinstance(value, Sequence) else None for value in (args[0], samples))
    if several is None:
        return graphed_one(vm, args[0], given or [vm.element(samples)], node)
    each = given if given is not None and len(given) == len(several) else [UNKNOWN] * len(several)
    made = [graphed_one(vm, one, vm.items(its) or [UNKNOWN], node) for one, its in zip(several, each, strict=True)]
    return Sequence(tuple(made))


def graphed_one(vm: Interpreter, function: Value, samples: list[Value], node: ast.AST) -> Value:
    """Warm one callable up and record it: a function is wrapped, a module gets another ``forward``."""
    driver = vm.driver
    if driver is None:
        return function
    graph = vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.CUDAGraph"))
    vm.call(function, samples, {}, node)
    driver.begin(vm, node, graph)
    outputs = vm.call(function, samples, {}, node)
    driver.end(vm)
    driver.forget(tensor for value in samples for tensor in tensors_of(vm.heap, value))
    made = vm.heap.new(Object(Sort.INSTANCE, GRAPHED, {"graph": graph, "outputs": outputs}))
    if isinstance(function, Ref):
        vm.heap.write(function, "forward", made)
        return function
    return made


def call_graphed(vm: Interpreter, made: Object, node: ast.AST) -> Value:
    """A call of what ``make_graphed_callables`` gave."""
    if vm.driver is not None and not vm.recording:
        vm.driver.on_replay(vm, made.slots["graph"])
    return made.slots["outputs"]


def call_cuda(vm: Interpreter, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.cuda.<name>(...)``."""
    match name:
        case _ if name.startswith("#main."):
            return call_stream(vm, External("torch.cuda.#main"), "torch.cuda.Stream", name[6:], args, node)
        case "synchronize":
            vm.emit(EventKind.SYNC, node, "synchronize", name="torch.cuda.synchronize")
            return NONE
        case "is_current_stream_capturing" | "graphs.is_current_stream_capturing":
            return CaptureQuery()
        case "Stream" | "ExternalStream" | "streams.Stream":
            return vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.Stream"))
        case "Event" | "streams.Event":
            return vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.Event"))
        case "current_stream" | "default_stream":
            return current_stream(vm) if name == "current_stream" else MAIN
        case "CUDAGraph" | "graphs.CUDAGraph":
            return vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.CUDAGraph"))
        case "is_available" | "is_initialized":
            return Const(True)
        case _ if name.endswith("Tensor"):
            return transfers.from_host(vm, name, args, kwargs | {"device": Device(Memory.DEVICE)}, node)
        case "make_graphed_callables":
            return graphed(vm, args, kwargs, node)
        case "device_count" | "current_device" | "memory_allocated":
            return Number()
        case "set_stream":
            vm.stream_stack.append(args[0] if args and isinstance(args[0], Ref) else UNKNOWN)
            return NONE
        case "set_device" | "empty_cache" | "nvtx.range_push" | "nvtx.range_pop":
            return NONE
        case "current_device_name" | "get_device_name":
            return Text()
        case _:
            return UNKNOWN


def call_stream(vm: Interpreter, owner: Value, cls: str, name: str, args: list[Value], node: ast.AST) -> Value:
    """Methods of streams and events."""
    if name in ("synchronize", "query"):
        vm.emit(EventKind.SYNC, node, name, name=f"{cls.rpartition('.')[2].lower()}.{name}")
        return Const(True) if name == "query" else NONE
    if name == "wait_stream" and args:
        join_stream(vm, args[0], owner)
    elif name == "wait_event" and args:
        wait_for(vm, args[0], owner, node)
    elif name == "wait":
        wait_for(vm, owner, args[0] if args else current_stream(vm), node)
    elif name == "record_event":
        event_ref = args[0] if args else vm.heap.new(Object(Sort.INSTANCE, "torch.cuda.Event"))
        if isinstance(event_ref, Ref):
            vm.heap.write(event_ref, "#stream", owner)
        return event_ref
    elif name == "record" and isinstance(owner, Ref):
        current = args[0] if args else current_stream(vm)
        vm.heap.write(owner, "#stream", current)
        for option in options(current):
            if (work := vm.side_streams.get(option)) is not None:
                text = vm.module.text if vm.heap.persistent(owner) else ""
                work.waits_elsewhere = {(vm.module.path, line) for line in waiting_lines(node, text)}
    return NONE


MAIN = External("torch.cuda.#main")
"""The stream that is current where code chose none."""


def current_stream(vm: Interpreter) -> Value:
    """Where device work goes."""
    return vm.stream_stack[-1] if vm.stream_stack else MAIN


def recorded_on(vm: Interpreter, event: Value) -> Value:
    """The stream that an event was recorded on last."""
    found = vm.heap.get(event) if isinstance(event, Ref) else None
    return found.slots.get("#stream", UNKNOWN) if found is not None else NONE


def wait_for(vm: Interpreter, event: Value, waiter: Value, node: ast.AST) -> None:
    """A stream waits for an event; where it is known which one, that is all that this line waits for."""
    side = recorded_on(vm, event)
    if isinstance(event, Ref) and side is not UNKNOWN:
        vm.step.waits.add((vm.module.path, getattr(node, "lineno", 0)))
    join_stream(vm, side, waiter)


def waiting_lines(record: ast.AST, text: str) -> Iterator[int]:
    """The lines of a module that wait for the event that ``self.events[i].record()`` records."""
    names = [part.attr for part in ast.walk(record) if isinstance(part, ast.Attribute) and part.attr != "record"]
    found = "|".join(map(re.escape, names)) or r"\Z."
    for match in re.finditer(rf"wait_event\([^)\n]*\b({found})\b|\b({found})\b[^\n]*\.wait\(", text):
        yield text.count("\n", 0, match.start()) + 1


def join_stream(vm: Interpreter, side: Value, waiter: Value) -> None:
    """Somebody waits for a stream: the waiter's work is part of the capture, the other's of the capture's result."""
    if side == waiter:
        return
    vm.step.forked.update(options(waiter))
    for option in options(side):
        if (found := vm.side_streams.get(option)) is not None:
            found.joined = found.rejoined = True
        elif option is UNKNOWN:
            for stream in vm.side_streams.values():
                stream.joined = True


def enter_external(
    vm: Interpreter, path: str, call: ast.Call, scope: Scope, node: ast.AST
) -> Callable[[], None] | None:
    """Enter a context manager of torch; ``None`` where it is none of those that matter."""
    if path in MANAGERS:
        args = [vm.eval(argument, scope) for argument in call.args]
        kwargs = {keyword.arg or "": vm.eval(keyword.value, scope) for keyword in call.keywords}
        return enter_manager(vm, path, args, kwargs, call, node)
    if path == "torch.device" and call.args:
        value = vm.eval(call, scope)
        return enter_device(vm, value) if isinstance(value, Device) else None
    return (lambda: None) if path in HARMLESS else None


HARMLESS = frozenset(
    [
        "torch.no_grad",
        "torch.inference_mode",
        "torch.enable_grad",
        "contextlib.nullcontext",
        "contextlib.suppress",
        "torch.profiler.record_function",
    ]
)
GRAPH = frozenset({"torch.cuda.graph", "torch.cuda.graphs.graph"})
AUTOCAST = frozenset({"torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast"})
MANAGERS = GRAPH | AUTOCAST | {"torch.cuda.stream"}
"""What decides where device work goes, and how."""

MANAGER = "#manager"
"""The class of such a manager that was made, and is entered elsewhere."""


def new_manager(vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.cuda.stream(s)`` as a value."""
    given: dict[str, Value] = {"path": Const(path), "args": Sequence(tuple(args)), **kwargs}
    return vm.heap.new(Object(Sort.INSTANCE, MANAGER, as_slots(given)))


def enter_made(vm: Interpreter, made: Object, node: ast.AST) -> Callable[[], None]:
    """Enter a manager that was made elsewhere."""
    path, given = made.slots["path"], made.slots["args"]
    args = list(given.items or ()) if isinstance(given, Sequence) else []
    kwargs = {str(key): value for key, value in made.slots.items() if key not in ("path", "args")}
    return enter_manager(vm, str(constant(path)), args, kwargs, node, node)


def enter_manager(
    vm: Interpreter, path: str, args: list[Value], kwargs: dict[str, Value], call: ast.AST, node: ast.AST
) -> Callable[[], None]:
    """Enter a context manager of torch with these arguments."""
    if path in GRAPH:
        leave = enter_graph(vm, args[0] if args else kwargs.get("cuda_graph", UNKNOWN), node)
        vm.step.capturing.update(option for value in [*args, *kwargs.values()] for option in options(value))
        return leave
    if path in AUTOCAST:
        off = [constant(kwargs.get(name, NONE)) is False for name in ("cache_enabled", "enabled")]
        return enter_autocast(vm, call, not any(off))
    return enter_stream(vm, args[0] if args else kwargs.get("stream", UNKNOWN), node)


def enter_autocast(vm: Interpreter, call: ast.AST, caches: bool) -> Callable[[], None]:
    """``torch.autocast``: its weight cache must not be filled outside the graph and read inside."""
    before = vm.autocast
    vm.autocast = vm.site(call) if caches and not vm.recording else None

    def leave() -> None:
        vm.autocast = before

    return leave


def enter_graph(vm: Interpreter, graph: Value, node: ast.AST) -> Callable[[], None]:
    """``with torch.cuda.graph(g)``: the body is recorded."""
    if vm.driver is None:
        return lambda: None
    if vm.recording:
        vm.emit(EventKind.UNSAFE_OP, node.items[0].context_expr if isinstance(node, ast.With) else node, "nested")
        return lambda: None
    vm.driver.begin(vm, node, graph)
    return lambda: vm.driver.end(vm) if vm.driver is not None else None


def enter_stream(vm: Interpreter, stream: Value, node: ast.AST) -> Callable[[], None]:
    """``with torch.cuda.stream(s)``: device work goes to a side stream."""
    side = next((option for option in options(stream) if isinstance(option, Ref)), UNKNOWN)
    vm.stream_stack.append(side)
    if vm.recording and side is not UNKNOWN and side not in vm.step.capturing:
        waits = any(isinstance(part, ast.Attribute) and part.attr == "wait" for part in ast.walk(node))
        before = vm.side_streams.get(side)
        rejoined = before is not None and before.rejoined
        vm.side_streams[side] = Stream(vm.site(node), joined=True, waits=waits, rejoined=rejoined)

    def leave() -> None:
        vm.stream_stack.pop()

    return leave


def enter_device(vm: Interpreter, device: Device) -> Callable[[], None]:
    """``with torch.device(d)``: factories make their tensors there."""
    before, vm.default_memory = vm.default_memory, device.memory

    def leave() -> None:
        vm.default_memory = before

    return leave


def call_graph(vm: Interpreter, owner: Ref, name: str, args: list[Value], node: ast.AST) -> Value:
    """Methods of ``torch.cuda.CUDAGraph``."""
    if vm.driver is not None and vm.recording and name in ("replay", "capture_begin"):
        vm.emit(EventKind.UNSAFE_OP, node, "nested")
    elif name == "replay" and vm.driver is not None:
        vm.driver.on_replay(vm, owner)
    elif name == "capture_begin" and vm.driver is not None:
        if not vm.stream_stack:
            # Who calls a method may have chosen the stream.
            sure = Confidence.POSSIBLE if is_method(vm.stack[1:2]) else Confidence.LIKELY
            vm.emit(EventKind.UNSAFE_OP, node, "default-stream", sure, phase=Phase.RECORDED)
        vm.driver.begin(vm, node, owner)
    elif name == "capture_end" and vm.driver is not None and vm.recording:
        vm.driver.end(vm)
    elif name == "register_generator_state" and args and isinstance(args[0], Ref):
        vm.heap.write(args[0], "#registered", Const(True))
    return UNKNOWN if name == "pool" else NONE
