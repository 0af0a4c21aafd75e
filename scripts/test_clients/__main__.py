import sys

from test_clients.command import main

sys.exit(main(sys.argv[1:]))
