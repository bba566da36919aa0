"""Grammars: what a text may be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

from ..arguments import checked_bool, checked_text

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

Kind = Literal["json_schema", "regex", "lark"]

_NAMES = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "lark": "the Lark grammar",
}

MOST_CHARACTERS = 1 << 20
"""Length of the longest source that is compiled."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
# Bounded: a model that has begun white space may never leave it.
_SPACED = {**_COMPACT, "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}


@dataclass(frozen=True)
class Grammar:
    """What a text may be: JSON of a schema, a match of an expression, or what rules derive.

    Made by `json_schema`, `json`, `regex` or `lark`; it never changes, can be pickled and is equal
    to another of the same source. It belongs to no model: each compiles it once. A text that obeys
    it ends where nothing can follow; where it may end or go on, the model decides.

    >>> city = Grammar.json_schema({"type": "object", "properties": {"city": {"type": "string"}}})
    >>> llm.generate("The capital of France, as JSON: ", grammar=city)

    Attributes:
        kind: What the source is.
        source: The schema as JSON, the expression, or the rules.
        compact: Whether JSON has no white space between its parts.

    Raises ValueError for a source that llguidance cannot compile, with its reason, and
    ModuleNotFoundError without it.
    """

    kind: Kind
    source: str
    compact: bool = True

    def __post_init__(self) -> None:
        if self.kind not in _NAMES:
            raise ValueError(f"kind must be one of {', '.join(_NAMES)}, not {self.kind!r}")
        name = _NAMES[self.kind]
        if len(checked_text(name, self.source)) > MOST_CHARACTERS:
            raise ValueError(
                f"{name} has {len(self.source)} characters; at most {MOST_CHARACTERS} are compiled"
            )
        try:
            reason = _fault(self.definition())
        except ValueError as error:  # text that is no Unicode, spelled in JSON
            reason = str(error)
        if reason:
            raise ValueError(f"{name} cannot be compiled: {reason}")

    @classmethod
    def json_schema(cls, schema: Any, *, compact: bool = True) -> Grammar:
        """Return the grammar of JSON that obeys a schema, keys in the order it names them.

        Args:
            schema: A dict, JSON text, or a pydantic model class.
            compact: Without white space between the parts. Otherwise up to 40 characters of it are
                allowed wherever JSON allows any.

        Raises ValueError for what cannot be obeyed to the letter, such as keywords that llguidance
        does not know; TypeError for what is no schema.
        """
        return cls("json_schema", _schema_text(schema), checked_bool("compact", compact))

    @classmethod
    def json(cls, *, compact: bool = True) -> Grammar:
        """Return the grammar of all JSON objects."""
        return cls.json_schema({"type": "object"}, compact=compact)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Return the grammar of all texts that a regular expression matches as a whole.

        Args:
            pattern: In the syntax of Rust's `regex`, which has neither look-around nor
                back-references.
        """
        return cls("regex", checked_text("pattern", pattern))

    @classmethod
    def lark(cls, rules: str) -> Grammar:
        """Return the grammar of the rules, from `start` on.

        Args:
            rules: In llguidance's dialect of Lark. `%json {...}` embeds a schema, and
                `<|im_end|>` without quotes is the control token of that name.
        """
        return cls("lark", checked_text("rules", rules))

    def definition(self) -> str:
        """Return what llguidance is given."""
        matcher = library().LLMatcher
        if self.kind == "regex":
            return str(matcher.grammar_from_regex(self.source))
        if self.kind == "lark":
            # A text that begins with a brace would be taken for llguidance's own format.
            return json.dumps({"grammars": [{"lark_grammar": self.source}]})
        spacing = _COMPACT if self.compact else _SPACED
        return str(matcher.grammar_from_json_schema(self.source, overrides=spacing))

    def __repr__(self) -> str:
        source = self.source
        if len(source) > 200:
            check = crc32(source.encode())
            source = f"{source[:100]}… {len(source)} characters, CRC {check:08x}"
        spaced = "" if self.compact else ", compact=False"
        return f"Grammar.{self.kind}({source!r}{spaced})"


def library() -> Any:
    """Return the module llguidance; ModuleNotFoundError says how to get it."""
    try:
        import llguidance
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "grammars need the package llguidance; run: pip install 'specrs[grammar]'",
            name="llguidance",
        ) from None
    return llguidance


@cache
def limits() -> LLParserLimits:
    """Return what a grammar may cost; one that needs more is refused, or fails as it runs."""
    made: LLParserLimits = library().LLParserLimits(verbose_errors=False)
    return made


@cache
def _bytes() -> LLTokenizer:
    """Return a vocabulary of bytes, with which a grammar is tried before there is a model."""
    made: LLTokenizer = library().LLTokenizer("byte")
    return made


def _fault(definition: str) -> str:
    """Return why a definition cannot be compiled; nothing if it can."""
    matcher = library().LLMatcher
    faulty, messages = matcher.validate_grammar_with_warnings(definition, limits=limits())
    if faulty:
        return _brief(messages[0])
    if messages:  # it names tokens, which only a model has
        return ""
    tried = matcher(_bytes(), definition, log_level=0, limits=limits())
    return _brief(tried.get_error()) if tried.is_error() else ""


def _brief(reason: str) -> str:
    """Return a message of llguidance without what it quotes at length."""
    reason = " ".join(reason.split())
    return reason if len(reason) <= 500 else f"{reason[:500]}…"


def _schema_text(schema: Any) -> str:
    """Return a schema as compact JSON."""
    describe = getattr(schema, "model_json_schema", None)
    if isinstance(schema, type) and describe is not None:
        schema = describe()
    try:
        if isinstance(schema, str):
            schema = json.loads(checked_text("schema", schema))
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("the JSON schema is nested too deeply, or contains itself") from None
    except ValueError as error:
        raise ValueError(f"the JSON schema is no JSON: {error}") from None
    except TypeError:
        text = ""
    if not text.startswith("{"):
        raise TypeError(
            f"schema must be a dict, JSON text or a pydantic model class, not {shortened(schema)}"
        )
    return text
