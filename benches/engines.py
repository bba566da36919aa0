"""The engines that the benches compare, behind one small interface, each in a process of its own.

Run as a script, `engines.py NAME MODEL THREADS` answers one JSON request a line on stdin with one
JSON line on stdout. It imports nothing but the engine it is asked for and numpy, so it runs in any
interpreter that has that engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

N_CTX = 2048
PAST = 128  # positions in the cache when steps are timed


class Engine(Protocol):
    """One sequence of one loaded model."""

    n_vocab: int
    description: str

    def append(self, tokens: Sequence[int], rows: int) -> None:
        """Append `tokens` and compute the logits after the last `rows` of them."""

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""


class Specrs:
    """This project."""

    def __init__(self, model: str, threads: int) -> None:
        from specrs._specrs import Model

        loaded = Model(model, n_ctx=N_CTX, threads=threads)
        self.session = loaded.session()
        self.n_vocab = loaded.n_vocab
        self.description = f"specrs ({loaded.kernels})"

    def append(self, tokens: Sequence[int], rows: int) -> None:
        self.session.forward_last(tokens, rows)

    def truncate(self, length: int) -> None:
        self.session.truncate(length)


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level interface: a decode is one native call.

    `repack=False` leaves out the special weight layouts. Builds with AMX die in them on virtual
    machines that announce AMX but do not let it be used; of SmolLM2's types none has such a layout
    but AMX's, so that nothing else is lost.
    """

    def __init__(self, model: str, threads: int, *, repack: bool = True) -> None:
        import llama_cpp
        from llama_cpp import llama_cpp as api

        self.api = api
        self.silence = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.use_extra_bufts = repack
        self.model = api.llama_model_load_from_file(model.encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx = N_CTX
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(512, 0, 1)
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.description = f"llama-cpp-python {llama_cpp.__version__}"
        if not repack:
            self.description += " (without repacked weights, with which it crashed)"
        self.length = 0

    def append(self, tokens: Sequence[int], rows: int) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.length + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= len(tokens) - rows
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self.api.llama_get_logits(self.context)  # waits for the result
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, 0, length, -1)
        self.length = length


ENGINES: dict[str, Callable[[str, int], Engine]] = {
    "specrs": Specrs,
    "llama-cpp": LlamaCpp,
    "llama-cpp-plain": partial(LlamaCpp, repack=False),
}


def tokens_of(engine: Engine, count: int, seed: int = 1) -> list[int]:
    """Draw ids without numpy's help, the same for every engine: a linear congruence."""
    ids, state = [], seed
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(100 + state % (engine.n_vocab - 100))
    return ids


def seconds_of_prompt(engine: Engine, length: int) -> float:
    """Time a prompt of `length` tokens, logits of the last only."""
    tokens = tokens_of(engine, length)
    engine.truncate(0)
    start = time.perf_counter()
    engine.append(tokens, 1)
    return time.perf_counter() - start


def seconds_of_decode(engine: Engine, count: int) -> float:
    """Time `count` single tokens after a context of PAST positions; seconds for each."""
    tokens = tokens_of(engine, count, seed=2)
    engine.truncate(0)
    engine.append(tokens_of(engine, PAST), 1)
    start = time.perf_counter()
    for token in tokens:
        engine.append([token], 1)
    return (time.perf_counter() - start) / count


def seconds_of_rows(engine: Engine, rows: int, repeats: int) -> float:
    """Time one forward of `rows` tokens with all their logits, after PAST positions (median)."""
    tokens = tokens_of(engine, rows, seed=3)
    engine.truncate(0)
    engine.append(tokens_of(engine, PAST), 1)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        engine.append(tokens, rows)
        times.append(time.perf_counter() - start)
        engine.truncate(PAST)
    return statistics.median(times)


def resident_bytes(_: Engine) -> int:
    """Resident memory of this process, mapped files included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


REQUESTS: dict[str, Callable[..., float]] = {
    "prompt": seconds_of_prompt,
    "decode": seconds_of_decode,
    "rows": seconds_of_rows,
    "resident": resident_bytes,
}


def main() -> None:
    """Serve requests of the form {"ask": NAME, ...arguments} until stdin ends."""
    name, model, threads = sys.argv[1:]
    engine = ENGINES[name](model, int(threads))
    print(json.dumps(engine.description), flush=True)
    for line in sys.stdin:
        arguments: dict[str, Any] = json.loads(line)
        print(json.dumps(REQUESTS[arguments.pop("ask")](engine, **arguments)), flush=True)


if __name__ == "__main__":
    main()
