"""A record of a generation, step by step, that can be kept in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..files import json_lines, replace_file
from ..sampling import TokenLogprob
from .step import Step


class Trace(list[Step]):
    """The steps of a generation.

    Attributes:
        prompt: The ids before the first step.
    """

    def __init__(self, prompt: Sequence[int], steps: Iterable[Step] = ()) -> None:
        super().__init__(steps)
        self.prompt = list(prompt)

    @property
    def tokens(self) -> list[int]:
        """The ids made."""
        return [token for step in self for token in step.tokens]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON lines, atomically: the prompt, then a step in each."""
        head = {"format": _FORMAT, "prompt": self.prompt}
        lines = (head, *map(asdict, self))
        replace_file(path, (json.dumps(line).encode() + b"\n" for line in lines))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read what `save` wrote; OSError, or ValueError with the line that is wrong."""
        lines = list(json_lines(Path(path).read_bytes()))
        number = 1
        try:
            head = json.loads(lines[0][1])
            if head["format"] != _FORMAT:
                raise ValueError(f"format {head['format']!r}")
            trace = cls(head["prompt"])
            for number, line in lines[1:]:  # noqa: B007 - the error names it
                trace.append(_step(json.loads(line)))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            names = ", ".join(field.name for field in fields(Step))
            raise ValueError(
                f"{os.fspath(path)}, line {number}: {error!r}; a trace is one line with the format "
                f"{_FORMAT!r} and the prompt, then lines with {names}"
            ) from None
        return trace


_FORMAT = "specrs trace 1"


def _step(values: dict[str, Any]) -> Step:
    """Make a step of its values as JSON knows them."""
    logprobs = values.pop("logprobs", None)
    if logprobs is not None:
        logprobs = [
            TokenLogprob(one["token"], one["logprob"], tuple((id_, p) for id_, p in one["top"]))
            for one in logprobs
        ]
    return Step(**values, logprobs=logprobs)
