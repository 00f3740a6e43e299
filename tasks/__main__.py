"""`python -m tasks`, the same as `sluice`: the command line (`tasks.run.shell`)."""

import sys

from tasks.run.shell import enter

if __name__ == "__main__":
    sys.exit(enter())
