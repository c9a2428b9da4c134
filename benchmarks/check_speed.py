"""Time and memory of ``capturelint check``: cold, warm, after a change, by lines, by processes; other tools beside it.

usage: check_speed.py [PATH ...] [--transformers DIR] [--tools DIR ...] [--repeat 3] [--lines 10000,30000]
                      [--copies 1,2,4] [--part tools jobs start]

The files are copied to a temporary directory first, so that one of them can be changed. Without paths: the ``nn``
package of the installed torch. ``--transformers`` is a directory of transformers' sources: ten models, ``generation``,
``integrations`` and ``cache_utils.py`` of it are checked. ``--tools`` are directories with the commands ``torchfix``,
``flake8`` and ``ruff``, searched before the interpreter's own and the PATH; keep TorchFix and flake8 in two virtual
environments, for flake8 runs TorchFix wherever it is installed. ``--lines`` adds the growth over files drawn at
random, up to so many lines; a number larger than all of them ends with all of them. Among few files of a tree few find
what they import, so ``--copies`` adds the growth over so many copies of the whole tree. ``--part`` chooses the
comparison (``tools``), the growth by processes (``jobs``) and one unchanged file, twenty times (``start``).

Whole processes are timed, start included, and the fastest of the repetitions is shown: on a machine that others use,
only ratios within one run mean something. ``CPU`` is the processor time of all processes. Memory is what all processes
hold together (PSS, sampled). Prints tables for docs/measurements.md.
"""

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.static.files import find_sources, read_source

MODELS = ("llama", "mixtral", "qwen3", "gemma3", "mistral", "gpt2", "opt", "t5", "whisper", "mamba")
PARTS = (*(f"models/{name}" for name in MODELS), "generation", "integrations", "cache_utils.py")
CHECK = [sys.executable, "-m", "capturelint", "check", "--quiet", "--format", "concise"]
ONE_FILE = Path(__file__).parent.parent / "fixtures/targets/clean_decoder.py"
PARSE = "import ast,sys\nfor p in sys.argv[1:]:\n  ast.parse(open(p,'rb').read())"


@dataclass(frozen=True)
class Run:
    """Wall-clock and processor seconds of a whole command, and the memory of its processes in MB."""

    wall_s: float
    cpu_s: float
    mb: float


def main():
    options = arguments()
    sources = [options.transformers / part for part in PARTS] if options.transformers else options.paths
    sources = sources or [Path(importlib.util.find_spec("torch").origin).parent / "nn"]
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "sources"
        base = Path(
            os.path.commonpath([path if path.is_dir() else path.parent for path in map(Path.absolute, sources)])
        )
        files = [copy_of(path, base, copy) for path in find_sources(sources)]
        print(f"{len(files)} files, {sum(map(count, files))} lines, Python {sys.version.split()[0]}, ", end="")
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        if "tools" in options.part:
            compare(files, Path(directory) / "cache", options)
        if "start" in options.part:
            one_file(files[0], Path(directory) / "cache")
        if "jobs" in options.part:
            by_jobs(files, Path(directory) / "cache", options)
        if options.lines:
            by_lines(files, Path(directory) / "cache", options)
        if options.copies:
            by_copies(files, copy, Path(directory) / "cache", options)


