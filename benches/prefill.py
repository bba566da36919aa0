"""Long prompts: `python benches/prefill.py [--model M] [--lengths 512,2048] [--pattern P ...]`.

Measures exact attention and patterns against each other: the time of the last piece of a prompt by
its context, of whole prompts, the memory they need, fidelity on a long text by position, and
passkey and key-value questions by depth. Every part can be left out. llama.cpp is measured where
llama-cpp-python is found, and this project's decoder on candle at short lengths.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specrs
from engines import peak_bytes, resident_bytes
from peers import EngineDied, interpreter_of, start
from retrieval import QUESTIONS, grid
from specrs.attention import Attention, SinkWindow, compare, parse
from synthetic import synthetic_models

PATTERNS = (
    "dense",
    "auto",
    "DenseBelow(2048, SinkWindow(window=2048))",
    "DenseBelow(2048, SinkWindowLog(window=1024))",
    "DenseBelow(2048, BlockMean())",
    "DenseBelow(2048, Antidiagonal())",
)
PIECE = 512  # tokens whose time stands for the cost at a context
STEADY = 2048  # tokens; shorter prompts are timed more often
CANDLE_MOST = 1024  # longer prompts take candle minutes
RESULTS = Path(__file__).parent / "results"

Clock = Callable[[], float]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--model", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--synthetic", action="store_true", help="1.1B random weights instead")
    parser.add_argument("--lengths", help="default: 512 to 8000, or 32768 for --synthetic")
    parser.add_argument("--pattern", action="append", help="instead of the default ones")
    parser.add_argument("--repeats", type=int, default=3, help="more often for short prompts")
    parser.add_argument(
        "--whole", type=int, default=8192, help="longest prompt that is timed as a whole"
    )
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is not idle")
    parser.add_argument("--text", type=Path, help="to compare patterns on; default: Python's docs")
    for part in ("speed", "fidelity", "retrieval", "peers"):
        parser.add_argument(f"--no-{part}", action="store_true")
    chosen = parser.parse_args()
    path = synthetic_models()[0] if chosen.synthetic else Path(specrs.pull(chosen.model))
    standard = "512,4096,8192,16384,24576,32768" if chosen.synthetic else "512,1024,2048,4096,8000"
    lengths = [int(length) for length in (chosen.lengths or standard).split(",")]
    patterns = [parse(text) for text in chosen.pattern or PATTERNS]
    if "dense" not in patterns:
        patterns.insert(0, "dense")
    llm = specrs.Llama(path, n_ctx=max(lengths) + PIECE if chosen.synthetic else None)
    lengths = [length for length in lengths if length < llm.n_ctx]
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    print(f"{path.name}, {llm.kernels}, {llm.threads} threads")
    found: dict[str, Any] = {"model": path.name, "kernels": llm.kernels, "threads": llm.threads}
    if not chosen.no_speed:
        found["pieces"] = pieces(llm, patterns, lengths, chosen.repeats, clock)
        whole = [length for length in lengths if length <= chosen.whole]
        found["prompts"] = prompts(llm, patterns, whole, chosen.repeats, clock)
        if not (chosen.no_peers or chosen.synthetic):
            found["prompts"] += candle(path, [n for n in whole if n <= CANDLE_MOST])
            found["prompts"] += llama_cpp(path, whole, llm.threads, chosen.repeats)
        table(found["prompts"])
    if not (chosen.no_fidelity or chosen.synthetic):
        text = chosen.text.read_text(encoding="utf-8") if chosen.text else python_docs()
        ids = llm.tokenize(text)[: min(max(lengths), llm.n_ctx - 33)]
        found["fidelity"] = [fidelity(llm, ids, pattern) for pattern in patterns[1:]]
    if not (chosen.no_retrieval or chosen.synthetic):
        asked = [length for length in lengths if 1024 <= length < llm.n_ctx - 100]
        found["retrieval"] = [grid(llm, name, patterns, asked) for name in QUESTIONS]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "prefill.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if not chosen.no_speed and not plot(found["pieces"], RESULTS / "prefill.png"):
        print("no plot: matplotlib is not installed (pip install matplotlib)")


def python_docs() -> str:
    """Return long technical English that every Python has: the topics of `help()`."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))[150_000:]


def tokens(llm: specrs.Llama, count: int) -> list[int]:
    """Return ids of real text, for timing: what patterns keep depends on it."""
    return llm.tokenize(python_docs()[: 16 * count])[:count]


def pieces(
    llm: specrs.Llama,
    patterns: Sequence[Attention],
    lengths: Sequence[int],
    repeats: int,
    clock: Clock,
) -> list[dict[str, Any]]:
    """Time the last PIECE tokens of prompts, patterns in turns, and fit the slope over contexts.

    What is before them is prefilled with a narrow window, which costs little at any length. The
    time of the longest prompt is summed up from the pieces, with straight lines between them.
    """
    ids, session = tokens(llm, max(lengths)), llm.session()
    rows: list[dict[str, Any]] = [{"attention": str(pattern), "ms": {}} for pattern in patterns]
    for length in sorted(length for length in lengths if length >= PIECE):
        before = ids[len(session) : length - PIECE]
        if before:
            session.prefill(before, attention=SinkWindow(window=1024))
        seconds: list[list[float]] = [[] for _ in patterns]
        for _ in range(repeats):
            for taken, pattern in zip(seconds, patterns, strict=True):
                fork = session.fork()
                began = clock()
                fork.prefill(ids[len(fork) : length], attention=pattern)
                taken.append(clock() - began)
        for row, taken in zip(rows, seconds, strict=True):
            row["ms"][length] = 1e3 * min(taken) / PIECE
        print(f"  {length} positions are measured", flush=True)
    print(f"\n{'ms a token, the last 512 of':<72}" + "".join(f"{n:>9}" for n in rows[0]["ms"]))
    for row in rows:
        contexts, ms = list(row["ms"]), list(row["ms"].values())
        positions = np.arange(contexts[-1])
        row["summed"] = float(np.interp(positions, contexts, ms).sum() / 1e3)
        ratio = rows[0]["summed"] / row["summed"]
        sums = f"  {row['summed']:.1f} s for all of the longest ({ratio:.2f}x)"
        if len(ms) > 1:
            row["slope"] = float(np.polyfit(contexts, ms, 1)[0])
            sums += f", {1e6 * row['slope']:.0f} ns a token of context"
        print(f"{row['attention']:<72}" + "".join(f"{value:>9.3f}" for value in ms) + sums)
    return rows


