"""The tokenizer: ids of other implementations, special tokens, text that comes in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from models import write_model
from specrs._specrs import Model, Tokenizer
from vocabulary import bpe, spm

DATA = Path(__file__).parent / "data"
Load = Callable[..., Tokenizer]


@pytest.fixture(scope="session")
def load(tiny: Callable[..., Path]) -> Load:
    tokenizers: dict[str, Tokenizer] = {}

    def tokenizer(kind: str, **options: object) -> Tokenizer:
        key = f"{kind} {options}"
        if key not in tokenizers:
            tokenizers[key] = Model(tiny(tokenizer=kind, **options)).tokenizer
        return tokenizers[key]

    return tokenizer


@pytest.mark.parametrize(
    "name", ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "refact", "smollm2"]
)
def test_ids_equal_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """The vocabulary goes through another writer first, into the file of a whole model."""
    vocabulary = DATA / f"{name}.gguf"
    options = {"quant": "F16", "n_layer": 1, "n_embd": 32, "n_head": 1, "n_head_kv": 1}
    path = write_model(tmp_path / "model.gguf", tokenizer=vocabulary, **options)
    tokenizer = Model(path).tokenizer
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{vocabulary}.out").read_text().splitlines()
    texts = texts[: len(lines)]  # where the last one is ended too, an empty text follows
    assert len(texts) == len(lines) > 20
    for text, line in zip(texts, lines, strict=True):
        assert tokenizer.encode(text, add_bos=False) == [int(id_) for id_ in line.split()], text


def test_ids_of_smollm2(smollm2: Path) -> None:
    tokenizer = Model(smollm2).tokenizer
    cases = json.loads((DATA / "smollm2_tokens.json").read_text())
    assert len(cases) > 10
    for case in cases:
        text = case["text"]
        assert tokenizer.encode(text, add_bos=False) == case["ids"], repr(text)
        special = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert special == case["ids_parse_special"], repr(text)


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_what_the_file_says(load: Load, kind: str) -> None:
    tokenizer, wanted = load(kind), {"bpe": bpe, "spm": spm}[kind]()
    assert tokenizer.n_vocab == len(wanted.tokens)
    assert (tokenizer.bos, tokenizer.eos) == (wanted.bos, wanted.eos)
    assert tokenizer.add_bos == wanted.add_bos
    assert wanted.eos in tokenizer.end_ids
    assert [tokenizer.token(id_) for id_ in range(len(wanted.tokens))] == wanted.tokens
    assert tokenizer.is_control(wanted.eos)
    assert not tokenizer.is_control(300)
    assert not any(tokenizer.is_padding(id_) for id_ in range(len(wanted.tokens)))
    for id_ in (-1, len(wanted.tokens)):
        for ask in (tokenizer.token, tokenizer.is_control, tokenizer.is_padding):
            with pytest.raises(ValueError, match=r"\S"):
                ask(id_)


def test_padding_rows_are_known(load: Load) -> None:
    tokenizer = load("bpe", n_vocab=330)
    assert tokenizer.n_vocab == 330
    assert [id_ for id_ in range(330) if tokenizer.is_padding(id_)] == list(range(312, 330))


def test_every_declared_end_id_ends(load: Load) -> None:
    tokenizer = load("bpe", metadata={"tokenizer.ggml.eot_token_id": 0})
    assert {0, 2} <= set(tokenizer.end_ids)


@pytest.mark.parametrize("kind", ["bpe", "spm"])
@pytest.mark.parametrize("add_bos", [None, True, False])
@pytest.mark.parametrize("stated", [True, False])
def test_bos_stands_once_where_it_is_wanted(
    load: Load, kind: str, add_bos: bool | None, stated: bool
) -> None:
    tokenizer = load(kind, metadata={"tokenizer.ggml.add_bos_token": stated})
    ids = tokenizer.encode("the cat", add_bos=add_bos)
    assert ids.count(1) == (stated if add_bos is None else add_bos)
    if 1 in ids:
        assert ids[0] == 1


@pytest.mark.parametrize(("kind", "marker", "id_"), [("bpe", "<|im_end|>", 2), ("spm", "</s>", 2)])
def test_text_becomes_a_control_token_only_on_request(
    load: Load, kind: str, marker: str, id_: int
) -> None:
    tokenizer = load(kind)
    text = f"the{marker}cat{marker}"
    plain = tokenizer.encode(text, add_bos=False)
    assert not any(tokenizer.is_control(token) for token in plain)
    assert tokenizer.decode(plain) == text
    special = tokenizer.encode(text, add_bos=False, parse_special=True)
    assert special.count(id_) == 2
    # SPM puts a space before text that follows a special token.
    assert tokenizer.decode(special).replace(" ", "") == "thecat"


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_user_defined_tokens_are_whole(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    for parse_special in (True, False):
        ids = tokenizer.encode("a<|x|>b", add_bos=False, parse_special=parse_special)
        assert ids.count(3) == 1
        assert tokenizer.decode(ids).replace(" ", "") == "a<|x|>b"


@pytest.mark.parametrize("kind", ["bpe", "spm"])
@given(text=st.text(st.characters(exclude_characters="▁", codec="utf-8"), max_size=40))
def test_text_comes_back(load: Load, kind: str, text: str) -> None:
    tokenizer = load(kind)
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


@pytest.mark.parametrize("kind", ["bpe", "spm"])
@given(data=st.data())
def test_pieces_join_to_the_whole(load: Load, kind: str, data: st.DataObject) -> None:
    """Any ids at all: half characters, stray bytes, control tokens in the middle of a character."""
    tokenizer = load(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=30))
    stream = tokenizer.stream()
    pieces = [stream.push(id_) for id_ in ids]
    pieces.append(stream.finish())
    assert "".join(pieces) == tokenizer.decode(ids)
    for piece in pieces:
        assert piece.encode("utf-8").decode("utf-8") == piece


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_a_character_over_several_tokens_appears_when_it_is_whole(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    ids = tokenizer.encode("a😀b", add_bos=False)
    stream = tokenizer.stream()
    pieces = [stream.push(id_) for id_ in ids]
    assert "😀" in pieces
    assert pieces[pieces.index("😀") - 3 : pieces.index("😀")] == ["", "", ""]
    assert stream.finish() == ""

    cut = tokenizer.stream()
    emoji = tokenizer.encode("😀", add_bos=False)[-4:]
    assert [cut.push(id_) for id_ in emoji[:3]] == ["", "", ""]
    assert cut.finish() == "\ufffd"


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_bad_arguments(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    assert tokenizer.encode("", add_bos=False) == []
    assert tokenizer.decode([]) == ""
    for bad in (None, b"text", 3, ["a"]):
        with pytest.raises(TypeError):
            tokenizer.encode(bad)  # type: ignore[arg-type]
    for ids in ([tokenizer.n_vocab], [-1], [2**40]):
        with pytest.raises(ValueError, match=r"\S"):
            tokenizer.decode(ids)
    with pytest.raises(ValueError, match=r"\S"):
        tokenizer.stream().push(tokenizer.n_vocab)
    with pytest.raises((TypeError, ValueError)):
        tokenizer.encode("\ud800")  # half of a surrogate pair is no text
    assert tokenizer.decode(tokenizer.encode("the cat", add_bos=False)) == "the cat"


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_bytes_of_tokens_join_to_the_text(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    text = " The cat 日本 sät\n🦙 <|x|>"
    ids = tokenizer.encode(text, add_bos=False)
    joined = b"".join(tokenizer.token_bytes(token) for token in ids)
    assert joined == (b" " if kind == "spm" else b"") + text.encode()
    # Also of tokens that are no characters by themselves.
    assert {0xF0} < {byte for token in ids for byte in tokenizer.token_bytes(token)}
    assert tokenizer.token_bytes(tokenizer.eos or 0) == b""
    with pytest.raises(ValueError, match="out of range"):
        tokenizer.token_bytes(tokenizer.n_vocab)


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_control_tokens_are_shown_on_demand(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    assert tokenizer.bos is not None
    assert tokenizer.eos is not None
    bos, eos = tokenizer.token(tokenizer.bos), tokenizer.token(tokenizer.eos)
    text = f"{bos}the cat{eos}"
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    for skip in (True, False):
        stream = tokenizer.stream(skip_special_tokens=skip)
        pieces = [stream.push(token) for token in ids]
        joined = "".join(pieces) + stream.finish()
        assert joined == tokenizer.decode(ids, skip_special_tokens=skip)
    assert tokenizer.control_id(eos) == tokenizer.eos
    assert [tokenizer.control_id(name) for name in ("", "the", "<|x|>", eos + " ")] == [None] * 4