def compare(files, cache, options):
    """The same files by every tool, as ratios of the cold run."""
    names = [str(path) for path in files]
    rows = {"capturelint check, cold": measure([*CHECK, *names], cache, options.repeat, clean=True)}
    rows["capturelint check, warm"] = measure([*CHECK, *names], cache, options.repeat)
    rows["capturelint check, one file changed"] = measure([*CHECK, *names], cache, options.repeat, change=files[-1])
    rows["capturelint check, one file, warm"] = measure([*CHECK, str(ONE_FILE)], cache, options.repeat + 1)
    rows["capturelint --version"] = measure([sys.executable, "-m", "capturelint", "--version"], cache, options.repeat)
    rows["ast.parse alone"] = measure([sys.executable, "-c", PARSE, *names], cache, options.repeat)
    for tool, words in (
        ("torchfix", []),
        ("flake8", ["--isolated"]),
        ("ruff", ["check", "--isolated", "--no-cache", "-q"]),
    ):
        found = shutil.which(
            tool, path=os.pathsep.join([*map(str, options.tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        )
        if found is None:
            print(f"{tool} is not installed, so it is not compared", file=sys.stderr)
            continue
        rows[tool] = measure([found, *words, *names], cache, options.repeat)
    cold, warm = rows["capturelint check, cold"].wall_s, rows["capturelint check, warm"].wall_s
    print("| command | seconds | CPU seconds | MB | times cold | times warm |\n|---|---|---|---|---|---|")
    for name, run in rows.items():
        ratios = f"{run.wall_s / cold:.2f} | {run.wall_s / warm:.1f}"
        print(f"| {name} | {run.wall_s:.2f} | {run.cpu_s:.2f} | {run.mb:.0f} | {ratios} |")


def one_file(path, cache):
    """A whole process over one file that did not change: the median of twenty, and the fastest."""
    runs = [run([*CHECK, str(path)], cache) for _ in range(21)][1:]
    wall, cpu = sorted(each.wall_s for each in runs), sorted(each.cpu_s for each in runs)
    print("\n| one file, warm, 20 times | seconds | CPU seconds |\n|---|---|---|")
    print(f"| median | {statistics.median(wall):.3f} | {statistics.median(cpu):.3f} |")
    print(f"| fastest | {wall[0]:.3f} | {cpu[0]:.3f} |")


def by_jobs(files, cache, options):
    """Cold, with more and more processes, as ratios of one process in the same run."""
    print("\n| processes | seconds | times one | CPU seconds | times one | MB |\n|---|---|---|---|---|---|")
    alone = None
    for jobs in sorted({1, 2, 4, os.cpu_count() or 1}):
        run = measure([*CHECK, "--jobs", str(jobs), *map(str, files)], cache, options.repeat, clean=True)
        alone = alone or run
        wall, cpu = f"{run.wall_s / alone.wall_s:.2f}", f"{run.cpu_s / alone.cpu_s:.2f}"
        print(f"| {jobs} | {run.wall_s:.2f} | {wall} | {run.cpu_s:.2f} | {cpu} | {run.mb:.0f} |")


def by_lines(files, cache, options):
    """Cold and warm, over more and more of the files, drawn at random once and for all."""
    drawn = random.Random(0).sample(files, len(files))

    def chosen():
        for limit in options.lines:
            taken, lines = [], 0
            for path in drawn:
                if lines >= limit:
                    break
                taken.append(path)
                lines += count(path)
            yield taken
            if lines < limit:
                return

    growth(chosen(), cache, options.repeat)


def by_copies(files, tree, cache, options):
    """Cold and warm, over more and more copies of the tree, each a project of its own."""

    def chosen():
        for number in options.copies:
            roots = [tree.parent / f"copy{at}" for at in range(number)]
            yield [copy_of(path, tree, root / "sources") for root in roots for path in files]

    growth(chosen(), cache, options.repeat)


def growth(sets, cache, repeat):
    """Cold and warm, over larger and larger sets of files, as ratios of the first."""
    print("\n| lines | files | cold, s | CPU, s | MB | CPU ms a line | times the first | warm, s |")
    print("|---|---|---|---|---|---|---|---|")
    first = None
    for files in sets:
        names, lines = list(map(str, files)), sum(map(count, files))
        cold = measure([*CHECK, *names], cache, 1, clean=True)
        warm = measure([*CHECK, *names], cache, repeat)
        a_line = 1000 * cold.cpu_s / lines
        first = first or a_line
        times = f"{a_line:.3f}", f"{a_line / first:.2f}"
        row = (f"{cold.wall_s:.2f}", f"{cold.cpu_s:.2f}", f"{cold.mb:.0f}", *times)
        print(f"| {lines} | {len(files)} | {' | '.join(row)} | {warm.wall_s:.2f} |")


def measure(command, cache, repeat, clean=False, change=None):
    """The fastest of some runs; with an empty cache each time, or after adding a comment to a file."""
    runs = []
    for number in range(repeat):
        if clean:
            shutil.rmtree(cache, ignore_errors=True)
        if change is not None:
            with change.open("a", encoding="utf-8") as file:
                file.write(f"# change {number}\n")
        runs.append(run(command, cache))
    return min(runs, key=lambda each: each.wall_s)


def run(command, cache):
    """Run a command to its end."""
    before, began = os.times(), time.perf_counter()
    environment = os.environ | {"CAPTURELINT_CACHE_DIR": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    mb = 0.0
    while process.poll() is None:
        mb = max(mb, memory(process.pid))
        time.sleep(0.02 if time.perf_counter() - began < 2 else 0.5)
    wall, after = time.perf_counter() - began, os.times()
    if process.returncode not in (0, 1):
        print(f"{' '.join(command[:6])} ...: exit {process.returncode}", file=sys.stderr)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall, cpu, mb)


def memory(pid):
    """What a process and its children hold, in MB; pages that they share count once."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    own = sum(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024
    return own + sum(map(memory, children))


def copy_of(path, base, directory):
    """A file copied to the same place under another directory."""
    target = directory / path.absolute().relative_to(base)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    return target


def count(path):
    """The lines of a file; none where it cannot be read."""
    try:
        return len(read_source(path).lines)
    except SourceError:
        return 0


def numbers(text):
    """``1,2,4``"""
    return [int(number) for number in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--transformers", type=Path)
    parser.add_argument("--tools", action="append", type=Path, default=[])
    parser.add_argument("--part", nargs="*", default=["tools", "jobs", "start"], choices=["tools", "jobs", "start"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--lines", type=numbers, default=[])
    parser.add_argument("--copies", type=numbers, default=[])
    return parser.parse_args()


if __name__ == "__main__":
    main()
