"""Outputs of compiled code lie in the memory of CUDAGraph Trees, which takes them back: when, and where that shows.

Every call of compiled code begins a new generation, and what the one before gave is gone: an H200 (torch 2.11) refuses
``x = f(x)`` under ``reduce-overhead``. Calls between two ``cudagraph_mark_step_begin()`` are of one generation, and
outputs that a backward pass still needs stay. Arguments that come back, and views of them, are the caller's own.
https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from capturelint.static.index import FunctionDef, Module
from capturelint.static.outputs import Outputs, as_output, torch_tensors
from capturelint.static.values import UNKNOWN, Tensor, Value

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

GRADIENTS_OFF = ("no_grad", "inference_mode", "set_grad_enabled", "requires_grad")
"""What a file says that decides itself about gradients; by default the parameters of a module want them."""


@dataclass(slots=True)
class Trees:
    """The hooks. ``same_step``: since a mark there was a call, or none yet; ``None`` where no step is marked."""

    outputs: Outputs
    same_step: bool | None = None
    made: dict[int, int] = field(default_factory=dict)
    """Outputs of compiled code, and the replays until then."""

    def is_gone(self, tensor: Tensor) -> bool:
        """Whether a call of compiled code that is given this tensor finds it taken back."""
        made = self.made.get(tensor.ident)
        return made is not None and tensor.output and (self.same_step is not True or made < self.outputs.clock)

    def on_result(self, vm: Interpreter, value: Value, given: list[Value], of_module: bool) -> Value:
        """What compiled code gives; ``of_module``: it reads parameters. Code that it calls is compiled with it."""
        if vm.recording or vm.compiled or (self.same_step is None and waits_for_backward(vm, of_module)):
            return value
        if self.same_step is not True:
            self.outputs.on_replay(UNKNOWN)
        self.same_step = self.same_step if self.same_step is None else True
        own = frozenset(tensor.ident for one in given for tensor in torch_tensors(one))
        self.made.update(
            (tensor.ident, self.outputs.clock) for tensor in torch_tensors(value) if tensor.ident not in own
        )
        return as_output(value, own)

    def on_step_begin(self) -> None:
        """``cudagraph_mark_step_begin()``: what compiled code gave before may be taken back, and only from here on."""
        self.same_step = False


def waits_for_backward(vm: Interpreter, of_module: bool) -> bool:
    """Whether outputs may be needed by a backward pass, as far as the running functions and their files tell."""
    if any(trains(call.definition) for call in vm.stack):
        return True
    return of_module and not any(map(decides_on_gradients, {call.module for call in vm.stack}))


@cache
def trains(definition: object) -> bool:
    """Whether a function runs a backward pass."""
    nodes = ast.walk(definition.node) if isinstance(definition, FunctionDef) else ()
    return any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in nodes)


def decides_on_gradients(module: Module) -> bool:
    """Whether a file says anything about gradients."""
    return any(word in module.text for word in GRADIENTS_OFF)
