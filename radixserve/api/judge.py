"""Whether a grammar compiles, found out in a process of its own.

llguidance follows references in native recursion: a chain of some thousands of rules overflows the
stack and ends whatever process compiles it. So that is this child, whose stack is smaller than that
of the worker's threads: what it survives, they do. The child ends with its parent's pipe.
"""

import contextlib
import select
import signal
import subprocess
import sys
import threading
import weakref

import msgspec
from llguidance import LLMatcher

SECONDS = 10.0  # a grammar that takes longer is refused
STACK = 1 << 20  # bytes; some eighty definitions deep in a JSON schema, three hundred rules in Lark


class GrammarJudge:
    """Thread-safe; one grammar at a time. The child is started when the first one comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes]], GrammarJudge] | None = None

    def fault(self, grammar: str) -> str:
        """What is wrong with a grammar in llguidance's form; "" if nothing is."""
        with self._lock:
            child = self._running()
            assert child.stdin is not None and child.stdout is not None, "both were asked for"
            answer = b""
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(msgspec.json.encode(grammar) + b"\n")
                child.stdin.flush()
                if not select.select([child.stdout], [], [], SECONDS)[0]:
                    self._stop()
                    return f"it takes longer than {SECONDS:.0f} seconds to compile"
                answer = child.stdout.readline()
            if not answer:
                self._stop()
                return "it refers to its parts too deep"
        return msgspec.json.decode(answer, type=str)

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._end = weakref.finalize(self, _end, self._child)
        return self._child

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._child = None

    def close(self) -> None:
        """End the child, whatever it is at. A grammar that comes later starts another one."""
        self._stop()


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    with child:  # closes the pipes and waits
        pass


def _serve() -> None:
    for line in sys.stdin.buffer:
        fault = LLMatcher.validate_grammar(msgspec.json.decode(line, type=str))
        sys.stdout.buffer.write(msgspec.json.encode(fault) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """The child: a line with a grammar, a line with its fault, both in JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    threading.stack_size(STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
