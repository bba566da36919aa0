"""Speculative output against plain output on 60 prompts: `python benches/equality.py [MODEL]`.

Every prompt of Spec-Bench's six tasks, cut to 1,000 tokens, is continued by 96 tokens, greedily and
by drawing with three seeds, without a drafter and with each: prompt lookup, suffix decoding, a
drafter of random ids, a draft model, which is the model itself without some layers, and a chain.
Every id and every log-probability must be equal; the exit code says whether it was. Greedy texts
are compared once more without log-probabilities, which the engine chooses in another way.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import specrs
from derive import drop_layers
from specrs.files import json_lines

PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "spec_bench_60.jsonl"
PROMPT_TOKENS, NEW_TOKENS = 1000, 96
DROPPED_LAYERS = (14, 18)
TOLD = 5  # log-probabilities
SAMPLINGS = {
    "greedy": specrs.Sampling(),
    **{
        f"seed {seed}": specrs.Sampling(temperature=0.8, top_p=0.95, seed=seed)
        for seed in (1, 2, 3)
    },
}


class RandomDrafter:
    """Proposes random ids, some from the text so far."""

    def __init__(self, n_vocab: int) -> None:
        self._rng = np.random.default_rng(0)
        self._n_vocab = n_vocab

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return up to `k` ids, right ones by chance only."""
        ids = self._rng.integers(0, self._n_vocab, k)
        recent = self._rng.choice(np.asarray(tokens[-64:]), k)
        return [int(id_) for id_ in np.where(self._rng.random(k) < 0.5, recent, ids)]


@dataclass
class Tally:
    """What came of one drafter over all prompts."""

    compared: int = 0
    different: int = 0
    drafted: int = 0
    accepted: int = 0
    calls: int = 0
    seconds: float = 0.0


def main() -> None:
    """Run the comparison, print its counts, exit with 1 if any id differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--limit", type=int, default=60, help="prompts to run")
    arguments = parser.parse_args()

    path = specrs.pull(arguments.model)
    llm = specrs.Llama(path)
    prompts = [json.loads(line) for _, line in json_lines(PROMPTS.read_bytes())][: arguments.limit]
    plain_seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        draft = specrs.Llama(drop_layers(path, Path(folder) / "draft.gguf", DROPPED_LAYERS))
        drafters: dict[str, specrs.Drafter] = {
            "PromptLookup": specrs.PromptLookup(),
            "random ids": RandomDrafter(llm.n_vocab),
            "SuffixDecoding": specrs.SuffixDecoding(),
            f"DraftModel, without layers {DROPPED_LAYERS}": specrs.DraftModel(draft),
            "Chain of the first and last": specrs.Chain(
                specrs.PromptLookup(), specrs.DraftModel(draft)
            ),
        }
        tallies = {name: Tally() for name in drafters}
        for number, prompt in enumerate(prompts, 1):
            ids = llm.tokenize(prompt["prompt"])[:PROMPT_TOKENS]
            session = llm.session()  # the prompt is evaluated once
            for sampling in SAMPLINGS.values():
                plain = generate(llm, ids, sampling, session, None, TOLD)
                plain_seconds += plain.stats.decode_seconds
                for name, drafter in drafters.items():
                    out = generate(llm, ids, sampling, session, drafter, TOLD)
                    add(tallies[name], plain, out)
                    if sampling.takes_highest:
                        untold = generate(llm, ids, sampling, session, drafter, None)
                        tallies[name].different += plain.tokens != untold.tokens
            print(f"\r{number}/{len(prompts)} {prompt['task']:16}", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(f"{path.name}, kernels {llm.kernels}, {llm.threads} threads, {len(prompts)} prompts")
    print("settings: " + ", ".join(SAMPLINGS))
    for name, tally in tallies.items():
        print(
            f"{name}: {tally.compared} ids compared, {tally.different} different; "
            f"{tally.accepted}/{tally.drafted} draft tokens accepted, {tally.calls} calls, "
            f"decoding at {plain_seconds / max(tally.seconds, 1e-9):.2f}x of plain"
        )
    sys.exit(any(tally.different or not tally.compared for tally in tallies.values()))


def generate(
    llm: specrs.Llama,
    ids: list[int],
    sampling: specrs.Sampling,
    session: specrs.Session,
    drafter: specrs.Drafter | None,
    logprobs: int | None,
) -> specrs.Completion:
    """Continue a prompt in one of the ways that are compared."""
    return llm.generate(
        ids,
        max_tokens=NEW_TOKENS,
        sampling=sampling,
        drafter=drafter,
        session=session,
        logprobs=logprobs,
    )


def add(tally: Tally, plain: specrs.Completion, out: specrs.Completion) -> None:
    """Count one text: ids or log-probabilities that differ, a missing or additional one too."""
    pairs = zip(plain.logprobs or (), out.logprobs or (), strict=False)
    tally.different += sum(ours != theirs for ours, theirs in pairs)
    tally.different += abs(len(plain.tokens) - len(out.tokens))
    tally.compared += len(plain.tokens)
    tally.drafted += out.stats.num_draft_tokens
    tally.accepted += out.stats.num_accepted_tokens
    tally.calls += out.stats.forward_calls
    tally.seconds += out.stats.decode_seconds


if __name__ == "__main__":
    main()
