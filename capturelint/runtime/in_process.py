"""A step given as Python objects, verified in this process: for a test suite, where a worker could not be handed them.

What a worker would isolate is not isolated here: on a real device a refused capture leaves the process unfit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from capturelint.runtime import states
from capturelint.runtime.bucket import Session, verify_bucket
from capturelint.runtime.channel import silent_channel
from capturelint.runtime.observations import BucketResult
from capturelint.runtime.project import Project
from capturelint.runtime.protocol import Plan
from capturelint.runtime.target import Inputs, Target
from capturelint.runtime.worker import device_context

WARM_UP = 3


def verify_here(
    target: Target, buckets: Sequence[int], steps: int, tolerance: float | None
) -> tuple[list[BucketResult], bool]:
    """A result for each bucket, up to one that leaves the process unfit; and whether a GPU gave them.

    Lets errors of the target's own eager steps through.
    """
    on_gpu = torch.cuda.is_available()
    plan = Plan("", "cuda" if on_gpu else "emulated", tuple(buckets), steps, WARM_UP, 0, tolerance=tolerance)
    results = []
    with device_context(plan.device), silent_channel() as channel:
        origin = states.origin(lambda: target.build("cuda"))
        session = Session(plan, target, origin, Project(target.roots), channel)
        for bucket in buckets:
            judged = verify_bucket(session, bucket)
            results.append(judged.result)
            if judged.unfit and on_gpu:
                break
    return results, on_gpu


def as_target(
    step: Callable[..., object],
    inputs: Callable[[int, int], Inputs],
    build: Callable[[str], object] | None,
    root: Path,
) -> Target:
    """A function with ``build``, a module, a method of a module, or a function of tensors.

    A module is copied to the device, so that a test leaves it as it was; inputs are moved there.
    """

    def on_device(batch: int, number: int, device: str) -> Inputs:
        made = inputs(batch, number)
        return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in made.items()}

    if build is not None:
        return Target(build, on_device, step, (root,))
    owner = step if isinstance(step, torch.nn.Module) else getattr(step, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        name = "__call__" if owner is step else step.__name__
        return Target(
            lambda device: copy.deepcopy(owner).to(device),
            on_device,
            lambda state, **given: getattr(state, name)(**given),
            (root,),
        )
    return Target(lambda device: None, on_device, lambda state, **given: step(**given), (root,))
