"""Speed and memory of specrs beside llama.cpp: `python benches/decode.py [MODEL] [--threads N]`.

llama-cpp-python is measured in the same run when this interpreter, or the one that
SPECRS_PEER_PYTHON names, has it. Every figure is a median of rounds in which the engines take
turns, so that both meet the same machine. Results go to benches/results/ as JSON, and as a plot of
the cost of M rows when matplotlib is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from peers import Peer, import_seconds, interpreter_of, start

ROWS = [1, 2, 4, 8, 16]
PROMPT = 512
DECODED = 48
RESULTS = Path(__file__).parent / "results"

Figures = dict[str, float]


def measure(peers: list[Peer], rounds: int) -> dict[str, Figures]:
    """Let the engines take turns and give the medians of each, by engine and figure."""
    samples: dict[str, dict[str, list[float]]] = {peer.engine: {} for peer in peers}

    def note(peer: Peer, figure: str, value: float) -> None:
        samples[peer.engine].setdefault(figure, []).append(value)

    for peer in peers:  # first touch of every page and code path
        peer.ask("prompt", length=PROMPT)
        peer.ask("rows", rows=ROWS[-1], repeats=2)
    for _ in range(rounds):
        for peer in peers:
            note(peer, "decode tok/s", 1 / peer.ask("decode", count=DECODED))
        for peer in peers:
            seconds = [peer.ask("rows", rows=rows, repeats=7) for rows in ROWS]
            for rows, taken in zip(ROWS, seconds, strict=True):
                note(peer, f"c({rows})", taken / seconds[0])
            note(peer, "one row ms", 1000 * seconds[0])
        for peer in peers:
            note(peer, f"prompt {PROMPT} tok/s", PROMPT / peer.ask("prompt", length=PROMPT))
        for peer in peers:
            note(peer, "import ms", 1000 * import_seconds(peer.engine, peer.python))
    for peer in peers:
        note(peer, "resident MB", peer.ask("resident") / 1e6)
    return {
        engine: {name: statistics.median(values) for name, values in figures.items()}
        for engine, figures in samples.items()
    }


# Rows of the table; the second field says whether more is better.
TABLE = [
    ("decode tok/s", True),
    *((f"c({rows})", False) for rows in ROWS[1:]),
    (f"prompt {PROMPT} tok/s", True),
    ("resident MB", False),
    ("import ms", False),
]


def table(measured: dict[str, Figures]) -> str:
    """Lay the figures out in Markdown; a ratio above 1 is in favour of specrs."""
    ours, theirs = measured["specrs"], measured.get("llama-cpp")
    lines = ["| | specrs | llama.cpp | ratio |", "|---|---|---|---|"]
    for name, more_is_better in TABLE:
        if theirs is None:
            lines.append(f"| {name} | {ours[name]:.4g} | | |")
            continue
        ratio = ours[name] / theirs[name]
        ratio = ratio if more_is_better else 1 / ratio
        lines.append(f"| {name} | {ours[name]:.4g} | {theirs[name]:.4g} | {ratio:.2f} |")
    return "\n".join(lines)


def processor() -> str:
    """Name the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def plot(measured: dict[str, Figures], path: Path) -> None:
    """Draw c(M) of each engine beside the line c = M; nothing without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for engine, figures in measured.items():
        axes.plot(ROWS, [figures[f"c({rows})"] for rows in ROWS], marker="o", label=engine)
    axes.plot(ROWS, ROWS, color="grey", linestyle=":", label="M single forwards")
    axes.set(xlabel="M, rows in one forward", ylabel="c(M), time relative to one row")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    import specrs

    model = Path(specrs.pull(arguments.model))
    with ExitStack() as stack:
        peers = []
        for engine in ("specrs", "llama-cpp"):
            python = interpreter_of(engine)
            if python is None:
                print(f"{engine} is not installed: its columns stay empty")
                continue
            peers.append(stack.enter_context(start(engine, python, model, arguments.threads)))
        descriptions = [peer.description for peer in peers]
        measured = measure(peers, arguments.rounds)

    print(f"{model.name}, {model.stat().st_size / 1e6:.0f} MB, {arguments.threads} threads")
    print(f"{processor()}; {'; '.join(descriptions)}; median of {arguments.rounds} rounds\n")
    print(table(measured))
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"decode-{time.strftime('%Y%m%d-%H%M%S')}"
    record = {
        "model": model.name,
        "threads": arguments.threads,
        "processor": processor(),
        "engines": descriptions,
        "figures": measured,
    }
    stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    plot(measured, stem.with_suffix(".png"))
    print(f"\nwritten: {stem}.json")


if __name__ == "__main__":
    main()
