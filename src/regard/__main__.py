"""Entry point of `regard` and `python -m regard`."""

import os
import signal
import sys
import time
from typing import Final

from regard import standard_streams
from regard.errors import describe_memory_error

INTERRUPTED: Final = 128 + signal.SIGINT


def main() -> None:
    """Run the command line, with a spin count of OpenMP threads that suits small models."""
    standard_streams.fill_closed()
    # By default an idle thread of libgomp either spins for long or sleeps at once. Small models
    # want short waits to spin and long ones to sleep. libgomp reads the variable when torch is
    # loaded; a user's own setting is kept.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        began = time.monotonic()  # minutes of a run are counted from here
        from regard import cli

        cli.main(began)
    except KeyboardInterrupt:  # while modules were imported
        sys.stderr.write("regard: stopped.\n")
        sys.exit(INTERRUPTED)
    except (ImportError, MemoryError, OSError) as error:  # the same
        if (reason := describe_memory_error(error)) is None:
            raise
        sys.exit(f"regard: {reason}")
    finally:
        # a Ctrl-C during the exit of the interpreter ends it at once and without a traceback
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
