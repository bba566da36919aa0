"""Which tools a reply may call, and whether it must."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

ID_LENGTH = 9
"""Characters of an id, letters and digits: what Mistral's templates demand and no other minds."""

_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"

_CHOICES = (
    '"auto", "none", "required" or {"type": "function", "function": {"name": "..."}}, which names '
    "the tool"
)


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what describes the arguments of every tool, by its name; what has no name is left out.

    Tools are described as the OpenAI API does, or by their functions alone.
    """
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters")
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }


def checked_choice(choice: Any, tools: Mapping[str, Any]) -> str:
    """Return "auto", "none", "required", or "=" with the name of the tool that must be called.

    Raises TypeError or ValueError for anything else, and where there is no such tool.
    """
    if choice in ("auto", "none"):
        return str(choice)
    if isinstance(choice, str) and choice != "required":
        raise ValueError(f"tool_choice must be {_CHOICES}, not {shortened(choice)}")
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice != "required" and not isinstance(name, str):
        raise TypeError(f"tool_choice must be {_CHOICES}, not {shortened(choice)}")
    if not tools:
        raise ValueError("tool_choice forces a call, and tools= has no tool with a name")
    if choice == "required":
        return "required"
    if name not in tools:
        raise ValueError(
            f"tool_choice names {shortened(name)}, which is not among the tools: {', '.join(tools)}"
        )
    return f"={name}"


def call_ids(prompt: Sequence[int]) -> Callable[[int], str]:
    """Return what makes the id of a call from its index.

    The same reply to the same prompt has the same ids; another turn of a conversation has others.
    """

    def call_id(index: int) -> str:
        from hashlib import blake2b  # not needed before

        ids = array("Q", [*prompt, index])
        number = int.from_bytes(blake2b(ids.tobytes(), digest_size=8).digest(), "little")
        size = len(_CHARACTERS)
        return "".join(_CHARACTERS[number // size**place % size] for place in range(ID_LENGTH))

    return call_id
