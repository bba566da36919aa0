"""Many prompts on several machines, with Ray Data.

    pip install "ray[data]" specrs         # on every machine of the cluster
    python examples/ray_batch.py model.gguf prompts.jsonl results --actors 4 --cores 2

Each line of the input has an "id" and a "prompt". The results are files of JSON lines in a folder,
in no order: that is what the ids are for. A result is that of `generate` on one machine, to the
bit, wherever it was made. The model is a path that every machine has; memory that is mapped from
it is shared by the actors of one machine.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any, TextIO

import ray


def take_cores(count: int) -> list[TextIO]:
    """Run on `count` cores that no other actor of this machine has; keep what is returned.

    Ray counts CPUs and pins nothing. Models pin their threads to the first cores that they may use,
    so two actors with the same mask would share cores, and wait for each other all the time.
    """
    folder = Path(tempfile.gettempdir()) / f"specrs-cores-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    locks: list[TextIO] = []
    mine: set[int] = set()
    for core in sorted(os.sched_getaffinity(0)):
        lock = (folder / str(core)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        except OSError:
            lock.close()
            continue
        locks.append(lock)
        mine.add(core)
        if len(mine) == count:
            # Of the whole process: threads look at what its main thread may use.
            os.sched_setaffinity(os.getpid(), mine)
            return locks
    raise RuntimeError(f"{count} cores are needed here, and {len(mine)} are free")


class Generator:
    """An actor: a model on cores of its own."""

    def __init__(self, model: str, cores: int, options: dict[str, Any]) -> None:
        self.cores = take_cores(cores)
        import specrs  # after that: the cores are looked up when a model is loaded

        self.llm = specrs.Llama(model, threads=cores)
        self.options = options

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Generate after each prompt of a batch of rows."""
        prompts = [str(prompt) for prompt in batch["prompt"]]
        results = self.llm.generate_many(prompts, return_errors=True, **self.options)
        rows: dict[str, list[Any]] = {"id": list(batch["id"]), "text": [], "error": []}
        for result in results:
            failed = isinstance(result, Exception)
            rows["text"].append("" if failed else result.text)
            rows["error"].append(repr(result) if failed else "")
        rows["cores"] = [",".join(map(str, sorted(os.sched_getaffinity(0))))] * len(results)
        return rows


def main() -> None:
    """Read, generate, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("results")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--cores", type=int, default=1, help="of each actor")
    parser.add_argument("--batch", type=int, default=256, help="prompts that an actor gets at once")
    parser.add_argument("--max-tokens", type=int, default=128)
    given = parser.parse_args()
    # Where the actors have all cores, whoever reads and writes would wait for one for ever.
    free = {"num_cpus": 0}
    rows = ray.data.read_json(
        os.path.abspath(given.prompts),  # noqa: PTH100
        lines=True,
        override_num_blocks=max(1, 4 * given.actors),
        ray_remote_args=free,
    )
    done = rows.map_batches(
        Generator,
        fn_constructor_args=(given.model, given.cores, {"max_tokens": given.max_tokens}),
        compute=ray.data.ActorPoolStrategy(size=given.actors),
        batch_size=given.batch,
        num_cpus=given.cores,
    )
    done.write_json(os.path.abspath(given.results), ray_remote_args=free)  # noqa: PTH100


if __name__ == "__main__":
    main()
