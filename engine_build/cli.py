"""The command line of `python -m engine_build`: errors and exit codes. The commands are in `commands`.

Messages go to stderr, results to stdout. Exit code 0 is success, 1 a failure told in one line, 2 a wrong command line.
"""

import logging
import sys
from collections.abc import Sequence

from engine_build.arguments import make_parser
from engine_build.errors import EngineBuildError

logger = logging.getLogger("engine_build")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = make_parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s", force=True)
    try:
        options.run(options)
    except (EngineBuildError, OSError) as exc:
        logger.error("%s", " ".join(str(exc).split()))
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; nothing was published")
        return 130
    return 0
