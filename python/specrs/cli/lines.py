"""Many prompts from a file of JSON lines, and their results to another, which can be resumed."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..files import json_lines
from ..llama import Llama
from ..sampling import Sampling
from ..serving.batch import Batch
from ..serving.many import WINDOW, Many, Progress, order
from ..serving.request import Request

OWN = ("max_tokens", "stop")
"""Options that a line may have, beside those of `Sampling`."""

SAMPLING = tuple(field.name for field in fields(Sampling) if field.name != "logits_processor")


@dataclass
class Line:
    """A line of the input.

    Attributes:
        id: What its result is called.
        values: What it says.
        digest: What determines the result, in short.
    """

    id: Any
    values: dict[str, Any]
    digest: str


def generate_lines(
    llm: Llama,
    source: Path,
    target: Path,
    options: Mapping[str, Any],
    *,
    max_requests: int = 16,
    cache_bytes: int | None = None,
) -> tuple[int, int, int]:
    """Generate for every line of `source` whose id is not in `target`; append what comes of it.

    A line has "prompt" (text or ids) or "messages", an "id" (else it is its number), and may have
    options. A result has "id", "text", "finish_reason" and "usage", or "error"; and "options", a
    digest of what determines it. Results are written as they come.

    Returns how many were done now, were done already, and failed now. Raises OSError for files that
    cannot be read or written, and ValueError for what is no file of prompts, ids that occur twice,
    and results of other options or another model.
    """
    options = dict(options)
    lines = read_lines(source, common_digest(llm, options))
    finished = _resume(target, {key_of(line.id): line for line in lines})
    left = [line for line in lines if key_of(line.id) not in finished]
    failed = 0
    batch = llm.batch(max_requests=max_requests, cache_bytes=cache_bytes)
    add, window = _adder(batch, options), WINDOW * max_requests
    many = Many(batch, add, left, window, {}, key=lambda line: order(_asked(line)))
    progress = Progress(len(left), shown=True)
    with target.open("ab") as out:
        try:
            for number, _, outcome in many.run():
                if outcome is None:  # cancelled
                    continue
                line = left[number]
                progress.update(outcome)
                result: dict[str, Any] = {"id": line.id}
                if isinstance(outcome, Exception):
                    failed += 1
                    result["error"] = _message(outcome)
                else:
                    result["text"] = outcome.text
                    if outcome.reasoning is not None:
                        result["reasoning"] = outcome.reasoning
                    result["finish_reason"] = outcome.finish_reason
                    result["usage"] = {
                        "prompt_tokens": outcome.stats.prompt_tokens,
                        "completion_tokens": outcome.stats.tokens_generated,
                    }
                result["options"] = line.digest
                out.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
                out.flush()
        finally:
            progress.close()
    return len(left) - failed, len(finished), failed


def _asked(line: Line) -> Any:
    """Return the prompt or the messages of a line."""
    return line.values.get("prompt", line.values.get("messages"))


def read_lines(source: Path, common: str) -> list[Line]:
    """Read the input; ValueError for what has no or the same ids."""
    lines: list[Line] = []
    seen: dict[str, int] = {}
    for number, text in json_lines(source.read_bytes()):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{source}, line {number}: no JSON ({error})") from None
        if not isinstance(values, dict):
            raise ValueError(f'{source}, line {number}: must be an object with "prompt"')
        id_ = values.get("id", number)
        if isinstance(id_, (dict, list)) or id_ is None:
            raise ValueError(f"{source}, line {number}: id must be text or a number, not {id_!r}")
        if key_of(id_) in seen:
            raise ValueError(
                f"{source}, line {number}: the id {id_!r} is that of line {seen[key_of(id_)]}"
            )
        seen[key_of(id_)] = number
        digest = _digest(common, {name: v for name, v in values.items() if name != "id"})
        lines.append(Line(id_, values, digest))
    return lines


def common_digest(llm: Llama, options: Mapping[str, Any]) -> str:
    """Say in short what determines all results: the model and options, but who drafts."""
    speed = ("drafter", "draft_length")
    deciding = sorted((name, repr(v)) for name, v in options.items() if name not in speed)
    return _digest(llm.path.name, llm.path.stat().st_size, llm.n_ctx, deciding)


def key_of(id_: Any) -> str:
    """Tell ids apart as JSON does: the text "1" is not the number 1."""
    return json.dumps(id_)


def _resume(target: Path, lines: Mapping[str, Line]) -> set[str]:
    """Return whose results the output has; what is torn at its end is cut off."""
    if not target.exists():
        return set()
    data = target.read_bytes()
    whole = data.rfind(b"\n") + 1
    finished = set()
    for number, text in json_lines(data[:whole]):
        try:
            result = json.loads(text)
            key, digest = key_of(result["id"]), result["options"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{target}, line {number}: no result of this command; give another --output"
            ) from None
        line = lines.get(key)
        if line is None or line.digest != digest:
            what = "its id is not in the input" if line is None else "it is of other options"
            raise ValueError(
                f"{target}, line {number}: {what}, or of another input or model; go on with those "
                f"of before, or give another --output"
            )
        finished.add(key)
    if whole < len(data):
        with target.open("r+b") as out:
            out.truncate(whole)
    return finished


def _adder(batch: Batch, options: dict[str, Any]) -> Callable[[Line], Request]:
    """Return who adds a line to the batch; ValueError or TypeError for one that is wrong."""

    def add(line: Line) -> Request:
        values = {name: value for name, value in line.values.items() if name != "id"}
        if ("prompt" in values) == ("messages" in values):
            raise ValueError('one of "prompt" and "messages" is needed')
        own = {name: values.pop(name) for name in OWN if name in values}
        drawn = {name: values.pop(name) for name in SAMPLING if name in values}
        if isinstance(drawn.get("logit_bias"), dict):  # JSON has no other keys than text
            drawn["logit_bias"] = {int(token): b for token, b in drawn["logit_bias"].items()}
        prompt, messages = values.pop("prompt", None), values.pop("messages", None)
        if values:
            known = ", ".join((*OWN, *SAMPLING))
            raise ValueError(f"{next(iter(values))!r} is no option of a line; there are {known}")
        all_: Any = {**options, **own, "sampling": replace(options["sampling"], **drawn)}
        if messages is not None:
            all_.pop("parse_special", None)  # no message spells tokens
            return batch.add_chat(messages, **all_)
        return batch.add(prompt, **all_)

    return add


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def report(counts: tuple[int, int, int], target: Path) -> None:
    """Say on stderr how it went."""
    done, before, failed = counts
    parts = [f"{done} done", f"{before} were there already", f"{failed} failed"]
    print(f"specrs: {', '.join(parts)}; see {target}", file=sys.stderr)
