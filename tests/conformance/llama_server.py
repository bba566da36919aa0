#!/usr/bin/env python3
"""Stands in for the program `llama-server` in llama.cpp's own tests of it, and runs `specrs serve`.

The model is the file that SPECRS_CONFORMANCE_MODEL names, whatever the tests ask for: theirs has to
be downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# What llama-server's options are called here; those that are not listed have no counterpart.
OPTIONS = {
    "--host": "--host",
    "--port": "--port",
    "--temp": "--temperature",
    "--seed": "--seed",
    "--n-predict": "--max-tokens",
    "--api-key": "--api-key",
    "--alias": "--alias",
    "--parallel": "--max-requests",
}
FLAGS = {"--offline", "--cont-batching", "--metrics", "--slots", "--no-slots", "--jinja"}
FLAGS |= {"--no-jinja", "--verbose", "--kv-unified", "--swa-full", "--context-shift", "--no-ui"}
FLAGS |= {"--embedding", "--reranking", "--no-mmproj", "--no-cache-idle-slots"}


def translated(arguments: list[str], given: dict[str, str]) -> list[str]:
    """Return the options of `specrs serve` for those of llama-server, which `given` receives."""
    found: list[str] = []
    rest = iter(arguments)
    for name in rest:
        if name in FLAGS:
            continue
        given[name] = next(rest)
        if name in OPTIONS and not (name == "--n-predict" and int(given[name]) < 1):
            found += [OPTIONS[name], given[name]]
    if "--ctx-size" in given:  # llama-server divides its context among the slots
        found += ["--n-ctx", str(int(given["--ctx-size"]) // int(given.get("--parallel", "1")))]
    # Its tests name models of OpenAI, and expect that any origin is let in.
    return [*found, "--any-model-name", "--cors", "*", "--allowed-host", "*"]


def with_template(model: str, template: Path) -> str:
    """Return a copy of a model with another chat template."""
    copy = Path(tempfile.gettempdir()) / f"{template.stem}-{Path(model).name}"
    if not copy.exists():
        command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force"]
        text = template.read_text(encoding="utf-8")
        subprocess.run([*command, "--chat-template", text, model, str(copy)], check=True)
    return str(copy)


if __name__ == "__main__":
    model = os.environ["SPECRS_CONFORMANCE_MODEL"]
    given: dict[str, str] = {}
    options = translated(sys.argv[1:], given)
    if "--chat-template-file" in given:
        model = with_template(model, Path(given["--chat-template-file"]))
    command = [sys.executable, "-m", "specrs", "serve", model, *options]
    os.execv(sys.executable, command)
