"""Runs that were never trained, small enough to be exported in seconds."""

import numpy as np
import torch

from regard.data import FrameScaler, Tokenizer
from regard.kinds import open_kind
from regard.models import TEXT_PRESETS
from regard.training import RunFolder, make_config

SOURCES = ["abc", "hgfedcba", "d", "hahaha"]
TARGETS = ["a b c", "H E D", "b f g"]
SIZES = {
    "transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 1},
    "lm-transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 1},
}


#: far from 0, and on scales of their own
FRAMES = FrameScaler(5, 1, (0.0, 40.0, -3.0, 1e6, 0.5), (1.0, 30.0, 0.1, 0.5, 1.0))


def make_run(path, preset="bahdanau", features=(), seed=4, src=None, sizes=None):
    """Its weights are so large that answers differ."""
    sizes = sizes or SIZES.get(preset, {"embed": 6, "hidden": 10, "layers": 1})
    config = make_config({"preset": preset, **sizes})
    folder = RunFolder(path)
    folder.create()
    folder.write_config(config)
    src = src or Tokenizer.train("char", SOURCES, case="lower", features=features)
    tgt = Tokenizer.train("space", TARGETS)
    src = tgt if config.preset in TEXT_PRESETS else src
    src.save(folder.src_tokenizer_file)
    tgt.save(folder.tgt_tokenizer_file)
    torch.manual_seed(seed)
    model = open_kind(config, src, tgt).build_model()
    folder.write_model({k: 3 * w if w.ndim > 1 else w for k, w in model.state_dict().items()})
    return path


def assert_found(exported, sources, found, more_than):
    """The graphs find these hypotheses, for all at once and for each alone."""
    tokens, scores = exported.greedy(sources)
    assert tokens == [one.tokens for one in found]
    assert len({tuple(row) for row in tokens}) > more_than
    for ours, theirs in zip(found, scores, strict=True):
        np.testing.assert_allclose(theirs, ours.token_log_probs, atol=1e-4)
    assert [exported.greedy([source])[0][0] for source in sources] == tokens
