"""``capturelint doctor``: what this machine can do, and what is missing for the rest.

torch is asked in a process of its own: a broken installation then is a line of the answer, and the other lines stand.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version

import typer

from capturelint import __version__
from capturelint.catalog import BUILT_IN, load_rules
from capturelint.cli.terminal import width_of
from capturelint.escape import visible
from capturelint.report.wrapping import rows

TIMEOUT_S = 120
ASK_TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
gpus = [torch.cuda.get_device_properties(n) for n in range(count)]
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "gpus": [f"{g.name}, {g.total_memory / 2**30:.0f} GiB, compute capability {g.major}.{g.minor}" for g in gpus],
}))
"""
ASK_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


class DoctorFormat(Enum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Answer:
    """One thing that was looked for. ``found`` is what it is, ``missing`` what to do where it is absent."""

    name: str
    found: str | None
    missing: str = ""

    def __str__(self) -> str:
        return self.found if self.found is not None else f"missing; {self.missing}"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: capturelint doctor")(doctor)


def doctor(
    form: DoctorFormat = typer.Option(DoctorFormat.TEXT, "--format", help="How to write the answer."),
) -> None:
    """Say what this machine can do, and what is missing.

    Exit codes: 0, also where something is missing; 2 usage.
    """
    answers = examine()
    if form is DoctorFormat.JSON:
        typer.echo(json.dumps({"schema": 1, "answers": [asdict(answer) for answer in answers]}, indent=2))
        return
    typer.echo("\n".join(lines(answers, width_of(sys.stdout))))


def lines(answers: list[Answer], width: int | None = None) -> Iterator[str]:
    """One line an answer, then a count."""
    column = max(len(answer.name) for answer in answers)
    for answer in answers:
        yield from rows(f"{answer.name:<{column}}  {visible(str(answer))}", width, column + 2)
    absent = sum(answer.found is None for answer in answers)
    yield f"{absent} missing" if absent else "nothing missing"


def examine() -> list[Answer]:
    """Every answer, the abilities of capturelint last."""
    torch = ask_torch()
    gpus = torch.get("gpus")
    gpu = ", ".join(map(str, gpus)) if isinstance(gpus, list) and gpus else None
    cuda = torch.get("cuda")
    why = "this torch is built without CUDA" if "version" in torch and not cuda else "torch finds no CUDA device"
    return [
        Answer("python", f"{platform.python_version()} ({sys.executable})"),
        Answer("capturelint", f"{__version__}, {len(load_rules().keys() | BUILT_IN)} rules"),
        Answer("torch", torch_line(torch), str(torch.get("error", ""))),
        Answer("driver", driver(), "nvidia-smi is not on the path; it comes with the NVIDIA driver"),
        Answer("gpu", gpu, why if "version" in torch else "asked through torch"),
        Answer("triton", installed("triton"), "comes with the CUDA build of torch; needed to compile a step"),
        Answer("transformers", installed("transformers"), "pip install 'capturelint[transformers]', for hf: targets"),
        Answer("check, logs, plan", "ready"),
        Answer("verify, emulated", "ready" if "version" in torch else None, "needs torch"),
        Answer("verify, on a GPU", "ready" if gpu else None, "needs a GPU that torch can use"),
        extra("--html", "report", "jinja2", "matplotlib"),
        extra("lsp", "lsp", "pygls"),
    ]


def extra(ability: str, name: str, *packages: str) -> Answer:
    """Whether what an extra of ours installs is there."""
    there = all(installed(package) for package in packages)
    return Answer(ability, "ready" if there else None, f"pip install 'capturelint[{name}]'")


def ask_torch() -> Mapping[str, object]:
    """What torch says of itself and of the GPUs, or ``{"error": ...}``."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return {"error": f"no answer from `import torch` in {TIMEOUT_S} s"}
    if asked.returncode == 0:
        try:
            answer: Mapping[str, object] = json.loads(asked.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            return {"error": "no answer from `import torch`"}
        return answer
    last = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
    if "No module named 'torch'" in last:
        return {"error": "pip install 'capturelint[verify]'"}
    return {"error": f"`import torch` fails: {last}"}


def torch_line(torch: Mapping[str, object]) -> str | None:
    """``2.13.0+cpu, without CUDA``."""
    if "version" not in torch:
        return None
    return f"{torch['version']}, CUDA {torch['cuda']}" if torch.get("cuda") else f"{torch['version']}, without CUDA"


def driver() -> str | None:
    """The version of the NVIDIA driver."""
    try:
        asked = subprocess.run(ASK_DRIVER, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = asked.stdout.strip().splitlines()
    return said[0] if asked.returncode == 0 and said else None


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
