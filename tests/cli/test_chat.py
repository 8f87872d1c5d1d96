"""`regard chat`: turns are kept, the system comes first, and the end of the input ends it."""

import os
import pty
import subprocess

import pytest

import regard as package
from cli.tools import done, regard, sentence
from forked_python import forked_python
from tasks.life import BRIEF
from tasks.toys import TOYS


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A run of a few steps on conversations."""
    folder, toy = tmp_path_factory.mktemp("chat"), TOYS["dialogue"]
    data = toy.write(folder, 60, 1)
    done(regard("train", data, "-o", folder / "run", *BRIEF, *toy.settings, "max_src_len=20"))
    return folder / "run"


@pytest.fixture
def heard(monkeypatch):
    """Sources that the model has read; its answer is the number of them."""
    found = []

    def answer(self, text, **options):
        found.append((text, options))
        return _Answer(f"new {len(found)}")

    monkeypatch.setattr(package.Model, "__call__", answer)
    return found


class _Answer:
    def __init__(self, text):
        self.text = text


def test_turns_are_kept_and_the_system_comes_first(talker, heard):
    words = ("chat", talker, "--system", "be  brief", "--beam", 1, "--max-len", 5)
    result = regard(*words, stdin="hello\n\n old  car\n")
    assert done(result) == "new 1\nnew 2\n"
    assert [text for text, _ in heard] == [
        "system: be brief | user: hello",
        "system: be brief | user: hello | assistant: new 1 | user: old car",
    ]
    assert heard[0][1] == {"beam": 1, "max_len": 5, "attention": False}


def test_the_oldest_turns_are_left_out_where_too_many(talker, heard):
    result = regard("chat", talker, stdin="red red red red\n" * 4)
    assert done(result) == "new 1\nnew 2\nnew 3\nnew 4\n"
    assert "oldest turns are left out" in result.stderr
    assert heard[-1][0].endswith("assistant: new 3 | user: red red red red")
    assert heard[-1][0].count("user:") < 4


def test_a_real_model_answers_each_line(talker):
    assert len(done(regard("chat", talker, stdin="hello\nold tree")).splitlines()) == 2
    assert done(regard("chat", talker, stdin="")) == ""


def test_other_runs_are_refused(tmp_path):
    toy = TOYS["numbers of texts"]
    data = toy.write(tmp_path, 40, 1)
    done(regard("train", data, "-o", tmp_path / "run", *BRIEF, *toy.settings))
    said = sentence(regard("chat", tmp_path / "run", stdin="hello\n"), 2)
    assert "RUN must be trained on conversations, but it is" in said


@pytest.mark.slow
def test_ctrl_d_ends_it_in_a_terminal(talker):
    """One process, since only a terminal has a prompt."""
    ours, theirs = pty.openpty()
    command = [forked_python(), "-m", "regard", "chat", str(talker)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"hello\n\x04")
    shown = b""
    try:
        while part := os.read(ours, 1024):
            shown += part
    except OSError:  # the other side is closed
        pass
    assert process.wait(60) == 0, shown
    assert shown.count(b"user> ") == 2
    assert b"Traceback" not in shown
