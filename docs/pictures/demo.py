"""Draw docs/pictures/demo.svg: one run of `specrs demo` as a terminal shows it.

Run `python docs/pictures/demo.py`. The speeds in the picture are those of that run.
"""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> None:
    """Run the demo with colours and save what it prints."""
    shown = subprocess.run(
        ["specrs", "demo"],
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    console = Console(record=True, width=100, file=io.StringIO())
    console.print("[bold]$ specrs demo[/]")
    console.print(Text.from_ansi(shown))
    console.save_svg(str(Path(__file__).with_suffix(".svg")), title="specrs demo")


if __name__ == "__main__":
    main()
