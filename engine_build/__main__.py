"""Entry of `python -m engine_build`."""

import sys

from engine_build.cli import main

if __name__ == "__main__":
    sys.exit(main())
