"""SentencePiece vocabularies against the library that trains and reads them."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import sentencepiece
from hypothesis import given

from reading import RANDOM, TEXTS, differences, tokenizer_of
from specrs._specrs import Tokenizer
from vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary

#: What Gemma's model has: no space before a text, runs of white space and tags as words.
GEMMA: dict[str, Any] = {
    "add_dummy_prefix": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
    "user_defined_symbols": [
        *("\n" * n for n in range(1, 32)),
        *("▁" * n for n in range(2, 32)),
        *("<table>", "</table>", "<h1>", "</h1>", "</s>", "[multimodal]"),
    ],
    "control_symbols": ["<start_of_turn>", "<end_of_turn>"],
    "pad_id": 0,
    "eos_id": 1,
    "bos_id": 2,
    "unk_id": 3,
    "bos_piece": "<bos>",
    "eos_piece": "<eos>",
}
#: What Llama 2's has, and two words of fine-tuned ones.
LLAMA: dict[str, Any] = {
    "add_dummy_prefix": True,
    "user_defined_symbols": ["<|x|>", "<|x|>>", "HTML"],
    "control_symbols": ["[INST]", "[/INST]"],
}


def _train(options: dict[str, Any]) -> sentencepiece.SentencePieceProcessor:
    """Train a small model on the texts of these tests."""
    model = io.BytesIO()
    lines = [line for text in TEXTS for line in text.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=1200,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def _vocabulary(model: sentencepiece.SentencePieceProcessor, options: dict[str, Any]) -> Vocabulary:
    """Build the section that llama.cpp's converter writes for `model`."""
    ids = range(model.get_piece_size())
    words = set(options["user_defined_symbols"])

    def kind(id_: int) -> int:
        if model.is_unknown(id_):
            return UNKNOWN
        if model.is_control(id_):
            return CONTROL
        if model.is_byte(id_):
            return BYTE
        return USER_DEFINED if model.id_to_piece(id_) in words else NORMAL

    return Vocabulary(
        model="llama",
        pre="default",
        tokens=[model.id_to_piece(id_) for id_ in ids],
        types=[kind(id_) for id_ in ids],
        scores=[model.get_score(id_) for id_ in ids],
        bos=model.bos_id(),
        eos=model.eos_id(),
        add_bos=False,
        add_space_prefix=options["add_dummy_prefix"],
    )


Pair = tuple[Tokenizer, Callable[[str], list[int]]]


@pytest.fixture(scope="module", params=["gemma", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    options = {"gemma": GEMMA, "llama": LLAMA}[request.param]
    model = _train(options)
    vocabulary = _vocabulary(model, options)
    return tokenizer_of(vocabulary, tmp_path_factory.mktemp("spm")), model.encode


def _without_its_space(text: str) -> str:
    """Replace what the model cannot tell from a space."""
    return text.replace("▁", " ")


def test_ids_are_those_of_sentencepiece(pair: Pair) -> None:
    words = (
        "<|x|>",
        "<|x|>a",
        "a<|x|>b",
        "a <|x|> b",
        " <|x|>>",
        "<h1>x</h1>",
        "HTMLHTML x",
        "</s>a",
    )
    runs = (
        before + "\n" * newlines + " " * spaces + after
        for before, after in product("a ", "b\n")
        for newlines, spaces in product(range(40), (0, 1, 2, 40))
    )
    assert differences(*pair, (*TEXTS, *words, *runs)) == []


@given(text=RANDOM)
def test_ids_of_random_text_are_those_of_sentencepiece(pair: Pair, text: str) -> None:
    assert differences(*pair, (_without_its_space(text),)) == []


def test_the_space_of_the_model_is_a_space(pair: Pair) -> None:
    tokenizer, encode = pair
    for text in ("▁", "a▁b", "▁▁▁a", "▁ a ▁"):
        assert tokenizer.encode(text, add_bos=False) == encode(text)
