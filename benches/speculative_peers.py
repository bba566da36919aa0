"""Speculation of other engines on the same prompts; None where they are not installed.

Run as a script, `speculative_peers.py MODEL THREADS MAX_TOKENS` reads prompts as a JSON list of
lists of ids on stdin and measures llama-cpp-python's prompt lookup. It imports nothing of this
project, so it runs in any interpreter that has that package.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specrs.cli.bench import Prompt

LOOKUP_TOKENS = 4
N_CTX = 2048


def llama_cpp_lookup(
    model: Path, threads: int, prompts: Sequence[Prompt], max_tokens: int
) -> dict[str, float] | None:
    """Measure llama-cpp-python's prompt lookup against its own plain decoding."""
    from peers import interpreter_of

    python = interpreter_of("llama-cpp")
    if python is None:
        return None
    finished = subprocess.run(
        [python, __file__, str(model), str(threads), str(max_tokens)],
        input=json.dumps([prompt.tokens for prompt in prompts]),
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def llama_speculative(
    binary: Path, target: Path, drafts: Sequence[Path], threads: int, max_tokens: int
) -> dict[str, dict[str, float]]:
    """Run llama.cpp's speculative example and its plain counterpart; tokens per second of each."""
    prompt = "Write a short story about a fox who wants to learn to swim."
    common = ["-m", target, "-p", prompt, "-n", max_tokens, "-t", threads, "--temp", 0]
    found = {}
    for draft in drafts:
        shown = _output([binary, *common, "-md", draft, "--draft-max", 4, "-td", threads])
        accepted = re.search(r"accept\s*=\s*([\d.]+)%", shown)
        speed = re.search(r"decoded.*speed:\s*([\d.]+)", shown)
        found[draft.stem] = {
            "accepted": float(accepted[1]) / 100 if accepted else float("nan"),
            "tokens_per_second": float(speed[1]) if speed else float("nan"),
        }
    return found


def _output(command: Sequence[object]) -> str:
    finished = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True
    )
    return finished.stdout + finished.stderr


def serve(model: str, threads: int, max_tokens: int) -> dict[str, float]:
    """Decode the prompts on stdin plainly and with lookup, in turns."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    settings: dict[str, Any] = {
        "n_ctx": N_CTX,
        "n_threads": threads,
        "n_threads_batch": threads,
        "verbose": False,
        "logits_all": True,
    }
    plain = llama_cpp.Llama(model, **settings)
    lookup = llama_cpp.Llama(
        model, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS), **settings
    )
    seconds, changed = [0.0, 0.0], 0
    prompts = json.load(sys.stdin)
    for prompt in prompts:
        texts = []
        for i, engine in enumerate((plain, lookup)):
            engine.reset()
            tokens: list[int] = []
            started = time.perf_counter()
            for token in engine.generate(prompt, temp=0.0):
                if not tokens:
                    started = time.perf_counter()  # the prompt is done
                if token == engine.token_eos() or len(tokens) == max_tokens:
                    break
                tokens.append(token)
            seconds[i] += time.perf_counter() - started
            texts.append(tokens)
        changed += texts[0] != texts[1]
    return {
        "prompts": len(prompts),
        "speedup": seconds[0] / seconds[1],
        "texts_changed": changed,
    }


if __name__ == "__main__":
    print(json.dumps(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
