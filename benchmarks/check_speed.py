"""Time and memory of ``capturelint check`` on real sources, against other tools on the same files in the same run.

usage: python benchmarks/check_speed.py [PATH ...] [--repeat 3]

Without paths: the ``nn`` package of the installed torch. Whole processes are timed, start included, and the median of
the repetitions is shown. A tool that is not installed is left out and named. Prints a table for docs/measurements.md.
"""

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.static.files import find_sources, read_source

ONE_FILE = Path(__file__).parent.parent / "fixtures/targets/clean_decoder.py"
PARSE = "import ast,sys\nfor p in sys.argv[1:]:\n  ast.parse(open(p,'rb').read())"


def corpus(paths):
    """Files and number of lines."""
    files = list(find_sources(paths or [Path(importlib.util.find_spec("torch").origin).parent / "nn"]))
    lines = 0
    for path in files:
        try:
            lines += len(read_source(path).lines)
        except SourceError as error:
            print(f"left out: {error}", file=sys.stderr)
    return files, lines


def commands(files):
    """What is timed: name and command line."""
    names = [str(path) for path in files]
    check = [sys.executable, "-m", "capturelint", "check", "--no-cache", "--quiet", "--format", "concise"]
    yield "capturelint --version", [sys.executable, "-m", "capturelint", "--version"]
    yield "capturelint check, one file", [*check, str(ONE_FILE)]
    yield "capturelint check", [*check, *names]
    yield "capturelint check, half of the files", [*check, *names[::2]]
    yield "ast.parse alone", [sys.executable, "-c", PARSE, *names]
    for module, words in (("ruff", ["check", "--no-cache", "--quiet"]), ("flake8", ["-j1"]), ("torchfix", [])):
        if importlib.util.find_spec(module):
            yield module, [sys.executable, "-m", module, *words, *names]
        else:
            print(f"{module} is not installed, so it is not compared", file=sys.stderr)


def measure(command, repeat):
    """Median seconds of a whole process."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        times.append(time.perf_counter() - began)
        if run.returncode not in (0, 1):
            sys.exit(f"{' '.join(command[:6])} ...: exit {run.returncode}\n{run.stderr.decode()[-500:]}")
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    files, lines = corpus(options.paths)
    print(f"{len(files)} files, {lines} lines, Python {sys.version.split()[0]}\n")
    print("| command | seconds | of `capturelint check` |\n|---|---|---|")
    rows = [(name, measure(command, options.repeat)) for name, command in commands(files)]
    whole = dict(rows)["capturelint check"]
    for name, seconds in rows:
        print(f"| {name} | {seconds:.2f} | {seconds / whole:.2f} |")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"\nlargest process: {peak:.0f} MB; check reads {lines / whole:,.0f} lines/s")


if __name__ == "__main__":
    main()
