"""Run folders of models that were never trained."""

import torch

from regard.tasks import open_task
from regard.training import RunFolder, make_config


def write_run(path, src, tgt, preset, *, scale=3, seed=4, **settings):
    """Write a run with random weights, which are by default so large that answers differ."""
    config = make_config({"preset": preset, **settings})
    folder = RunFolder(path)
    folder.create()
    folder.write_config(config)
    src.save(folder.src_tokenizer_file)
    tgt.save(folder.tgt_tokenizer_file)
    torch.manual_seed(seed)
    weights = open_task(config, src, tgt).build_model().state_dict().items()
    folder.write_model({name: w * scale if w.ndim > 1 else w for name, w in weights})
    return path
