"""The engines that the benches compare, behind one small interface, each in a process of its own.

Run as a script, `engines.py NAME MODEL THREADS [N_CTX]` answers one JSON request a line on stdin
with one JSON line on stdout. It imports nothing but the engine it is asked for and numpy, so it
runs in any interpreter that has that engine.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

N_CTX = 2048
BATCH = 512  # most tokens that llama.cpp takes at once, its own default
PAST = 128  # positions in the cache when steps are timed


class Engine(ABC):
    """One sequence of one loaded model. Times are in seconds."""

    n_vocab: int
    description: str

    @abstractmethod
    def prompt(self, length: int) -> float:
        """Time a prompt of `length` tokens, logits of the last only."""

    @abstractmethod
    def decode(self, count: int) -> float:
        """Time `count` single tokens after PAST positions; seconds for each."""

    def curve(
        self,
        rows: Sequence[int],  # noqa: ARG002
        repeats: int,  # noqa: ARG002
        *,
        greedy: bool = False,  # noqa: ARG002
    ) -> list[float] | None:
        """Time one forward for each of `rows` after PAST positions (medians).

        With all logits, or if `greedy` with only the likeliest token of every row. None if the
        engine runs no forward of several tokens on a cache.
        """
        return None

    def cache_bytes(self) -> int | None:
        """Resident bytes of the key/value cache; None if the engine does not tell."""
        return None

    def tokens(self, count: int, seed: int = 1) -> list[int]:
        """Draw ids, the same for every engine: a linear congruence."""
        ids, state = [], seed
        for _ in range(count):
            state = (state * 1103515245 + 12345) % 2**31
            ids.append(100 + state % (self.n_vocab - 100))
        return ids


class Stepper(Engine):
    """An engine that runs single forwards and takes tokens back."""

    @abstractmethod
    def append(self, tokens: Sequence[int], rows: int) -> None:
        """Append `tokens` and compute the logits after the last `rows` of them."""

    def choose(self, tokens: Sequence[int], rows: int) -> None:
        """Append `tokens` for the likeliest token after the last `rows` of them.

        An engine without a shorter way computes all logits.
        """
        self.append(tokens, rows)

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""

    def prompt(self, length: int) -> float:
        tokens = self.tokens(length)
        self.truncate(0)
        start = time.perf_counter()
        self.append(tokens, 1)
        return time.perf_counter() - start

    def decode(self, count: int) -> float:
        tokens = self.tokens(count, seed=2)
        self.truncate(0)
        self.append(self.tokens(PAST), 1)
        start = time.perf_counter()
        for token in tokens:
            self.append([token], 1)
        return (time.perf_counter() - start) / count

    def curve(self, rows: Sequence[int], repeats: int, *, greedy: bool = False) -> list[float]:
        """Let the row counts take turns, so that each meets the same machine."""
        self.truncate(0)
        self.append(self.tokens(PAST), 1)
        times: dict[int, list[float]] = {count: [] for count in rows}
        forward = self.choose if greedy else self.append
        for _ in range(repeats):
            for count, taken in times.items():
                tokens = self.tokens(count, seed=3)
                start = time.perf_counter()
                forward(tokens, count)
                taken.append(time.perf_counter() - start)
                self.truncate(PAST)
        return [statistics.median(taken) for taken in times.values()]


class Specrs(Stepper):
    """This project."""

    def __init__(self, model: str, threads: int, n_ctx: int = N_CTX) -> None:
        from specrs._specrs import Model

        self.loaded = Model(model, n_ctx=n_ctx, threads=threads)
        self.session = self.loaded.session()
        self.n_vocab = self.loaded.n_vocab
        self.description = f"specrs ({self.loaded.kernels})"

    def append(self, tokens: Sequence[int], rows: int) -> None:
        self.session.forward_last(tokens, rows)

    def choose(self, tokens: Sequence[int], rows: int) -> None:
        self.session.choose_last(tokens, rows)

    def truncate(self, length: int) -> None:
        self.session.truncate(length)

    def cache_bytes(self) -> int:
        return len(self.session) * int(self.loaded.cache_bytes_per_token)


class LlamaCpp(Stepper):
    """llama.cpp through llama-cpp-python's low-level interface: a decode is one native call.

    `repack=False` leaves out the special weight layouts. Builds with AMX by GCC 12 die in them (see
    README.md); without them prompts take longer, most of all where a build with AMX would work.
    llama.cpp itself asks the kernel for permission to use AMX.
    """

    def __init__(
        self, model: str, threads: int, n_ctx: int = N_CTX, *, repack: bool = True
    ) -> None:
        import llama_cpp
        from llama_cpp import llama_cpp as api

        self.api = api
        self.silence = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.use_extra_bufts = repack
        self.model = api.llama_model_load_from_file(model.encode(), model_params)
        if not self.model:
            raise RuntimeError("llama.cpp cannot load the file")
        params = api.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(BATCH, 0, 1)
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.description = f"llama-cpp-python {llama_cpp.__version__}"
        if not repack:
            self.description += " (without repacked weights, with which it crashed)"
        self.length = 0

    def append(self, tokens: Sequence[int], rows: int) -> None:
        while len(tokens) > BATCH:
            self._append(tokens[:BATCH], 0)
            tokens = tokens[BATCH:]
        self._append(tokens, rows)
        self.api.llama_get_logits(self.context)  # waits for the result

    def _append(self, tokens: Sequence[int], rows: int) -> None:
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
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, 0, length, -1)
        self.length = length

    def cache_bytes(self) -> int:
        """Give the size of the whole cache, which is cleared and so resident from the start."""
        api, model = self.api, self.model
        heads = api.llama_model_n_head_kv(model)
        width = api.llama_model_n_embd(model) // api.llama_model_n_head(model)
        positions = api.llama_n_ctx(self.context)
        halves = 2 * api.llama_model_n_layer(model) * positions * heads * width
        return 2 * int(halves)


class OpenVino(Engine):
    """OpenVINO GenAI, which generates but does not let single forwards be asked for.

    Every call has tokens of its own: it may keep what it knows of earlier prompts.
    """

    def __init__(self, model: str, threads: int, n_ctx: int = N_CTX) -> None:  # noqa: ARG002
        import openvino_genai as genai

        self.genai = genai
        options = {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": True}
        self.pipeline = genai.LLMPipeline(model, "CPU", **options)
        self.n_vocab = len(self.pipeline.get_tokenizer().get_vocab())
        self.description = f"OpenVINO GenAI {genai.__version__}"
        self.calls = 0

    def generate(self, length: int, new: int) -> Any:
        """Generate `new` tokens after a prompt of `length`; the pipeline's own times."""
        import numpy as np
        from openvino import Tensor

        self.calls += 1
        ids = np.array([self.tokens(length, seed=1000 + self.calls)])
        config = self.genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        inputs = self.genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        return self.pipeline.generate(inputs, config).perf_metrics

    def prompt(self, length: int) -> float:
        return float(self.generate(length, 1).get_ttft().mean) / 1000

    def decode(self, count: int) -> float:
        return float(self.generate(PAST, count + 1).get_tpot().mean) / 1000


