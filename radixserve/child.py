"""What each child process does about its parent: dies with it, and leaves signals to it.

Standard library only; called by the `main` of the tokenizer, the scheduler and the worker.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def become_child(parent: int) -> None:
    """Ignore SIGINT and SIGTERM and, on Linux, ask for SIGKILL when the parent dies.

    Those signals may go to all processes at once (Ctrl-C, `timeout`, systemd), but running requests
    are to end first: the launcher says when to stop. `parent`: the launcher's pid, as it said; by
    the time we ask, it may be gone already.
    """
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not parent_alive(parent):
        raise SystemExit(1)


def parent_alive(parent: int) -> bool:
    """Whether the process that started this one still runs; for systems without PDEATHSIG."""
    return os.getppid() == parent
