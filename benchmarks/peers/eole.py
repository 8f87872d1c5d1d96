"""Eole: its `train`, and its `InferenceEnginePY`."""

from collections.abc import Callable
from typing import Any

from eole.bin.run.train import train as eole_train
from eole.config.run import PredictConfig, TrainConfig
from eole.inference_engine import InferenceEnginePY
from eole.models.model import EncoderDecoderModel

from benchmarks.peers.cases import BEAM, LENGTH, PREDICT_BATCH, Attentive
from benchmarks.peers.drive import Clock, Job


def config(job: Job, **changes: Any) -> TrainConfig:
    more = {"model_path": str(job.scratch / "model"), "compute_dtype": "fp32"}
    training = {**job.eole_training(), **more, "label_smoothing": 0.0, **changes}
    return TrainConfig(**job.eole_settings(), training=training, model=model(job))


def model(job: Job) -> dict[str, Any]:
    n = job.case.sizes
    if isinstance(n, Attentive):
        return {
            "architecture": "transformer",
            "layers": n.layers,
            "heads": n.heads,
            "hidden_size": n.dim,
            "transformer_ff": n.feed_forward,
            "embeddings": {
                "word_vec_size": n.dim,
                "position_encoding_type": "SinusoidalInterleaved",
            },
        }
    return {
        "architecture": "custom",
        "hidden_size": n.hidden,
        "layers": 1,
        "embeddings": {"word_vec_size": n.embed},
        # each direction has half of the width
        "encoder": {"encoder_type": "brnn", "rnn_type": n.cell.upper()},
        "decoder": {
            "decoder_type": "rnn",
            "rnn_type": n.cell.upper(),
            "global_attention": "mlp",
        },
        "input_feed": 1,
    }


def train(job: Job, clock: Clock) -> None:
    forward = EncoderDecoderModel.forward

    def counted(self: Any, src: Any, tgt: Any, src_len: Any, **more: Any) -> Any:
        clock.count(len(tgt), src_len.sum(), tgt[:, 1:].ne(self.tgt_pad_idx).sum())
        return forward(self, src, tgt, src_len, **more)

    EncoderDecoderModel.forward = counted
    eole_train(config(job))


def predict(job: Job) -> Callable[[str], list[int]]:
    eole_train(config(job, train_steps=1))  # a model of this shape on disk
    engine = InferenceEnginePY(
        PredictConfig(
            model_path=str(job.scratch / "model"),
            src=str(job.data / "test.src"),
            output=str(job.scratch / "output"),
            batch_size=PREDICT_BATCH,
            batch_type="sents",
            beam_size=BEAM,
            min_length=LENGTH,
            max_length=LENGTH,
            compute_dtype="fp32",
            gpu_ranks=[],
        )
    )

    def run(part: str) -> list[int]:
        lines = job.lines(part)
        _, _, found = engine.infer_list(lines)
        return [len(best[0].split()) for best in found]

    return run