ENGINES: dict[str, Callable[[str, int, int], Engine]] = {
    "specrs": Specrs,
    "llama-cpp": LlamaCpp,
    "llama-cpp-plain": partial(LlamaCpp, repack=False),
    "openvino": OpenVino,
}
# What to import for each.
MODULES = {
    "specrs": "specrs",
    "llama-cpp": "llama_cpp",
    "llama-cpp-plain": "llama_cpp",
    "openvino": "openvino_genai",
}


def resident_bytes() -> int:
    """Resident memory of this process, mapped files included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Largest resident memory that this process ever had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def answer(engine: Engine, before: int, at_load: dict[str, int], request: dict[str, Any]) -> Any:
    """Answer one request; `before` is the resident memory before loading."""
    match request.pop("ask"):
        case "prompt":
            return engine.prompt(**request)
        case "decode":
            return engine.decode(**request)
        case "curve":
            return engine.curve(**request)
        case "memory":
            now, cache = resident_bytes(), engine.cache_bytes()
            used = {} if cache is None else {"used": now - before - cache}
            return {"resident": now, **at_load, **used}
        case unknown:
            raise ValueError(f"there is no request {unknown!r}")


def main() -> None:
    """Serve requests of the form {"ask": NAME, ...arguments} until stdin ends.

    The first line of output describes the engine: {"description": TEXT}, or {"error": TEXT} if it
    does not load the model.
    """
    name, model, threads, *n_ctx = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer

    def say(value: Any) -> None:
        print(json.dumps(value), file=out, flush=True)

    for module in (MODULES[name], "numpy"):
        importlib.import_module(module)
    before = resident_bytes()
    try:
        engine = ENGINES[name](model, int(threads), int(n_ctx[0]) if n_ctx else N_CTX)
    except Exception as error:
        say({"error": (str(error).strip() or repr(error)).splitlines()[-1]})
        return
    # Of the model alone: the interpreter and the libraries were there before.
    at_load = {"loaded": resident_bytes() - before, "peak": peak_bytes() - before}
    say({"description": engine.description})
    for line in sys.stdin:
        say(answer(engine, before, at_load, json.loads(line)))


if __name__ == "__main__":
    main()
