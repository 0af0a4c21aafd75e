"""`radixserve`: which command it runs, and that shells complete all of them."""

import shutil
import subprocess
import sys
from functools import cache

import pytest

from radixserve.__main__ import COMMANDS, SHELLS, main
from radixserve.config import PARTS, Config, fields_of, flag
from radixserve.scheduler.order import ORDERS


@cache
def script(shell: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "radixserve", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def completed(*words: str) -> set[str]:
    """What bash offers for the last of `words`."""
    line = " ".join(f"'{word}'" for word in words)
    program = f"""
        {script("bash")}
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        COMP_LINE="{" ".join(words)}"; COMP_POINT=${{#COMP_LINE}}
        name=$(complete -p radixserve | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        "$name" radixserve '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert not done.stderr
    return {*done.stdout.split()}


FLAGS = {flag(name) for part in (*PARTS.values(), Config) for name in fields_of(part)}


def test_bash_completes_commands_flags_and_choices() -> None:
    assert completed("radixserve", "") >= {*COMMANDS}
    assert completed("radixserve", "do") == {"doctor"}
    assert completed("radixserve", "--") >= FLAGS
    assert completed("radixserve", "serve", "--") >= FLAGS
    assert completed("radixserve", "doctor", "--") >= FLAGS | {"--json"}
    assert completed("radixserve", "chat", "--m") == {"--model", "--max-tokens"}
    assert completed("radixserve", "serve", "--device", "") == {"auto", "cpu", "cuda"}
    assert completed("radixserve", "--schedule-policy", "") == {*ORDERS}
    assert completed("radixserve", "completion", "") == {*SHELLS}
    assert "--users" in completed("radixserve", "simulate", "--u")


def test_bash_completes_files(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("radixserve", "serve", "--model-path", "mo") == {"model.gguf"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_one_that_its_shell_reads(shell: str) -> None:
    text = script(shell)
    assert all(name in text for name in COMMANDS) and "schedule-policy" in text
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    check = subprocess.run([shell, "-n"], input=text, text=True, check=False, timeout=60)
    assert check.returncode == 0


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chatt"]) == 2
    assert "there is no chatt; commands: serve, chat" in capsys.readouterr().err


def test_help_names_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "--model-path" in shown and all(
        command.help[:20] in shown for command in COMMANDS.values()
    )


@pytest.mark.parametrize("arguments", [["serve", "--port", "x"], ["--port", "x"]])
def test_flags_alone_are_those_of_serve(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "argument --port: invalid int value: 'x'" in capsys.readouterr().err


def test_a_chat_does_not_wait_for_the_servers_packages() -> None:
    program = (
        "import sys; from radixserve.__main__ import main\n"
        "try: main(['chat', '--help'])\n"
        "except SystemExit: print({'torch', 'zmq', 'fastapi', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "set()"
