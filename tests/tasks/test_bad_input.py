"""Bad input of each kind of data, by the command line: the file, the line and the reason."""

from datetime import datetime, timedelta

import numpy as np
import pytest
import soundfile
from PIL import Image

from cli.tools import done, regard, sentence
from tasks.life import BRIEF
from tasks.toys import TOYS


def data_of(name, folder):
    """Return the lines of a toy dataset and its file."""
    path = TOYS[name].write(folder, 40, 1)
    return path.read_text().splitlines(), path


def replaced(name, folder, line, text):
    """Return the file of a toy dataset with another line, counted from 1."""
    lines, path = data_of(name, folder)
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")
    return path


def trained(name, path, *more):
    settings = (*BRIEF, "steps=1", *TOYS[name].settings, *more)
    return regard("train", path, "-o", path.parent / "run", *settings)


def hour(number):
    return datetime(2020, 1, 1) + timedelta(hours=number)


def truncated_wav(folder):
    path = replaced("sound", folder, 3, "cut.wav\ta b")
    whole = (folder / "sound-1" / "0.wav").read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2])
    return path


def empty_wav(folder):
    (folder / "empty.wav").write_bytes(b"")
    return replaced("sound", folder, 3, "empty.wav\ta b")


def zero_byte_png(folder):
    (folder / "empty.png").write_bytes(b"")
    return replaced("pictures", folder, 5, "empty.png\tred is left")


def truncated_png(folder):
    path = replaced("pictures", folder, 5, "cut.png\tred is left")
    whole = (folder / "images" / "0.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[:60])
    return path


def gap_in_time(folder):
    lines, path = data_of("series", folder)
    del lines[9]
    path.write_text("\n".join(lines) + "\n")
    return path


#: toy data, how its file is spoiled, its line, and the reason
CASES = {
    "truncated wav": ("sound", truncated_wav, 3, "cut.wav"),
    "zero-byte wav": ("sound", empty_wav, 3, "empty.wav"),
    "zero-byte png": ("pictures", zero_byte_png, 5, "empty.png"),
    "truncated png": ("pictures", truncated_png, 5, "cut.png"),
    "a gap in time": ("series", gap_in_time, 10, "from 2020-01-01 07:00 to 2020-01-01 09:00 there"),
    "NaN in a series": (
        "series",
        lambda folder: replaced("series", folder, 8, f"{hour(6)},nan,3.0"),
        8,
        "the column 'load' has no finite number here",
    ),
    "text in a series": (
        "series",
        lambda folder: replaced("series", folder, 8, f"{hour(6)},much,3.0"),
        8,
        "the column 'load' must hold numbers, but here it is 'much'",
    ),
    "a number that is NaN": (
        "numbers of texts",
        lambda folder: replaced("numbers of texts", folder, 7, "old tree\tnan"),
        7,
        "the target must be a number, but it is 'nan'",
    ),
    "a target that is text": (
        "numbers of texts",
        lambda folder: replaced("numbers of texts", folder, 7, "old tree\tgood"),
        7,
        "the target must be a number, but it is 'good'",
    ),
    "an answer not in its passage": (
        "questions, answer pointed at",
        lambda folder: replaced(
            "questions, answer pointed at", folder, 4, "Mary is here.\tWhere is Mary?\tcellar"
        ),
        4,
        "the answer must stand in the passage, but 'cellar' does not",
    ),
    "an empty story": (
        "questions, answer chosen",
        lambda folder: replaced("questions, answer chosen", folder, 4, "\tWhere is Mary?\thall"),
        4,
        "the story is empty",
    ),
    "a conversation of one turn": (
        "dialogue",
        lambda folder: replaced(
            "dialogue", folder, 2, '{"messages": [{"role": "user", "content": "Hi"}]}'
        ),
        2,
        "a conversation must have two messages or more",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_file_line_and_reason_are_named(case, tmp_path):
    name, spoil, line, reason = CASES[case]
    path = spoil(tmp_path)
    result = trained(name, path)
    said = sentence(result, result.exit_code)
    assert result.exit_code == 1
    assert said.startswith(f"{path}, line {line}: ")
    assert reason in said


def test_a_column_of_text_is_left_out_as_the_sentence_says(tmp_path):
    path = replaced("series", tmp_path, 8, f"{hour(6)},much,3.0")
    done(trained("series", path, "targets=heat"))
    assert done(regard("predict", tmp_path / "run", path)).startswith("date,heat,heat_0.1,heat_0.9")


def test_stereo_of_another_rate_and_cmyk_are_read(tmp_path):
    """Both are usual, and brought to what the model reads: one channel, its rate, RGB."""
    (tmp_path / "a").mkdir()
    noise = 0.1 * np.random.default_rng(1).normal(size=(1200, 2))
    soundfile.write(tmp_path / "a" / "stereo.wav", noise, 8000)
    path = replaced("sound", tmp_path / "a", 3, "stereo.wav\ta b")
    done(trained("sound", path, "rate=16000"))
    (tmp_path / "b").mkdir()
    Image.new("CMYK", (10, 6), (0, 255, 255, 0)).save(tmp_path / "b" / "cmyk.jpg")
    path = replaced("pictures", tmp_path / "b", 3, "cmyk.jpg\tred is left")
    done(trained("pictures", path))
