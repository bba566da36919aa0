"""Chats over HTTP: what comes is what `Llama.chat` gives, whole and in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import Running, running
from specrs import Llama, Sampling

pytestmark = pytest.mark.once

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello world, the cat sat on the mat"}]
GREEDY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    with running(tiny()) as server:
        yield server


def reply_of(llm: Llama, **options: Any) -> Any:
    return llm.chat(MESSAGES, **options)


def test_a_reply_is_that_of_chat(server: Running) -> None:
    reply = server.chat(**GREEDY, model="tiny")
    wanted = reply_of(server.llm, max_tokens=24)
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-")
    assert reply["model"] == "tiny"
    assert reply["system_fingerprint"].startswith("b")
    (choice,) = reply["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == wanted.text
    assert choice["finish_reason"] == wanted.finish_reason
    assert choice["logprobs"] is None
    prompt = len(server.llm.chat_tokens(MESSAGES))
    usage = reply["usage"]
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == len(wanted.tokens)
    assert usage["total_tokens"] == prompt + len(wanted.tokens)


def test_a_prompt_that_was_there_is_cached(server: Running) -> None:
    messages = [{"role": "user", "content": "the cat and the mat " * 20}]
    first, second = (server.chat(messages=messages, max_tokens=2) for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 10
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == second["usage"]["prompt_tokens"] - 1


def test_a_stream_has_the_same_text_in_the_order_of_the_api(server: Running) -> None:
    whole = server.chat(**GREEDY)
    events = server.events(CHAT, **GREEDY)
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert not any("usage" in event for event in events)
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": None}
    assert choices[-1]["delta"] == {}
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert all("role" not in choice["delta"] for choice in choices[1:])
    text = "".join(choice["delta"]["content"] for choice in choices[1:-1])
    assert text == whole["choices"][0]["message"]["content"]


def test_usage_ends_a_stream_if_it_is_wanted(server: Running) -> None:
    whole = server.chat(**GREEDY)
    events = server.events(CHAT, **GREEDY, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][name] == whole["usage"][name]
    events = server.events(CHAT, **GREEDY, stream_options={"include_usage": False})
    assert not any("usage" in event for event in events)


@pytest.mark.parametrize("seed", [0, 7, -1, -(1 << 63), (1 << 64) - 1])
def test_choices_count_seeds_up(server: Running, seed: int) -> None:
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": seed, "n": 3}
    reply = server.chat(**body)
    for i, choice in enumerate(reply["choices"]):
        sampling = Sampling(temperature=1, seed=(seed + i) % (1 << 64))
        wanted = reply_of(server.llm, max_tokens=12, sampling=sampling)
        assert choice["index"] == i
        assert choice["message"]["content"] == wanted.text
    prompt = len(server.llm.chat_tokens(MESSAGES))
    assert reply["usage"]["prompt_tokens"] == prompt, "a prompt counts once"
    texts = ["", "", ""]
    for event in server.events(CHAT, **body):
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [choice["message"]["content"] for choice in reply["choices"]]


def test_without_a_seed_replies_differ(server: Running) -> None:
    body = {"messages": MESSAGES, "max_tokens": 20}
    assert len({server.chat(**body)["choices"][0]["message"]["content"] for _ in range(4)}) > 1


@pytest.mark.parametrize("speculation", ["off", "auto", 3])
def test_drafts_change_no_text(server: Running, speculation: Any) -> None:
    prediction = {"type": "content", "content": "the cat sat on the mat"}
    body = {"messages": MESSAGES, "max_tokens": 40, "seed": 5, "frequency_penalty": 0.5}
    wanted = server.chat(**body, speculation="off")
    reply = server.chat(**body, speculation=speculation, prediction=prediction)
    assert reply["choices"] == wanted["choices"]
    details = wanted["usage"]["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


def test_what_was_predicted_is_accepted(server: Running) -> None:
    body = {**GREEDY, "max_tokens": 60, "ignore_eos": True, "speculation": 4}
    text = server.chat(**body)["choices"][0]["message"]["content"]
    reply = server.chat(**body, prediction={"type": "content", "content": text})
    assert reply["choices"][0]["message"]["content"] == text
    details = reply["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0


def test_stop_strings_are_not_in_the_text(server: Running) -> None:
    text = server.chat(**GREEDY)["choices"][0]["message"]["content"]
    stop = text[3:6]
    reply = server.chat(**GREEDY, stop=["", stop])
    assert reply["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert reply["choices"][0]["finish_reason"] == "stop"
    events = server.events(CHAT, **GREEDY, stop=stop)
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(pieces) == text[: text.index(stop)]


def test_log_probabilities_are_those_of_chat(server: Running) -> None:
    body = {**GREEDY, "logprobs": True, "top_logprobs": 3}
    wanted = reply_of(server.llm, max_tokens=24, logprobs=3)
    choice = server.chat(**body)["choices"][0]
    content = choice["logprobs"]["content"]
    kept = wanted.logprobs[: len(content)]
    assert len(kept) >= len(wanted.tokens) - 1, "only the token that ends a reply is left out"
    assert [one["logprob"] for one in content] == [one.logprob for one in kept]
    raw = b"".join(bytes(one["bytes"]) for one in content)
    assert raw.decode("utf-8", "replace").replace("�", "") == choice["message"]["content"].replace(
        "�", ""
    )
    tops = [[top["logprob"] for top in one["top_logprobs"]] for one in content]
    assert tops == [[logprob for _, logprob in one.top] for one in kept]
    events = server.events(CHAT, **body)
    streamed: list[Any] = []
    for event in events[1:]:
        piece = event["choices"][0]
        if piece["logprobs"] is not None:
            streamed += piece["logprobs"]["content"]
        assert piece["finish_reason"] or piece["logprobs"] is not None
    assert streamed == content


def test_log_probabilities_without_alternatives(server: Running) -> None:
    content = server.chat(**GREEDY, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert content
    assert all(one["top_logprobs"] == [] for one in content)


def test_biases_forbid_tokens(server: Running) -> None:
    first = server.llm.chat(MESSAGES, max_tokens=8).tokens
    reply = server.chat(**GREEDY, logit_bias={str(first[0]): -100})
    wanted = reply_of(server.llm, max_tokens=24, sampling=Sampling(logit_bias={first[0]: -100.0}))
    assert reply["choices"][0]["message"]["content"] == wanted.text


def test_max_completion_tokens_comes_first(server: Running) -> None:
    body = {"messages": MESSAGES, "ignore_eos": True, "temperature": 0}
    reply = server.chat(**body, max_completion_tokens=3, max_tokens=9)
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["choices"][0]["finish_reason"] == "length"
    reply = server.chat(**body)  # the rest of the context
    assert reply["usage"]["total_tokens"] == server.llm.n_ctx


def test_a_begun_reply_goes_on(server: Running) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "the cat"}]
    reply = server.chat(messages=messages, continue_final_message=True, temperature=0, max_tokens=9)
    wanted = server.llm.chat(messages, continue_final_message=True, max_tokens=9)
    assert reply["choices"][0]["message"]["content"] == wanted.text


def test_what_has_no_effect_is_accepted(server: Running) -> None:
    extras = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "reasoning_effort": "low",
        "verbosity": "low",
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "tool_choice": "none",
        "unknown": [1, 2],
        "n": None,
        "stop": None,
        "stream": None,
        "logit_bias": None,
        "tools": None,
    }
    parts = [{"type": "text", "text": MESSAGES[0]["content"]}]
    body = {**GREEDY, **extras, "messages": [{"role": "user", "content": parts}]}
    assert server.chat(**body)["choices"] == server.chat(**GREEDY)["choices"]
