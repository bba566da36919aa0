"""Where text is cut into words, against the regular expressions of the models' own tokenizers.

A vocabulary that was learned from words has few tokens that would show a wrong cut. This one has
all pairs of bytes in a random order: any two neighbours in a word join, so ids tell where it ends.
"""

from __future__ import annotations

import random
from itertools import product

import pytest
import tiktoken
from hypothesis import given

from reading import RANDOM, TEXTS, differences, ranked, tokenizer_of
from specrs._specrs import Tokenizer

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _llama(digits: str, letter: str = r"\p{L}", other: str = r"[^\s\p{L}\p{N}]") -> str:
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?{other}+[\r\n]*|{_END}"


def _o200k(digits: str, contraction: str = "") -> str:
    prefix = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{prefix}{_UPPER}*{_LOWER}+{contraction}|{prefix}{_UPPER}+{_LOWER}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END}"
    )


PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": _llama(r"\p{N}{1,3}"),
    "qwen2": _llama(r"\p{N}"),
    "qwen35": _llama(r"\p{N}", r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]"),
    "gpt-4o": _o200k(r"\p{N}{1,3}", rf"{_CONTRACTION}?"),
    "tekken": _o200k(r"\p{N}"),
}


@pytest.fixture(scope="module", params=list(PATTERNS))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tiktoken.Encoding]:
    tokens = [bytes(pair) for pair in product(range(256), repeat=2)]
    random.Random(0).shuffle(tokens)
    tokens = [*(bytes([byte]) for byte in range(256)), *tokens]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pattern = PATTERNS[request.param]
    encoding = tiktoken.Encoding("", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    vocabulary = ranked(request.param, ranks)
    return tokenizer_of(vocabulary, tmp_path_factory.mktemp("pairs")), encoding


def test_words_end_where_the_pattern_says(pair: tuple[Tokenizer, tiktoken.Encoding]) -> None:
    tokenizer, encoding = pair
    assert differences(tokenizer, encoding.encode_ordinary, TEXTS) == []


@given(text=RANDOM)
def test_random_words_end_where_the_pattern_says(
    pair: tuple[Tokenizer, tiktoken.Encoding], text: str
) -> None:
    tokenizer, encoding = pair
    assert differences(tokenizer, encoding.encode_ordinary, (text,)) == []
