"""CUDA-graph semantics on a CPU: ``with capturelint.emulator.cuda(): ...``."""
