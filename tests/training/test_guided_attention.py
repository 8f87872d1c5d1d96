"""Guided attention: the loss by hand, links of tokens, and runs that learn and resume with them."""

import numpy as np
import pytest
import torch

import regard
from data.test_word_aligner import toy, translated
from regard.api.word_alignment import _map_of, head_names
from regard.data import Corpus, collate
from regard.errors import ArgumentError
from regard.models import ModelOutput
from regard.training import make_config, resume_run, start_run
from regard.training.guided_attention import TINY, guide_loss
from regard.training.losses import Objective
from regard.training.setup import check_settings
from training.tools import assert_same, weights

BATCH, HEADS, TGT, SRC = 2, 3, 5, 7
SMALL = {
    "preset": "transformer",
    "size": "tiny",
    "dim": 32,
    "heads": 2,
    "feed_forward": 32,
    "layers": 2,
    "dropout": 0.0,
    "src_tokenizer": "space",
    "tgt_tokenizer": "space",
    "device": "cpu",
    "precision": "32",
    "batch_sentences": 32,
    "report": False,
    "guide": "words",
    "guide_weight": 1.0,
}


def maps(layers, heads):
    rng = torch.Generator().manual_seed(3)
    drawn = torch.randn(layers, BATCH, heads, TGT, SRC, generator=rng).softmax(dim=-1)
    return ModelOutput(torch.zeros(0), {"cross": tuple(drawn.unbind())})


def test_a_head_of_the_layer_before_the_last_learns_words_that_it_has_read():
    links = torch.zeros(BATCH, TGT, SRC)
    links[0, 0, 1] = 1.0
    links[1, 3, 2] = links[1, 3, 6] = 0.5
    out = maps(3, HEADS)
    a = out.maps["cross"][1][:, 0] + TINY
    by_hand = -(a[0, 1, 1].log() + (a[1, 4, 2].log() + a[1, 4, 6].log()) / 2)
    torch.testing.assert_close(guide_loss(out, links), by_hand)
    out = maps(1, 1)
    a = out.maps["cross"][0][:, 0] + TINY
    by_hand = -(a[0, 0, 1].log() + (a[1, 3, 2].log() + a[1, 3, 6].log()) / 2)
    torch.testing.assert_close(guide_loss(out, links), by_hand)
    with pytest.raises(ArgumentError, match="guide must be given to models that attend"):
        guide_loss(ModelOutput(torch.zeros(0), {}), links)


@pytest.mark.parametrize("preset", ["bahdanau", "luong", "gnmt", "conv", "transformer"])
def test_the_guide_reaches_what_the_weights_are_made_from(preset):
    model = regard.models.PRESETS[preset](13, 13, size="tiny")
    src, tgt = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]]), torch.tensor([[1, 5, 6], [1, 7, 0]])
    links = torch.zeros(2, 3, 4)
    links[:, 0, 1] = 1.0
    guide_loss(model(src, torch.tensor([4, 3]), tgt, need_weights=True), links).backward()
    learned = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert {"encoder", "decoder"} <= learned
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("rdrop", [0.0, 2.0])
def test_the_guide_is_added_to_the_loss_of_a_pass_or_of_two(rdrop):
    torch.manual_seed(1)
    model = regard.models.PRESETS["transformer"](13, 13, size="tiny", dropout=0.0).double()
    src, tgt = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]]), torch.tensor([[1, 5, 6], [1, 7, 0]])
    batch = src, torch.tensor([4, 3]), tgt, torch.tensor([[5, 6, 2], [7, 2, 0]])
    links = torch.rand(2, 3, 4, dtype=torch.float64)
    objective = Objective(model, 0.1, rdrop, guide_weight=0.3)
    guide = guide_loss(model(*batch[:3], need_weights=True), links)
    torch.testing.assert_close(objective(*batch, links=links), objective(*batch) + 0.3 * guide)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("guide") / "pairs.tsv"
    path.write_text("".join(f"{' '.join(e)}\t{' '.join(f)}\n" for e, f in toy(400)))
    return path


@pytest.mark.plain
def test_a_guided_run_links_words_and_resumes_exactly(data, tmp_path):
    settings = {"data": str(data), **SMALL, "steps": 60, "save_every": 30, "schedule": "constant"}
    whole = start_run(make_config(settings), tmp_path / "whole", quiet=True)
    start_run(make_config({**settings, "steps": 30}), tmp_path / "parts", quiet=True)
    file = tmp_path / "parts" / "data" / "links.arrow"
    before = file.stat()
    resumed = resume_run(tmp_path / "parts", {"steps": 60}, quiet=True)
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert_same(weights(resumed.path), weights(whole.path))
    # the links are of words that mean the same, and a batch has the share of each
    corpus, links = Corpus(whole.data / "train.arrow"), Corpus(file)
    model = regard.load(whole.path)
    words = (model.task.input.encoder, model.task.target)
    pairs = [
        [side.decode([ids[k]]) for side, ids, k in zip(words, sides, link, strict=True)]
        for row, sides in enumerate((corpus.src(i), corpus.tgt(i)) for i in range(len(corpus)))
        for link in zip(links.src(row), links.tgt(row), strict=True)
    ]
    right = [translated(source) == target for source, target in pairs]
    assert np.mean(right) > 0.95
    assert len(right) > 0.9 * corpus.tgt_lengths.sum()
    corpus.links = links
    batch = collate(corpus, np.array([3, 5]))
    assert batch.links.shape == (*batch.tgt_in.shape, batch.src.shape[1])
    assert batch.links.sum() == len(set(links.tgt(3).tolist())) + len(set(links.tgt(5).tolist()))
    # `align` reads the guided head
    found = model.align([(" ".join(source), " ".join(target)) for source, target in toy(20)])
    hits = [
        translated(source[i]) == target[j]
        for (source, target), own in zip(toy(20), found, strict=True)
        for i, j in own
    ]
    assert np.mean(hits) > 0.5


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"preset": "lm-transformer"}, "guide must be given to presets that write tokens"),
        ({"replay": "old.tsv", "start": "g2p"}, "replay must be left out where a guide is given"),
    ],
)
def test_settings_that_do_not_go_with_a_guide(data, more, reason):
    with pytest.raises(ArgumentError, match=reason):
        check_settings(make_config({"data": str(data), "guide": "words", **more}))


@pytest.mark.plain
def test_labels_and_models_without_attention_have_no_guide(data, tmp_path):
    brief = {"data": str(data), "guide": "words", "steps": 1, "size": "tiny", "device": "cpu"}
    with pytest.raises(ArgumentError, match="guide must be given to models that attend"):
        start_run(make_config({**brief, "preset": "seq2seq"}), tmp_path / "s", quiet=True)


def test_maps_have_the_names_that_align_takes():
    found = maps(2, HEADS).maps["cross"]
    heads = [layer[0].numpy() for layer in found]
    names = head_names([HEADS, HEADS])
    assert {"mean", "1", "1:2", "1:2+1", "mean+1"} <= {*names}
    assert len({*names}) == 2 * (1 + 2 + 2 * HEADS)
    np.testing.assert_array_equal(_map_of(heads, "1:2")[0], heads[1][2])
    np.testing.assert_allclose(_map_of(heads, "0")[0], heads[0].mean(axis=0))
    mean = np.stack(heads).mean(axis=(0, 1))
    np.testing.assert_allclose(_map_of(heads, "mean")[0], mean, rtol=1e-5)
    after = _map_of(heads, "1:2+1")[0]
    np.testing.assert_array_equal(after[:-1], heads[1][2][1:])
    assert not after[-1].any()
