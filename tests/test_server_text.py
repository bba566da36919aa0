"""Completions over HTTP, the endpoints of the tokenizer, and llama.cpp's own form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import Running, running
from specrs import Sampling

pytestmark = pytest.mark.once

TEXT = "/v1/completions"
PROMPT = "hello world, the cat sat on the mat"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module", params=["bpe", "spm"])
def server(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Iterator[Running]:
    with running(tiny(tokenizer=request.param)) as server:
        yield server


def test_a_completion_is_that_of_generate(server: Running) -> None:
    reply = server.text(prompt=PROMPT, **GREEDY)
    wanted = server.llm.generate(PROMPT, max_tokens=20)
    assert reply["object"] == "text_completion"
    assert reply["choices"][0]["text"] == wanted.text
    assert reply["choices"][0]["finish_reason"] == wanted.finish_reason
    assert reply["usage"]["prompt_tokens"] == len(server.llm.tokenize(PROMPT))
    text = "".join(
        event["choices"][0]["text"] for event in server.events(TEXT, prompt=PROMPT, **GREEDY)
    )
    assert text == wanted.text


def test_sixteen_tokens_without_a_limit(server: Running) -> None:
    reply = server.text(prompt=PROMPT, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 16


def test_token_ids_stay_as_they_are(server: Running) -> None:
    ids = [300, 301, 302, 303]
    reply = server.text(prompt=ids, **GREEDY)
    assert reply["usage"]["prompt_tokens"] == 4
    assert reply["choices"][0]["text"] == server.llm.generate(ids, max_tokens=20).text


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_with_several_choices(server: Running, stream: bool) -> None:
    prompts = [PROMPT, "the mat and the cat"]
    body = {"prompt": prompts, "n": 2, "seed": 3, "max_tokens": 9}
    texts = [""] * 4
    replies = server.events(TEXT, **body) if stream else [server.text(**body)]
    for reply in replies:
        for choice in reply["choices"]:
            texts[choice["index"]] += choice["text"]
    wanted = [
        server.llm.generate(prompt, max_tokens=9, sampling=Sampling(temperature=1, seed=3 + i)).text
        for prompt in prompts
        for i in range(2)
    ]
    assert texts == wanted
    assert server.text(prompt=[[300, 301], [302]], n=1)["usage"]["prompt_tokens"] == 3


def test_marks_of_a_prompt_count(server: Running) -> None:
    mark = server.llm.tokenizer.token(server.llm.tokenizer.eos or 0)
    reply = server.text(prompt=f"hello{mark}world", **GREEDY)
    ids = server.llm.tokenize(f"hello{mark}world", parse_special=True)
    assert server.llm.tokenizer.eos in ids
    assert reply["usage"]["prompt_tokens"] == len(ids)
    assert reply["choices"][0]["text"] == server.llm.generate(ids, max_tokens=20).text


def test_log_probabilities_in_lists(server: Running) -> None:
    found = server.text(prompt=PROMPT, **GREEDY, logprobs=2)["choices"][0]["logprobs"]
    wanted = server.llm.generate(PROMPT, max_tokens=20, logprobs=2).logprobs or []
    count = len(found["tokens"])
    assert count >= len(wanted) - 1
    assert found["token_logprobs"] == [one.logprob for one in wanted[:count]]
    assert found["text_offset"][0] == len(PROMPT)
    assert found["text_offset"] == sorted(found["text_offset"])
    for top, one in zip(found["top_logprobs"], wanted, strict=False):
        assert one.logprob == max(top.values()), "greedy takes the likeliest: the same float"
        assert 1 <= len(top) <= 3
    one_each = server.text(prompt=PROMPT, **GREEDY, logprobs=0)["choices"][0]["logprobs"]
    assert all(len(top) == 1 for top in one_each["top_logprobs"])
    assert one_each["token_logprobs"] == found["token_logprobs"]


def test_an_echo_scores_the_prompt(server: Running) -> None:
    """What EleutherAI's harness asks, and reads, of an API."""
    ids = server.llm.tokenize(PROMPT)
    score = server.llm.score(ids, top_logprobs=1)
    for max_tokens in (0, 1):
        choice = server.text(
            prompt=ids, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
        )["choices"][0]
        told = choice["logprobs"]
        assert told["token_logprobs"][: len(ids)] == score.logprobs
        assert told["token_logprobs"][0] is None
        assert told["top_logprobs"][0] is None
        assert choice["text"].startswith(server.llm.detokenize(ids, skip_special_tokens=False))
        greedy = all(
            logprob == max(top.values())
            for logprob, top in zip(
                told["token_logprobs"][1 : len(ids)],
                told["top_logprobs"][1 : len(ids)],
                strict=True,
            )
        )
        assert greedy == score.is_greedy
        total = math.fsum(told["token_logprobs"][1 : len(ids)])
        assert total == score.total
    assert server.text(prompt=PROMPT, echo=True, max_tokens=0)["choices"][0]["text"] == PROMPT


