"""Finds what breaks under CUDA-graph capture in PyTorch decode steps, before a user does.

``capturelint check`` reads source code, ``capturelint verify`` captures and replays a decode step (on a GPU, or
emulated), ``capturelint logs`` reads saved logs. All three answer with the same ``Finding``.
"""

__version__ = "0.1.0"
