"""Training what copies: one vocabulary, features that stay where they are, a loss of its own."""

import pytest
import torch
import torch.nn.functional as F

import regard
from models.cases import build, pairs
from regard.symbols import PAD
from regard.training import make_config, start_run
from regard.training.losses import Objective
from training.tools import SETTINGS


def batch():
    """Sources, lengths, and both forms of targets of different lengths."""
    src, lengths, tgt = pairs()
    out = torch.cat([tgt[:, 1:], torch.full_like(tgt[:, :1], 2)], dim=1)
    out[0, 3:] = PAD
    return src, lengths, tgt, out


def test_the_loss_is_cross_entropy_and_coverage_of_what_is_no_padding():
    src, lengths, tgt, gold = batch()
    model = build("pointer-coverage", coverage=1.5).double().eval()
    out = model(src, lengths, tgt, need_weights=True)
    (weights,) = out.maps["cross"]
    earlier = weights[:, 0].cumsum(dim=1) - weights[:, 0]
    covered = 1.5 * torch.minimum(weights[:, 0], earlier).sum(dim=2)
    real = gold != PAD
    expected = F.cross_entropy(out.logits[real], gold[real], reduction="sum") + covered[real].sum()
    found = Objective(model)(src, lengths, tgt, gold)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    assert covered[real].sum() > 0.1


def inflected(path):
    tags = {"PST": "ed", "PRS": "s"}
    words = [a + b + c for a in "abcd" for b in "efgh" for c in "ijkl"]
    path.write_text("".join(f"{w}\t{w}{end}\tV;{t}\n" for w in words for t, end in tags.items()))
    return path


@pytest.mark.slow
def test_a_run_with_all_of_it_is_saved_and_loaded(tmp_path):
    data = inflected(tmp_path / "pairs.tsv")
    changes = {"coverage": 1.0, "rdrop": 1.0, "accumulate": 2, "steps": 8, "ema": 0.9}
    settings = {**SETTINGS, **changes, "preset": "pointer", "tied": "all", "max_tgt_len": 10}
    folder = start_run(make_config({"data": str(data), **settings}), tmp_path / "run", quiet=True)
    model = regard.load(folder.path)
    assert model.module.decoder.copied == model.module.decoder.embedding.vocab - 3
    out = model("aei\tV;PST")
    assert out.maps["cross"][0].shape[-1] == len("aei") + 2 + 1
