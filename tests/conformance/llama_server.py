#!/usr/bin/env python3
"""Stands in for the program `llama-server` in llama.cpp's own tests of it, and runs `specrs serve`.

The model is the file that SPECRS_CONFORMANCE_MODEL names, whatever the tests ask for: theirs has to
be downloaded.
"""

from __future__ import annotations

import os
import sys

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


def translated(arguments: list[str]) -> list[str]:
    """Return the options of `specrs serve` for those of llama-server."""
    found: list[str] = []
    given: dict[str, str] = {}
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


if __name__ == "__main__":
    model = os.environ["SPECRS_CONFORMANCE_MODEL"]
    command = [sys.executable, "-m", "specrs", "serve", model, *translated(sys.argv[1:])]
    os.execv(sys.executable, command)
