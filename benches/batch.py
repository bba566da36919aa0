"""Many requests at once: `python benches/batch.py [MODEL ...] [--requests 1 2 4 8 16 32]`.

Loads, each for 1 to 32 requests that arrive together:

- short: prompts of 128 tokens that share nothing, 48 new tokens;
- shared: questions of 16 tokens on one text of 1,000 tokens;
- drafts: Spec-Bench prompts without drafts and with `PromptLookup`, in turns;

and `long`: eight requests decode, and a prompt of 2,000 tokens comes. Decode is what all requests
make per second from the moment when the last of them has its first token; single is what
`generate` makes. TTFT is the time to the first token, gaps are those between the chunks of a
request. With `--llama-batched-bench PROGRAM` (or SPECRS_LLAMA_BATCHED_BENCH) llama.cpp's tool runs
the load `short`, and its best settings count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import specrs
from report import processor
from specrs.files import json_lines

TEXTS = Path(__file__).parent.parent / "tests" / "data" / "spec_bench_60.jsonl"
RESULTS = Path(__file__).parent / "results"

Figures = dict[str, float]


class Watch:
    """When the chunks of a request came."""

    def __init__(self, request: specrs.Request) -> None:
        self.request = request
        self.added = perf_counter()
        self.times: list[float] = []
        self.tokens: list[int] = []  # made until then
        self._seen = 0
        request.notify(self.note, 0)

    def note(self) -> None:
        """Note the time; in the thread of the batch."""
        chunks = self.request.chunks(self._seen)
        self._seen += len(chunks)
        self.times.append(perf_counter())
        made = sum(len(chunk.tokens) for chunk in chunks)
        self.tokens.append(made + (self.tokens[-1] if self.tokens else 0))
        if not self.request.over(self._seen):
            self.request.notify(self.note, self._seen)

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def together(llm: specrs.Llama, prompts: Sequence[Any], **options: Any) -> Figures:
    """Run prompts that arrive together; seconds are milliseconds here."""
    with llm.batch(max_requests=len(prompts)) as batch:
        started = perf_counter()
        watches = [Watch(batch.add(prompt, **options)) for prompt in prompts]
        results = [watch.request.result() for watch in watches]
        ended = perf_counter()
    all_first = max(watch.times[0] for watch in watches)
    made = sum(len(result.tokens) for result in results)
    before = sum(
        max((n for t, n in zip(w.times, w.tokens, strict=True) if t <= all_first), default=0)
        for w in watches
    )
    gaps = [gap for watch in watches for gap in watch.gaps]
    stats = batch.stats
    return {
        "tokens/s": made / (ended - started),
        "decode": (made - before) / max(ended - all_first, 1e-9),
        "TTFT p50": 1000 * percentile((w.times[0] - w.added for w in watches), 0.5),
        "TTFT p99": 1000 * percentile((w.times[0] - w.added for w in watches), 0.99),
        "gap p50": 1000 * percentile(gaps, 0.5),
        "gap p99": 1000 * percentile(gaps, 0.99),
        "cache MB": stats.peak_cache_bytes / 1e6,
        "cached": stats.cached_tokens / max(1, stats.prompt_tokens),
        "outside passes": 1000
        * (ended - started - stats.seconds)
        / max(1, stats.passes)
        / len(prompts),
    }


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def ids(llm: specrs.Llama, count: int, seed: int) -> list[int]:
    """Return a random prompt."""
    generator = random.Random(seed)
    return [generator.randrange(5, min(llm.n_vocab, 30_000)) for _ in range(count)]


def single(llm: specrs.Llama, prompts: Sequence[Any], **options: Any) -> float:
    """Return the tokens per second of `generate`."""
    speeds = [llm.generate(prompt, **options).stats.tokens_per_second for prompt in prompts]
    return statistics.median(speeds)


def short(llm: specrs.Llama, counts: Sequence[int], rounds: int) -> dict[str, Figures]:
    """Measure prompts that share nothing, beside `generate`."""
    options: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True}
    table: dict[str, Figures] = {}
    runs: dict[int, list[Figures]] = {count: [] for count in counts}
    alone: list[float] = []
    for turn in range(rounds):
        alone.append(single(llm, [ids(llm, 128, 100 * turn + i) for i in range(3)], **options))
        for count in counts:
            prompts = [ids(llm, 128, 1000 * turn + i) for i in range(count)]
            runs[count].append(together(llm, prompts, **options))
    table["single"] = {"decode": statistics.median(alone)}
    for count in counts:
        table[str(count)] = medians(runs[count])
        table[str(count)]["over single"] = table[str(count)]["decode"] / table["single"]["decode"]
    return table


def shared(llm: specrs.Llama, counts: Sequence[int], rounds: int) -> dict[str, Figures]:
    """Measure questions on one text, beside answers from nothing."""
    options: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
    table: dict[str, Figures] = {}
    for count in counts:
        runs, one_by_one = [], []
        for turn in range(rounds):
            text = ids(llm, 1000, turn)
            prompts = [text + ids(llm, 16, 1000 * turn + i) for i in range(count)]
            runs.append(together(llm, prompts, **options))
            started = perf_counter()
            llm.generate(prompts[0], **options)
            one_by_one.append(count * (perf_counter() - started))
        table[str(count)] = medians(runs)
        seconds = 16 * count / table[str(count)]["tokens/s"]
        table[str(count)]["times one by one"] = statistics.median(one_by_one) / seconds
    return table


def drafts(llm: specrs.Llama, counts: Sequence[int], rounds: int) -> dict[str, Figures]:
    """Measure what drafts bring."""
    texts = [json.loads(line)["prompt"] for _, line in json_lines(TEXTS.read_bytes())]
    options: dict[str, Any] = {"max_tokens": 64}
    table: dict[str, Figures] = {}
    for count in counts:
        pairs: list[tuple[Figures, Figures]] = []
        for turn in range(rounds):
            chosen = [texts[(7 * turn + i) % len(texts)] for i in range(count)]
            both: list[Figures] = [{}, {}]
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for which in order:
                drafter = specrs.PromptLookup() if which else None
                both[which] = together(llm, chosen, drafter=drafter, **options)
            pairs.append((both[0], both[1]))
        ratios = [on["tokens/s"] / off["tokens/s"] for off, on in pairs]
        table[str(count)] = {
            "off": statistics.median(off["tokens/s"] for off, _ in pairs),
            "auto": statistics.median(on["tokens/s"] for _, on in pairs),
            "auto over off": statistics.median(ratios),
        }
    return table


def long(llm: specrs.Llama, rounds: int) -> dict[str, Figures]:
    """Measure the worst gap of eight running replies while a long prompt enters."""
    runs = []
    for turn in range(rounds):
        with llm.batch() as batch:
            options: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
            watches = [Watch(batch.add(ids(llm, 32, 50 * turn + i), **options)) for i in range(8)]
            while any(len(watch.times) < 40 for watch in watches):
                sleep(0.005)
            usual = statistics.median(gap for watch in watches for gap in watch.gaps[-20:])
            before = perf_counter()
            prompt = Watch(batch.add(ids(llm, 2000, turn), max_tokens=1, ignore_eos=True))
            prompt.request.result()
            after = perf_counter()
            worst = max(
                b - a
                for watch in watches
                for a, b in zip(watch.times, watch.times[1:], strict=False)
                if b > before and a < after
            )
            batch.cancel()
        runs.append(
            {
                "usual gap": 1000 * usual,
                "worst gap": 1000 * worst,
                "worst over usual": worst / usual,
                "TTFT of the prompt": 1000 * (prompt.times[0] - prompt.added),
            }
        )
    return {"8 + 1": medians(runs)}


PEER_SETTINGS = [
    [*attention, *unified, *batches]
    for attention in (["-fa", "off"], ["-fa", "on"])
    for unified in ([], ["-kvu"])
    for batches in ([], ["-ub", "256"])
]


def peer(program: str, model: Path, counts: Sequence[int], threads: int) -> dict[str, Figures]:
    """Run llama-batched-bench with each of its settings; the best of each figure."""
    table: dict[str, Figures] = {str(count): {} for count in counts}
    common = ["-m", model, "-npp", 128, "-ntg", 48, "-npl", ",".join(map(str, counts))]
    common += ["-t", threads, "-tb", threads, "-c", 256 * max(counts), "--output-format", "jsonl"]
    for settings in PEER_SETTINGS:
        command = [program, *map(str, common), *settings]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in ran.stdout.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                figures = table[str(row["pl"])]
                figures["decode"] = max(figures.get("decode", 0.0), row["speed_tg"])
                figures["prompt"] = max(figures.get("prompt", 0.0), row["speed_pp"])
    return table


def printed(title: str, table: dict[str, Figures]) -> None:
    """Print a Markdown table."""
    names = list(dict.fromkeys(name for figures in table.values() for name in figures))
    print(f"\n### {title}\n")
    print(f"| requests | {' | '.join(names)} |")
    print(f"|{' --- |' * (len(names) + 1)}")
    for row, figures in table.items():
        cells = [f"{figures[name]:.4g}" if name in figures else "—" for name in names]
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


def plot(tables: dict[str, dict[str, dict[str, Figures]]], path: Path) -> bool:
    """Draw throughput and gaps by requests; False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for model, loads in tables.items():
        for load, label in (("short", "specrs"), ("llama.cpp", "llama.cpp")):
            rows = {int(r): f for r, f in loads.get(load, {}).items() if r.isdigit() and f}
            if rows:
                decode = [figures["decode"] for figures in rows.values()]
                left.plot(list(rows), decode, marker="o", label=f"{model}, {label}")
            if rows and load == "short":
                for name in ("gap p50", "gap p99"):
                    gaps = [figures[name] for figures in rows.values()]
                    right.plot(list(rows), gaps, marker="o", label=f"{model}, {name}")
    left.set(xlabel="requests", ylabel="tokens/s of all, decoding")
    right.set(xlabel="requests", ylabel="ms between chunks")
    left.legend()
    right.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return True


