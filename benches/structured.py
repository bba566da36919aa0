"""What a grammar costs and saves: `python benches/structured.py [MODEL] [--target] [--rounds 5]`.

A model extracts JSON with a schema from short texts, in turns:

- same ids: without a grammar, and the ids of the text under the schema are taken whatever the model
  says; what this costs is what decoding costs;
- masks: with the schema, without drafts; what it takes longer is the cost of the masks;
- forced: the same with `ForcedTokens`, and lookup: with `PromptLookup`, which gets them as well.

Of each text and contestant the shortest of all rounds counts: other work on the machine only adds.
Prefill counts nowhere, nor does compiling, which is timed apart. All texts are compared. `--target`
does the same on a model of 1B parameters, made from the model itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import specrs
from derive import widen
from report import processor
from specrs.decoding import loop
from specrs.sampling import Picker

RESULTS = Path(__file__).parent / "results"
WIDTH = 18_432  # of the target's feed-forward layers: 970M parameters from SmolLM2-135M

NAME = {"type": "string", "maxLength": 40}


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with all of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TASKS = [
    (
        record(
            first_name=NAME,
            last_name=NAME,
            year_of_birth={"type": "integer", "minimum": 1000, "maximum": 2100},
            place_of_birth=NAME,
            occupation=NAME,
        ),
        [
            "Ada Lovelace, born in London in 1815, was a mathematician and writer.",
            "The painter Frida Kahlo was born in 1907 in Coyoacan, a part of Mexico City.",
            "Johann Sebastian Bach, the composer, was born in Eisenach in the year 1685.",
            "Marie Curie was a physicist. She was born in Warsaw in 1867.",
        ],
    ),
    (
        record(
            customer=NAME,
            items={
                "type": "array",
                "items": record(article=NAME, quantity={"type": "integer", "maximum": 999}),
                "minItems": 1,
                "maxItems": 3,
            },
            currency={"enum": ["EUR", "USD", "GBP"]},
            express_delivery={"type": "boolean"},
        ),
        [
            "Mr Jones ordered 3 lamps and 2 chairs, paid in dollars, and wants them tomorrow.",
            "Anna Schmidt from Berlin buys one bicycle, in euros. There is no hurry.",
            "Please send 12 notebooks and 40 pencils to Mrs Patel; she pays in pounds.",
        ],
    ),
    (
        record(
            sender=NAME,
            subject=NAME,
            priority={"enum": ["low", "normal", "high"]},
            deadline={"type": "string", "format": "date"},
            needs_answer={"type": "boolean"},
        ),
        [
            "From: Tom. The report is due on 2025-03-14, this is urgent! Please confirm.",
            "From: Library. Your book should be returned by 2024-11-02. No need to reply.",
            "From: Dr Lee. Your appointment is on 2026-01-20, please tell us if you can come.",
        ],
    ),
]


def tasks(llm: specrs.Llama) -> Iterator[tuple[specrs.Grammar, list[int]]]:
    """Give grammar and prompt of every task."""
    for schema, texts in TASKS:
        grammar = specrs.Grammar.json_schema(schema)
        keys = ", ".join(schema["properties"])
        for text in texts:
            question = f"Extract the following from the text as JSON: {keys}.\n\nText: {text}"
            yield grammar, llm.chat_tokens([{"role": "user", "content": question}])


def dictating(ids: Iterable[int]) -> type[Picker]:
    """Return pickers that do their work, and then pick these ids one after the other."""
    left = iter(ids)

    class Dictated(Picker):
        def picks(self, logits: Any) -> Iterator[int]:
            for _ in super().picks(logits):
                yield next(left)

        def known(self, highest: Any) -> Iterator[int]:
            for _ in super().known(highest):
                yield next(left)

    return Dictated


def measure(llm: specrs.Llama, rounds: int, sampling: specrs.Sampling) -> dict[str, float]:
    """Return milliseconds per token of every contestant, and what they took in all."""
    drafters: dict[str, Callable[[], Any]] = {
        "masks": lambda: None,
        "forced": specrs.ForcedTokens,
        "lookup": specrs.PromptLookup,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ("same ids", *drafters)}
    made, passes, forced = 0, 0, 0
    for grammar, prompt in tasks(llm):
        options: dict[str, Any] = {"max_tokens": 160, "sampling": sampling}
        wanted = llm.generate(prompt, grammar=grammar, **options)
        json.loads(wanted.text)
        made += len(wanted.tokens)
        times: dict[str, list[float]] = {name: [] for name in seconds}
        stats: dict[str, specrs.Stats] = {}
        for _ in range(rounds):
            with mock.patch.object(loop, "Picker", dictating(wanted.tokens)):
                options["max_tokens"] = len(wanted.tokens)
                out = llm.generate(prompt, ignore_eos=True, **options)
            assert out.tokens == wanted.tokens
            times["same ids"].append(out.stats.decode_seconds)
            for name, make in drafters.items():
                out = llm.generate(prompt, grammar=grammar, drafter=make(), **options)
                if out.tokens != wanted.tokens:
                    raise SystemExit(f"{name} changed the text")
                times[name].append(out.stats.decode_seconds)
                stats[name] = out.stats
        passes += stats["forced"].forward_calls
        forced += stats["forced"].num_accepted_tokens
        print(".", end="", file=sys.stderr, flush=True)
        for name in seconds:
            seconds[name].append(min(times[name]))
    print(file=sys.stderr)
    figures = {
        f"{name}, ms/token": 1000 * sum(seconds[name]) / made for name in ("same ids", *drafters)
    }
    plain = sum(seconds["masks"])
    return figures | {
        "cost of masks, %": 100 * (plain / sum(seconds["same ids"]) - 1),
        "forced tokens, %": 100 * forced / made,
        "tokens per pass, forced": made / passes,
        "speed-up, forced": plain / sum(seconds["forced"]),
        "speed-up, lookup": plain / sum(seconds["lookup"]),
    }


def compiling(llm: specrs.Llama) -> dict[str, float]:
    """Return how long vocabulary and grammars take, in milliseconds."""
    from specrs.structured.compiler import Compiler

    started = perf_counter()
    compiler = Compiler(llm.tokenizer, llm.n_vocab)
    compiler.compile(specrs.Grammar.regex("a"), [])
    figures = {"vocabulary, ms": 1000 * (perf_counter() - started)}
    for i, (schema, _) in enumerate(TASKS):
        started = perf_counter()
        grammar = specrs.Grammar.json_schema(schema)
        checked = perf_counter()
        compiler.compile(grammar, [])
        figures[f"schema {i + 1} checked, ms"] = 1000 * (checked - started)
        figures[f"schema {i + 1} compiled, ms"] = 1000 * (perf_counter() - checked)
    return figures


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--target", action="store_true", help="also on a target of 1B parameters")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    files = [Path(specrs.pull(given.model))]
    if given.target:
        RESULTS.mkdir(parents=True, exist_ok=True)
        wide = RESULTS / f"{files[0].stem}-ffn{WIDTH}.gguf"
        files.append(wide if wide.exists() else widen(files[0], wide, WIDTH))
    print(f"{processor()}\n")
    everything = {}
    for file in files:
        llm = specrs.Llama(file)
        tables = {"compiling": compiling(llm)}
        for name, sampling in (
            ("greedy", specrs.Sampling()),
            ("sampled", specrs.Sampling(temperature=0.7, top_p=0.9)),
        ):
            tables[name] = measure(llm, given.rounds, sampling)
        for name, figures in tables.items():
            print(f"\n## {file.stem}: {name}\n")
            for figure, value in figures.items():
                print(f"| {figure} | {value:.3g} |")
        everything[file.stem] = tables
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "structured.json").write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
