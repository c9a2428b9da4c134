"""The environment in which torch tells what it skips: for a command whose output is judged, or a worker."""

from __future__ import annotations

from collections.abc import Mapping

TORCH_LOGS = ("graph_breaks", "recompiles", "cudagraphs", "perf_hints")
"""``cudagraphs`` shows skips and, since torch 2.11, partitions; ``perf_hints`` skips up to torch 2.10."""
COLD = {
    # What the scheduler prints about partitions is lost on a cache hit.
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    # A profile of an earlier run makes shapes dynamic from the start: other recompiles, other graphs.
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
    # A precompiled function skips Dynamo: no graph breaks are told.
    "TORCH_CACHING_PRECOMPILE": "0",
}
"""No cache, so that torch does and says everything anew."""


def telling(given: Mapping[str, str]) -> dict[str, str]:
    """``given`` with torch's logs asked for. What the user set stays, except an empty ``TORCH_LOGS``.

    An empty ``TORCH_LOGS`` makes ``import torch`` die with an ``AttributeError``.
    """
    asked = [name for name in given.get("TORCH_LOGS", "").split(",") if name]
    named = {name.lstrip("+-") for name in asked}
    wanted = [*asked, *(name for name in TORCH_LOGS if name not in named)]
    return {**COLD, "PYTHONUNBUFFERED": "1", **given, "TORCH_LOGS": ",".join(wanted)}
