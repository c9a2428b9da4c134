"""``torch.cuda``: graphs, streams, events, and the context managers that decide where device work goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from capturelint.static import transfers
from capturelint.static.driver import is_method
from capturelint.static.homes import Object, Sort
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
    Text,
    Value,
    constant,
    options,
)
from capturelint.vocabulary import Confidence, EventKind, Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def graphed(vm: Interpreter, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
    """``torch.cuda.make_graphed_callables(f, sample_args)``: runs and records ``f``."""
    if len(args) > 1 and vm.driver is not None:
        samples = vm.items(args[1])
        vm.call(args[0], samples or [vm.element(args[1])], {}, node)
        vm.driver.begin(vm, node)
        vm.call(args[0], samples or [vm.element(args[1])], {}, node)
        vm.driver.end(vm)
    return args[0] if args else UNKNOWN


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
        join_stream(vm, recorded_on(vm, args[0]), owner)
    elif name == "wait":
        join_stream(vm, recorded_on(vm, owner), args[0] if args else current_stream(vm))
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
                work.marked = vm.heap.persistent(owner) and is_waited_for(node, vm.module.text)
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


def is_waited_for(record: ast.AST, text: str) -> bool:
    """Whether code of the module waits for the event that ``self.events[i].record()`` records."""
    names = [part.attr for part in ast.walk(record) if isinstance(part, ast.Attribute) and part.attr != "record"]
    found = "|".join(map(re.escape, names)) or r"\Z."
    return re.search(rf"wait_event\([^)\n]*\b({found})\b|\b({found})\b[^\n]*\.wait\(", text) is not None


def join_stream(vm: Interpreter, side: Value, waiter: Value) -> None:
    """Somebody waits for a stream: the waiter's work is part of the capture, the other's of the capture's result."""
    if side == waiter:
        return
    vm.step.forked.update(options(waiter))
    for option in options(side):
        if (found := vm.side_streams.get(option)) is not None:
            found.joined = True
        elif option is UNKNOWN:
            for stream in vm.side_streams.values():
                stream.joined = True


def enter_external(
    vm: Interpreter, path: str, call: ast.Call, scope: Scope, node: ast.AST
) -> Callable[[], None] | None:
    """Enter a context manager of torch; ``None`` where it is none of those that matter."""
    if path in ("torch.cuda.graph", "torch.cuda.graphs.graph"):
        arguments = [vm.eval(argument, scope) for argument in [*call.args, *[k.value for k in call.keywords]]]
        named = next((k.value for k in call.keywords if k.arg == "cuda_graph"), None)
        graph = arguments[0] if call.args else vm.eval(named, scope) if named is not None else UNKNOWN
        leave = enter_graph(vm, graph, node)
        vm.step.capturing.update(option for value in arguments for option in options(value))
        return leave
    if path == "torch.cuda.stream" and call.args:
        return enter_stream(vm, vm.eval(call.args[0], scope), node)
    if path == "torch.device" and call.args:
        value = vm.eval(call, scope)
        return enter_device(vm, value) if isinstance(value, Device) else None
    if path in ("torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast"):
        given = {k.arg: constant(vm.eval(k.value, scope)) for k in call.keywords}
        return enter_autocast(vm, call, given.get("cache_enabled") is not False and given.get("enabled") is not False)
    if path in (
        "torch.no_grad",
        "torch.inference_mode",
        "torch.enable_grad",
        "contextlib.nullcontext",
        "torch.profiler.record_function",
    ):
        return lambda: None
    if path in ("contextlib.suppress",):
        return lambda: None
    return None


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
        vm.side_streams[side] = Stream(vm.site(node), joined=True, waits=waits)

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
        vm.driver.on_replay(vm, owner, node)
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
