"""Time and memory of loading: `python benches/load.py [MODEL ...] [--synthetic]`.

Whole processes, from their start to their end after one token, with the file in the system's cache;
ours less the time of importing specrs. The processes take turns, so that all meet the same machine,
and the table shows medians. With `--llama-bench PROGRAM` (or SPECRS_LLAMA_BENCH) llama.cpp's
llama-bench does the same: one token without a warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from report import processor
from synthetic import synthetic_models

IMPORT = "import specrs"

FIRST_TOKEN = """
import sys, specrs
llm = specrs.Llama(sys.argv[1], threads=int(sys.argv[2]))
llm.generate([1], max_tokens=1)
"""

# Memory after the first token, and how long the tokens after it take beside later ones.
AFTERWARDS = """
import json, sys, time, specrs

def status(name):
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

def seconds(count):
    start = time.perf_counter()
    llm.generate([*session.tokens, 1], max_tokens=count, ignore_eos=True, session=session)
    return time.perf_counter() - start

before = status("VmRSS")
llm = specrs.Llama(sys.argv[1], threads=int(sys.argv[2]))
session = llm.session()
llm.generate([1], max_tokens=1, session=session)
peak, resident = status("VmHWM") - before, status("VmRSS") - before
kv = 64 * llm.cache_bytes_per_token
next_tokens = seconds(32)
later = sorted(seconds(32) for _ in range(5))[2]
print(json.dumps({"peak": peak, "resident": resident, "kv": kv, "next": next_tokens / later}))
"""


def seconds(command: list[str]) -> float:
    """Time a process from start to end."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def row(model: Path, threads: int, rounds: int, llama_bench: str | None) -> list[str]:
    """Measure one model; the cells of its row."""
    own = [sys.executable, "-c"]
    arguments = [str(model), str(threads)]
    commands: dict[str, list[str]] = {
        "import": [*own, IMPORT],
        "specrs": [*own, FIRST_TOKEN, *arguments],
    }
    if llama_bench:
        options = f"-p 1 -n 0 -r 1 --no-warmup -t {threads} -m".split()
        commands["llama.cpp"] = [llama_bench, *options, str(model)]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():  # the file and the programs into the system's cache
        seconds(command)
    for number in range(rounds):
        order: Callable[[list[str]], list[str]] = list if number % 2 == 0 else lambda a: a[::-1]
        for name in order(list(commands)):
            times[name].append(seconds(commands[name]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians["specrs"] - medians["import"]
    theirs = medians.get("llama.cpp")
    finished = subprocess.run(
        [*own, AFTERWARDS, *arguments], check=True, capture_output=True, text=True
    )
    after = json.loads(finished.stdout)
    size = model.stat().st_size + after["kv"]
    return [
        model.stem,
        f"{ours:.2f}",
        "—" if theirs is None else f"{theirs:.2f}",
        "—" if theirs is None else f"{ours / theirs:.2f}",
        f"{after['peak'] / size:.3f}",
        f"{after['resident'] / size:.3f}",
        f"{after['next']:.2f}",
    ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or GGUF files")
    parser.add_argument("--synthetic", action="store_true", help="1.1 billion weights, three types")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama-bench", default=os.environ.get("SPECRS_LLAMA_BENCH"))
    options = parser.parse_args()
    import specrs

    names = options.models or ([] if options.synthetic else ["smollm2-135m"])
    models = [specrs.pull(name) for name in names]
    models += synthetic_models() if options.synthetic else []
    print(f"{processor()}, {options.threads} threads, median of {options.rounds}\n")
    heads = ["", "specrs s", "llama.cpp s", "ratio"]
    heads += ["peak / (file + KV)", "resident / (file + KV)", "next 32 tokens / later 32"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for model in models:
        cells = row(model, options.threads, options.rounds, options.llama_bench)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
