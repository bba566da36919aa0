"""Two tiny vocabularies for test models, with all that a tokenizer can trip over.

Both spell every byte, so any text has ids; both hold control tokens, a user-defined token and
merges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (
    int(getattr(gguf.TokenType, name))
    for name in ("NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE")
)

#: A ChatML template, as SmolLM2 and many others have it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

WORDS = ("the", "cat", "sat", "on", "mat", "and", "hello", "world", "er", "in", "th")


@dataclass
class Vocabulary:
    """The tokenizer section of a GGUF file."""

    model: str
    tokens: list[str]
    types: list[int]
    bos: int
    eos: int
    add_bos: bool
    add_space_prefix: bool | None = None  # None: the file does not say
    pre: str | None = None
    scores: list[float] | None = None
    merges: list[str] = field(default_factory=list)

    def pad(self, rows: int) -> None:
        """Append unused tokens until there are `rows`, as files do whose tables are padded."""
        if rows < len(self.tokens):
            raise ValueError(f"{rows} rows cannot hold the {len(self.tokens)} tokens")
        for row in range(len(self.tokens), rows):
            self.tokens.append(f"[PAD{row}]")
            self.types.append(UNUSED)
            if self.scores is not None:
                self.scores.append(-1000.0)

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Add the section to `writer`."""
        writer.add_tokenizer_model(self.model)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_bos_token_id(self.bos)
        writer.add_eos_token_id(self.eos)
        writer.add_add_bos_token(self.add_bos)
        if self.add_space_prefix is not None:
            writer.add_add_space_prefix(self.add_space_prefix)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        if self.merges:
            writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)


def byte_characters() -> list[str]:
    """Give the printable character that byte-level BPE writes for each byte.

    The alphabet of GPT-2 (Radford et al., 2019): printable Latin-1 stands for itself, the other
    bytes, in order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _merges(words: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs that build each word from its first letter on, every pair once."""
    pairs = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    return list(dict.fromkeys(pairs))


def bpe() -> Vocabulary:
    """Byte-level BPE with 3 control tokens and the user-defined "<|x|>"."""
    pairs = _merges([*WORDS, *("Ġ" + word for word in WORDS)])
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|x|>"]
    learned = dict.fromkeys([*byte_characters(), *(left + right for left, right in pairs)])
    tokens = [*special, *learned]
    types = [CONTROL, CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * len(learned)
    return Vocabulary(
        model="gpt2",
        pre="smollm",
        tokens=tokens,
        types=types,
        merges=[f"{left} {right}" for left, right in pairs],
        bos=1,
        eos=2,
        add_bos=False,
    )


def spm() -> Vocabulary:
    """SentencePiece BPE with byte fall-back, 3 special tokens and the user-defined "<|x|>"."""
    special = ["<unk>", "<s>", "</s>", "<|x|>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGH.,!?'0123456789", "é", "日"]
    built = [left + right for left, right in _merges([*WORDS, *("▁" + word for word in WORDS)])]
    pieces = list(dict.fromkeys([*built, *letters]))
    return Vocabulary(
        model="llama",
        tokens=[*special, *bytes_, *pieces],
        types=[UNKNOWN, CONTROL, CONTROL, USER_DEFINED] + [BYTE] * 256 + [NORMAL] * len(pieces),
        scores=[0.0] * 260 + [-float(rank) for rank in range(1, len(pieces) + 1)],
        bos=1,
        eos=2,
        add_bos=True,
    )


def vocabulary_of(path: Path) -> Vocabulary:
    """Read the tokenizer section of the GGUF file at `path`."""
    fields = gguf.GGUFReader(path).fields

    def get(key: str, default: Any = None) -> Any:
        name = f"tokenizer.ggml.{key}"
        return fields[name].contents() if name in fields else default

    return Vocabulary(
        model=get("model"),
        pre=get("pre"),
        tokens=get("tokens"),
        types=get("token_type"),
        scores=get("scores"),
        merges=get("merges", []),
        bos=get("bos_token_id"),
        eos=get("eos_token_id"),
        add_bos=get("add_bos_token", get("model") == "llama"),
        add_space_prefix=get("add_space_prefix"),
    )
