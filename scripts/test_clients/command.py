"""Runs the clients one after another and prints the table. Exit status 1 if one has failed."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from test_clients.agents import AGENTS, MADE, PATIENCE, Agent
from test_clients.install import install
from test_clients.proxy import Proxy, Turn, listening
from test_clients.server import serving, stretched

BUILD = Path(__file__).parents[2] / "build" / "clients"
HEAD = ("client", "surface", "exit", "tool ran", "prompt, turn 1", "prompt, turn 2", "cached of it")
SHARE = 0.9  # of the first prompt that the second turn must find cached


@dataclass(frozen=True)
class Run:
    """What came of one client. `code`: None if it had to be stopped."""

    agent: Agent
    version: str
    code: int | None
    made: bool
    turns: list[Turn]

    @property
    def passed(self) -> bool:
        if self.code != 0 or not self.made or len(self.turns) < 2:
            return False
        first, second = self.turns[:2]
        return first.prompt > 0 and second.cached >= SHARE * first.prompt

    def row(self) -> tuple[str, ...]:
        first, second = (*self.turns[:2], Turn(True), Turn(True))[:2]
        return (
            f"{self.agent.name} {self.version}",
            f"`{self.agent.surface}`",
            "stopped" if self.code is None else str(self.code),
            "yes" if self.made else "no",
            *(f"{tokens:,}" for tokens in (first.prompt, second.prompt, second.cached)),
        )


def arguments(argv: list[str]) -> argparse.Namespace:
    names = [agent.name for agent in AGENTS]
    parser = argparse.ArgumentParser(
        prog="test-clients", description="Runs real clients from npm against the server."
    )
    parser.add_argument(
        "--url",
        help="a server that runs: its context must take the prompts, its template print tools",
    )
    parser.add_argument("--only", choices=names, action="append", help="this client (repeatable)")
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="a tenth of the model's width and two layers: the same prompts, a minute in all",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep homes, requests and answers in this folder"
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    given = arguments(argv)
    packages = install(BUILD / "packages")
    chosen = [agent for agent in AGENTS if given.only is None or agent.name in given.only]
    with ExitStack() as stack:
        scratch = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scratch.mkdir(parents=True, exist_ok=True)
        url = given.url or stack.enter_context(
            serving(stretched(BUILD / "model", given.random_weights), scratch / "server.log")
        )
        runs = [run(agent, packages, url, scratch.resolve() / agent.package) for agent in chosen]
    for line in (HEAD, ("---",) * len(HEAD), *(each.row() for each in runs)):
        print(f"| {' | '.join(line)} |")
    failed = [each.agent.name for each in runs if not each.passed]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def run(agent: Agent, packages: Path, url: str, folder: Path) -> Run:
    """One client in `folder`, which it finds empty."""
    print(f"{agent.name} ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    home, work = folder / "home", folder / "work"
    for each in (home, work):
        each.mkdir(parents=True)
    proxy = Proxy(agent, url, folder)
    with listening(proxy) as own:
        for path, text in agent.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(agent.filled(text, own, home))
        variables = {key: agent.filled(text, own, home) for key, text in agent.variables.items()}
        words = [
            agent.filled(word, own, home).replace("{packages}", str(packages))
            for word in agent.command
        ]
        code = call(words, work, variables | environment(packages, home), folder / "client.log")
    made = work / MADE
    version = json.loads((packages / "node_modules" / agent.package / "package.json").read_text())
    found = Run(
        agent,
        version["version"],
        code,
        made.exists() and "hello" in made.read_text(),
        proxy.loop(),
    )
    if not found.passed:
        print((folder / "client.log").read_text()[-3000:], file=sys.stderr)
    return found


def environment(packages: Path, home: Path) -> dict[str, str]:
    """All that a client inherits: nothing of this machine's keys, proxies or habits."""
    node = Path(shutil.which("node") or "node").parent
    path = f"{packages / 'node_modules' / '.bin'}:{node}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"}


def call(command: list[str], folder: Path, variables: dict[str, str], log: Path) -> int | None:
    """The exit status of a client; None if it was stopped with all that it had started."""
    program = shutil.which(command[0], path=variables["PATH"]) or command[0]
    with log.open("w") as out:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(2 * PATIENCE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
