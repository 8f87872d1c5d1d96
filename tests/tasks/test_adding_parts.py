"""An input or an output is one class and one entry: no other file knows which exist."""

import numpy as np
import pytest

import regard
from regard import tasks
from regard.data import BadLines, Pair, PairReader
from regard.data.error_hints import BadLine
from regard.data.pair_reader import OpenedSource
from regard.data.pairs import Format
from regard.data.text_files import numbered_lines
from regard.tasks.inputs.frames import FrameInput
from regard.training import RunFolder

TINY = {"embed": 5, "hidden": 6, "layers": 1, "steps": 2, "device": "cpu", "quiet": True}


class CommaFrames(FrameInput):
    """Lines of frames and a target: `0.1,0.2;0.3,0.4<TAB>text`."""

    name = "comma-frames"

    @classmethod
    def is_possible(cls, settings):
        return settings.data.endswith(".frames")

    @classmethod
    def recognise(cls, settings, first):
        return "the file ends in .frames"

    @classmethod
    def read_examples(cls, settings, place, check):
        opened = OpenedSource(place.source, numbered_lines(place.source), Format("text"))

        def parse(number, raw):
            numbers, _, target = raw.decode().partition("\t")
            if not target:
                raise BadLine("missing tab", "there is no tab after the frames", "put one there")
            rows = [list(map(float, frame.split(","))) for frame in numbers.split(";")]
            return check(Pair(numbers, target, number, frames=np.array(rows, np.float32)))

        return PairReader(opened, parse, BadLines(settings.skip_bad, advice=place.hints))


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "INPUTS", {CommaFrames.name: CommaFrames, **tasks.INPUTS})
    file, chance = tmp_path / "data.frames", np.random.default_rng(0)
    lines = []
    for i in range(60):
        frames = chance.normal(size=(2 + i % 5, 3))
        text = ";".join(",".join(f"{number:.3f}" for number in frame) for frame in frames)
        lines.append(f"{text}\t{'abc'[i % 3] * (1 + i % 4)}\n")
    file.write_text("".join(lines))
    return file


def test_a_new_input_trains_loads_and_predicts(data, tmp_path):
    model = regard.fit(str(data), output=tmp_path / "run", **TINY)
    assert isinstance(model.task.input, CommaFrames)
    again = regard.load(tmp_path / "run", device="cpu")
    assert isinstance(again.task.input, CommaFrames)
    source = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    assert again(source).src_tokens == ["0", "1"]
    assert again(source).text == model(source).text
    card = RunFolder(tmp_path / "run").card_file.read_text()
    assert "vectors of 3 numbers" in card
