"""llama.cpp's tests of its server, brought to this one: which, and how they are told of it."""

import json
from pathlib import Path
from urllib.parse import urlsplit

from conform.results import read_excuses
from conform.server import Target

NAME = "llama.cpp"
FILES = (
    "unit/test_chat_completion.py",
    "unit/test_compat_anthropic.py",
    "unit/test_compat_oai_responses.py",
    "unit/test_security.py",
)
KEY = "sk-this-is-the-secret-key"  # the one of its test_security.py
ORIGINS = ",".join(
    f"http://{host}{port}"
    for host, ports in {
        "localhost": ("", ":8080"),
        "127.0.0.1": ("", ":3000"),
        "[::1]": ("", ":3000"),
    }.items()
    for port in ports
)
FLAGS = ("--api-key", KEY, "--cors-origins", ORIGINS)
TOLD = "CONFORMANCE_TARGET"  # the variable that `adapter` reads


def command(commands: Path, report: Path) -> list[str | Path]:
    options = ["-p", "adapter", "-p", "no:cacheprovider", "-q", "-m", "not slow"]
    return [commands / "python", "-m", "pytest", *options, f"--junitxml={report}", *FILES]


def environment(target: Target) -> dict[str, str]:
    told = {
        "url": target.url,
        "key": target.key,
        "model": target.model,
        "excuses": read_excuses().get(NAME, {}),
    }
    return {
        "PYTHONPATH": str(Path(__file__).parent),
        "PORT": str(urlsplit(target.url).port or 80),
        "DEBUG_EXTERNAL": "1",
        TOLD: json.dumps(told),
    }
