"""The clients, installed from npm into build/ in the releases that npm/package.json names."""

import filecmp
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = Path(__file__).parent / "npm"
FILES = ("package.json", "ai-sdk.mjs")
SECONDS = 1800  # it is 1.1 GB


def install(folder: Path) -> Path:
    """`folder`, with the clients in it. Ends the program with a sentence if that cannot be."""
    done = folder / "installed.json"
    if done.exists() and filecmp.cmp(done, PACKAGES / "package.json", shallow=False):
        return folder
    if shutil.which("npm") is None:
        sys.exit("test-clients: these clients need Node.js 20 or newer with npm on the PATH")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(PACKAGES / name, folder / name)
    print(f"installing the clients into {folder} (1.1 GB)", file=sys.stderr, flush=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
    if subprocess.run(command, cwd=folder, timeout=SECONDS, check=False).returncode:
        sys.exit("test-clients: npm failed; what it said stands above")
    shutil.copy(PACKAGES / "package.json", done)
    return folder
