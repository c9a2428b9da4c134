"""CUDA-graph semantics on any CPU: ``with capturelint.emulator.cuda(): ...``.

The invariant: *what a graph points at is a storage, and what it remembers is a value.* A captured call keeps the
storages of its tensors and the values of its numbers. Replay runs the same calls on the same storages with the same
numbers, so it sees what was written into the memory since, and nothing that happened in Python.

1. A tensor of the emulated device is an ordinary CPU tensor whose storage carries a mark (``memory``). A mode below
   autograd (``mode``) sees every ATen call, so it knows where each result lives and which operands are on two sides.
2. While a stream captures, each call is first held against what an H200 refused (``refusal``, ``rules/aten.yaml``).
   What it refuses raises at that line, and everything after it fails as on CUDA.
3. Capturing runs the calls, because shapes depend on them, and then undoes them (``recording``, ``undo``). What they
   allocate is lent blocks of a private pool, cut and reused as CUDA's are (``pool``). Nothing is right until a replay.
4. A graph holds addresses. Memory from before the capture that the program frees reads as garbage, and the next
   allocation of its size is given that very memory, which the graph still reads and writes (``ledger``).

Not emulated: time, memory sizes, several devices, Triton kernels outside Triton's interpreter (each is named),
``torch.compile`` (it runs eagerly).
"""

from capturelint.emulator.context import cuda
from capturelint.emulator.kernels import EmulationError
from capturelint.emulator.refusal import CaptureRefused

__all__ = ["cuda", "CaptureRefused", "EmulationError"]
