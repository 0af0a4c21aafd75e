import sys

from conform.command import main

sys.exit(main(sys.argv[1:]))
