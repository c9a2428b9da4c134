"""A decode step captured by hand, without capturelint: what `verify`'s replay times are compared with.

usage: hand_captured.py TARGET.py BATCH...   prints one line of JSON a batch size
"""

import importlib.util
import json
import sys

import torch

WARM_UP, ROUNDS, STEPS = 3, 8, 13


def load(path):
    spec = importlib.util.spec_from_file_location("target", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(run):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def main():
    target = load(sys.argv[1])
    for batch in map(int, sys.argv[2:]):
        state = target.build("cuda")
        static = target.inputs(batch, 0, "cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                target.step(state, **static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.step(state, **static)
        times = []
        for _ in range(ROUNDS):
            for step in range(WARM_UP, WARM_UP + STEPS):
                for name, value in target.inputs(batch, step, "cuda").items():
                    static[name].copy_(value)
                torch.cuda.synchronize()
                times.append(timed(graph.replay))
        times.sort()
        print(
            json.dumps({"batch": batch, "replay_ms_p50": times[len(times) // 2], "replay_ms_p99": times[-2]}),
            flush=True,
        )
        del graph, state


main()
