"""Other threads run on, Ctrl-C is heard, sharing is safe, and memory does not grow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bits import assert_same_bits, cold, in_pieces, random_ids
from specrs import attention
from specrs._specrs import ContextOverflow, Model

# Ctrl-C is heard within 100 ms,
INTERRUPT_SECONDS = 0.1
# and a little later on a busy machine, where a process may have to wait for its turn.
BUSY_MACHINE_SECONDS = 0.2


@contextmanager
def longest_pause() -> Iterator[list[float]]:
    """Measure the longest time for which another Python thread could not run."""
    pauses, stop = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stop.is_set():
            time.sleep(0.005)
            now = time.perf_counter()
            pauses[0] = max(pauses[0], now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        yield pauses
    finally:
        stop.set()
        ticker.join()


def test_other_threads_run_during_long_calls(smollm2: Path) -> None:
    """One engine thread, so that a core is free: what stalls the ticker then is the lock alone."""
    calls: dict[str, Callable[[], object]] = {}
    model = Model(smollm2, threads=1)
    session = model.session()
    tokens = random_ids(model, 1500)
    calls["load"] = lambda: Model(smollm2, threads=1)
    calls["prefill"] = lambda: session.forward(tokens)
    calls["tokenise"] = lambda: model.tokenizer.encode("some words that are many " * 20_000)
    for name, call in calls.items():
        with longest_pause() as pauses:
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
        if seconds > 0.2:  # a call shorter than this cannot stall anyone for long
            assert pauses[0] < max(0.05, seconds / 4), f"{name}: {pauses[0]:.3f} of {seconds:.3f} s"
    assert len(session) == 1500


def interrupt(program: str, model: Path, threads: int) -> tuple[str, float, str]:
    """Run a program until it has said "ready", press Ctrl-C, and return what it says then.

    That is a word, when it was said in seconds after Ctrl-C, and, if there is another, a last word.
    """
    with subprocess.Popen(
        [sys.executable, "-c", program, str(model), str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        sent = time.time()
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    word, at, *last = out.split()
    return word, float(at) - sent, " ".join(last)


INTERRUPTED = """
import sys, time
import numpy as np
from specrs import attention
from specrs._specrs import Model
model = Model(sys.argv[1], threads=int(sys.argv[2]))
session = model.session()
session.forward([5, 6, 7])
long = np.random.default_rng(0).integers(0, model.n_vocab, 7000)
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
assert session.tokens == [5, 6, 7], session.tokens
fresh = model.session()
wanted = fresh.forward([5, 6, 7, 8])
assert np.array_equal(session.forward([8]), wanted)
print("usable", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "session.forward(long)",
        "session.prefill(long)",
        "session.prefill(long, attention=attention.BlockMean())",
        "session.prefill(long, attention=attention.Antidiagonal(tau=0.99))",
    ],
)
def test_ctrl_c_during_a_long_prefill(smollm2: Path, threads: int, call: str) -> None:
    word, at, usable = interrupt(INTERRUPTED.format(call=call), smollm2, threads)
    assert (word, usable) == ("interrupted", "usable")
    assert at < INTERRUPT_SECONDS + BUSY_MACHINE_SECONDS


