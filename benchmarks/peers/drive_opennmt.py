"""Driver of OpenNMT-py: its `train`, and its `InferenceEnginePY`."""

import json
import os
from typing import Any

# its checkpoints are pickles, which torch loads only if told to; this one is from a line below
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

import onmt.bin.train
import onmt.bin.translate
import onmt.opts
import peer
from onmt.inference_engine import InferenceEnginePY
from onmt.models.model import NMTModel
from onmt.utils.parse import ArgumentParser
from peer import Clock, Job

from cases import BEAM, CLIP, LENGTH, PREDICT_BATCH, RATE, Attentive


def config(job: Job) -> dict[str, Any]:
    return {
        "data": {
            "train": {
                "path_src": str(job.data / "train.src"),
                "path_tgt": str(job.data / "train.tgt"),
                "transforms": [],
                "weight": 1,
            }
        },
        "src_vocab": str(job.data / "vocab.src"),
        "tgt_vocab": str(job.data / "vocab.tgt"),
        "vocab_size_multiple": 1,
        "save_model": str(job.scratch / "model"),
        "save_checkpoint_steps": 1_000_000,
        "valid_steps": 1_000_000,
        "report_every": 1_000_000,
        "train_steps": 1_000_000,
        "batch_type": "sents",
        "batch_size": job.case.batch,
        "bucket_size": job.pairs,
        "num_workers": 0,
        "normalization": "tokens",
        "optim": "adam",
        "learning_rate": RATE,
        "max_grad_norm": CLIP,
        "dropout": [0.0],
        "attention_dropout": [0.0],
        **model(job),
    }


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
    file.write_text(json.dumps({**config(job), **changes}))
    options, _ = onmt.bin.train._get_parser().parse_known_args(["-config", str(file)])
    onmt.bin.train.train(options)


def train(job: Job) -> dict[str, Any]:
    def run(clock: Clock) -> None:
        forward = NMTModel.forward

        def counted(self: Any, src: Any, tgt: Any, src_len: Any, **more: Any) -> Any:
            pad = self.decoder.embeddings.word_padding_idx
            clock.count(len(tgt), src_len.sum(), tgt[:, 1:, 0].ne(pad).sum())
            return forward(self, src, tgt, src_len, **more)

        NMTModel.forward = counted
        start(job)

    return peer.time_training(job, run)


def predict(job: Job) -> dict[str, Any]:
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
        lines = (job.data / f"{part}.src").read_text().splitlines()
        _, found = engine.infer_list(lines)
        return [len(best[0].split()) for best in found]

    return peer.time_prediction(job, run)


if __name__ == "__main__":
    peer.main("OpenNMT-py", {"train": train, "predict": predict})
