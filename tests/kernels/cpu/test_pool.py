"""The threads: every task once, whoever calls, how often, from how many threads, after a fork."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from radixserve_kernels import cpu
from radixserve_kernels.cpu.library import TASK, kernels


def own_threads() -> int:
    """Threads of this process that are the pool's."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # ended meanwhile
            found += (task / "comm").read_text().startswith("rs-cpu-")
    return found


def left_threads() -> int:
    """Those that remain: the system lists a thread for a moment after it was joined."""
    end = time.monotonic() + 10
    while own_threads() and time.monotonic() < end:
        time.sleep(0.01)
    return own_threads()


def run(tasks: int) -> Counter[int]:
    """How often each task ran."""
    ran: Counter[int] = Counter()
    lock = threading.Lock()

    def task(_, number: int) -> None:
        with lock:
            ran[number] += 1

    kernels().rs_parallel(TASK(task), None, tasks)
    return ran


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_task_runs_once(threads):
    assert cpu.set_threads(threads) == threads
    for tasks in (0, 1, 2, 3, 50):
        assert run(tasks) == Counter(range(tasks))


def test_threads_are_there_only_when_needed():
    assert left_threads() == 0
    run(50)
    assert own_threads() == 0
    cpu.set_threads(3)
    run(1)
    assert own_threads() == 0
    run(2)
    assert own_threads() == 2
    cpu.set_threads(1)
    assert left_threads() == 0


def test_more_than_one_thread_computes():
    cpu.set_threads(2)
    seen: set[int] = set()
    both = threading.Event()

    def task(_, number: int) -> None:
        seen.add(threading.get_ident())
        if len(seen) == 2:
            both.set()
        assert both.wait(60)

    kernels().rs_parallel(TASK(task), None, 2)
    assert len(seen) == 2


def test_a_silly_number_of_threads_is_bounded():
    assert cpu.set_threads(0) == 1
    assert cpu.set_threads(-5) == 1
    assert cpu.set_threads(10**9) == 256


def test_a_task_may_call_in_turn():
    cpu.set_threads(2)
    inner: list[Counter[int]] = []
    kernels().rs_parallel(TASK(lambda _, number: inner.append(run(5))), None, 4)
    assert inner == [Counter(range(5))] * 4


def test_many_calls():
    """In C alone, so that jobs follow each other as fast as they can."""
    cpu.set_threads(3)
    x = torch.randn(200, 1024)
    expected = cpu.rms_norm(x, torch.ones(1024), 1e-5)
    for _ in range(500):
        assert torch.equal(cpu.rms_norm(x, torch.ones(1024), 1e-5), expected)


def test_calls_from_two_threads_at_once():
    cpu.set_threads(2)
    x = torch.randn(200, 512)
    expected = cpu.rms_norm(x, torch.ones(512), 1e-5)
    wrong: list[int] = []

    def call() -> None:
        for i in range(200):
            if not torch.equal(cpu.rms_norm(x, torch.ones(512), 1e-5), expected):
                wrong.append(i)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # that of the threads, from 3.12 on
def test_a_child_starts_threads_of_its_own():
    """In C alone: torch's own threads do not survive a fork."""
    cpu.set_threads(2)
    assert run(10) == Counter(range(10))
    x, weight, out = torch.ones(300, 256), torch.ones(256), torch.zeros(300, 256)
    pointers = (x.data_ptr(), 256, 0, weight.data_ptr(), None, out.data_ptr())
    seen = out.numpy()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            kernels().rs_rms_norm(*pointers, 300, 1, 256, 0.0)
            code = 0 if seen.sum() == 300 * 256 and own_threads() == 1 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert run(10) == Counter(range(10))
