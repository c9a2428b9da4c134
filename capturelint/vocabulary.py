"""The closed words that rules, events and findings are made of.

Every word that YAML may use is a member here, so a typo in a rule is an error at load time and never a rule that
stays silent. Ordered words are ``IntEnum``s: joining two of them is ``max`` (``Varies``) or ``min`` (``Confidence``).
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Phase(Enum):
    """When code runs, relative to capture."""

    SET_UP = "set-up"
    WARM_UP = "warm-up"
    RECORDED = "recorded"
    REPLAY = "replay"


class Varies(IntEnum):
    """How often a host number changes; joined by ``max``."""

    NEVER = 0
    PER_BUCKET = 1
    PER_STEP = 2


class Effect(Enum):
    """What a torch operation does to a capture."""

    SAFE = "safe"
    READ = "read"
    """Waits for the device and brings values to the host."""
    DYNAMIC_SHAPE = "dynamic-shape"
    """The output's shape depends on values, so the host reads a count."""
    UPLOAD = "upload"
    """Copies pageable host memory to the device."""
    SYNCHRONIZE = "synchronize"
    """Waits for a stream, an event or the device without a value."""
    QUERY = "query"
    """Asks a stream or an event whether it is done."""
    CHECKED = "checked"
    """Reads an error code back (``linalg.inv``), unlike its ``_ex`` twin."""
    UNSAFE = "unsafe"
    """Refuses capture for a reason of its own (host pointer arrays, own kernels)."""
    DIFFERS = "differs"
    """Captures without an error and replays other values than eager."""


class EventKind(Enum):
    """What the interpreter reports; a rule selects one kind."""

    SYNC = "sync"
    BRANCH = "branch"
    GROWTH = "growth"
    REBIND = "rebind"
    BAKED_SCALAR = "baked_scalar"
    DYNAMIC_SHAPE = "dynamic_shape"
    UPLOAD = "upload"
    HOST_EFFECT = "host_effect"
    RANDOM = "random"
    STALE_OUTPUT = "stale_output"
    INPUT_REBIND = "input_rebind"
    STREAM = "stream"
    LAZY_INIT = "lazy_init"
    COLD_CAPTURE = "cold_capture"
    WARM_UP_STATE = "warm_up_state"
    UNSAFE_OP = "unsafe_op"
    PAD_WRITE = "pad_write"
    BUCKET_GAP = "bucket_gap"
    STAGING = "staging"
    CAPTURE_QUERY = "capture_query"
    AUTOCAST = "autocast"
    MUTATED_INPUT = "mutated_input"
    STRIDE = "stride"


class Outcome(Enum):
    """What the user sees when the hazard strikes."""

    CAPTURE_ERROR = "capture-error"
    SILENT_WRONG = "silent-wrong"
    SKIP = "skip"
    RECAPTURE = "recapture"
    SLOW = "slow"
    NONE = "none"
    """Nothing at capture: the finding is about a comment for capturelint itself."""


class Confidence(IntEnum):
    """How sure a finding is; joined by ``min``."""

    POSSIBLE = 0
    LIKELY = 1
    CERTAIN = 2
    PROVEN = 3
    """Seen at run time by ``verify``."""

    @property
    def word(self) -> str:
        """The word used in JSON and on the command line."""
        return self.name.lower()


class Verdict(Enum):
    """What ``verify`` says of one bucket."""

    OK = "ok"
    CAPTURE_ERROR = "capture-error"
    REPLAY_DIFFERS = "replay-differs"
    OUT_OF_MEMORY = "out-of-memory"
    TIMEOUT = "timeout"
    CRASH = "crash"


class ObservationKind(Enum):
    """What the runtime half saw; a rule's ``runtime`` signature names the kinds that confirm it."""

    HOST_READ = "host-read"
    """A value was read back while capturing (``.item()``, ``bool``, ``.cpu()``)."""
    PAGEABLE_COPY = "pageable-copy"
    """Pageable host memory was copied to the device while capturing."""
    DYNAMIC_OUTPUT = "dynamic-output"
    """An output's shape depended on values."""
    SYNCHRONISED = "synchronised"
    """A stream, an event or the device was waited for or queried."""
    CHECKED_ERROR = "checked-error"
    """An operation read its own error code back."""
    UNJOINED_STREAM = "unjoined-stream"
    FOREIGN_GENERATOR = "foreign-generator"
    REFUSED = "refused"
    """Capture was refused in another way."""
    RAISED = "raised"
    """The target's own capture code raised, hung or died outside any capture."""
    SCALAR_CHANGED = "scalar-changed"
    """The same call took another host number at a later eager step."""
    TENSOR_CHANGED = "tensor-changed"
    """The same call took the tensor of another home at a later eager step."""
    SHAPE_CHANGED = "shape-changed"
    CALL_CHANGED = "call-changed"
    BRANCH_CHANGED = "branch-changed"
    """A later eager step made other calls, by a test of a host number that every step moves."""
    ADDRESS_CHANGED = "address-changed"
    """A home was at another address at a later eager step."""
    HOST_BYTES_CHANGED = "host-bytes-changed"
    """A pinned source held other bytes at a later eager step, or was freed."""
    INPUT_MOVED = "input-moved"
    """An input was given in other memory than at capture, and the graph went on reading the old."""
    MEMORY_FREED = "memory-freed"
    """Memory that a graph reads was given back to the allocator before a replay."""
    MEMORY_UNDEFINED = "memory-undefined"
    """A replay depends on what its memory held before."""
    OUTPUT_OVERWRITTEN = "output-overwritten"
    PADDING_LEAKED = "padding-leaked"
    STATE_ADVANCED = "state-advanced"
    """The state was moved by steps that are not the ones compared: warm-up, or another bucket's."""
    RANDOM_FROZEN = "random-frozen"
    CAPTURE_DEPENDENT = "capture-dependent"
    """The step did other work while it was captured than it does eagerly."""
    VALUES_DIFFER = "values-differ"
    """Replay differs from eager and nothing above explains it."""


class Severity(Enum):
    """What a log message says about a capture; ``--fail-on`` chooses among them."""

    SKIP = "skip"
    """No graph was used for a compiled function; it ran eagerly."""
    DISABLED = "disabled"
    """The engine uses no CUDA graphs at all, or none for decode."""
    OOM = "oom"
    """Memory ran out while capturing."""
    ERROR = "error"
    """An exception that stops the run."""
    PARTITION = "partition"
    """A part of the compiled step runs outside graphs."""
    DOWNGRADE = "downgrade"
    """Graphs are used for less than was asked for."""
    FALLBACK = "fallback"
    """Some batches or calls run eagerly."""
    RERECORD = "rerecord"
    GRAPH_BREAK = "graph-break"
    RECOMPILE = "recompile"
    INFO = "info"
    """Progress; never a finding."""


class Locate(Enum):
    """Where a log message tells the line of user code."""

    INLINE = "inline"
    """In the message: groups ``file`` and ``line`` of its pattern."""
    AFTER = "after"
    """In the last frame of the stack that follows the message, or ends it."""
    BEFORE = "before"
    """In the innermost user frame of the traceback above the message."""
    FUNCTION_LINE = "function-line"
    """On the next line: ``function: 'f' (file:line)``."""


class ReasonFrom(Enum):
    """Which following lines tell a log message's reason, where the message itself does not."""

    GRAPH_BREAK = "graph-break"
    RECOMPILE = "recompile"
