"""OpenNMT-py: its `train`, and its `InferenceEnginePY`."""

import json
import os
from collections.abc import Callable
from typing import Any

# its checkpoints are pickles, which torch loads only if told to; this one is from a line below
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

import onmt.bin.train
import onmt.bin.translate
import onmt.opts
from onmt.inference_engine import InferenceEnginePY
from onmt.models.model import NMTModel
from onmt.utils.parse import ArgumentParser

from benchmarks.peers.cases import BEAM, LENGTH, PREDICT_BATCH, Attentive
from benchmarks.peers.drive import Clock, Job


def model(job: Job) -> dict[str, Any]:
    n = job.case.sizes
    if isinstance(n, Attentive):
        return {
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "layers": n.layers,
            "heads": n.heads,
            "hidden_size": n.dim,
            "word_vec_size": n.dim,
            "transformer_ff": n.feed_forward,
            "position_encoding": True,
        }
    return {
        "encoder_type": "brnn",  # each direction has half of the width
        "decoder_type": "rnn",
        "rnn_type": n.cell.upper(),
        "layers": 1,
        "hidden_size": n.hidden,
        "word_vec_size": n.embed,
        "input_feed": 1,
        "global_attention": "mlp",
    }


def start(job: Job, **changes: Any) -> None:
    """Run `onmt_train` with a config file."""
    file = job.scratch / "config.yaml"
    model_file = {"save_model": str(job.scratch / "model")}
    whole = {**job.onmt_settings(), **job.onmt_training(), **model_file, **model(job), **changes}
    file.write_text(json.dumps(whole))
    options, _ = onmt.bin.train._get_parser().parse_known_args(["-config", str(file)])
    onmt.bin.train.train(options)


def train(job: Job, clock: Clock) -> None:
    forward = NMTModel.forward

    def counted(self: Any, src: Any, tgt: Any, src_len: Any, **more: Any) -> Any:
        pad = self.decoder.embeddings.word_padding_idx
        clock.count(len(tgt), src_len.sum(), tgt[:, 1:, 0].ne(pad).sum())
        return forward(self, src, tgt, src_len, **more)

    NMTModel.forward = counted
    start(job)


def predict(job: Job) -> Callable[[str], list[int]]:
    start(job, train_steps=1)  # a model of this shape on disk
    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    file = job.scratch / "translate.yaml"
    settings = {"batch_size": PREDICT_BATCH, "batch_type": "sents", "beam_size": BEAM}
    settings |= {"min_length": LENGTH, "max_length": LENGTH}
    paths = {"model": str(job.scratch / "model_step_1.pt"), "src": str(job.data / "test.src")}
    paths["output"] = str(job.scratch / "output")
    file.write_text(json.dumps({**settings, **paths}))
    options = parser.parse_args(["-config", str(file)])
    ArgumentParser.validate_translate_opts(options)
    ArgumentParser._get_all_transform_translate(options)
    ArgumentParser._validate_transforms_opts(options)
    ArgumentParser.validate_translate_opts_dynamic(options)
    engine = InferenceEnginePY(options)

    def run(part: str) -> list[int]:
        lines = job.lines(part)
        _, found = engine.infer_list(lines)
        return [len(best[0].split()) for best in found]

    return run
