"""What speculation brings: `python benches/speculative.py [MODEL] [--pair] [--peers]`.

Spec-Bench's prompts are decoded plainly and with every drafter, in turns; each text is compared
with the plain one, and the exit code says whether all were equal. `--pair` adds a target of 1B
parameters with three draft models of graded quality, all made from the model itself; `--peers` adds
llama-cpp-python's prompt lookup where it is installed, `--llama-speculative BINARY` llama.cpp's
draft model. Tables go to stdout; figures and two plots to benches/results/.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import specrs
from decode import RESULTS
from derive import drop_layers, widen
from report import processor
from specrs.cli.bench import Contestant, Prompt, Results, compare, read_prompts, record, table
from speculative_peers import llama_cpp_lookup, llama_speculative
from speculative_plots import plot_acceptance, plot_speedup

PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "spec_bench_60.jsonl"
SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "spec_bench_60.jsonl"
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
WIDTH = 18_432  # of the target's feed-forward layers: 970M parameters from SmolLM2-135M
DROPPED = ((15,), (14, 18), (12, 15, 18, 21))


def measure_cost(llm: specrs.Llama, context: Sequence[int], rounds: int = 15) -> dict[int, float]:
    """Time forwards of so many rows after a context, all sizes in turns; medians in seconds."""
    session = llm.session()
    session.forward(context)
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(rounds):
        for rows in ROWS:
            started = time.perf_counter()
            session.forward_last([context[i % len(context)] for i in range(rows)], rows)
            seconds[rows].append(time.perf_counter() - started)
            session.truncate(len(context))
    return {rows: statistics.median(times) for rows, times in seconds.items()}


def fixed(drafter: specrs.Drafter, k: int) -> Contestant:
    """Let a drafter draft `k` tokens always."""
    return Contestant(drafter, lambda: specrs.FixedLength(k))


def draft_free(lengths: Sequence[int]) -> dict[str, Contestant]:
    """Give the drafters that need no model, with the controller and with fixed lengths."""
    contestants = {
        "PromptLookup": Contestant(specrs.PromptLookup()),
        "SuffixDecoding": Contestant(specrs.SuffixDecoding()),
    }
    for k in lengths:
        contestants[f"SuffixDecoding, fixed {k}"] = fixed(specrs.SuffixDecoding(), k)
    return contestants


def with_drafts(drafts: Sequence[specrs.Llama], lengths: Sequence[int]) -> dict[str, Contestant]:
    """Give every draft model with the controller, with fixed lengths, and behind a lookup."""
    contestants = {}
    for draft in drafts:
        name, model = draft.path.stem, specrs.DraftModel(draft, num_draft_tokens=12)
        contestants[name] = Contestant(model)
        sure = specrs.DraftModel(draft, num_draft_tokens=12, p_min=0.4)
        contestants[f"{name}, p_min 0.4"] = Contestant(sure)
        for k in lengths:
            contestants[f"{name}, fixed {k}"] = fixed(model, k)
        contestants[f"Chain(PromptLookup, {name})"] = Contestant(
            specrs.Chain(specrs.PromptLookup(), specrs.DraftModel(draft, num_draft_tokens=12))
        )
    return contestants


def random_words(llm: specrs.Llama, count: int, length: int = 200) -> list[Prompt]:
    """Make prompts in which nothing repeats on purpose: words drawn from the vocabulary."""
    rng = random.Random(1)
    words = []
    for i in range(llm.tokenizer.n_vocab):
        if not llm.tokenizer.is_control(i) and (text := llm.detokenize([i]).strip()).isalpha():
            words.append(text)
    return [
        Prompt("random words", llm.tokenize(" ".join(rng.choices(words, k=length))))
        for _ in range(count)
    ]


def run(
    title: str,
    llm: specrs.Llama,
    contestants: dict[str, Contestant],
    prompts: Sequence[Prompt],
    **options: Any,
) -> Results:
    """Measure, show progress, print a table."""
    results = compare(
        llm,
        contestants,
        prompts,
        progress=lambda done: print(f"\r{title}: {done}/{len(prompts)}", end="", file=sys.stderr),
        **options,
    )
    print(file=sys.stderr)
    print(f"\n## {title}\n\n{table(results)}")
    return results


def build_pair(source: Path, folder: Path) -> tuple[Path, list[Path]]:
    """Make the target and its drafts in `folder`, unless they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.stem}-ffn{WIDTH}.gguf"
    if not target.exists():
        print(f"making {target}", file=sys.stderr)
        widen(source, target, WIDTH)
    drafts = []
    for dropped in DROPPED:
        draft = folder / f"{source.stem}-without-{'-'.join(map(str, dropped))}.gguf"
        if not draft.exists():
            print(f"making {draft}", file=sys.stderr)
            drop_layers(source, draft, dropped)
        drafts.append(draft)
    return target, drafts


