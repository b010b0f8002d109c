"""`python -m ocrsvc`: the same as the command `ocrsvc`."""

import sys

from ocrsvc.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
