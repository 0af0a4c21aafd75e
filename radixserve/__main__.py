"""The console command: `radixserve [serve] FLAGS`, and `chat`, `doctor`, `simulate`, `completion`.

Each command is imported only when it is asked for: a chat does not wait for the server's packages.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

SHELLS = ("bash", "zsh", "fish")
FILES = ("model_path", "chat_template", "record_trace", "trace", "plot")  # arguments that name one


def _serve(argv: Sequence[str]) -> int:
    from radixserve.launch import main

    return main(argv)


def _chat(argv: Sequence[str]) -> int:
    from radixserve.cli.chat import main

    return main(argv)


def _doctor(argv: Sequence[str]) -> int:
    from radixserve.doctor.command import main

    return main(argv)


def _simulate(argv: Sequence[str]) -> int:
    from radixserve.simulate.command import main

    return main(argv)


def _completion(argv: Sequence[str]) -> int:
    shell = _completion_parser().parse_args(argv).shell
    import shtab

    line = command_line()
    for action in _actions(line):
        if action.dest in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(line, shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


class Command(NamedTuple):
    """What follows `radixserve`."""

    help: str
    main: Callable[[Sequence[str]], int]


COMMANDS = {
    "serve": Command("start the server; so do the flags alone", _serve),
    "chat": Command("talk to a server in the terminal", _chat),
    "doctor": Command("check whether this machine can serve, and say what is missing", _doctor),
    "simulate": Command("what another cache size or policy would do to a workload", _simulate),
    "completion": Command(f"print a completion script for {', '.join(SHELLS)}", _completion),
}


def _completion_parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="radixserve completion", description=COMMANDS["completion"][0])
    p.add_argument("shell", choices=SHELLS)
    return p


def command_line() -> argparse.ArgumentParser:
    """All commands with all their flags, for help and completion."""
    from radixserve.cli import chat
    from radixserve.config import parser
    from radixserve.doctor import command as doctor
    from radixserve.launch import FLAGS
    from radixserve.simulate import options as simulate

    parts = {
        "serve": parser(FLAGS),
        "chat": chat.parser(),
        "doctor": doctor.parser(),
        "simulate": simulate.parser(),
        "completion": _completion_parser(),
    }
    top = parser(FLAGS)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for name, part in parts.items():
        commands.add_parser(name, parents=[part], add_help=False, help=COMMANDS[name].help)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if something failed, 2 for a wrong command line."""
    args = list(sys.argv[1:] if argv is None else argv)
    first = args[0] if args else ""
    if first in ("-h", "--help"):
        command_line().print_help()
        return 0
    if first in COMMANDS:
        return COMMANDS[first].main(args[1:])
    if first and not first.startswith("-"):
        sys.stderr.write(f"radixserve: there is no {first}; commands: {', '.join(COMMANDS)}\n")
        return 2
    return COMMANDS["serve"].main(args)


if __name__ == "__main__":
    sys.exit(main())
