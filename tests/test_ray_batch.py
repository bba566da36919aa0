"""`examples/ray_batch.py` on a cluster of several nodes, all of them processes of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specrs import Llama

EXAMPLE = Path(__file__).parent.parent / "examples" / "ray_batch.py"

CLUSTER = """
import runpy, sys
import ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are told apart on Linux")
@pytest.mark.usefixtures("two_cpus")
def test_a_cluster_gives_what_one_machine_does(tiny: Callable[..., Path], tmp_path: Path) -> None:
    prompts = [f"prompt {i} of {i * i}" for i in range(40)]
    lines = [json.dumps({"id": i, "prompt": prompt}) for i, prompt in enumerate(prompts)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-c", CLUSTER, EXAMPLE, tiny(), tmp_path / "prompts.jsonl"]
    command += [tmp_path / "results", "--actors", "2", "--batch", "5", "--max-tokens", "9"]
    subprocess.run(list(map(str, command)), check=True, timeout=240, cwd=tmp_path)
    files = (tmp_path / "results").glob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    llm = Llama(tiny(), threads=1)
    assert sorted(row["id"] for row in rows) == list(range(40))
    for row in rows:
        assert row["error"] == ""
        assert row["text"] == llm.generate(prompts[row["id"]], max_tokens=9).text
    # Each actor had a core of its own.
    assert len({row["cores"] for row in rows}) == 2
