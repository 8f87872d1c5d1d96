"""Standard streams that are closed, full, or not read to their end."""

import subprocess
import sys
from pathlib import Path

import pytest

from forked_python import forked_python

SOURCES = Path(__file__).parents[1] / "src"
#: the end of a verb, without what takes long to load
VERB = """
import sys
from regard import standard_streams
standard_streams.fill_closed()
try:
    {body}
except OSError as error:
    print("failed:", error.strerror, file=sys.stderr)
lost = standard_streams.flush_stdout()
print("lost" if lost else "fine", file=sys.stderr)
"""


def shell(command, body="print('answer')"):
    """The exit code and stderr of a program whose streams a shell has set up."""
    program = VERB.format(body=body)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, "bash", sys.executable, program],
        env={"PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr.splitlines()


def test_a_closed_stdin_is_none_and_no_file_gets_its_number():
    body = "assert sys.stdin is None and open('/dev/null').fileno() > 2"
    assert shell('"$1" -c "$2" <&-', body) == (0, ["fine"])


def test_what_is_written_to_a_closed_stdout_is_lost_with_a_word():
    body = "assert open('/dev/null').fileno() > 2; print('answer')"
    assert shell('"$1" -c "$2" >&-', body) == (0, ["lost"])
    assert shell('"$1" -c "$2" >&-', "print('answer', flush=True)") == (
        0,
        ["failed: Bad file descriptor", "lost"],
    )


def test_a_closed_stderr_takes_everything():
    body = "assert open('/dev/null').fileno() > 2; print('x', file=sys.stderr)"
    assert shell('"$1" -c "$2" 2>&-', body) == (0, [])
    assert shell('"$1" -c "$2" <&- >&- 2>&-', body) == (0, [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk():
    assert shell('"$1" -c "$2" >/dev/full') == (0, ["lost"])


def test_names_of_files_that_are_no_text_are_printed_as_they_are():
    assert shell('PYTHONIOENCODING=utf-8 "$1" -c "$2" >/dev/null', "print(chr(0xDCFF))") == (
        0,
        ["fine"],
    )


def test_a_reader_who_has_seen_enough_is_no_error():
    assert shell('"$1" -c "$2" | true', "print('x' * 1_000_000)")[0] == 0


@pytest.mark.slow
def test_a_table_that_is_not_read_to_its_end_is_no_error():
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", '"$0" -m regard settings | true', forked_python()],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
