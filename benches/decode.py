"""Speed and memory beside its peers: `python benches/decode.py [MODEL ...] [--synthetic]`.

llama-cpp-python and openvino-genai are measured in the same run when this interpreter, or one of
those that SPECRS_PEER_PYTHON lists, has them. Every figure is a median of rounds in which the
engines take turns, so that all meet the same machine. Results go to benches/results/ as JSON, and
as a plot of the cost of M rows when matplotlib is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from peers import EngineDied, Peer, import_seconds, interpreter_of, start
from report import plot, processor, table
from synthetic import synthetic_models

ENGINES = ("specrs", "llama-cpp", "openvino")
ROWS = [1, 2, 4, 8, 16]
PROMPT = 512
DECODED = 48
REPEATS = 7
RESULTS = Path(__file__).parent / "results"

Figures = dict[str, float]

# Lines of the table; the second field says whether more is better.
LINES = [
    ("decode tok/s", True),
    *((f"c({rows})", False) for rows in ROWS[1:]),
    *((f"greedy c({rows})", False) for rows in ROWS[1:]),
    (f"prompt {PROMPT} tok/s", True),
    ("resident MB", False),
    ("after loading / file", False),
    ("peak of loading / file", False),
    ("at the end without KV / file", False),
    ("import ms", False),
]


def measure(peers: list[Peer], model_bytes: int, rounds: int) -> dict[str, Figures]:
    """Let the engines take turns and give the medians of each, by engine and figure."""
    samples: dict[str, dict[str, list[float]]] = {peer.engine: {} for peer in peers}

    def note(peer: Peer, figure: str, value: float) -> None:
        samples[peer.engine].setdefault(figure, []).append(value)

    for peer in peers:  # first touch of every page and code path
        peer.ask("prompt", length=PROMPT)
        peer.ask("curve", rows=ROWS, repeats=1)
    for number in range(rounds):
        order = peers if number % 2 == 0 else peers[::-1]
        for peer in order:
            note(peer, "decode tok/s", 1 / peer.ask("decode", count=DECODED))
        for peer in order:
            for kind, greedy in (("", False), ("greedy ", True)):
                curve = peer.ask("curve", rows=ROWS, repeats=REPEATS, greedy=greedy)
                for rows, seconds in zip(ROWS, curve or [], strict=curve is not None):
                    note(peer, f"{kind}c({rows})", seconds / curve[0])
                    note(peer, f"{kind}{rows} rows ms", 1000 * seconds)
        for peer in order:
            note(peer, f"prompt {PROMPT} tok/s", PROMPT / peer.ask("prompt", length=PROMPT))
        for peer in order:
            note(peer, "import ms", 1000 * import_seconds(peer.engine, peer.python))
    for peer in peers:
        memory = peer.ask("memory")
        note(peer, "resident MB", memory["resident"] / 1e6)
        note(peer, "after loading / file", memory["loaded"] / model_bytes)
        note(peer, "peak of loading / file", memory["peak"] / model_bytes)
        if "used" in memory:
            note(peer, "at the end without KV / file", memory["used"] / model_bytes)
    return {
        engine: {name: statistics.median(values) for name, values in figures.items()}
        for engine, figures in samples.items()
    }


def compare(model: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Measure every engine that loads `model`, print the table, and return the record."""
    size = model.stat().st_size
    print(f"\n## {model.name}, {size / 1e6:.0f} MB, {threads} threads\n", flush=True)
    left_out = {}
    with ExitStack() as stack:
        peers = []
        for engine in ENGINES:
            python = interpreter_of(engine)
            if python is None:
                left_out[engine] = "not installed"
                continue
            try:
                peers.append(stack.enter_context(start(engine, python, model, threads)))
            except EngineDied as error:
                if engine == "specrs":
                    raise
                left_out[engine] = str(error)
        engines = {peer.engine: peer.description for peer in peers}
        figures = measure(peers, size, rounds)
    print(f"{processor()}; {'; '.join(engines.values())}; median of {rounds} rounds")
    for engine, reason in left_out.items():
        print(f"{engine} is left out: {reason}")
    print(f"\n{table(figures, LINES)}", flush=True)
    return {
        "model": model.name,
        "bytes": size,
        "engines": engines,
        "left_out": left_out,
        "figures": figures,
    }


def curves(record: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Take c(M) out of a record, by engine."""
    return {
        engine: {rows: figures[f"c({rows})"] for rows in ROWS}
        for engine, figures in record["figures"].items()
        if "c(1)" in figures
    }


def main() -> None:
    """Measure, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or GGUF files")
    parser.add_argument(
        "--synthetic", action="store_true", help="also 1.1B files of random weights"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    import specrs

    models = [Path(specrs.pull(name)) for name in arguments.models or ["smollm2-135m"]]
    models += synthetic_models() if arguments.synthetic else []
    records = [compare(model, arguments.threads, arguments.rounds) for model in models]

    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"decode-{time.strftime('%Y%m%d-%H%M%S')}"
    written = stem.with_suffix(".json")
    run = {"threads": arguments.threads, "processor": processor(), "models": records}
    written.write_text(json.dumps(run, indent=2) + "\n")
    print(f"\nwritten: {written}")
    image = stem.with_suffix(".png")
    drawn = plot({record["model"]: curves(record) for record in records}, image)
    print(f"written: {image}" if drawn else "no plot: matplotlib is not installed")


if __name__ == "__main__":
    main()
