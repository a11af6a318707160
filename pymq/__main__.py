"""``python -m pymq`` is the command ``pymq``."""

import sys

from pymq.cli import main

if __name__ == "__main__":
    sys.exit(main())