def print_agreement(
    target: specrs.Llama, drafts: Sequence[specrs.Llama], prompts: Sequence[Prompt], count: int
) -> None:
    """Print by task how often a draft's likeliest token is the target's, along its own text."""
    shares: dict[str, dict[str, list[float]]] = {draft.path.stem: {} for draft in drafts}
    for prompt in prompts:
        text = target.generate(prompt.tokens, max_tokens=count).tokens
        for draft in drafts:
            session = draft.session()
            chosen = session.choose_last([*prompt.tokens, *text[:-1]], len(text))
            share = statistics.mean(a == b for a, b in zip(chosen, text, strict=True))
            for task in ("all", prompt.task):
                shares[draft.path.stem].setdefault(task, []).append(share)
    for name, by_task in shares.items():
        figures = (f"{task} {statistics.mean(found):.2f}" for task, found in by_task.items())
        print(f"\n{name} agrees with the target: {', '.join(figures)}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="prompts of the draft-free part")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="*", default=[], help="fixed lengths as well")
    parser.add_argument("--pair", action="store_true", help="the 1B target with its draft models")
    parser.add_argument("--pair-limit", type=int, default=12, help="prompts of that part")
    parser.add_argument("--folder", type=Path, default=RESULTS / "models", help="for made models")
    parser.add_argument("--peers", action="store_true", help="llama-cpp-python's prompt lookup")
    parser.add_argument("--llama-speculative", type=Path, help="llama.cpp's llama-speculative")
    return parser.parse_args()


def main() -> None:
    """Run all parts that were asked for, write the results, exit with 1 if a token differs."""
    given = arguments()
    source = Path(specrs.pull(given.model))
    options = {"max_tokens": given.max_tokens, "rounds": given.rounds}
    file = SHARED if SHARED.exists() else PROMPTS
    llm = specrs.Llama(source, threads=given.threads)
    prompts = read_prompts(llm, file, given.limit)
    print(f"{source.name}, {llm.kernels}, {given.threads} threads; {processor()}")
    costs = {source.stem: measure_cost(llm, prompts[0].tokens)}
    parts = {"draft-free": run("draft-free", llm, draft_free(given.lengths), prompts, **options)}
    parts["nothing to match"] = run(
        "nothing to match",
        llm,
        draft_free(()),
        random_words(llm, 6),
        sampling=specrs.Sampling(temperature=1.0, seed=1),
        **options,
    )
    policy = specrs.AdaptiveLength()
    llm.generate(prompts[0].tokens, drafter=specrs.SuffixDecoding(), draft_length=policy)
    print(f"\n## The controller on the first prompt\n\n{policy.explain()}")
    peers: dict[str, Any] = {}
    if given.peers:
        peers["llama-cpp-python"] = llama_cpp_lookup(
            source, given.threads, prompts, given.max_tokens
        )

    draft_cost = 0.0
    if given.pair:
        target_file, draft_files = build_pair(source, given.folder)
        target = specrs.Llama(target_file, threads=given.threads)
        drafts = [specrs.Llama(path, threads=given.threads) for path in draft_files]
        chosen = read_prompts(target, file, given.pair_limit)
        costs[target_file.stem] = measure_cost(target, chosen[0].tokens)
        draft_cost = measure_cost(drafts[0], chosen[0].tokens)[1] / costs[target_file.stem][1]
        print_agreement(target, drafts, chosen, given.max_tokens)
        contestants = with_drafts(drafts, given.lengths)
        parts["draft models"] = run("draft models", target, contestants, chosen, **options)
        if given.llama_speculative:
            peers["llama.cpp"] = llama_speculative(
                given.llama_speculative, target_file, draft_files, given.threads, given.max_tokens
            )

    for name, seconds in costs.items():
        curve = ", ".join(f"c({rows}) {s / seconds[1]:.2f}" for rows, s in seconds.items())
        print(f"\n{name}: one row {1000 * seconds[1]:.2f} ms; {curve}")
    if peers:
        print(f"\n## Peers\n\n{json.dumps(peers, indent=2)}")
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"speculative-{time.strftime('%Y%m%d-%H%M%S')}"
    content = {
        "processor": processor(),
        "threads": given.threads,
        "cost": costs,
        "draft_cost": draft_cost,
        "parts": {name: record(results) for name, results in parts.items()},
        "peers": peers,
    }
    stem.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    curve_of = next(reversed(costs))
    plot_speedup(costs[curve_of], draft_cost, parts, Path(f"{stem}-speedup.png"))
    plot_acceptance(parts, Path(f"{stem}-acceptance.png"))
    print(f"\nwritten: {stem}.json and two plots")
    sys.exit(any(figures["all"].different for part in parts.values() for figures in part.values()))


if __name__ == "__main__":
    main()
