"""``torch.cuda`` of the emulated device: what programs ask before, around and after a capture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from capturelint.emulator.generators import generator_type
from capturelint.emulator.graph import EmulatedGraph
from capturelint.emulator.streams import EmulatedEvent, EmulatedStream
from capturelint.vocabulary import Effect

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine
    from capturelint.emulator.patches import Patches

NAME = "capturelint emulated device"
CAPABILITY = (9, 0)  # what the refusals were measured on: an H200


def properties() -> SimpleNamespace:
    """Of the emulated device: the H200's shape where programs branch on it, the host's memory."""
    return SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=host_bytes(),
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=60 * 2**20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )


def host_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class CudaPatches:
    """Replacements in ``torch.cuda``."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self.machine = machine
        self.patches = patches

    def install(self) -> None:
        """Replace everything."""
        self.patches.set_everywhere(torch.cuda, self.replacements())
        self.patches.set(torch, "Generator", generator_type(self.machine.generators))
        self.patches.set(torch._C, "_host_emptyCache", lambda: None)
        self.patches.set(torch.cuda.graph, "default_capture_stream", None)
        # A build with CUDA would hand recurrent layers to cuDNN, which takes no CPU memory.
        self.patches.set(torch.backends.cudnn, "is_acceptable", constant("is_acceptable", False))
        self.patches.set(torch, "compile", uncompiled)
        self.patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
        self.patches.set_everywhere(torch.accelerator, self.accelerator())
        self.patch_autocast()

    def replacements(self) -> dict[str, Any]:
        """Name in ``torch.cuda`` -> what it is inside the context."""
        machine = self.machine
        streams = machine.streams
        constants: dict[str, Any] = {
            "is_available": True,
            "is_initialized": True,
            "_is_in_bad_fork": False,
            "_lazy_init": None,
            "init": None,
            "device_count": 1,
            "current_device": 0,
            "set_device": None,
            "_exchange_device": 0,
            "_maybe_exchange_device": 0,
            "get_device_name": NAME,
            "get_device_capability": CAPABILITY,
            "get_arch_list": ["sm_90"],
            "is_bf16_supported": True,
            "empty_cache": None,
            "ipc_collect": None,
            "reset_peak_memory_stats": None,
            "reset_max_memory_allocated": None,
            "reset_accumulated_memory_stats": None,
            "memory_allocated": 0,
            "max_memory_allocated": 0,
            "memory_reserved": 0,
            "max_memory_reserved": 0,
            "memory_cached": 0,
            "memory_stats": {},
            "memory_snapshot": [],
            "memory_summary": "",
            "utilization": 0,
            "set_per_process_memory_fraction": None,
        }
        replaced: dict[str, Any] = {name: constant(name, value) for name, value in constants.items()}
        replaced |= {
            "mem_get_info": lambda device=None: (host_bytes(), host_bytes()),
            "get_device_properties": lambda device=None: properties(),
            "default_generators": (machine.generators.default,),
            "Stream": stream_type(machine),
            "ExternalStream": lambda pointer, device=None, **kwargs: streams.make(),
            "Event": event_type(machine),
            "CUDAGraph": graph_type(machine),
            "current_stream": lambda device=None: streams.current,
            "default_stream": lambda device=None: streams.default,
            "set_stream": self.set_stream,
            "synchronize": self.synchronize,
            "graph_pool_handle": lambda: (0, next(machine.handles)),
            "MemPool": pool_type(machine),
            "use_mem_pool": use_mem_pool,
            "is_current_stream_capturing": lambda: machine.is_capturing,
            "nvtx": SimpleNamespace(
                range_push=lambda message: 0,
                range_pop=lambda: 0,
                mark=lambda message: None,
                range=torch.autograd.profiler.record_function,
            ),
        }
        return replaced

    def accelerator(self) -> dict[str, Any]:
        """Name in ``torch.accelerator`` -> what it is inside the context."""
        streams = self.machine.streams
        return {
            "is_available": constant("is_available", True),
            "device_count": constant("device_count", 1),
            "current_accelerator": constant("current_accelerator", torch.device("cuda")),
            "current_device_index": constant("current_device_index", 0),
            "current_stream": lambda device=None: streams.current,
            "set_stream": self.set_stream,
            "synchronize": self.synchronize,
        }

    def set_stream(self, stream: EmulatedStream | None) -> None:
        """Make ``stream`` current."""
        if stream is not None:
            self.machine.streams.current = stream

    def synchronize(self, device: Any = None) -> None:
        """Wait for the device."""
        self.machine.must_not_capture(Effect.SYNCHRONIZE, "torch.cuda.synchronize")

    def patch_autocast(self) -> None:
        """Autocast of the device is autocast of the CPU kernels that stand in for it."""
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
            self.patches.set(torch, name, on_cpu(getattr(torch, name)))
        self.patches.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))
        original = torch.amp.autocast_mode.autocast.__init__

        def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            if device_type == "cuda":
                device_type = "cpu"
                if not args and kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.float16
            original(context, device_type, *args, **kwargs)

        self.patches.set(torch.amp.autocast_mode.autocast, "__init__", init)


def uncompiled(model: Any = None, **options: Any) -> Any:
    """``torch.compile``: the compiler is not emulated, its argument runs eagerly."""
    return model if model is not None else lambda function: function


def on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original`` with "cuda", which it also means without an argument, read as "cpu"."""

    def call(*args: Any) -> Any:
        return original(*("cpu" if isinstance(value, str) and value == "cuda" else value for value in args or ("cpu",)))

    return call


def constant(name: str, value: Any) -> Callable[..., Any]:
    """A function of torch.cuda that has one answer."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return value

    call.__name__ = name
    return call


def stream_type(machine: Machine) -> type:
    """``torch.cuda.Stream``."""

    class Stream(EmulatedStream):
        def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
            return super().__new__(cls)

        def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
            super().__init__(machine, next(machine.streams.numbers), priority)

    return kind_of("Stream", Stream, EmulatedStream)


def event_type(machine: Machine) -> type:
    """``torch.cuda.Event``."""

    class Event(EmulatedEvent):
        def __init__(
            self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any
        ) -> None:
            super().__init__(machine)

    return kind_of("Event", Event, EmulatedEvent)


def graph_type(machine: Machine) -> type:
    """``torch.cuda.CUDAGraph``."""

    class CUDAGraph(EmulatedGraph):
        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__(machine)

    return CUDAGraph


def pool_type(machine: Machine) -> type:
    """``torch.cuda.MemPool``: an id to capture with. Outside captures memory comes from the host's allocator."""

    class MemPool:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.id = (0, next(machine.handles))
            self.pool = machine.pool(self.id)
            self.allocator = None

        def use_count(self) -> int:
            return 1

        def snapshot(self, include_traces: bool = True) -> list[object]:
            return []

    return MemPool


@contextmanager
def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
    """``torch.cuda.use_mem_pool``: where eager tensors lie is not emulated."""
    yield


def kind_of(name: str, made: type, base: type) -> type:
    """``made``, of which every ``base`` counts as an instance."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

    return Kind(name, (made,), {})
