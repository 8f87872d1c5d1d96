"""Pictures as a kind of data: settings, recognition and sources."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from pictures import drawn, write_classes
from regard.data import Pair, PictureEncoder
from regard.errors import ArgumentError, DataError
from regard.tasks import choose_task, possible_tasks
from regard.tasks.inputs.frames import FrameInput
from regard.tasks.inputs.picture import PixelInput
from regard.training import make_config, start_run
from regard.training.setup import check_settings

ENCODER = PictureEncoder(6, 10, 3, 2, (100.0, 90.0, 80.0), (50.0, 40.0, 30.0))


def source():
    return PixelInput(ENCODER, make_config({}))


def test_files_and_arrays_of_pictures_are_recognised():
    files = [Pair("a.png", "x", 1), Pair("b/c.jpeg", "y", 2)]
    found = choose_task(make_config({}), lambda: files)
    assert found.task.input is PixelInput
    assert found.why == "the sources are names of picture files"
    colours = [Pair("", "x", 1, frames=np.zeros((4, 4, 3), np.uint8))]
    assert choose_task(make_config({}), lambda: colours).task.input is PixelInput
    tables = [Pair("", "x", 1, frames=np.zeros((4, 3)))]
    assert choose_task(make_config({}), lambda: tables).task.input is FrameInput
    asked = make_config({"src_tokenizer": "pictures"})
    assert {task.input for task in possible_tasks(asked)} == {PixelInput}
    assert choose_task(asked, lambda: tables).task.input is PixelInput


def test_few_pictures_in_folders_of_classes_are_for_a_small_classifier(tmp_path):
    data = write_classes(tmp_path / "classes", 24)
    config = make_config({"data": str(data), "steps": 2, "device": "cpu"})
    found = start_run(config, tmp_path / "run", quiet=True).read_config()
    assert found.preset == "classifier-transformer"
    assert (found.model["dim"], found.model["dropout"], found.task_options) == (
        64,
        0.0,
        {"shift": 0},
    )
    task = PixelInput(replace(ENCODER, height=28, width=28), make_config({}))
    assert task.starter("label")["shift"] == 2
    assert not task.starter("tokens")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patch": 5, "picture_size": 32}, "divide both sides of picture_size, 32 x 32"),
        ({"picture_size": "a"}, "be pixels as in 32"),
        ({"picture_size": "0x4"}, "be pixels as in 32"),
        ({"picture_size": "9999x9999"}, "4,194,304 at most"),
        ({"patch": 4, "preset": "pointer"}, "be one that reads pictures"),
        ({"patch": 4, "stack": 2}, "be left out where sources are pictures"),
        ({"patch": 4, "src_case": "lower"}, "be left out where sources are pictures"),
        ({"channels": 2}, "channels"),
        ({"stem": "deep"}, "stem"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ArgumentError, match=said):
        check_settings(make_config({"data": "x.tsv", **settings}))


def test_one_picture_is_told_from_several():
    one = drawn("red", "left")
    for given in (one, one[..., 0], one.tolist(), "a.png", Image.fromarray(one), b"bytes"):
        assert source().is_one(given)
    for several in ([one, one], np.stack([one, one]), ["a.png", "b.png"], iter([one])):
        assert not source().is_one(several)
    with pytest.raises(ArgumentError, match="one picture"):
        source().check_several(one)


def test_a_trace_holds_the_picture_with_names_of_its_patches():
    array = drawn("red", "left")
    (row,) = source().rows([array])
    text = source().text(array, row)
    assert text.text.startswith("picture of 10 x 6 #")
    assert [token.text for token in text.tokens][:2] == ["r1c1", "r1c2"]
    assert text.backdrop.grid == (3, 5)
    assert np.array_equal(text.backdrop.array, array)
    assert "row and column" in source().notes(text)[0]


def test_ablation_puts_other_patches_in_the_place_of_one():
    (row,) = source().rows([drawn("red", "left")])
    found = source().replacements(row)
    assert len(found.others) == 15
    assert 4 not in found.others[4]
    changed = found.put(row, {4: 9})
    assert np.array_equal(changed[4], row[9])
    assert np.array_equal(np.delete(changed, 4, 0), np.delete(row, 4, 0))
    assert "patches of the picture" in found.notes[0]


def test_bad_sources_are_named(tmp_path):
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(DataError, match=r"a\.png: a picture must be a file that Pillow can read"):
        source().parse(tmp_path / "a.png")
    with pytest.raises(DataError, match="source: a picture must be the path of a file"):
        source().parse(str(tmp_path / "b.png"))
