"""The command `specrs`: which commands it has, and how its mistakes end."""

from __future__ import annotations

import codecs
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, TextIO

import typer

import specrs

from .chat import chat
from .demo import demo
from .display import printable
from .files import inspect, pull
from .generate import generate
from .measure import bench, sparse_check
from .score import score

app = typer.Typer(
    help="Run quantised models on this CPU, with lossless speculative decoding.",
    # rich would take longer to load than all the rest of --help.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Run quantised models on this CPU, with lossless speculative decoding."""
    if version:
        print(specrs.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


for command in (chat, generate, score, pull, inspect, demo, sparse_check, bench):
    app.command()(command)


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit code 2."""
    if sys.stderr is None:  # closed; print() would take stdout in its place
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as we live
    if sys.stdout is None:
        sys.exit(_mistake("standard output is closed; there is nowhere to write the result"))
    _write_any_text(sys.stdout)
    try:
        with warnings.catch_warnings():
            # To who uses a command, a place in code says nothing.
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: _note(str(message))
            code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader had enough
        sys.stderr.close()
        code = 1
    except OSError as error:
        # Without the "[Errno 2]" of str(error).
        known = error.filename is not None and error.strerror is not None
        code = _mistake(f"{error.filename}: {error.strerror}" if known else str(error))
    except (MemoryError, NotImplementedError, ValueError) as error:
        code = _mistake(str(error))
    except Exception as error:
        # Every usage error of the parser can word itself; anything else is a fault of ours.
        wording = getattr(error, "format_message", None)
        if wording is None:
            raise
        code = _mistake(wording())
    sys.exit(code)


def _write_any_text(stream: TextIO) -> None:
    """Let no text fail on a stream of some other encoding, nor paths that are no text on UTF-8."""
    if isinstance(stream, io.TextIOWrapper):
        utf8 = codecs.lookup(stream.encoding).name == "utf-8"
        stream.reconfigure(errors="surrogateescape" if utf8 else "replace")


def _note(message: str) -> None:
    print(f"specrs: {printable(' '.join(message.split()))}", file=sys.stderr)


def _mistake(message: str) -> int:
    _note(message)
    return 2
