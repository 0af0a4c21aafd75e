"""python -m radixserve.simulate TRACE ..."""

import sys

from radixserve.simulate.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
