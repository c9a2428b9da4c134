"""What a machine without a GPU can show: Dynamo's graphs, operators that Inductor never captures, writes to inputs.

The step is compiled with a backend that decomposes as Inductor does, asks Inductor's own list, and then runs the graph
as it is. No kernel is made, so no compiler is needed and nothing is known of devices, partitions or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext

from capturelint.compiler.report import CompileEvent, CompileKind, once
from capturelint.logs.matcher import FRAME

REASON = "incompatible op"
FORETOLD = "foreseen on a CPU, by Inductor's rule"
COPY = torch.ops.aten.copy_.default


@dataclass(slots=True)
class Inspector:
    """A backend of ``torch.compile`` that looks at each graph and runs it eagerly."""

    events: list[CompileEvent] = field(default_factory=list)
    writes: list[CompileEvent] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    """Addresses of what the graphs returned: a later graph may write there, as it would into memory of its own pool."""

    def backend(self) -> Callable[..., object]:
        """The backend."""
        from torch._inductor.decomposition import select_decomp_table

        return aot_autograd(
            fw_compiler=self.compile_graph, decompositions=select_decomp_table, keep_inference_input_mutations=True
        )

    def compile_graph(self, graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        """Keep the operators that cannot be captured."""
        for node in incompatible_nodes(graph):
            file, line = line_of(node)
            self.events.append(CompileEvent(CompileKind.PARTITION, REASON, file, line, str(node.target)))
        written = dict(written_inputs(graph))

        def call(*inputs: object) -> object:
            self.note_writes({number: node for number, node in written.items() if not self.has_made(inputs[number])})
            outputs = graph.forward(*inputs)
            self.made.update(value.data_ptr() for value in outputs if isinstance(value, torch.Tensor))
            written.clear()
            return outputs

        boxed: Callable[..., object] = make_boxed_func(call)
        return boxed

    def has_made(self, value: object) -> bool:
        """Whether a graph returned it."""
        return isinstance(value, torch.Tensor) and value.data_ptr() in self.made

    def note_writes(self, written: Mapping[int, torch.fx.Node]) -> None:
        """Keep that a graph writes to inputs: one event, as torch has, at the first of the writes."""
        if written:
            file, line = line_of(next(iter(written.values())))
            reason = f"mutated inputs ({len(written)} instances)"
            self.writes.append(CompileEvent(CompileKind.SKIP, reason, file, line, FORETOLD))

    def found(self) -> tuple[CompileEvent, ...]:
        """Each operator once."""
        return once(self.events)

    def skipped(self) -> tuple[CompileEvent, ...]:
        """Graphs that Inductor would not capture for what they write."""
        return once(self.writes)


def written_inputs(graph: torch.fx.GraphModule) -> Iterator[tuple[int, torch.fx.Node]]:
    """Inputs that the graph writes and that are not static, as parameters and buffers are, with the write."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return
    static = set(metadata.static_input_indices or ())
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node in graph.graph.nodes:
        if node.target is COPY and node.args[0] in inputs and (number := inputs.index(node.args[0])) not in static:
            yield number, node


def line_of(node: torch.fx.Node) -> tuple[str | None, int | None]:
    """The user's line that a node stands for."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    file, line = frames[-1] if frames else (None, None)
    return file, int(line) if line else None


def incompatible_nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Nodes that Inductor keeps out of graphs, without those that only use what such a node made."""
    tainted = set[torch.fx.Node]()
    for node in graph.graph.nodes:
        if tainted & set(node.all_input_nodes):
            tainted.add(node)
        elif is_incompatible(node) and not is_masked_fill(node):
            tainted.add(node)
            yield node


def is_incompatible(node: torch.fx.Node) -> bool:
    """Inductor's own list has the node."""
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    # The function reads nothing of a graph module but its nodes.
    alone = SimpleNamespace(graph=SimpleNamespace(nodes=[node]))
    return get_first_incompatible_cudagraph_node(alone) is not None  # type: ignore[arg-type]


def is_masked_fill(node: torch.fx.Node) -> bool:
    """``x[mask] = scalar``: on the list, but Inductor lowers it to a select (``index_put_as_masked_fill``)."""
    if not str(node.target).startswith("aten.index_put"):
        return False
    _, indices, value, *_ = node.args
    tensors = [index for index in indices if index is not None] if isinstance(indices, (list, tuple)) else []
    masks = [index for index in tensors if isinstance(index, torch.fx.Node)]
    known = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return (
        len(masks) == 1
        and getattr(masks[0].meta.get("val"), "dtype", None) in (torch.bool, torch.uint8)
        and known is not None
        and known.numel() == 1
    )
