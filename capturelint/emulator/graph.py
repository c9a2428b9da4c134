"""``torch.cuda.CUDAGraph`` of the emulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capturelint.emulator.generators import address_of
from capturelint.emulator.recording import Recording
from capturelint.emulator.refusal import CaptureRefused

if TYPE_CHECKING:
    from capturelint.emulator.generators import DeviceGenerator
    from capturelint.emulator.machine import Machine


class EmulatedGraph:
    """One graph: nothing, then a recording, then replays of it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recording: Recording | None = None
        self.registered: set[int] = set()
        self.handle: tuple[int, int] | None = None
        self.checks_liveness = False

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Record what follows on the current stream. Raises RuntimeError on the default stream, as torch does."""
        machine = self.machine
        machine.must_be_fit("CUDAGraph.capture_begin")
        if self.recording is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph. Call reset() first.")
        stream = machine.streams.current
        if stream is machine.streams.default:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
                "them on the default stream.)"
            )
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        if machine.recording is not None:
            raise RuntimeError("CUDA error: another stream is capturing")
        self.handle = (pool[0], pool[1]) if pool is not None else (0, next(machine.handles))
        machine.recording = Recording(machine, machine.pool(self.handle), stream, self.registered, capture_error_mode)
        self.checks_liveness = check_input_liveness

    def capture_end(self) -> None:
        """Stop recording. Raises ``CaptureRefused`` if anything was refused or a stream was not joined."""
        recording = self.machine.recording
        if recording is None:
            raise RuntimeError("CUDA error: capture_end without a capture")
        try:
            if recording.refused is not None:
                raise recording.previous("CUDAGraph.capture_end")
            recording.must_be_joined()
        except CaptureRefused:
            recording.undo()
            recording.release()
            raise
        finally:
            self.machine.recording = None
        recording.undo()
        self.recording = recording

    def instantiate(self) -> None:
        """Prepare for launching: nothing to do."""

    def replay(self) -> None:
        """Run the recorded calls. Raises RuntimeError without a capture."""
        if self.recording is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if self.machine.is_capturing:
            raise RuntimeError("the emulated device cannot capture the replay of a graph")
        if self.checks_liveness and (dead := self.recording.dead_inputs()):
            raise RuntimeError(f"CUDA graph replay detected {len(dead)} dead tensor(s).")
        ledger = self.machine.ledger
        ledger.refresh(ledger.entries.values())
        self.recording.replay()

    def reset(self) -> None:
        """Drop the recording."""
        if self.recording is not None:
            self.recording.release()
            self.recording = None

    def pool(self) -> tuple[int, int]:
        """The handle of the memory pool."""
        if self.handle is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self.handle

    def register_generator_state(self, generator: DeviceGenerator) -> None:
        """Let the capture draw from ``generator``."""
        self.registered.add(address_of(generator))

    def enable_debug_mode(self) -> None:
        """Debugging dumps: there are none."""

    def debug_dump(self, debug_path: str) -> None:
        """Debugging dumps: there are none."""

    def raw_cuda_graph(self) -> int:
        """The handle of the graph: there is none."""
        raise NotImplementedError("graphs of the emulated device have no cudaGraph_t")

    raw_cuda_graph_exec = raw_cuda_graph

    def __del__(self) -> None:
        self.reset()
