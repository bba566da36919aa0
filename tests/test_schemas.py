"""About 270 schemas: every reply that ends obeys its own, as a validator that is not ours finds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

import schemas
from specrs import Completion, ForcedTokens, Grammar, Llama, PromptLookup, Sampling
from specrs.structured.compiler import Compiler

SEEDS = range(3 if os.environ.get("SPECRS_FULL") == "1" else 1)

# Why llguidance refuses a schema; whatever else it says would be news.
REASONS = (
    "Unimplemented keys",
    "oneOf constraints are not supported",
    "Unknown format",
    "min/maxProperties only supported",
    "is not present in a registry",
    "schema too large",
    f"at most {1 << 20} are compiled",
)


@pytest.fixture(scope="module")
def llm(tiny: Callable[..., Path], threads: int) -> Llama:
    return Llama(tiny(n_ctx=1024), threads=threads)


@pytest.fixture(scope="module")
def grammars() -> dict[str, tuple[Grammar, schemas.Schema]]:
    """Compile what can be; all that was made here can."""
    every = dict(schemas.made())
    found = {name: (Grammar.json_schema(schema), schema) for name, schema in every.items()}
    refused: list[str] = []
    for name, schema in schemas.public():
        for part, smaller in [(name, schema), *schemas.definitions(name, schema, 6)]:
            try:
                found[part] = Grammar.json_schema(smaller), smaller
            except ValueError as error:
                refused.append(str(error))
    assert not [text for text in refused if not any(reason in text for reason in REASONS)]
    assert len(found) > len(every) + 60
    return found


def closing(llm: Llama) -> dict[int, float]:
    """Make a random model end strings, arrays and objects before its context is full."""
    spelled = map(llm.tokenizer.token_bytes, range(llm.n_vocab))
    return {id_: 3.0 for id_, text in enumerate(spelled) if text in (b'"', b"}", b"]")}


def check(text: str, schema: schemas.Schema) -> None:
    kind = validator_for(schema, default=Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.parametrize("seed", SEEDS)
def test_replies_obey_their_schemas(
    llm: Llama, grammars: dict[str, tuple[Grammar, schemas.Schema]], seed: int
) -> None:
    sampling = Sampling(temperature=1.0, seed=seed, logit_bias=closing(llm))
    options: dict[str, Any] = {"max_tokens": 512, "sampling": sampling, "logprobs": 0}
    names = list(grammars)
    prompts = [[5 + i % 90, 6, 7, 8] for i in range(len(names))]
    drafters = [(ForcedTokens, PromptLookup)[i % 2]() for i in range(len(names))]
    wanted = [grammars[name][0] for name in names]
    replies = llm.generate_many(prompts, grammar=wanted, drafter=drafters, **options)
    long = []
    for i, (name, reply) in enumerate(zip(names, replies, strict=True)):
        if reply.finish_reason == "stop":
            check(reply.text, grammars[name][1])
        else:
            long.append(name)
        if (i + seed) % 4 == 0:
            assert_equal(reply, llm.generate(prompts[i], grammar=wanted[i], **options))
    assert len(long) <= 0.03 * len(names), long


def assert_equal(reply: Completion, plain: Completion) -> None:
    assert reply.tokens == plain.tokens
    assert reply.text == plain.text
    assert reply.logprobs == plain.logprobs
    assert reply.finish_reason == plain.finish_reason


def test_a_text_that_is_not_complete_can_go_on(
    llm: Llama, grammars: dict[str, tuple[Grammar, schemas.Schema]]
) -> None:
    """Without ids that end a text, one that can only end is complete."""
    compiler = Compiler(llm.tokenizer, llm.n_vocab)
    chosen = np.random.default_rng(0)
    for name, (grammar, _) in grammars.items():
        constraint = compiler.compile(grammar, []).begin()
        for _ in range(40):
            allowed = np.flatnonzero(constraint.masked(np.zeros(llm.n_vocab, np.float32)) == 0)
            assert allowed.size, name
            constraint.take(int(chosen.choice(allowed)))
            if constraint.complete:
                break