WAITING = """
import sys, threading, time
import numpy as np
from specrs._specrs import Model
model = Model(sys.argv[1], threads=int(sys.argv[2]))
session, other = model.session(), model.session()
long = np.random.default_rng(0).integers(0, model.n_vocab, 6000)
threading.Thread(target=session.forward, args=[long], daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize("call", ["session.forward([5])", "len(session)"])
def test_ctrl_c_while_another_thread_computes(smollm2: Path, threads: int, call: str) -> None:
    """The main thread waits for a session that another thread holds."""
    word, at, _ = interrupt(WAITING.format(call=call), smollm2, threads)
    assert word == "interrupted"
    assert at < INTERRUPT_SECONDS + BUSY_MACHINE_SECONDS


@pytest.mark.usefixtures("two_cpus")
def test_a_thread_loads_while_the_main_thread_computes(
    smollm2: Path, tiny: Callable[..., Path]
) -> None:
    """The main thread is pinned to one CPU then; the number of threads possible stays the same."""
    model = Model(smollm2, threads=2)
    path = tiny(quant="Q4_0")

    def load() -> int:
        time.sleep(0.05)
        return Model(path, threads=2).threads

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        model.session().forward(random_ids(model, 400))
        assert loading.result() == 2


def test_passes_are_counted(tiny: Callable[..., Path], threads: int) -> None:
    model = Model(tiny(quant="Q4_0"), threads=threads)
    assert model.passes == (0, 0)
    model.session().forward(random_ids(model, 400))  # two passes of at most 256 rows
    passes, short = model.passes
    assert passes == 2
    assert 0 <= short <= (passes if threads > 1 else 0)


def test_sixteen_threads_share_a_tokenizer(tiny: Callable[..., Path]) -> None:
    for kind in ("bpe", "spm"):
        tokenizer = Model(tiny(tokenizer=kind)).tokenizer
        texts = [f"the cat sat on mat {i} hello world 😀" for i in range(16)]
        wanted = [tokenizer.encode(text) for text in texts]

        def work(i: int) -> bool:
            return all(
                tokenizer.encode(texts[i]) == wanted[i]  # noqa: B023 - run before the next kind
                and tokenizer.decode(wanted[i]).strip() == texts[i]  # noqa: B023
                for _ in range(250)
            )

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(work, range(16)))


def test_four_threads_generate_with_one_model(tiny: Callable[..., Path], threads: int) -> None:
    model = Model(tiny(quant="Q4_0"), threads=threads)
    sequences = [random_ids(model, 120, seed) for seed in range(4)]
    wanted = [cold(model, tokens) for tokens in sequences]

    def work(i: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return in_pieces(model.session(), sequences[i], [1, 3, 7])

    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            for got, rows in zip(pool.map(work, range(4)), wanted, strict=True):
                assert_same_bits(got, rows)


def test_calls_on_one_session_wait_for_each_other(tiny: Callable[..., Path], threads: int) -> None:
    model = Model(tiny(quant="Q4_0"), threads=threads)
    session = model.session()
    pieces = [random_ids(model, 10, seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(session.forward, pieces))
    tokens = session.tokens
    assert sorted(tokens[start : start + 10] for start in range(0, 400, 10)) == sorted(pieces)
    assert_same_bits(session.forward([5]), cold(model, [*tokens, 5])[-1])


class Interposing:
    """An attention pattern that lets another thread use a session while it is looked at."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    @property
    def native(self) -> object:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.call).result()
        return attention.SinkWindow().native


def test_a_prefill_checks_what_it_works_on(tiny: Callable[..., Path], threads: int) -> None:
    """What another thread appends to the session counts: as much as if it had come first."""
    model = Model(tiny(quant="Q4_0"), threads=threads)
    session = model.session()
    prompt, earlier = random_ids(model, 40), random_ids(model, 90, seed=1)
    kept = np.zeros(session.kept_shape(40), np.uint32)
    with pytest.raises(ValueError, match="kept has shape"):
        session.prefill(prompt, attention=Interposing(lambda: session.forward(earlier)), kept=kept)
    assert session.tokens == earlier
    assert not kept.any()
    with pytest.raises(ValueError, match="prompt_length=150 is less than the 170"):
        session.prefill(
            prompt, attention=Interposing(lambda: session.forward(prompt)), prompt_length=150
        )
    assert session.tokens == earlier + prompt


