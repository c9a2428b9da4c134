"""What ``torch.Tensor`` answers inside the context: device, transfers, and reads that bypass ATen.

Only what torch decides above ATen by looking at the real device is replaced here. Everything else meets the mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _device

from capturelint.emulator.memory import MARK, Memory, has_storage, memory_of, place, start_of, untyped_storage
from capturelint.emulator.refusal import CAPTURING, PAGEABLE
from capturelint.vocabulary import ObservationKind

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine
    from capturelint.emulator.patches import Patches
    from capturelint.emulator.pool import Lease

Tensor = torch.Tensor
DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")
FACTORIES = ("tensor", "as_tensor", "asarray")
CHECKED_ON_A_CPU = ("quantile", "nanquantile")
"""They read a tensor of quantiles to see that it is in range, if it is on a CPU."""
MEAN = 1  # at::Reduction::Mean
plain = torch._C.TensorBase
unpatched = {name: getattr(torch, name) for name in FACTORIES}
original_deepcopy = Tensor.__deepcopy__
original_repr = Tensor.__repr__
original_reduce_ex = Tensor.__reduce_ex__
original_storage_to = torch.UntypedStorage.to


def is_device(device: object) -> bool:
    """Whether ``device``, as users spell it, is the emulated one."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) or (isinstance(device, str) and device.split(":")[0] == "cuda")


def indexed(device: Any) -> Any:
    """``cuda`` as ``cuda:0``: torch asks a driver for the index otherwise, and there is none."""
    if device is None or not is_device(device):
        return device
    return torch.device("cuda", device if isinstance(device, int) else torch.device(device).index or 0)


