"""The one process that renders templates for this one, started at the first chat."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import Popen

TIME_LIMIT = 1.7
"""Seconds that a request may take; with all that surrounds it, no more than 2."""

START_LIMIT = 60.0
"""Seconds in which the process must start, on the busiest machine."""

# Runs with nothing but the standard library in sys.path. The package itself, with the engine, stays
# unloaded: an empty one takes its place.
_START = """
import sys, types
package = types.ModuleType("specrs")
package.__path__ = [sys.argv[1]]
sys.modules["specrs"] = package
sys.path += sys.argv[2:]
from specrs.chat.worker import main
main()
"""


class TemplateError(ValueError):
    """The chat template is faulty, or it refuses the messages; carries the template's own words."""


class Renderer:
    """A process that answers requests of `rendering.render`; any thread may ask.

    It shares nothing with this process: neither its standard streams, nor its signals from the
    terminal, nor what is imported here.

    Args:
        seconds: What a request may take.
    """

    def __init__(self, seconds: float = TIME_LIMIT) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; TemplateError if it takes too much time or kills the process."""
        line = json.dumps(request, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._discard()
                self._process = self._started()
            try:
                answer, overdue = self._exchange(self._process, line, self._seconds)
            except BaseException:  # Ctrl-C: what is still to come is not the next one's answer
                self._discard()
                raise
            complete = answer.endswith(b"\n")
            result = dict(json.loads(answer)) if complete else {}
            if overdue or not complete or "exhausted" in result:
                self._discard()
        if complete:
            return result
        raise TemplateError(
            "the chat template failed: "
            + ("it takes more than 2 s" if overdue else "it ended the process that renders it")
        )

    def close(self) -> None:
        """End the process; another begins when it is needed."""
        with self._lock:
            self._discard()

    def forget(self) -> None:
        """Leave the process to the one that this one was forked from."""
        self._lock = threading.Lock()  # who held the old one may not be here to release it
        if self._process is not None:
            self._close_streams(self._process)
            self._process.returncode = 0  # or its finaliser would complain
            self._process = None

    def _started(self) -> Popen[bytes]:
        import subprocess
        from subprocess import DEVNULL, PIPE

        if not sys.executable or getattr(sys, "frozen", False):
            raise RuntimeError(
                "chat templates are rendered by a second Python process, and sys.executable is "
                f"none ({sys.executable!r}); format the prompt yourself and call generate()"
            )
        packages = {_folder("jinja2"), _folder("markupsafe")}
        package = str(Path(__file__).parent.parent)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, package, *sorted(packages)],
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is for us
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            answer, _ = self._exchange(process, b"", START_LIMIT)
        except BaseException:
            self._end(process)
            raise
        if answer.strip() != b"ready":
            self._end(process)
            raise RuntimeError(
                f"the process that renders chat templates did not start ({sys.executable})"
            )
        return process

    @staticmethod
    def _exchange(process: Popen[bytes], line: bytes, seconds: float) -> tuple[bytes, bool]:
        """Send a line and read one; its line end is missing if the process ended first.

        Returns as well whether time ran out, and the process was killed.
        """
        stdin: Any = process.stdin
        stdout: Any = process.stdout
        overdue = threading.Event()

        def kill() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        answer = bytearray()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[stdin.write(rest) :]
            while not answer.endswith(b"\n"):
                piece = stdout.read(1 << 20)
                if not piece:
                    break
                answer += piece
        except BrokenPipeError:
            pass  # it has ended
        finally:
            timer.cancel()
        return bytes(answer), overdue.is_set()

    def _discard(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            self._end(process)

    def _end(self, process: Popen[bytes]) -> None:
        process.kill()
        self._close_streams(process)
        process.wait()

    @staticmethod
    def _close_streams(process: Popen[bytes]) -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


# What Python and `strftime_now` need; a template has no business with the rest.
_ENVIRONMENT = ("SYSTEMROOT", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME")


def _folder(package: str) -> str:
    """Return the folder that holds a package, without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"chat templates need the package {package}", name=package)
    return os.path.abspath(Path(spec.origin).parent.parent)  # noqa: PTH100 - links may lead astray


renderer = Renderer()
atexit.register(renderer.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renderer.forget)
