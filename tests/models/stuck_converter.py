"""A converter that stops half-way and waits to be killed; run by `test_hub`."""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    Path(sys.argv[2], "config.json").write_text("{}")
    sys.stdout.write("half\n")
    sys.stdout.flush()
    time.sleep(60)
