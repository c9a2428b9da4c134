"""Lines of Inductor's generated code told as the user's lines that they come from.

Inductor keeps a map of lines, but not for the functions that it makes of the parts between two partitions: there the
comment above each kernel names the nodes of Dynamo's graph, and these carry the user's stack. The files are gone when
they are needed, since a run with cold caches keeps none, so their text is kept as it is written.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from capturelint.logs.matcher import FRAME

SOURCE_NODES = re.compile(r"# .*Source Nodes: \[(?P<names>[^\]]*)\]")
LAUNCH = re.compile(r"\.run\(|extern_kernels\.|torch\.ops\.")
MAX_ABOVE = 8
"""Lines between a kernel's comment and its launch."""
STACK_FRAME = re.compile(FRAME.pattern + r", in (?P<function>\S+)")

Frames = list[tuple[str, int, str]]
"""File, line and function, innermost first."""


@dataclass(slots=True)
class Generated:
    """What Inductor wrote while it was watched: each file's lines, and where the nodes of its graph come from."""

    nodes: dict[str, Frames] = field(default_factory=dict)
    files: dict[str, tuple[list[str], dict[str, Frames]]] = field(default_factory=dict)

    def frames(self, path: str, line: int) -> Frames:
        """The user's frames for a line; empty where nothing tells them."""
        return self.mapped(path, line) or self.commented(path, line)

    def mapped(self, path: str, line: int) -> Frames:
        """By Inductor's map."""
        cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
        frames = cache.stack_frames_for_code(path, line) or ()
        return [(frame["filename"], frame["line"], frame["name"]) for frame in frames]

    def commented(self, path: str, line: int) -> Frames:
        """By the comment above the launch. A fused kernel is told as its last node."""
        lines, nodes = self.files.get(path, ([], {}))
        for text in reversed(lines[max(line - 1 - MAX_ABOVE, 0) : line - 1]):
            if found := SOURCE_NODES.search(text):
                names = [name.strip() for name in found["names"].split(",")]
                return next((nodes[name] for name in reversed(names) if nodes.get(name)), [])
            if LAUNCH.search(text) or text.lstrip().startswith("def "):
                break
        return []


@contextmanager
def watched() -> Iterator[Generated]:
    """Keep what Inductor generates. Other versions may lack what is watched; then fewer lines are known."""
    seen = Generated()
    compiling: Any = importlib.import_module("torch._inductor.compile_fx")
    cache: Any = importlib.import_module("torch._inductor.codecache").PyCodeCache
    compile_fx: Callable[..., object] = compiling.compile_fx
    write: Callable[..., tuple[str, str]] = cache.write

    def compile_graph(graph: Any, *given: object, **named: object) -> object:  # noqa: ANN401  a graph or its caller
        if hasattr(graph, "graph"):
            seen.nodes = {node.name: stack_of(node) for node in graph.graph.nodes}
        return compile_fx(graph, *given, **named)

    def keep(source: str, *given: object, **named: object) -> tuple[str, str]:
        key, path = write(source, *given, **named)
        seen.files[path] = (source.splitlines(), seen.nodes)
        return key, path

    with ExitStack() as opened:
        opened.enter_context(patch.object(compiling, "compile_fx", compile_graph))
        opened.enter_context(patch.object(cache, "write", keep))
        yield seen


def stack_of(node: Any) -> Frames:  # noqa: ANN401  torch.fx gives nodes no public type here
    """A node's frames, innermost first."""
    frames = STACK_FRAME.finditer(getattr(node, "stack_trace", None) or "")
    return [(frame["file"], int(frame["line"]), frame["function"]) for frame in frames][::-1]
