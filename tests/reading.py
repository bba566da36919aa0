"""Texts on which tokenizers differ, and vocabularies of other projects as GGUF files hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise, product
from pathlib import Path

import hypothesis.strategies as st

from models import write_model
from specrs._specrs import Model, Tokenizer
from vocabulary import CONTROL, NORMAL, Vocabulary, byte_characters

_SCRIPTS = (
    "The quick brown fox doesn't jump; it's been LAZY. WE'LL SEE, I'D SAY: they'Ve, HE'S, y'ALL'RE",
    "Zażółć gęślą jaźń. Größe, straße, ÉCOLE, naïve café; ÅNGSTRÖM, Æther, œuvre ǅ ǈ ǋ",
    "Съешь же ещё этих мягких французских булок, да выпей ЧАЮ. МГУ-шный; Її ґанок",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. ΑΒΓ Ὅμηρος",
    "我想在apple工作1314151天～ 中文、日本語のテキスト。カタカナABC ひらがなdef 한국어 텍스트",
    "العربية نصٌّ مُشكَّل ١٢٣٤٥ עִבְרִית हिन्दी में लेखन १२३ தமிழ் বাংলা ไทยไม่มีวรรค កាន់តែពិសេស",
    "e\u0301 E\u0301COLE n\u0303 \u0301a \u0301 A\u0301B x\u0301\u0302y 1\u0301 !\u0301 \u20d7v",
    "camelCase PascalCase HTMLParser XMLHttpRequest2 snake_case CONST_NAME iPhone mRNA DNAあRNA",
    "ʰʷ ªº ʼn ﬁ ﬀ Ⅷ ⅷ ½ ² ₃ ٣ ௧ 一二三 ①②③ 𝟙𝟚 𝐀𝐛𝐂 𐐀𐐨",
    "😀😃👨‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽 ❤️ ☃ ✂️ 🦙.cpp ™ © €100 £5.99 ¥",
    "0 12 123 1234 12345 3.14159 1,000,000 0xFF 1e-9 2026-12-01T11:45:00Z v1.2.3 +49-30-901820",
    "''''''```````\"\"\"\"......!!!!!!?????? ... ---- == <> && || :: -> => // /* */ #!/bin/sh /\n/",
    "def f(x):\n\treturn {k: v for k, v in x.items() if k != 'a'}\n\n\n  # done\r\n\r\n",
    '<div class="a"><p>It\'s &amp; that</p>\n    <br/></div>\n<!-- </s> <s> <unk> [INST] -->',
    "for (int i = 0; i < n; ++i) {\n        a[i] *= 0.5f;  // half\n    }\n}\n",
    "https://example.org/a/b?c=d&e=f#g  user@example.com  C:\\Users\\x\\y  ~/.config",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D 'ſ 'lL's''s it''s 'x x' 's's",
    "\u00a0non\u00a0breaking\u2003em\u3000wide\u200bzero\u2028line\u2029a\u0085b\x0b\x0c\x1c end",
    "a\u00adb \ufeffbom \u202eRTL\u202c \ue000 \U000e0041 \x01\x02\x7f \ufffd \U0010ffff",
)
_SPACES = (
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    " \n",
    "\n ",
    "\t",
    "\t\t",
    "\r\n",
    " \r\n \t ",
    " " * 17,
)
_WORDS = ("a", "A", "é", "あ", "1", "12", ".", "'", "/", "\u0301", "😀", "'s", "HTML", "z\u0301")

#: Every script, every kind of word beside every kind of white space, and long runs.
TEXTS: tuple[str, ...] = (
    *_SCRIPTS,
    *(left + space + right for left, space, right in product(_WORDS, _SPACES, _WORDS)),
    *(space + word + space for space, word in product(_SPACES, _WORDS)),
    *(unit * count for unit, count in product((*_WORDS, " ", "\n", "\t", "ab ", "aB"), (2, 9, 70))),
    *(path.read_bytes().decode() for path in sorted(Path(__file__).parent.glob("*.py"))[:6]),
)

#: Random text: of all Unicode, and of characters that the rules tell apart.
RANDOM: st.SearchStrategy[str] = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.text(
        st.sampled_from("aAbTſéÉǅʰあ一ª\u0301\u093f1२½Ⅷ'sSlLrReE /\\.!_$+<\n\r\t\u00a0\u3000😀"),
        max_size=60,
    ),
    st.lists(st.sampled_from([*_WORDS, *_SPACES, *" ".join(_SCRIPTS).split()])).map("".join),
)


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Give the pairs that byte-pair encoding joined when it learned `ranks`, in their order.

    A token was made of the last two parts that the tokens before it leave of its bytes. A few
    tokens of some vocabularies cannot be made of two parts; no merge leads to them.
    """
    merges: list[tuple[int, bytes, bytes]] = []
    for token, rank in ranks.items():
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            best = min(joined)
            if best >= rank:
                break
            at = joined.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((rank, parts[0], parts[1]))
    return [(left, right) for _, left, right in sorted(merges)]


def ranked(pre: str, ranks: Mapping[bytes, int], special: int = 0) -> Vocabulary:
    """Build the section for tokens with these ranks, whose ids follow `special` control tokens."""
    character = byte_characters()

    def spelled(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    marks = [f"<|special_{i}|>" for i in range(special)] or ["<|special|>"]
    tokens = [spelled(token) for token in sorted(ranks, key=ranks.__getitem__)]
    types = [NORMAL] * len(tokens)
    # Control tokens before them move all ids, as in Mistral's vocabulary; otherwise one is last.
    before = special > 0
    return Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=[*marks, *tokens] if before else [*tokens, *marks],
        types=[CONTROL] * len(marks) + types if before else types + [CONTROL] * len(marks),
        merges=[f"{spelled(left)} {spelled(right)}" for left, right in merges_of(ranks)],
        bos=0 if before else len(tokens),
        eos=0 if before else len(tokens),
        add_bos=False,
    )


def tokenizer_of(vocabulary: Vocabulary, folder: Path) -> Tokenizer:
    """Load the tokenizer of a small model file with this vocabulary."""
    path = folder / "model.gguf"
    shape = {"n_layer": 1, "n_embd": 32, "n_head": 1, "n_head_kv": 1, "n_ff": 32, "tied": True}
    write_model(path, tokenizer=vocabulary, quant="F16", **shape)
    return Model(path).tokenizer


def differences(
    tokenizer: Tokenizer, reference: Callable[[str], list[int]], texts: tuple[str, ...]
) -> list[str]:
    """Give the texts whose ids differ, or that do not come back."""
    wrong = []
    for text in texts:
        ids = tokenizer.encode(text, add_bos=False)
        if ids != reference(text) or tokenizer.decode(ids) != text:
            wrong.append(text)
    return wrong
