"""Runs that were never trained, small enough to be exported in seconds."""

import os
import re
import subprocess
import sys

import numpy as np

from regard.data import FrameScaler, Tokenizer
from regard.models import TEXT_PRESETS
from regard.models.presets import COPY_PRESETS
from untrained import write_run

SOURCES = ["abc", "hgfedcba", "d", "hahaha"]
TARGETS = ["a b c", "H E D", "b f g"]
SIZES = {
    "transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 1},
    "lm-transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 1},
    "conv": {"dim": 12, "layers": 2},
}
#: weights are three times as large as they are drawn, but for convolutions, which would amplify
#: rounding errors from layer to layer
FACTORS = {"conv": 1}


#: far from 0, and on scales of their own
FRAMES = FrameScaler(5, 1, (0.0, 40.0, -3.0, 1e6, 0.5), (1.0, 30.0, 0.1, 0.5, 1.0))


def make_run(path, preset="bahdanau", features=(), seed=4, src=None, sizes=None):
    """Its weights are so large that answers differ."""
    sizes = sizes or SIZES.get(preset, {"embed": 6, "hidden": 10, "layers": 1})
    src = src or Tokenizer.train("char", SOURCES, case="lower", features=features)
    tgt = Tokenizer.train("space", TARGETS)
    src = tgt if preset in TEXT_PRESETS else src
    tgt = src if preset in COPY_PRESETS else tgt
    return write_run(path, src, tgt, preset, scale=FACTORS.get(preset, 3), seed=seed, **sizes)


def assert_found(exported, sources, found, more_than=0, **options):
    """The graphs find these hypotheses, for all at once and for each alone."""
    together = exported.search(sources, len(sources), **options)
    apart = [exported.search([source], **options)[0] for source in sources]
    for several in (together, apart):
        assert_hypotheses(several, found)
    assert len({tuple(one[0].tokens) for one in together}) > more_than


def assert_hypotheses(found, expected):
    """The same hypotheses in the same order, with maps where the graph has them."""
    for theirs, ours in zip(found, expected, strict=True):
        assert [one.tokens for one in theirs] == [one.tokens for one in ours]
        for one, own in zip(theirs, ours, strict=True):
            numbers = [one.score, one.log_prob, *one.token_log_probs]
            expected = [own.score, own.log_prob, *own.token_log_probs]
            np.testing.assert_allclose(numbers, expected, atol=1e-4)
            assert one.finished == own.finished
            layers = zip(one.attention, own.attention.get("cross", ()), strict=False)
            for weights, layer in layers:
                np.testing.assert_allclose(weights, layer.numpy(), atol=1e-4)


def run_readme(folder, blocked=("torch", "regard", "tokenizers")):
    """Run the commands and the code of a folder's README as typed; returns what they print.

    `python` is this interpreter, where the blocked packages cannot be imported, and nothing is
    installed.
    """
    text = (folder / "README.md").read_text(encoding="utf-8")
    (commands,), (code,) = (
        re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for language in ("sh", "python")
    )
    install, *lines = commands.splitlines()
    assert install.startswith("pip install ")
    site = folder.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n"
    )
    (site / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (site / "python").chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "PATH": f"{site}{os.pathsep}{os.environ['PATH']}",
    }
    printed = []
    for words in (["bash", "-ec", "\n".join(lines)], [str(site / "python"), "-c", code]):
        ran = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        printed.append(ran.stdout.splitlines())
    return install.split()[2:], *printed
