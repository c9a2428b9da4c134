"""Calls of methods handed to hooks for a while: how CUDA graphs and streams are watched that the target uses itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Pending: TypeAlias = functools.partial[Any]
"""A call that somebody made and a hook has to make; its first argument is the instance."""
Hook: TypeAlias = Callable[[Any, Pending], Any]
"""Is given the instance and the call; what it returns is what the caller gets."""


@contextmanager
def hooked(owner: type, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """The methods of a class under hooks while entered, whatever arguments they take in this version of torch."""
    originals = {name: getattr(owner, name) for name in hooks}
    for name, hook in hooks.items():
        setattr(owner, name, handed(originals[name], hook))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def handed(method: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    """The method as a function that leaves it to a hook."""

    @functools.wraps(method)
    def call(self_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
        return hook(self_, functools.partial(method, self_, *args, **kwargs))

    return call
