"""Processor time of one decode step: plain, on the emulated device, captured, replayed.

Run with one thread, as `OMP_NUM_THREADS=1 python benchmarks/emulator_overhead.py [hidden size]`. Small sizes are the
worst case: the emulator's cost is per ATen call. A graph's first replay makes the tensors that the capture only noted.
`verified` is the mean of what a verification does with one bucket: three warm-up steps, a capture and eight replays.
"""

import gc
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from capturelint.emulator import cuda

HEADS, LENGTH, LAYERS, REPEATS = 4, 64, 8, 60


class Layer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)
        self.before, self.after = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.register_buffer("k", torch.zeros(2, HEADS, LENGTH, hidden // HEADS))
        self.register_buffer("v", torch.zeros(2, HEADS, LENGTH, hidden // HEADS))

    def forward(self, x, position, mask):
        q, k, v = self.qkv(self.before(x)).view(x.shape[0], 3, HEADS, 1, -1).unbind(1)
        self.k.index_copy_(2, position, k)
        self.v.index_copy_(2, position, v)
        x = x + self.out(F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.after(x))))


def best_ms(run, before=lambda: None):
    for _ in range(5):
        before()
        run()
    times = []
    for _ in range(REPEATS):
        before()
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times) * 1e3


def main():
    hidden = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    layers = nn.ModuleList(Layer(hidden) for _ in range(LAYERS)).eval()

    def step(x, position):
        mask = (torch.arange(LENGTH, device=x.device) <= position)[None, None, None]
        for layer in layers:
            x = layer(x, position, mask)
        return x

    inputs = torch.randn(2, hidden), torch.tensor([3])
    with torch.no_grad():
        plain = best_ms(lambda: step(*inputs))
        with cuda():
            layers.cuda()
            on_device = [value.cuda() for value in inputs]
            eager = best_ms(lambda: step(*on_device))
            graphs = []

            def capture_once():
                graphs[:] = [torch.cuda.CUDAGraph()]
                with torch.cuda.graph(graphs[0]):
                    step(*on_device)

            gc.disable()  # a collection in one of the captures is not the emulator's time
            capture = best_ms(capture_once, before=graphs.clear)
            gc.enable()
            first = best_ms(lambda: graphs[0].replay(), before=capture_once)
            replay = best_ms(graphs[0].replay)
            verified = (3 * eager + capture + first + 7 * replay) / 12
    shown = {"eager": eager, "capture": capture, "first replay": first, "replay": replay, "verified": verified}
    print(f"hidden {hidden}: plain {plain:.2f} ms", end="")
    for name, value in shown.items():
        print(f", {name} {value:.2f} ms ({value / plain:.1f}x)", end="")
    print()


if __name__ == "__main__":
    main()
