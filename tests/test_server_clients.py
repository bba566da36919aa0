"""OpenAI's own client, which checks every type, against a server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from http_server import Running, running

pytestmark = pytest.mark.once

MESSAGES: Any = [{"role": "user", "content": "hello world"}]
GREEDY: Any = {"model": "tiny", "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    with running(tiny()) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=server.url + "/v1", api_key="none", _strict_response_validation=True
    ) as client:
        yield client


def test_chats(server: Running, client: openai.OpenAI) -> None:
    wanted = server.llm.chat(MESSAGES, max_tokens=12).text
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    assert whole.choices[0].message.content == wanted
    with client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY) as pieces:
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == wanted
    with client.chat.completions.stream(
        messages=MESSAGES, stop=wanted[4:6], stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == wanted[: wanted.index(wanted[4:6])]
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_completions_and_models(server: Running, client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt=["hello", "world"], logprobs=2, **GREEDY)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.token_logprobs is not None
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("other").id == "tiny"


class Town(pydantic.BaseModel):
    name: Literal["Bern", "Basel"]
    large: bool


def test_replies_are_parsed(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Town, seed=1
    )
    assert isinstance(reply.choices[0].message.parsed, Town)


def test_a_full_house_is_tried_again(tiny: Callable[..., Path]) -> None:
    with (
        running(tiny(), max_requests=1, max_queue=0) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=8) as client,
    ):
        body: Any = {"messages": MESSAGES, "model": "tiny", "max_tokens": 400}
        with client.chat.completions.create(
            **body, stream=True, extra_body={"ignore_eos": True, "speculation": "off"}
        ):
            with pytest.raises(openai.RateLimitError) as full:
                client.with_options(max_retries=0).chat.completions.create(**body)
            assert full.value.code == "queue_full"
            assert client.chat.completions.create(messages=MESSAGES, **GREEDY).choices


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(messages=MESSAGES, model="gpt-9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(messages=MESSAGES, **{**GREEDY, "temperature": -1})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(prompt="x" * 5000, **GREEDY)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as refused:  # at once: it says so
        client.embeddings.create(input="x", model="tiny")
    assert refused.value.status_code == 501


def test_raw_answers_have_the_name_of_the_request(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=MESSAGES, extra_headers={"X-Request-Id": "mine"}, **GREEDY
    )
    assert raw.request_id == "mine"
    assert raw.parse().choices


def test_a_client_that_gives_up_is_not_worked_for(server: Running, client: openai.OpenAI) -> None:
    batch = server.engine.batch
    assert batch is not None
    cancelled = batch.stats.cancelled
    impatient = client.with_options(timeout=0.05, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(
            messages=MESSAGES,
            model="tiny",
            n=4,
            max_tokens=480,
            extra_body={"ignore_eos": True, "speculation": "off"},
        )

    async def several() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
            replies = await asyncio.gather(
                *(client.chat.completions.create(messages=MESSAGES, **GREEDY) for _ in range(8))
            )
        return [reply.choices[0].message.content for reply in replies]

    assert set(asyncio.run(several())) == {server.llm.chat(MESSAGES, max_tokens=12).text}
    assert batch.stats.cancelled > cancelled
