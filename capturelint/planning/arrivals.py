"""A simulated histogram: requests that arrive at random and share a batch of limited size.

An M/M/c queue sampled at even moments: arrivals are Poisson, service times exponential with the given mean, at most
``max_batch`` requests run at once and the others wait. Idle moments run no step and are not counted.
"""

from __future__ import annotations

import random
from collections import Counter

from capturelint.errors import HistogramError
from capturelint.planning.histogram import Histogram, build

NUM_SAMPLES = 100_000
SAMPLES_PER_SERVICE = 20
"""Samples in one mean service time: dense enough to see every size, sparse enough to cover many requests."""


def simulate(rate: float, service_ms: float, max_batch: int, seed: int = 0) -> Histogram:
    """The batch sizes seen in 100,000 samples after a warm-up of a fifth as many.

    ``rate`` is in requests per second. Raises ``HistogramError`` for numbers that describe no queue.
    """
    for value, option in ((rate, "--poisson"), (service_ms, "--service-ms"), (max_batch, "--max-batch")):
        if not 0 < value < float("inf"):
            raise HistogramError(f"{option} {value:g} is not a positive number")
    source = f"poisson {rate:g}/s, {service_ms:g} ms"
    load = rate * service_ms / 1000
    notes = [f"simulated, seed {seed}: Poisson arrivals, exponential service, {load:.1f} requests running on average"]
    if load >= max_batch:
        notes[0] = f"simulated, seed {seed}: {load:.1f} requests' worth of work for a batch of {max_batch}"
        return build(
            [(max_batch, NUM_SAMPLES)], source, (*notes, "saturated: the queue grows and the batch stays full")
        )
    counts = sample_queue(load, max_batch, random.Random(seed))
    return build(counts.items(), source, tuple(notes))


def sample_queue(load: float, max_batch: int, chance: random.Random) -> Counter[int]:
    """Running requests at even moments. Time is in mean service times, so arrivals come at rate ``load``."""
    counts: Counter[int] = Counter()
    present = min(max_batch, round(load))
    moment, next_event = 0.0, chance.expovariate(load + present)
    for sample in range(-NUM_SAMPLES // 5, NUM_SAMPLES):
        moment += 1 / SAMPLES_PER_SERVICE
        while next_event <= moment:
            leaving = min(present, max_batch)
            present += 1 if chance.random() * (load + leaving) < load else -1
            next_event += chance.expovariate(load + min(present, max_batch))
        if sample >= 0 and present:
            counts[min(present, max_batch)] += 1
    return counts
