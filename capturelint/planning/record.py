"""A plan as JSON, schema 1, and back: ``generate`` reads the buckets of a saved plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from capturelint.errors import HistogramError
from capturelint.planning.engines import Flags
from capturelint.planning.plan import BucketPlan, Usage, gain

SCHEMA = 1


def to_json(plan: BucketPlan, compared: Sequence[tuple[str, Usage]], flags: Iterable[Flags], version: str) -> str:
    """The whole report; numbers that nobody measured are ``null``."""
    by_engine: dict[str, dict[str, str]] = {}
    for flag in flags:
        by_engine.setdefault(flag.engine, {})[flag.versions] = flag.text
    return json.dumps(
        {
            "schema": SCHEMA,
            "version": version,
            "source": plan.histogram.source,
            "notes": list(plan.histogram.notes),
            "objective": "step-time" if plan.by_time else "padded-rows",
            "buckets": list(plan.sizes),
            **usage_record(plan, plan.usage),
            "rounded_rows": plan.rounded_rows,
            "per_bucket": bucket_records(plan),
            "compared_with": {
                name: {
                    "sizes": list(usage.sizes),
                    **usage_record(plan, usage),
                    "gain": gain(plan.usage, usage, plan.by_time),
                }
                for name, usage in compared
            },
            "curve": [{"graphs": point.graphs, curve_key(plan): point.cost} for point in plan.curve],
            "flags": by_engine,
        },
        indent=2,
    )


def usage_record(plan: BucketPlan, usage: Usage) -> Mapping[str, float | int | None]:
    """What a list of sizes costs. ``padding_waste`` is padded rows over all rows that graphs compute."""
    graphs, limits = len(usage.sizes), plan.limits
    return {
        "graphs": graphs,
        "padding_waste": usage.padding_waste,
        "padded_rows": usage.padded_rows,
        "live_rows": sum(usage.live_rows),
        "covered": usage.covered,
        "eager_steps": usage.eager_steps,
        "memory_bytes": limits.memory_of(graphs),
        "capture_s": None if limits.capture_s is None else limits.capture_s * graphs,
        "step_ms": None if usage.step_ns is None else usage.step_ns / 1e6,
    }


def bucket_records(plan: BucketPlan) -> list[dict[str, float | int | None]]:
    """One record a bucket: the share of all steps that it runs, and the share of its rows that is padding."""
    all_steps = sum(plan.usage.steps) + plan.usage.eager_steps
    return [
        {
            "size": size,
            "steps": steps,
            "share": steps / all_steps,
            "padding": 1 - live / (size * steps),
            "padded_rows": size * steps - live,
            "memory_bytes": plan.limits.bytes_per_graph,
        }
        for size, steps, live in zip(plan.sizes, plan.usage.steps, plan.usage.live_rows, strict=True)
    ]


def curve_key(plan: BucketPlan) -> str:
    """The unit of the curve's costs."""
    return "step_ns" if plan.by_time else "padding_waste"


def read_buckets(text: str, name: str) -> tuple[int, ...]:
    """The ``buckets`` of a saved plan. Raises ``HistogramError``."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HistogramError(f"{name}: not JSON: {error}") from error
    buckets = loaded.get("buckets") if isinstance(loaded, dict) else None
    if not isinstance(buckets, list) or not buckets or not all(type(size) is int and size > 0 for size in buckets):
        raise HistogramError(f"{name}: no `buckets`; expected what `capturelint plan --format json` writes")
    return tuple(sorted(set(buckets)))
