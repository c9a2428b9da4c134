"""Time and peak memory of ``capturelint logs`` on a large serving log that is made on the spot.

usage: python benchmarks/read_logs.py [--mib 1024] [--kind serving|sglang|dense]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SERVING = (
    b"(APIServer pid=77) INFO 02-13 11:%02d:%02d [loggers.py:127] Engine 000: Avg prompt throughput: 123.4 tokens/s, "
    b"Avg generation throughput: 2345.6 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.3%%, "
    b"Prefix cache hit rate: 0.0%%\n"
)
SGLANG = (
    b"[2026-04-05 20:%02d:%02d DP0 TP0] Decode batch. #running-req: 30, #token: 21179, token usage: 0.30, "
    b"cuda graph: True, gen throughput (token/s): 2635.11, #queue-req: 0\n"
)
DENSE = (
    b"[rank1]:W0612 09:%02d:%02d.118000 4101 torch/_inductor/cudagraph_utils.py:201] [0/0] [__cudagraphs] "
    b"skipping cudagraphs due to mutated inputs (1 instances)\n"
)
SKIP = (
    b"skipping cudagraphs due to mutated inputs (1 instances). Found from : \n"
    b'   File "/srv/app/kv.py", line 7, in put\n    self.buf[pos] = x\n\n'
)
LINES = {"serving": SERVING, "sglang": SGLANG, "dense": DENSE}


def make_log(path: Path, kind: str, mib: int) -> None:
    minute = b"".join(LINES[kind] % (second // 60 % 60, second % 60) for second in range(3600)) + SKIP
    with path.open("wb") as log:
        while log.tell() < mib * 2**20:
            log.write(minute)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--kind", choices=sorted(LINES), default="serving")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "serving.log"
        make_log(path, given.kind, given.mib)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "capturelint", "logs", str(path), "--format", "concise"]
        result = subprocess.run(command, capture_output=True, check=False)
        seconds = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, cpu = used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
    print(result.stdout.decode().splitlines()[-1])
    speed = f"{given.mib / seconds:.0f} MiB/s, {cpu:.1f} s of CPU"
    print(f"{given.kind}: {given.mib} MiB in {seconds:.1f} s, {speed}, peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