def main() -> None:
    """Print the tables; write JSON and a plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2-135m"])
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--loads", nargs="*", default=["short", "shared", "drafts", "long"])
    name = "SPECRS_LLAMA_BATCHED_BENCH"
    parser.add_argument("--llama-batched-bench", default=os.environ.get(name))
    arguments = parser.parse_args()
    counts, rounds = arguments.requests, arguments.rounds
    print(processor())
    tables: dict[str, dict[str, dict[str, Figures]]] = {}
    for model in arguments.models:
        path = Path(specrs.pull(model))
        llm = specrs.Llama(path, threads=arguments.threads)
        together(llm, [ids(llm, 128, 0)] * 4, max_tokens=8)  # everything is touched once
        loads: dict[str, Callable[[], dict[str, Figures]]] = {
            "short": lambda llm=llm: short(llm, counts, rounds),  # type: ignore[misc]
            "shared": lambda llm=llm: shared(llm, counts, rounds),  # type: ignore[misc]
            "drafts": lambda llm=llm: drafts(llm, counts, rounds),  # type: ignore[misc]
            "long": lambda llm=llm: long(llm, rounds),  # type: ignore[misc]
        }
        tables[path.stem] = {}
        for load in arguments.loads:
            tables[path.stem][load] = loads[load]()
            printed(f"{path.stem}: {load}", tables[path.stem][load])
        if arguments.llama_batched_bench:
            theirs = peer(arguments.llama_batched_bench, path, counts, llm.threads)
            tables[path.stem]["llama.cpp"] = theirs
            printed(f"{path.stem}: llama-batched-bench, short", theirs)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "batch.json").write_text(json.dumps(tables, indent=1))
    plot(tables, RESULTS / "batch.png")


if __name__ == "__main__":
    main()
