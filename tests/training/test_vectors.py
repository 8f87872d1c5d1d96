"""Embeddings that start from word vectors, and how they learn."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.data.corpus import Ids
from regard.errors import ArgumentError, DataError
from regard.models import PRESETS
from regard.training import RunFolder, make_config
from regard.training.pretrained_embeddings import start_from_counts
from regard.training.setup import check_settings, prepare
from training.tools import SETTINGS

WORDS = ["red", "green", "blue", "Black", "white", "grey"]
#: width 16 as in the settings; `Black` is there in lower case alone, `grey` not at all
FILE = ["the", "red", "green", "blue", "black", "don't", "yellow", "white", "pink"]
BRIEF = {**SETTINGS, "steps": 4, "eval_every": 4, "src_tokenizer": "word", "tgt_tokenizer": "space"}
SIZES = {"dim": 16, "heads": 2, "feed_forward": 16, "layers": 1}


def vector(number, width=16):
    """Numbers of which 32 bits hold all."""
    return [number + i / 16 for i in range(width)]


def brief(**settings):
    """Settings of a small run, which other presets have other sizes for."""
    given = {**BRIEF, **settings}
    if given.get("preset") == "transformer":
        given = {k: v for k, v in given.items() if k not in ("hidden", "embed")}
    return make_config(given)


def write_vectors(path, words=FILE, width=16):
    rows = [" ".join([word, *map(str, vector(n, width))]) for n, word in enumerate(words)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def vectors(tmp_path):
    return str(write_vectors(tmp_path / "vectors.txt"))


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Some words, and the same from the end."""
    draw, path = random.Random(1), tmp_path_factory.mktemp("colours") / "pairs.tsv"
    lines = [draw.choices(WORDS, k=draw.randint(2, 6)) for _ in range(120)]
    path.write_text("".join(f"{' '.join(a)}\t{' '.join(reversed(a))}\n" for a in lines))
    return path


@pytest.fixture
def make(colours, tmp_path):
    """A task of six words, and what the user was told of it."""

    def task(**settings):
        config = brief(**{"data": str(colours), **settings})
        check_settings(config)
        folder = RunFolder(tmp_path / "run")
        folder.create()
        with open(tmp_path / "said", "w+") as said:
            made = prepare(config, folder, Console(file=said, width=1000))
            said.seek(0)
            return made, said.read()

    return task


def rows(tokenizer, embedding):
    """The rows of a table by the words that they are for, as the model sees them."""
    seen = embedding.table.weight.detach() * embedding.scale
    return dict(zip(tokenizer.tokens(range(tokenizer.vocab_size)), seen, strict=True))


def test_a_scaled_embedding_gives_the_vectors_of_the_file(make, vectors):
    task, said = make(preset="transformer", **SIZES, tgt_vectors=vectors)
    embedding = task.learner.module.decoder.embedding
    assert embedding.scale == 4
    seen = rows(task.evaluator.task.target, embedding)
    assert torch.allclose(seen["red"], torch.tensor(vector(1)))
    assert "target vectors: " in said


@pytest.mark.parametrize("setting", ["src_vectors", "tgt_vectors"])
def test_a_shared_table_starts_from_either_setting(make, vectors, setting):
    settings = {"shared_vocab": True, "tied": "all", "tgt_tokenizer": "word"}
    task, _ = make(**settings, **{setting: vectors})
    for embedding in (task.learner.module.encoder.embedding, task.learner.module.decoder.embedding):
        assert rows(task.evaluator.task.encoders.source, embedding)["red"].tolist() == vector(1)
    assert len(task.learner.optimizer.param_groups[2]["params"]) == 1


def test_a_table_that_is_kept_has_no_gradient_for_clipping_to_see(make, vectors):
    task, said = make(src_vectors=vectors, vectors_rate=0)
    kept = [name for name, p in task.learner.module.named_parameters() if not p.requires_grad]
    assert kept == ["encoder.embedding.table.weight"]
    assert "the others at random, and all stay as they are." in said


@pytest.mark.plain
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"embed": 24}, r"embed must be 16, the width of the vectors in .*, but it is 24: add emb"),
        (
            {"preset": "transformer"},
            r"embed must be 16, the width of .*, but it is 128: add embed=16, or name vectors that",
        ),
        ({"preset": "rnn", "tgt_vectors": "x"}, "tgt_vectors must be left out for the preset rnn"),
        ({"src_vectors": "-"}, "src_vectors must be a file that can be read more than once, but"),
        ({"src_vectors": ""}, "src_vectors must be a file, which is read twice, but it is ''"),
        (
            {"src_vectors": None, "vectors_rate": 0.5},
            "vectors_rate must be left out where src_vectors",
        ),
        ({"vectors_rate": -1}, "vectors_rate must be at least 0"),
        (
            {"shared_vocab": True, "tied": "all", "tgt_vectors": "x", "tgt_tokenizer": "word"},
            "src_vectors and tgt_vectors must not both be given where",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_read(vectors, settings, words):
    given = {"src_vectors": vectors, "data": "none.tsv", **settings}
    with pytest.raises(ArgumentError, match=words):
        check_settings(brief(**given))


def test_a_file_without_any_of_the_tokens_is_refused(make, tmp_path):
    file = write_vectors(tmp_path / "other.txt", ["rouge", "vert"])
    with pytest.raises(
        DataError, match=r"other\.txt: there is no vector for any of the source tok"
    ):
        make(src_vectors=str(file), vocab_size=10)


def test_embeddings_start_from_the_tokens_that_occur_together():
    """Sources have two words for each target word: these begin alike, and unlike all others."""
    draw, first, kinds = np.random.default_rng(3), 4, 9
    targets = draw.integers(kinds, size=(300, 3))
    sources = 2 * targets + draw.integers(2, size=targets.shape)

    def gather(side, rows):
        values = first + (sources if side == "src" else targets)[rows]
        eos = np.full((len(rows), int(side == "src")), 2)
        lengths = np.full(len(rows), 3 + (side == "src"))
        return Ids(np.cumsum(lengths) - lengths, lengths, np.hstack([values, eos]).ravel())

    count = np.ones(300, np.int32)
    pairs = SimpleNamespace(src_lengths=4 * count, tgt_lengths=3 * count, gather=gather)
    model = PRESETS["bahdanau"](first + 2 * kinds, first + kinds, embed=8, hidden=4)
    tables = model.encoder.embedding.table.weight, model.decoder.embedding.table.weight
    before, said = [table.detach().clone() for table in tables], []
    start_from_counts(model, pairs, said.append)
    assert len(said) == 1
    words = torch.nn.functional.normalize(tables[0].detach()[first:])
    near = (words @ words.mT).fill_diagonal_(-1).argmax(dim=1).tolist()
    assert near == [word ^ 1 for word in range(2 * kinds)]
    across = tables[0].detach()[first:] @ tables[1].detach()[first:].mT
    assert across.argmax(dim=1).tolist() == [word // 2 for word in range(2 * kinds)]
    for table, old in zip(tables, before, strict=True):
        assert torch.equal(table[:first], old[:first]), "symbols stay random"

    small = PRESETS["bahdanau"](first + 2 * kinds, first + kinds, embed=16, hidden=4)
    start_from_counts(small, pairs, said.append)
    assert len(said) == 1, "a vocabulary as small as its vectors are wide is left as it is"
