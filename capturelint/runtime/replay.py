"""A captured step run again and again: copy the inputs in, replay, copy the outputs out."""

from __future__ import annotations

import torch

from capturelint.runtime.capture import Captured, copy_inputs
from capturelint.runtime.channel import Channel
from capturelint.runtime.eager import Run, make_inputs
from capturelint.runtime.outputs import keep, leaves
from capturelint.runtime.protocol import Stage
from capturelint.runtime.target import Target


def run_replay(target: Target, captured: Captured, bucket: int, steps: range, channel: Channel) -> Run:
    """Replay ``steps`` and keep what the graph wrote."""
    run = Run(steps.start)
    for step in steps:
        channel.enter(Stage.REPLAY, bucket, step)
        copy_inputs(captured.static, make_inputs(target, bucket, step), step)
        captured.graph.replay()
        run.outputs.append(keep(leaves(captured.output)))
        torch.cuda.synchronize()
    return run
