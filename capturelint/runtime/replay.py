"""A captured step run again and again: copy the inputs in, replay, copy the outputs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from capturelint.runtime.capture import Captured, copy_inputs
from capturelint.runtime.channel import Channel
from capturelint.runtime.eager import Run, make_inputs
from capturelint.runtime.outputs import Leaf, keep, leaves
from capturelint.runtime.protocol import Stage
from capturelint.runtime.target import Target

STEPS_AFTER_DIFFERENCE = 3
"""A replay that went wrong may soon write where it must not, and take the process with it."""


def run_replay(
    target: Target,
    captured: Captured,
    bucket: int,
    steps: range,
    channel: Channel,
    is_wrong: Callable[[int, Sequence[Leaf]], bool] = lambda step, outputs: False,
    before: Callable[[], None] = lambda: None,
    stage: Stage = Stage.REPLAY,
) -> Run:
    """Replay ``steps`` and keep what the graph wrote; stop a few steps after the first wrong one.

    ``before`` runs in front of every launch, when the inputs are in place.
    """
    run = Run(steps.start)
    last = steps.stop
    for step in steps:
        if step >= last:
            break
        channel.enter(stage, bucket, step)
        copy_inputs(captured.static, make_inputs(target, bucket, step), step)
        before()
        captured.graph.replay()
        run.outputs.append(keep(leaves(captured.output)))
        torch.cuda.synchronize()
        if last == steps.stop and is_wrong(step, run.outputs[-1]):
            last = min(last, step + STEPS_AFTER_DIFFERENCE)
    return run
