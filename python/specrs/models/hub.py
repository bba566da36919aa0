"""Models on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FORMS = "hf:owner/repo/file.gguf or hf:owner/repo:Q4_K_M"

# What ends the name of a part of a split model; llama.cpp writes these.
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# Files beside a model that no one means by a quantisation: projectors and statistics.
_BESIDE = re.compile(r"(^|[-_.])(mmproj|imatrix)", re.IGNORECASE)


def from_hub(name: str) -> Path:
    """Return the path of a file in the hub's cache, fetched with all other parts of its model.

    Args:
        name: "hf:owner/repo/file.gguf", or "hf:owner/repo:Q4_K_M" for the one model of the
            repository with this quantisation in its name.

    Raises ValueError for a name of another form, and OSError if it cannot be fetched, or names no
    model or several.
    """
    owner, _, rest = name.removeprefix("hf:").partition("/")
    repo, slash, filename = rest.partition("/")
    if not slash:
        repo, _, quantisation = rest.partition(":")
    if not (owner and repo and (filename if slash else quantisation)):
        raise ValueError(f"{name!r} does not have the form {FORMS}")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise OSError(
            f"{name} needs the package huggingface_hub; run: pip install huggingface_hub"
        ) from None
    repository = f"{owner}/{repo}"
    try:
        if not slash:
            filename = _find(repository, quantisation)
        paths = [Path(hf_hub_download(repository, part)) for part in parts(filename)]
    except LookupError as error:
        raise OSError(f"{name}: {error}") from None
    except Exception as error:  # the hub's errors have no common base but this
        raise OSError(f"{name} could not be fetched: {error}") from error
    if len({path.parent for path in paths}) > 1:
        raise OSError(f"{name} was changed on the hub while its parts were fetched; try again")
    return next(path for path in paths if path.name == filename.rpartition("/")[2])


def parts(filename: str) -> list[str]:
    """List the files of the model that `filename` is, or is a part of."""
    part = _PART.search(filename)
    if part is None:
        return [filename]
    stem, count = filename[: part.start()], part[2]
    return [f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def quantised(files: Iterable[str], repository: str, quantisation: str) -> str:
    """Return the file of a quantisation, the first part of a split one.

    Raises LookupError that lists what there is if that is none or several.
    """
    models = sorted({parts(file)[0] for file in files if _is_model(file)})
    tag = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quantisation)}(?![A-Za-z0-9_])", re.IGNORECASE)
    named = [file for file in models if tag.search(file)]
    # Where it stands within a name too, as in "model-Q4_0-pruned", the end of the name decides.
    ending = [
        file for file in named if tag.search(_stem(file), len(_stem(file)) - len(quantisation))
    ]
    found = ending or named
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} models are named {quantisation}" if found else f"no {quantisation}"
    listed = ", ".join(found or models) or "no .gguf file"
    raise LookupError(
        f"there {'are' if found else 'is'} {what} in this repository, which has {listed}"
        f"; give one as hf:{repository}/FILE"
    )


def _is_model(file: str) -> bool:
    name = file.rpartition("/")[2]
    return name.endswith(".gguf") and not _BESIDE.search(name)


def _stem(file: str) -> str:
    return _PART.sub("", file).removesuffix(".gguf")


def _find(repository: str, quantisation: str) -> str:
    """Return the file of a quantisation; without a network, of those that were fetched before."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        files = HfApi().list_repo_files(repository)
    except Exception:
        with suppress(Exception):  # what counts is why the hub was not reached
            folder = Path(snapshot_download(repository, local_files_only=True))
            fetched = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
            return quantised(fetched, repository, quantisation)
        raise
    return quantised(files, repository, quantisation)
