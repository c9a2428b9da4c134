"""A step as a list of ATen calls, each with the arguments that a graph would freeze and the line that made it.

The recorder stands in front of whatever executes the calls, a GPU or the emulator, and changes nothing. Of host
tensors it keeps the bytes, since a copy from the host is recorded with its source's address and not its content.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from capturelint.runtime.homes import address_of
from capturelint.runtime.observations import Spot
from capturelint.runtime.project import Project, text_of

MAX_HOST_BYTES = 1 << 16
GATHERS = {"embedding", "index_select", "index", "gather"}
NOTHING = {"detach", "alias"}
"""Calls that launch nothing and compute nothing: a recorder below this one may make them."""
OVERWRITES = {"copy_", "index_copy_", "index_put_", "scatter_", "fill_", "zero_", "_index_put_impl_"}
"""Calls that write their first tensor without reading it."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument. ``content`` digests a small host tensor; device tensors have none."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    address: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen call. ``failed`` holds the text of the exception that it raised."""

    name: str
    tensors: tuple[Argument, ...]
    scalars: tuple[tuple[str, str], ...]
    spots: tuple[Spot, ...]
    stream: int = 0
    outputs: tuple[Argument, ...] = ()
    failed: str = ""
    is_view: bool = False

    @property
    def short(self) -> str:
        """``cat`` for ``aten.cat.default``."""
        return short_name(self.name)


def short_name(name: str) -> str:
    """``cat`` for ``aten.cat.default``; operators of higher order have one name."""
    return name.split(".")[1] if "." in name else name


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every ATen call made while it is entered, and operators of higher order (``flex_attention``)."""

    supports_higher_order_operators = True
    sees_launches = True  # of Triton kernels, on the emulated device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare the worker the import of the compiler (2.6 s), which never sees this mode."""
        return False


class Watch(Mode):  # type: ignore[no-untyped-call]
    """A mode that looks for the lines of a project."""

    def __init__(self, project: Project) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.project = project


class Writes(Mode):  # type: ignore[no-untyped-call]
    """Keeps a tensor of each storage from before that is written in place, and which storages were made meanwhile.

    What was made meanwhile is not kept, so that memory is used again as it is without anybody looking on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: dict[int, torch.Tensor] = {}
        self.made: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Note what a call writes, run it, and note what it made."""
        given = {key_of(tensor) for tensor in each_tensor((args, kwargs))}
        for tensor in written_by(func, args, kwargs):
            if (key := key_of(tensor)) not in self.made:
                self.written.setdefault(key, tensor)
        result = func(*args, **kwargs)
        self.made |= {key_of(tensor) for tensor in each_tensor(result)} - given - self.written.keys()
        return result


class Recorder(Watch):  # type: ignore[no-untyped-call]
    """Records every ATen call made while it is entered, and keeps the tensors that calls write in place."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.calls: list[Call] = []
        self.writes = Writes()
        self.written, self.made = self.writes.written, self.writes.made
        self.reads: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call and note it, also when it raises."""
        kwargs = kwargs or {}
        tensors, scalars = describe(args, kwargs)
        spots = self.project.spots(sys._getframe(1))
        stream = current_stream()
        try:
            result = self.writes.run(func, args, kwargs)
        except BaseException as error:
            self.calls.append(Call(str(func), tensors, scalars, spots, stream, failed=text_of(error)))
            raise
        outputs, _ = describe((result,), {})
        view = is_view(func)
        call = Call(str(func), tensors, scalars, spots, stream, outputs, is_view=view)
        if call.short not in NOTHING:
            self.calls.append(call)
        if not view:
            self.note_reads(call, args, kwargs, result)
        return result

    def note_reads(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object], result: object) -> None:
        """Bytes that a call reads of memory from before the step, by address; a gather reads what it returns."""
        given = list(each_tensor((args, kwargs)))
        if call.short in OVERWRITES:
            given = given[1:]
        for tensor in given:
            if tensor.is_cuda and key_of(tensor) not in self.made:
                nbytes = num_bytes(tensor)
                if call.short in GATHERS and tensor is given[0]:
                    nbytes = min(nbytes, sum(num_bytes(each) for each in each_tensor(result)))
                address = tensor.data_ptr()
                self.reads[address] = max(self.reads.get(address, 0), nbytes)


def num_bytes(tensor: torch.Tensor) -> int:
    """The memory that a tensor spans; an expanded one has less than it has elements."""
    if tensor.layout is not torch.strided:
        return 0
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def is_view(func: Callable[..., object]) -> bool:
    """Whether a call returns its argument's memory and reads none of it."""
    schema = getattr(func, "_schema", None)
    return schema is not None and any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )


def written_by(
    func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[torch.Tensor]:
    """The tensors that a call writes in place, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (tensor for tensor in each_tensor(given) if tensor.layout is torch.strided)


def current_stream() -> int:
    """The current stream's handle; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


def key_of(tensor: torch.Tensor) -> int:
    """What tells two storages apart while both live; 0 for a tensor without one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def each_tensor(value: object) -> Iterator[torch.Tensor]:
    """Every tensor in arguments or results, through lists, tuples and dictionaries."""
    match value:
        case torch.Tensor():
            yield value
        case list() | tuple():
            for item in value:
                yield from each_tensor(item)
        case dict():
            yield from each_tensor(list(value.values()))


def describe(
    args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[Argument, ...], tuple[tuple[str, str], ...]]:
    """The tensors and the other values of a call's arguments, in order."""
    tensors: list[Argument] = []
    scalars: list[tuple[str, str]] = []

    def visit(label: str, value: object) -> None:
        match value:
            case torch.Tensor():
                tensors.append(argument(value))
            case list() | tuple():
                for index, item in enumerate(value):
                    visit(f"{label}[{index}]", item)
            case bool() | int() | float() | str() | None:
                scalars.append((label, repr(value)))
            case torch.dtype() | torch.device():
                scalars.append((label, str(value)))
            case _:
                scalars.append((label, type(value).__name__))

    for index, value in enumerate(args):
        visit(str(index), value)
    for key, value in kwargs.items():
        visit(key, value)
    return tuple(tensors), tuple(scalars)


def argument(tensor: torch.Tensor) -> Argument:
    """A tensor as a graph sees it."""
    on_host = tensor.device.type == "cpu"
    address = address_of(tensor)
    return Argument(
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        str(tensor.device),
        address,
        content(tensor, address) if on_host else "",
    )


def content(tensor: torch.Tensor, address: int) -> str:
    """A digest of a small, dense host tensor, read without a torch call that the recorder would see."""
    nbytes = tensor.numel() * tensor.element_size()
    if not address or not 0 < nbytes <= MAX_HOST_BYTES or not tensor.is_contiguous():
        return ""
    return hashlib.blake2b(ctypes.string_at(address, nbytes), digest_size=8).hexdigest()
