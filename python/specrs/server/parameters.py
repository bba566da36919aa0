"""The bodies of requests: their types, and what makes one wrong in itself.

Null counts as absent, and members that are not named here are ignored: clients send many that have
no effect here, such as `user`, `metadata` or `reasoning_effort`.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from .errors import invalid, refused
from .settings import STOP_LENGTH, STOPS, TOP_LOGPROBS

Body = TypeVar("Body", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct, kw_only=True):
    """How a stream is to be."""

    include_usage: bool | None = None


class Common(msgspec.Struct, kw_only=True):
    """What chats and completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    speculation: int | str | None = None
    cache_salt: str | None = None
    priority: int | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Chat(Common, kw_only=True):
    """The body of a request for a reply."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    functions: Any = None
    function_call: Any = None
    store: bool | None = None
    web_search_options: Any = None
    audio: Any = None
    modalities: list[str] | None = None


class Text(Common, kw_only=True):
    """The body of a request for completions of texts."""

    prompt: str | list[str | int | list[int]] | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


class Tokenize(msgspec.Struct, kw_only=True):
    """The body of /tokenize, as vLLM has it (`prompt`, `messages`) or llama.cpp (`content`)."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None


class Detokenize(msgspec.Struct, kw_only=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int]


def decode(body: bytes, kind: type[Body]) -> Body:
    """Return a body as `kind`; ApiError, which names the member, if it is not one."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise invalid("the body is not valid JSON: it is nested too deeply") from None


def _wrong_type(message: str) -> Exception:
    """Word what msgspec says, such as "Expected `int`, got `str` - at `$.n`"."""
    what, _, place = message.partition(" - at ")
    path = place.strip("`").removeprefix("$").removeprefix(".")
    found = re.match(r"\w+", path)
    missing = re.search(r"missing required field `(\w+)`", what)
    param = found[0] if found else missing[1] if missing else None
    what = what.replace("`object`", "an object").replace("`array`", "an array").replace("`", "")
    where = f"{path}: " if path else "the body: "
    return invalid(f"{where}{what[:1].lower()}{what[1:]}", param)


def check(body: Common, max_n: int) -> None:
    """Raise ApiError for what no request may ask for."""
    if body.n is not None and not 1 <= body.n <= max_n:
        raise invalid(f"n must be from 1 to {max_n}, not {body.n}", "n")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(body, name)
        if value is not None and not -2 <= value <= 2:
            raise invalid(f"{name} must be from -2 to 2, not {value}", name)
    if body.seed is not None and not -(1 << 63) <= body.seed < 1 << 64:
        raise invalid(f"seed must be an integer of 64 bits, not {body.seed}", "seed")
    stops = stops_of(body.stop)
    if len(stops) > STOPS:
        raise invalid(f"stop has {len(stops)} texts; at most {STOPS} are allowed", "stop")
    if any(len(stop) > STOP_LENGTH for stop in stops):
        raise invalid(f"stop: a text may have at most {STOP_LENGTH} characters", "stop")


def check_chat(body: Chat, max_n: int) -> None:
    """Raise ApiError for what no request for a reply may ask for."""
    check(body, max_n)
    for name in ("functions", "function_call"):
        if getattr(body, name) is not None:
            raise refused(name, f"{name} is deprecated and not supported; use tools")
    if body.store:
        raise refused("store", "store: nothing is stored here; leave it out")
    for name in ("web_search_options", "audio"):
        if getattr(body, name) is not None:
            raise refused(name, f"{name} is not supported: this server makes text only")
    if body.modalities is not None and set(body.modalities) != {"text"}:
        raise refused("modalities", 'modalities must be ["text"]: this server makes text only')
    if body.messages is None:
        raise invalid("messages is required", "messages")
    most = body.top_logprobs
    if most is not None:
        if not 0 <= most <= TOP_LOGPROBS:
            raise invalid(f"top_logprobs must be from 0 to {TOP_LOGPROBS}", "top_logprobs")
        if most and not body.logprobs:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    for name in ("max_completion_tokens", "max_tokens"):
        value = getattr(body, name)
        if value is not None and value < 1:
            raise invalid(f"{name} must be at least 1, not {value}", name)
    _check_turns(body)
    kind = (body.response_format or {}).get("type", "text")
    if body.tools and body.tool_choice != "none" and (body.json_schema or kind != "text"):
        raise invalid(
            "response_format and tools exclude each other: a reply cannot obey a format and call "
            'a tool; take one of them, or tool_choice "none"',
            "response_format",
        )


def _check_turns(body: Chat) -> None:
    """Look at what OpenAI's API says of messages; the rest is the template's business."""
    messages = body.messages or []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message.get("role"), str):
            raise invalid(f"{where} needs a role, such as user or assistant", "messages")
        if message.get("content") is None and not message.get("tool_calls"):
            raise invalid(f"{where} needs content, which may be null beside tool_calls", "messages")
    last_two = [message["role"] for message in messages[-2:]]
    if last_two == ["assistant", "assistant"]:
        raise invalid("messages must not end with two turns of the assistant", "messages")
    if body.add_generation_prompt and body.continue_final_message:
        raise invalid(
            "add_generation_prompt and continue_final_message exclude each other: the reply "
            "either begins or goes on",
            "continue_final_message",
        )


def check_text(body: Text, max_n: int) -> None:
    """Raise ApiError for what no request for completions may ask for."""
    check(body, max_n)
    if body.suffix:
        raise refused("suffix", "suffix is not supported: text is only continued at its end")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of must equal n: all choices are returned", "best_of")
    if body.logprobs is not None and not 0 <= body.logprobs <= TOP_LOGPROBS:
        raise invalid(f"logprobs must be from 0 to {TOP_LOGPROBS}", "logprobs")
    if body.max_tokens is not None and body.max_tokens < (0 if body.echo else 1):
        least = "0" if body.echo else "1, or 0 with echo"
        raise invalid(f"max_tokens must be at least {least}, not {body.max_tokens}", "max_tokens")


def prompts_of(body: Text) -> list[str | list[int]]:
    """Return the prompts of a body: one or several texts or lists of ids."""
    prompt = body.prompt
    if prompt is None:
        raise invalid("prompt is required", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt is an empty list; give a text or token ids", "prompt")
    kinds = {type(one) for one in prompt}
    if kinds == {int}:
        return [[one for one in prompt if isinstance(one, int)]]
    if kinds <= {str, list}:
        return [one for one in prompt if isinstance(one, (str, list))]
    raise invalid("prompt mixes texts or lists with token ids; give one kind", "prompt")


def stops_of(stop: str | list[str] | None) -> list[str]:
    """Return the stop strings without empty ones, which would stop everything."""
    stops = [stop] if isinstance(stop, str) else stop or []
    return [text for text in dict.fromkeys(stops) if text]
