"""`regard` and `python -m regard`."""

import os
import signal
import sys
from typing import Final

from regard import standard_streams

INTERRUPTED: Final = 128 + signal.SIGINT


def main() -> None:
    """Run the command line, with threads that wait as small models need it."""
    standard_streams.fill_closed()
    # A thread of libgomp that waits for the next piece of work turns its core for long, or sleeps
    # at once. Small models want neither: short waits awake, long ones asleep. It is read when torch
    # is loaded, and a user who has chosen is left alone.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        from regard import cli

        cli.main()
    except KeyboardInterrupt:  # while modules were imported
        sys.stderr.write("regard: stopped.\n")
        sys.exit(INTERRUPTED)
    finally:
        # nothing is left to do but to end, which a Ctrl-C may do at once and without a traceback
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
