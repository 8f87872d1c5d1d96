"""`regard` and `python -m regard`."""

import os


def main() -> None:
    """Runs the command line, with threads that wait as small models need it."""
    # A thread of libgomp that waits for the next piece of work turns its core for long, or sleeps
    # at once. Small models want neither: short waits awake, long ones asleep. It is read when torch
    # is loaded, and a user who has chosen is left alone.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from regard import cli

    cli.main()


if __name__ == "__main__":
    main()
