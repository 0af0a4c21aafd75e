"""The systemd unit: its command line is one that the server takes, and systemd understands it."""

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from radixserve.config import parse

UNIT = Path(__file__).parents[2] / "deploy/radixserve.service"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    unit.read(UNIT)
    return unit["Service"]


def test_it_waits_for_as_long_as_the_server_drains() -> None:
    _, command, *flags = shlex.split(service()["ExecStart"])
    assert command == "serve"
    config = parse(flags, {})
    assert int(service()["TimeoutStopSec"]) > config.server.drain_seconds + 5
    assert service()["Type"] == "notify"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_understands_it(tmp_path: Path) -> None:
    copy = tmp_path / "radixserve-check.service"
    program = shlex.split(service()["ExecStart"])[0]
    copy.write_text(UNIT.read_text().replace(program, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