def prompts(
    llm: specrs.Llama,
    patterns: Sequence[Attention],
    lengths: Sequence[int],
    repeats: int,
    clock: Clock,
) -> list[dict[str, Any]]:
    """Time whole prompts, patterns in turns, and the memory beyond weights and cache.

    Memory that the allocator keeps from an earlier prompt counts too: it is never underestimated.
    """
    rows: list[dict[str, Any]] = [{"name": str(p), "seconds": {}, "scratch": 0} for p in patterns]
    before = resident_bytes()
    for length in lengths:
        ids = tokens(llm, length)
        seconds: list[list[float]] = [[] for _ in patterns]
        for _ in range(rounds(repeats, length)):
            for row, taken, pattern in zip(rows, seconds, patterns, strict=True):
                session = llm.session()
                Path("/proc/self/clear_refs").write_text("5")  # forget the peak
                began = clock()
                session.prefill(ids, attention=pattern)
                taken.append(clock() - began)
                scratch = peak_bytes() - before - length * llm.cache_bytes_per_token
                row["scratch"] = max(scratch, row["scratch"])
                del session
        for row, taken in zip(rows, seconds, strict=True):
            row["seconds"][length] = min(taken)
    return rows


def rounds(repeats: int, length: int) -> int:
    """Return how often to time a prompt: as often as takes STEADY tokens for each repeat."""
    return max(repeats, repeats * STEADY // length)


def candle(path: Path, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Time the same decoder on candle tensors."""
    llm = specrs.Llama(path, device="candle-cpu")
    seconds = {}
    for length in lengths:
        session, began = llm.session(), time.perf_counter()
        session.prefill(tokens(llm, length))
        seconds[length] = time.perf_counter() - began
    return [{"name": "candle", "seconds": seconds}]


def llama_cpp(
    path: Path, lengths: Sequence[int], threads: int, repeats: int
) -> list[dict[str, Any]]:
    """Time llama.cpp in a process of its own; nothing, and the reason, where that cannot be."""
    python = interpreter_of("llama-cpp")
    if python is None:
        print("\nllama.cpp: no interpreter of SPECRS_PEER_PYTHON has llama-cpp-python")
        return []
    try:
        with start("llama-cpp", python, path, threads, max(lengths) + 64) as peer:
            asked = {
                n: [peer.ask("prompt", length=n) for _ in range(rounds(repeats, n))]
                for n in lengths
            }
            seconds = {length: min(taken) for length, taken in asked.items()}
            return [{"name": peer.description, "seconds": seconds}]
    except EngineDied as error:
        print(f"\nllama.cpp: {error}")
        return []


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print speeds, how much faster than exact attention, slopes, and the memory."""
    lengths = list(rows[0]["seconds"])
    print(f"\n{'tokens/s (times exact)':<72}" + "".join(f"{n:>15}" for n in lengths))
    for row in rows:
        cells = ""
        for length in lengths:
            seconds, exact = row["seconds"].get(length), rows[0]["seconds"][length]
            cell = f"{length / seconds:.0f} ({exact / seconds:.2f}x)" if seconds else "—"
            cells += f"{cell:>15}"
        if len(row["seconds"]) > 1:  # the mean context of a prompt is half its length
            ms = {length / 2: 1e3 * seconds / length for length, seconds in row["seconds"].items()}
            row["slope"] = float(np.polyfit(list(ms), list(ms.values()), 1)[0])
            cells += f"  {1e6 * row['slope']:.0f} ns a token of context"
        if "scratch" in row:
            cells += f", {row['scratch'] / 2**20:.0f} MiB of scratch"
        print(f"{row['name']:<72}{cells}")


def fidelity(llm: specrs.Llama, ids: Sequence[int], pattern: Attention) -> dict[str, Any]:
    """Print the report of one pattern; its figures."""
    report = compare(llm, ids, pattern)
    print(f"\n{report}", flush=True)
    buckets = [vars(bucket) for bucket in report.buckets]
    totals = {"kl_mean": report.kl_mean, "top1": report.top1, "density": report.density}
    return {"attention": str(pattern), "buckets": buckets, **totals}


def plot(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw the time of a token by its context; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    axes = (figure := Figure(figsize=(8, 5), layout="constrained")).add_subplot()
    for row in rows:
        axes.plot(list(row["ms"]), list(row["ms"].values()), marker="o", label=row["attention"])
    axes.set(xlabel="context", ylabel="milliseconds a token", ylim=(0, None))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    return True


if __name__ == "__main__":
    main()
