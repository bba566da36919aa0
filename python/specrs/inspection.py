"""How `specrs inspect` writes what it found."""

from __future__ import annotations

from typing import Any


def readable_bytes(n: int) -> str:
    """Write a number of bytes, large ones in MB."""
    return f"{n / 1e6:,.1f} MB" if n >= 100_000 else f"{n:,} B"


def shortened(value: Any, limit: int = 70) -> str:
    """Show a metadata value in one line: long lists by their beginning and length."""
    if isinstance(value, (list, tuple)) and len(value) > 4:
        start = ", ".join(shortened(item, 20) for item in value[:4])
        return f"[{start}, …] ({len(value):,})"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
