"""What exported graphs and their programs read, compared with what the model reads; no export."""

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

import regard
from cli.tools import done
from cli.tools import regard as command
from pictures import drawn
from regard.data import PictureEncoder, StoryEncoder, Tokenizer
from regard.data.media_files import read_picture
from regard.data.story_encoder import MARKS
from regard.data.text_codec import PictureCodec, StoryCodec
from regard.models import ConvStem, PictureInput
from regard.models.protocol import inference
from regard.symbols import EOS, UNK
from regard.tasks.inputs.graph_inputs import PictureInputs, ScaledPatches
from tasks.life import BRIEF
from tasks.toys import TOYS

SYMBOLS = {"eos": EOS, "unk": UNK}
#: 6 x 10 pixels in patches of 2 x 2, with another scale for each channel
PICTURES = PictureEncoder(6, 10, 3, 2, (90.0, 60.0, 120.0), (50.0, 40.0, 30.0))


def test_a_graph_scales_patches_as_the_encoder_does():
    inputs, chance = PictureInputs(PICTURES), torch.Generator().manual_seed(3)
    lengths = inputs.possible(torch.tensor([1, 7]))
    assert lengths.tolist() == [15, 15]
    src = inputs.draw(lengths, chance)
    assert src.shape == (2, 15, 12)
    adapter = PictureInput(ConvStem(3, 2, 8), PICTURES.grid, 2, 3, 8)
    scaled = ScaledPatches(adapter, PICTURES)
    with inference(scaled):
        expected = adapter(inputs.as_read(src), lengths)
        assert torch.allclose(scaled(src, lengths), expected, atol=1e-5)


def test_a_program_cuts_pictures_as_the_encoder_does(tmp_path):
    PICTURES.save(tmp_path / "tokenizer.src.json")
    codec = PictureCodec(tmp_path / "tokenizer.src.json", {"symbols": SYMBOLS})
    picture = drawn("red", "left")
    cut = torch.from_numpy(codec.encode(picture))[None]
    expected = PICTURES.encode(picture.reshape(6, -1).astype(np.float32))
    assert np.allclose(PictureInputs(PICTURES).as_read(cut)[0], expected, atol=1e-5)
    np.save(tmp_path / "one.npy", picture)
    assert np.array_equal(codec.encode(tmp_path / "one.npy"), cut[0])
    file, exif = tmp_path / "turned and transparent.png", Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.dstack([picture, picture[..., :1]]).swapaxes(0, 1)).save(file, exif=exif)
    read = np.asarray(read_picture(file).image)
    assert np.array_equal(codec.encode(file), codec.encode(read))
    with pytest.raises(ValueError, match=r"must be \(6, 10, 3\), height, width and channels"):
        codec.encode(picture[:, :4])


def test_a_program_reads_stories_as_the_encoder_does(tmp_path):
    texts = ["Mary went to the hall.", "Where is Mary?"]
    encoder = StoryEncoder(Tokenizer.train("word", texts, features=MARKS))
    encoder.save(tmp_path / "tokenizer.src.json")
    codec = StoryCodec(tmp_path / "tokenizer.src.json", {"symbols": SYMBOLS})
    for line in (
        "Mary went to the hall.\tWhere is Mary?",
        "Mary went. | John is here. | \t Where is  Mary?",
    ):
        assert codec.encode(line) == encoder.encode([line])[0]
    for wrong in ("no question", "\tWhere is Mary?", "Mary is here.\t", "a\tb\tc"):
        with pytest.raises(ValueError, match="a story and a question with a tab between them"):
            codec.encode(wrong)


@pytest.mark.parametrize("name", ["numbers of texts", "numbers of vectors"])
def test_a_graph_writes_numbers_in_the_unit_of_the_targets(name, tmp_path):
    toy = TOYS[name]
    data = toy.write(tmp_path, 40, 1)
    done(command("train", data, "-o", tmp_path / "run", *BRIEF, *toy.settings))
    model = regard.load(tmp_path / "run", device="cpu")
    given = toy.given(tmp_path)
    graph = model.task.numbers.graph(model.trained)
    with inference(graph.module):
        numbers = graph.module(*model.task.input.batch(model.source_ids([given])))
    assert numbers.shape == (1, 1, 1, 1)
    assert numbers.item() == pytest.approx(model(given).value)