class TensorPatches:
    """Replacements of methods and properties of ``torch.Tensor`` and of the factories that copy host values."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self.machine = machine
        self.patches = patches

    def install(self) -> None:
        """Replace everything."""
        for name in ("device", "is_cuda", "is_cpu"):
            self.patches.set(Tensor, name, self.property(name))
        for name in (
            "to", "cuda", "cpu", "type", "type_as", "numpy", "tolist", "pin_memory", "is_pinned", "get_device",
            "record_stream", "data_ptr", "new_tensor", "new", "__deepcopy__", "__reduce_ex__", "__array__", "__repr__",
        ):  # fmt: skip
            original = getattr(Tensor, name)
            self.patches.set(Tensor, name, named(getattr(self, name.strip("_")), original))
        # The set of factories that take the default device is cached when first asked for: it must hold torch's own.
        for function in _device._device_constructors():
            name = getattr(function, "__name__", "")
            factory: Any = vars(torch).get(name)
            if factory is function and name not in FACTORIES:
                self.patches.set(torch, name, numbered(factory))
        for name in FACTORIES:
            self.patches.set(torch, name, self.factory(getattr(torch, name)))
        for name in CHECKED_ON_A_CPU:
            self.patches.set(torch, name, self.checked_on_a_cpu(getattr(torch, name)))
            self.patches.set(Tensor, name, self.checked_on_a_cpu(getattr(Tensor, name)))
        self.patches.set(torch, "ctc_loss", self.ctc_loss(torch.ctc_loss))
        self.patch_default_device()
        self.patch_storages()

    def ctc_loss(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``torch.ctc_loss``, whose mean moves the lengths to the device of the losses: for torch, no move."""

        @wraps(original)
        def call(
            log_probs: Tensor,
            targets: Tensor,
            input_lengths: Any,
            target_lengths: Any,
            blank: int = 0,
            reduction: int = MEAN,
            zero_infinity: bool = False,
        ) -> Tensor:
            def losses(reduction: int) -> Tensor:
                return original(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)

            is_split = isinstance(target_lengths, Tensor) and memory_of(target_lengths) is not memory_of(log_probs)
            if reduction != MEAN or not is_split:
                return losses(reduction)
            each = losses(0)
            return (each / self.move(target_lengths, DEVICE, each.dtype).clamp_min(1)).mean()

        return call

    def checked_on_a_cpu(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``original``, whose reads of values no GPU does."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Tensor:
            before, self.machine.in_cpu_check = self.machine.in_cpu_check, True
            try:
                return original(*args, **kwargs)
            finally:
                self.machine.in_cpu_check = before

        return call

    def property(self, name: str) -> property:
        """One of the properties that say where a tensor lives."""
        real = plain.__dict__[name].__get__
        machine = self.machine

        def claims_device(tensor: Tensor) -> bool:
            return memory_of(tensor) is Memory.DEVICE and not machine.in_kernel

        def device(tensor: Tensor) -> torch.device:
            return DEVICE if claims_device(tensor) else real(tensor)

        def is_cuda(tensor: Tensor) -> bool:
            return claims_device(tensor) or real(tensor)

        def is_cpu(tensor: Tensor) -> bool:
            return not claims_device(tensor) and real(tensor)

        return property({"device": device, "is_cuda": is_cuda, "is_cpu": is_cpu}[name])

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.to``."""
        if args and isinstance(args[0], torch.dtype):
            return plain.to(tensor, *args, **kwargs)
        copies = kwargs.pop("copy", False)
        if (args and isinstance(args[0], Tensor)) or "other" in kwargs:
            other = kwargs.pop("other", None) if "other" in kwargs else args[0]
            rest = dict(zip(("non_blocking", "copy"), args[1:], strict=False)) | kwargs
            copies = rest.pop("copy", copies)
            return self.move(tensor, other.device, other.dtype, copies, **rest)
        if len(args) >= 4:
            args, copies = args[:3], args[3]
        if args and isinstance(args[0], int):
            args = (indexed(args[0]), *args[1:])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = indexed(kwargs["device"])
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        return self.move(tensor, device, dtype, copies, non_blocking, memory_format)

    def move(
        self,
        tensor: Tensor,
        device: torch.device | None,
        dtype: torch.dtype | None,
        copies: bool = False,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        """Copy ``tensor`` where it is asked to be, or return it if it is there already."""
        dtype = tensor.dtype if dtype is None else dtype
        layout = {} if memory_format is None else {"memory_format": memory_format}
        source = memory_of(tensor) is Memory.DEVICE
        if device is None or device.type == "meta" or is_device(device) is source:
            if device is not None and device.type == "meta":
                return plain.to(tensor, device=device, dtype=dtype)
            return plain.to(tensor, dtype=dtype, non_blocking=non_blocking, copy=copies, **layout)
        if not source:
            return torch.ops.aten._to_copy(
                tensor, dtype=dtype, device=indexed(device), non_blocking=non_blocking, **layout
            )
        return self.download(tensor, dtype, non_blocking, **layout)

    def download(self, tensor: Tensor, dtype: torch.dtype, non_blocking: bool = False, **layout: Any) -> Tensor:
        """A copy on the host."""
        self.machine.downloading = True
        try:
            return torch.ops.aten._to_copy(tensor, dtype=dtype, device=HOST, non_blocking=non_blocking, **layout)
        finally:
            self.machine.downloading = False

    def cuda(
        self,
        tensor: Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Tensor:
        """``Tensor.cuda``."""
        target = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or DEVICE)
        return self.move(tensor, target, None, False, non_blocking, memory_format)

    def cpu(self, tensor: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """``Tensor.cpu``."""
        return self.move(tensor, HOST, None, memory_format=memory_format)

    def type(self, tensor: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """``Tensor.type``: the legacy names carry a device."""
        if dtype is None:
            name = plain.type(tensor)
            return name.replace("torch.", "torch.cuda.", 1) if memory_of(tensor) is Memory.DEVICE else name
        if isinstance(dtype, torch.dtype):
            return plain.type(tensor, dtype, non_blocking)
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        target = DEVICE if name.startswith("torch.cuda.") else HOST
        kind = getattr(torch, name.rsplit(".", 1)[1]).dtype
        return self.move(tensor, target, kind, non_blocking=non_blocking)

    def type_as(self, tensor: Tensor, other: Tensor) -> Tensor:
        """``Tensor.type_as``."""
        return self.move(tensor, other.device, other.dtype)

    def numpy(self, tensor: Tensor, *, force: bool = False) -> Any:
        """``Tensor.numpy``."""
        if memory_of(tensor) is Memory.DEVICE:
            if not force:
                raise TypeError(
                    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                    "memory first."
                )
            tensor = self.cpu(tensor.detach())
        return plain.numpy(tensor, force=force)

    def array(self, tensor: Tensor, dtype: Any = None) -> Any:
        """``Tensor.__array__``."""
        values = self.numpy(tensor)
        return values if dtype is None else values.astype(dtype, copy=False)

    def tolist(self, tensor: Tensor) -> Any:
        """``Tensor.tolist``: a copy to the host, then a list."""
        if memory_of(tensor) is Memory.DEVICE:
            tensor = self.cpu(tensor.detach()) if tensor.dim() else tensor
            if not tensor.dim():
                return tensor.item()
        return plain.tolist(tensor)

    def pin_memory(self, tensor: Tensor, device: Any = None) -> Tensor:
        """``Tensor.pin_memory``: a copy in pinned memory."""
        if memory_of(tensor) is Memory.DEVICE:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        if memory_of(tensor) is Memory.PINNED:
            return tensor
        pinned = tensor.clone()
        place(pinned, Memory.PINNED)
        return pinned

    def is_pinned(self, tensor: Tensor, device: Any = None) -> bool:
        """``Tensor.is_pinned``."""
        return memory_of(tensor) is Memory.PINNED

    def get_device(self, tensor: Tensor) -> int:
        """``Tensor.get_device``."""
        return 0 if memory_of(tensor) is Memory.DEVICE else -1

    def record_stream(self, tensor: Tensor, stream: object) -> None:
        """``Tensor.record_stream``: memory of the running capture is not given away before its end."""
        lease: Lease | None = untyped_storage(tensor)._capturelint_lease  # type: ignore[attr-defined]
        if lease is not None and self.machine.recording is not None and stream is not lease.stream:
            lease.is_shared = True

    def data_ptr(self, tensor: Tensor) -> int:
        """``Tensor.data_ptr``: on the device, an address in the graph's pool for what a capture allocated."""
        start = plain.data_ptr(tensor)
        if not start or not has_storage(tensor) or self.machine.in_kernel:
            return start
        storage = untyped_storage(tensor)
        return start - start_of(storage) + device_address(storage)

    def new_tensor(self, tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
        """``Tensor.new_tensor``: on the device of ``tensor``."""
        kwargs = {"dtype": tensor.dtype, "device": tensor.device, **kwargs}
        return torch.tensor(data, **kwargs)

    def new(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.new``, legacy: on the device of ``tensor``."""
        made = plain.new(tensor, *args, **kwargs)
        return self.to(made, DEVICE) if memory_of(tensor) is Memory.DEVICE else made

    def deepcopy(self, tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        """``Tensor.__deepcopy__``: a copy within the device."""
        if (
            memory_of(tensor) is not Memory.DEVICE
            or not tensor.is_leaf
            or type(tensor).__deepcopy__ is not Tensor.__deepcopy__
        ):
            return original_deepcopy(tensor, memo)
        if id(tensor) in memo:
            return memo[id(tensor)]
        with torch.no_grad():
            key = untyped_storage(tensor)._cdata
            if key not in memo:
                count = untyped_storage(tensor).nbytes()
                memo[key] = torch.empty(0, dtype=torch.uint8).set_(untyped_storage(tensor), 0, (count,), (1,)).clone()
            made = torch.empty(0, dtype=tensor.dtype)
            made.set_(untyped_storage(memo[key]), tensor.storage_offset(), tensor.size(), tensor.stride())
        made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = copy.deepcopy(tensor.grad, memo)
        made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
        memo[id(tensor)] = made
        return made

    def reduce_ex(self, tensor: Tensor, protocol: int) -> Any:
        """``Tensor.__reduce_ex__``: pickling reads every value."""
        recording = self.machine.recording
        if memory_of(tensor) is Memory.DEVICE and recording is not None and self.machine.is_capturing:
            raise recording.refuse(
                PAGEABLE, ObservationKind.HOST_READ, "Tensor.__reduce_ex__", "values are copied to the host"
            )
        return original_reduce_ex(tensor, protocol)

    def repr(self, tensor: Tensor, *, tensor_contents: Any = None) -> str:
        """``Tensor.__repr__``: torch formats below the modes, so the read is refused here."""
        recording = self.machine.recording
        if memory_of(tensor) is Memory.DEVICE and recording is not None and self.machine.is_capturing:
            raise recording.refuse(CAPTURING, ObservationKind.HOST_READ, "Tensor.__repr__", "the values are printed")
        return original_repr(tensor, tensor_contents=tensor_contents)  # type: ignore[call-arg]

    def factory(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``torch.tensor`` and its like, with the device's index filled in."""

        def make(*args: Any, **kwargs: Any) -> Tensor:
            data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
            is_pinned = kwargs.pop("pin_memory", False)
            if "device" in kwargs:
                kwargs["device"] = indexed(kwargs["device"])
            if isinstance(data, Tensor) and original is not unpatched["tensor"]:
                return self.move(data, kwargs.get("device"), kwargs.get("dtype"), bool(kwargs.get("copy", False)))
            if isinstance(data, Tensor) and memory_of(data) is Memory.DEVICE:
                kwargs.setdefault("device", DEVICE)
                return self.copy_of(data, **kwargs)
            made = original(*args, **kwargs)
            return self.pin_memory(made) if is_pinned else made

        return named(make, original)

    def copy_of(self, data: Tensor, device: Any = DEVICE, dtype: Any = None, requires_grad: bool = False) -> Tensor:
        """``torch.tensor(tensor)``."""
        made = self.move(data.detach(), torch.device(device), dtype, copies=True)
        return made.requires_grad_(requires_grad)

    def patch_default_device(self) -> None:
        """``torch.set_default_device("cuda")`` and ``with torch.device("cuda")``."""
        original_init = _device.DeviceContext.__init__

        def init(context: Any, device: Any) -> None:
            original_init(context, indexed(device))

        self.patches.set(_device.DeviceContext, "__init__", init)

    def patch_storages(self) -> None:
        """Storages that ``torch.load(map_location="cuda")`` moves."""

        def cuda(storage: torch.UntypedStorage, device: Any = None, non_blocking: bool = False) -> torch.UntypedStorage:
            moved = storage.clone()
            setattr(moved, MARK, Memory.DEVICE)
            return moved

        def to(storage: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
            return cuda(storage) if is_device(device) else original_storage_to(storage, device=device)

        def data_ptr(storage: torch.UntypedStorage) -> int:
            return start_of(storage) if self.machine.in_kernel else device_address(storage)

        self.patches.set(torch.UntypedStorage, "data_ptr", data_ptr)
        self.patches.set(torch.UntypedStorage, "cuda", cuda)
        self.patches.set(torch.UntypedStorage, "to", to)


def device_address(storage: torch.UntypedStorage) -> int:
    """Where a storage begins on the emulated device: in a block of its pool, if it stands for one."""
    lease: Lease | None = storage._capturelint_lease  # type: ignore[attr-defined]
    if lease is None or lease.living() is None:
        return start_of(storage)
    storage._capturelint_pool.catch_up()  # type: ignore[attr-defined]
    return lease.address


def numbered(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``factory`` with ``device=0`` understood, for which torch asks a driver."""

    @wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return factory(*args, **kwargs)

    return make


def named(replacement: Any, original: Any) -> Any:
    """A plain function that calls ``replacement`` and looks like ``original``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(*args, **kwargs)

    call.__name__ = getattr(original, "__name__", "call")
    call.__doc__ = getattr(original, "__doc__", None)
    return call
