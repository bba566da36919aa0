"""Whatever a template does, it ends in time and in little memory, and touches nothing of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from hostile_templates import templates
from specrs.chat.process import TIME_LIMIT, Renderer, TemplateError
from specrs.chat.worker import MEMORY_LIMIT

FULL = os.environ.get("SPECRS_FULL") == "1"


def request(template: str) -> dict[str, Any]:
    """Ask for a rendering of one message."""
    return {
        "template": template,
        "messages": [{"role": "user", "content": "a <|im_end|> b"}],
        "tools": None,
        "variables": {},
        "continued": False,
        "fixed": {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True},
    }


@pytest.fixture(scope="module")
def renderer() -> Any:
    renderer = Renderer(TIME_LIMIT if FULL else 0.3)
    yield renderer
    renderer.close()


def worker_of(renderer: Renderer) -> psutil.Process:
    """Give the process of a renderer."""
    assert renderer.ask(request("{{ 1 }}"))["pieces"] == [["1", True]]
    assert renderer._process is not None
    return psutil.Process(renderer._process.pid)


# All of them need a quarter of an hour.
@pytest.mark.timeout(30)
@pytest.mark.parametrize("template", templates()[:: 1 if FULL else 6], ids=lambda text: text[:60])
def test_a_hostile_template_ends_with_an_error_or_a_result(
    renderer: Renderer, template: str
) -> None:
    try:
        answer = renderer.ask(request(template))
    except TemplateError as error:
        answer = {"failed": str(error)}
    assert set(answer) & {"pieces", "refused", "failed", "unused"}
    if "pieces" in answer:
        text = "".join(text for text, _ in answer["pieces"])
        assert not [sign for sign in ("root:", "uid=", "<class", "PATH") if sign in text]


def test_the_list_of_hostile_templates_is_long() -> None:
    assert len(set(templates())) == 500


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="limits are read in /proc")
def test_memory_is_bounded_by_the_system(renderer: Renderer) -> None:
    worker = worker_of(renderer)
    lines = Path(f"/proc/{worker.pid}/limits").read_text().splitlines()
    (limit,) = (int(line.split()[3]) for line in lines if line.startswith("Max address space"))
    assert 0 < limit - MEMORY_LIMIT < worker.memory_info().vms
    assert limit - worker.memory_info().vms <= MEMORY_LIMIT
    answer = renderer.ask(request("{{ 'a' * 300000000 }}"))
    assert answer["failed"] == "it needs more than 256 MiB of memory"
    assert worker_of(renderer) != worker  # what memory ran out for is not used again


def test_time_is_bounded(renderer: Renderer) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    worker = worker_of(renderer)
    with pytest.raises(TemplateError, match="takes more than 2 s"):
        renderer.ask(request(endless))
    assert not worker.is_running()
    assert worker_of(renderer) != worker


def test_a_result_is_not_longer_than_any_conversation(renderer: Renderer) -> None:
    answer = renderer.ask(request("{{ 'a' * 9999999 }}"))
    assert "9999999 characters, more than" in answer["failed"]


def test_threads_share_a_renderer(renderer: Renderer) -> None:
    results: dict[int, Any] = {}

    def ask(number: int) -> None:
        results[number] = [renderer.ask(request(f"{number}.{i}"))["pieces"] for i in range(20)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [[[f"{n}.{i}", True]] for i in range(20)] for n in range(8)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_worker_of_its_own() -> None:
    script = """
import os
from specrs.chat.process import renderer
from test_template_limits import request, worker_of
ours = worker_of(renderer)
child = os.fork()
if child == 0:
    theirs = worker_of(renderer)
    os._exit(0 if theirs != ours and ours.is_running() else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), worker_of(renderer) == ours)
"""
    assert run(script) == "0 True"


def test_the_worker_ends_with_its_parent_and_leaves_no_zombie() -> None:
    script = """
import psutil
from specrs.chat.process import renderer
from test_template_limits import worker_of
worker = worker_of(renderer)
renderer.close()
print(worker.is_running(), len(psutil.Process().children()))
print(worker_of(renderer).pid)
"""
    closed, pid = run(script).splitlines()
    assert closed == "False 0"
    assert not psutil.pid_exists(int(pid))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_signals_that_are_ignored_or_sent_to_the_terminal_do_not_matter() -> None:
    script = """
import os, signal
for one in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM):
    signal.signal(one, signal.SIG_IGN)
from specrs.chat.process import renderer
from test_template_limits import worker_of
worker = worker_of(renderer)
os.killpg(os.getpgrp(), signal.SIGINT)
print(worker_of(renderer) == worker)
worker.kill()
worker.wait()
print(worker_of(renderer) != worker)
"""
    assert run(script, start_new_session=True) == "True\nTrue"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_a_rendering() -> None:
    script = """
import os, signal, threading
from specrs.chat.process import Renderer
from test_template_limits import request, worker_of
signal.signal(signal.SIGINT, signal.default_int_handler)
renderer = Renderer(60)
worker = worker_of(renderer)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    renderer.ask(request("{% for a in range(99999) %}{% for b in range(99999) %}"
        "{% endfor %}{% endfor %}"))
except KeyboardInterrupt:
    print("interrupted", worker.is_running())
print(worker_of(renderer) != worker)
"""
    assert run(script) == "interrupted False\nTrue"


def test_the_standard_streams_of_the_user_are_not_touched() -> None:
    script = """
import os, sys
from specrs.chat.process import renderer
from test_template_limits import worker_of
worker_of(renderer)
print(sys.stdin.read())
for stream in (0, 1):
    os.close(stream)
sys.exit(0 if worker_of(renderer) and renderer.close() is None and worker_of(renderer) else 1)
"""
    assert run(script, input="mine") == "mine"


def run(script: str, **options: Any) -> str:
    """Run Python code in a process of its own; return what it prints."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    finished: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
        **{"input": "", **options},
    )
    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
    return finished.stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_worker_that_died_while_idle_is_replaced(renderer: Renderer) -> None:
    worker = worker_of(renderer)
    os.kill(worker.pid, signal.SIGKILL)
    psutil.wait_procs([worker], timeout=10)
    assert worker_of(renderer) != worker
