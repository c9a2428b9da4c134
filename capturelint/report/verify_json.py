"""A report of ``verify`` for programs, as the contract lists it; what was not measured is absent, never invented."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from capturelint import __version__
from capturelint.compiler.report import CompiledBucket, Milliseconds
from capturelint.finding import Finding
from capturelint.report.json import finding_record
from capturelint.runtime.observations import BucketResult, Times
from capturelint.runtime.verify import VerifyReport

Json = dict[str, object]


def render_verify_json(report: VerifyReport) -> str:
    """The JSON of ``verify``; ASCII only."""
    machine = report.machine
    record: Json = {"schema": 1, "version": __version__, "target": report.target, "device": machine.device}
    if machine.gpu is not None:
        record["gpu"] = machine.gpu
    if machine.driver is not None:
        record["driver"] = machine.driver
    record |= {
        "torch": machine.torch,
        "verdict": report.verdict,
        "buckets": [bucket_record(bucket, compiled_bucket(report, bucket.size)) for bucket in report.buckets],
        "findings": [verify_finding(finding) for finding in report.findings],
    }
    if report.compiled is not None:
        record["compile"] = report.compiled.as_json()
    if report.floor is not None:
        floor = report.floor
        record["floor"] = {"bytes": floor.nbytes, "bandwidth": floor.bandwidth, "ms": round(floor.ms, 4)}
    if pools := [bucket.pool_bytes for bucket in report.buckets if bucket.pool_bytes is not None]:
        record["pool_bytes"] = sum(pools)
    if peaks := [bucket.device_bytes for bucket in report.buckets if bucket.device_bytes is not None]:
        record["device_bytes"] = max(peaks)
    if report.launch_bound is not None:
        record["launch_bound"] = report.launch_bound
    record["notes"] = list(report.notes)
    return json.dumps(record, indent=2) + "\n"


def compiled_bucket(report: VerifyReport, size: int) -> CompiledBucket | None:
    """What ``--compile`` knows of a bucket."""
    return report.compiled.bucket(size) if report.compiled is not None else None


def bucket_record(bucket: BucketResult, compiled: CompiledBucket | None = None) -> Json:
    """One bucket; fields that nothing was measured for are left out."""
    record: Json = {"size": bucket.size, "verdict": bucket.verdict.value}
    optional: Json = {
        "max_error": finite(bucket.max_error),
        "noise": bucket.noise,
        "tolerance": bucket.tolerance,
        "steps": bucket.steps or None,
        "first_step": bucket.first_step if bucket.step_errors else None,
        "step_errors": [finite(error) for error in bucket.step_errors] or None,
        "argmax_flips": bucket.argmax_flips,
        "argmax_margin": bucket.argmax_margin,
        "graph_nodes": bucket.graph_nodes,
        "pool_bytes": bucket.pool_bytes,
        "device_bytes": bucket.device_bytes,
        "capture_s": rounded(bucket.capture_s),
        "eager_ms": times(bucket.eager_ms),
        "replay_ms": times(bucket.replay_ms),
        "compiled_ms": times(compiled.compiled_ms) if compiled else None,
        "compiled_captured_ms": times(compiled.compiled_captured_ms) if compiled else None,
        "host_ms": times(bucket.host_ms),
        "eager_host_ms": times(bucket.eager_host_ms),
        "speedup": speedup(bucket),
        "kernels": bucket.kernels,
        "busy_share": rounded(bucket.busy_share),
        "break_even_steps": break_even_steps(bucket),
        "message": bucket.message or None,
        "probes": list(bucket.probes) or None,
        "operations": [asdict(each) for each in bucket.operations] or None,
        "timelines": timelines(bucket) or None,
    }
    return record | {name: value for name, value in optional.items() if value is not None}


def timelines(bucket: BucketResult) -> Json:
    """The steps that were traced, by their kind."""
    traced = {"eager": bucket.eager_timeline, "replayed": bucket.replay_timeline}
    return {kind: asdict(line) for kind, line in traced.items() if line is not None}


def verify_finding(finding: Finding) -> Json:
    """A finding with its evidence as text, as ``verify`` prints it."""
    record = finding_record(finding)
    if finding.evidence is not None:
        evidence = finding.evidence
        record |= {"evidence": evidence.text, "bucket": evidence.bucket, "step": evidence.step}
    return record


def times(measured: Times | Milliseconds | None) -> Json | None:
    """Milliseconds, to the microsecond."""
    return None if measured is None else {"p50": round(measured.p50, 4), "p99": round(measured.p99, 4)}


def speedup(bucket: BucketResult) -> float | None:
    """Eager over replay."""
    if bucket.eager_ms is None or bucket.replay_ms is None:
        return None
    return round(bucket.eager_ms.p50 / bucket.replay_ms.p50, 2)


def break_even_steps(bucket: BucketResult) -> int | None:
    """How many replays repay the capture."""
    if bucket.eager_ms is None or bucket.replay_ms is None or bucket.capture_s is None:
        return None
    saved = bucket.eager_ms.p50 - bucket.replay_ms.p50
    return math.ceil(bucket.capture_s * 1000 / saved) if saved > 0 else None


def rounded(value: float | None) -> float | None:
    """To four digits after the point."""
    return None if value is None else round(value, 4)


def finite(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if value == float("inf") else value