FORKING = """
import os, sys
from specrs._specrs import Model
wanted = Model(sys.argv[1], threads=2).session().forward([5, 6]).tobytes()
child = os.fork()
if child == 0:
    got = Model(sys.argv[1], threads=2).session().forward([5, 6]).tobytes()
    os._exit(0 if got == wanted else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_models_load_in_a_forked_child(tiny: Callable[..., Path]) -> None:
    """A process that has a model forks: a model loaded in the child has threads of its own."""
    command = [sys.executable, "-c", FORKING, str(tiny(quant="Q4_0"))]
    subprocess.run(command, check=True, timeout=60)


FORKING_IN_A_CALL = """
import os, sys, threading
from specrs._specrs import Model
model = Model(sys.argv[1], threads=1)
session, begun, end = model.session(), threading.Event(), threading.Event()
def progress(done, total):
    begun.set()
    end.wait()
thread = threading.Thread(target=lambda: session.prefill([5, 6, 7], progress=progress))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    try:
        session.forward([5])
    except ValueError as error:
        told = "forked" in str(error)
    os._exit(0 if told and len(model.session().forward([5])) else 3)
end.set()
thread.join()
assert session.tokens == [5, 6, 7]
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_session_that_was_in_use_at_a_fork_is_refused_in_the_child(
    tiny: Callable[..., Path],
) -> None:
    command = [sys.executable, "-c", FORKING_IN_A_CALL, str(tiny(quant="Q4_0"))]
    subprocess.run(command, check=True, timeout=60)


def test_memory_does_not_grow(tiny: Callable[..., Path], threads: int) -> None:
    """Requests, abandoned drafts, snapshots, forks and errors, 1500 times each."""
    model = Model(tiny(quant="Q4_0"), threads=threads)
    tokens = random_ids(model, 50)
    kept = model.session()
    kept.forward(tokens)
    process = psutil.Process()

    def request() -> None:
        session = model.session()
        session.forward(tokens)
        snapshot = session.snapshot()
        fork = kept.fork()
        fork.forward(tokens[:3])
        session.forward(tokens[:5])
        session.restore(snapshot)
        for bad in ([-1], [0] * 1000):
            with pytest.raises(ValueError, match=r"\S"):
                session.forward(bad)
        with pytest.raises(ContextOverflow):
            session.forward([0] * 500)
        stream = model.tokenizer.stream()
        stream.push(tokens[0])

    for _ in range(500):
        request()
    before = process.memory_info().rss
    for _ in range(1500):
        request()
    grown = process.memory_info().rss - before
    assert grown < 1 << 20, f"{grown / 1500:.0f} bytes a request"


SCRATCH = """
import sys
from pathlib import Path
import numpy as np
from specrs._specrs import Model
LENGTH = 8192
def resident(name):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(name + ":")[2].split()[0])
model = Model(sys.argv[1], threads=int(sys.argv[2]))
ids = np.random.default_rng(0).integers(0, model.n_vocab, LENGTH)
model.session().forward(ids[:1])  # what is mapped of the weights is read
try:
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest so far
except OSError as error:
    sys.exit(f"cannot reset: {error}")
before = resident("VmRSS")
model.session().prefill(ids, attention=sys.argv[3])
print(resident("VmHWM") - before - LENGTH * model.cache_bytes_per_token)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("attention", ["dense", "auto"])
def test_long_prompts_need_little_memory(
    tiny: Callable[..., Path], threads: int, attention: str
) -> None:
    """Less than 64 MiB beside weights and cache, with the widths of a real model.

    Layers take turns with the same memory, so that three stand for thirty.
    """
    widths: dict[str, Any] = {"n_embd": 576, "n_head": 9, "n_head_kv": 3, "n_ff": 1536}
    path = tiny(quant="Q8_0", n_layer=3, n_ctx=8192, **widths)
    command = [sys.executable, "-c", SCRATCH, str(path), str(threads), attention]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if child.stderr.startswith("cannot reset"):
        pytest.skip(child.stderr)
    assert child.returncode == 0, child.stderr
    print(f"{attention}: {int(child.stdout) / 2**20:.1f} MiB")
    assert 0 < int(child.stdout) < 64 << 20
