"""The reference: a fresh state and a row of plain steps, no graph anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from capturelint.errors import TargetError
from capturelint.runtime.channel import Channel
from capturelint.runtime.homes import homes
from capturelint.runtime.outputs import Leaf, keep, leaves
from capturelint.runtime.protocol import Stage
from capturelint.runtime.target import Inputs, Target

DEVICE = "cuda"
"""What every target is given; an emulated run answers to the same name."""

NOBODY = nullcontext()


@dataclass(slots=True)
class Run:
    """Outputs of a row of steps. ``first`` is the index of the first one."""

    first: int
    outputs: list[list[Leaf]] = field(default_factory=list)


def make_inputs(target: Target, bucket: int, step: int) -> Inputs:
    """One step's inputs. Raises ``TargetError`` if they are no mapping of names."""
    made = target.inputs(bucket, step, DEVICE)
    if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
        raise TargetError(f"inputs returns {type(made).__name__}; it must return a dict of names and tensors")
    return made


def check_inputs(target: Target, bucket: int, step: int) -> None:
    """Raise ``TargetError`` where asking for a step's inputs again gives others: nothing could be compared then."""
    first, again = make_inputs(target, bucket, step), make_inputs(target, bucket, step)
    for name, value in first.items():
        other = again.get(name)
        if not isinstance(value, torch.Tensor) and value is not other and homes(value):
            raise TargetError(
                f"inputs gives `{name}` as {type(value).__name__}, whose tensors cannot be filled for a replay; "
                "give them by name, or in a dictionary, a list or a tuple"
            )
        if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor) or value.shape != other.shape:
            continue
        if not torch.equal(torch.nan_to_num(value), torch.nan_to_num(other)):
            raise TargetError(
                f"inputs gives other values for `{name}` when it is asked for step {step} again; seed what it draws "
                "from by `step`, so that eager and replay get the same"
            )


def run_eager(
    target: Target,
    state: object,
    bucket: int,
    steps: range,
    channel: Channel,
    watching: AbstractContextManager[object] = NOBODY,
) -> Run:
    """Run ``steps`` on ``state`` and keep what they return; ``watching`` is entered around each of them.

    The device is waited for after every step, so an asynchronous error is charged to the step that caused it.
    """
    run = Run(steps.start)
    for step in steps:
        channel.enter(Stage.EAGER, bucket, step)
        given = make_inputs(target, bucket, step)
        with torch.no_grad(), watching:
            output = target.step(state, **given)
        run.outputs.append(keep(leaves(output)))
        torch.cuda.synchronize()
    return run