def test_offsets_are_places_in_the_text(server: Running) -> None:
    choice = server.text(prompt=PROMPT, echo=True, logprobs=0, max_tokens=4, temperature=0)[
        "choices"
    ][0]
    told = choice["logprobs"]
    for token, start, end in zip(
        told["tokens"], told["text_offset"], told["text_offset"][1:], strict=False
    ):
        piece = choice["text"][start:end]
        assert "�" in token or piece in (token, token.lstrip(" "), "")


def test_the_tokenizer(server: Running) -> None:
    llm = server.llm
    asked = server.post("/tokenize", {"prompt": PROMPT}).json()
    assert asked["tokens"] == llm.tokenize(PROMPT)
    assert asked["count"] == len(asked["tokens"])
    assert asked["max_model_len"] == llm.n_ctx
    for add in (True, False):
        asked = server.post("/v1/tokenize", {"content": PROMPT, "add_special": add}).json()
        assert asked["tokens"] == llm.tokenize(PROMPT, add_bos=None if add else False)
    pieces = server.post("/tokenize", {"content": "日 🤗", "with_pieces": True}).json()["tokens"]
    raw = b"".join(
        piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
        for piece in pieces
    )
    assert raw.decode().strip() == "日 🤗"
    ids = llm.tokenize(PROMPT, add_bos=False)
    asked = server.post("/detokenize", {"tokens": ids}).json()
    assert asked["content"] == asked["prompt"] == llm.detokenize(ids)
    messages = [{"role": "user", "content": "hi"}]
    asked = server.post("/tokenize", {"messages": messages}).json()
    assert asked["tokens"] == llm.chat_tokens(messages)
    info = server.client.get("/tokenizer_info").json()
    assert info["eos_token"] == llm.tokenizer.token(llm.tokenizer.eos or 0)
    assert info["chat_template"] == llm.tokenizer.chat_template


def test_llama_cpps_form(server: Running) -> None:
    wanted = server.llm.generate(PROMPT, max_tokens=8)
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "return_tokens": True}
    for path in ("/completion", "/completions"):
        reply = server.post(path, body).json()
        assert reply["content"] == wanted.text
        assert reply["tokens"] == wanted.tokens
        assert reply["timings"]["predicted_n"] == len(wanted.tokens)
        assert reply["stop"] is True
    named = server.post("/completions", {**body, "model": "tiny", "max_tokens": 8}).json()
    assert named["choices"][0]["text"] == wanted.text
    ids = server.llm.tokenize(PROMPT)
    several = server.post("/completion", {**body, "prompt": [ids, {"prompt_string": PROMPT}]})
    assert [one["content"] for one in several.json()] == [wanted.text] * 2
    streamed = server.post("/completion", {**body, "stream": True, "n_probs": 2})
    from http_server import events_of

    events, _ = events_of(streamed.text)
    assert "".join(event["content"] for event in events) == wanted.text
    assert events[-1]["stop"] is True
    told = [one for event in events for one in event.get("completion_probabilities", ())]
    assert [one["id"] for one in told] == wanted.tokens[: len(told)]
