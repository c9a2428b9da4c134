"""Methods of a class replaced for a while: how CUDA graphs are watched that the target captures itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def patched(owner: type, methods: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    """Methods replaced while entered."""
    originals = {name: getattr(owner, name) for name in methods}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
