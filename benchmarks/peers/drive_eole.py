"""Driver of Eole: its `train`, and its `InferenceEnginePY`."""

from typing import Any

import peer
from eole.bin.run.train import train as eole_train
from eole.config.run import PredictConfig, TrainConfig
from eole.inference_engine import InferenceEnginePY
from eole.models.model import EncoderDecoderModel
from peer import Clock, Job

from cases import BEAM, CLIP, LENGTH, PREDICT_BATCH, RATE, Attentive


def config(job: Job, **changes: Any) -> TrainConfig:
    return TrainConfig(
        data={
            "train": {
                "path_src": str(job.data / "train.src"),
                "path_tgt": str(job.data / "train.tgt"),
                "transforms": [],
                "weight": 1,
            }
        },
        src_vocab=str(job.data / "vocab.src"),
        tgt_vocab=str(job.data / "vocab.tgt"),
        vocab_size_multiple=1,
        report_every=1_000_000,
        training={
            "model_path": str(job.scratch / "model"),
            "save_checkpoint_steps": 1_000_000,
            "valid_steps": 1_000_000,
            "train_steps": 1_000_000,
            "batch_type": "sents",
            "batch_size": job.case.batch,
            "bucket_size": job.pairs,
            "num_workers": 0,
            "normalization": "tokens",
            "compute_dtype": "fp32",
            "optim": "adam",
            "learning_rate": RATE,
            "max_grad_norm": CLIP,
            "dropout": [0.0],
            "attention_dropout": [0.0],
            "label_smoothing": 0.0,
            **changes,
        },
        model=model(job),
    )


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


def train(job: Job) -> dict[str, Any]:
    def run(clock: Clock) -> None:
        forward = EncoderDecoderModel.forward

        def counted(self: Any, src: Any, tgt: Any, src_len: Any, **more: Any) -> Any:
            clock.count(len(tgt), src_len.sum(), tgt[:, 1:].ne(self.tgt_pad_idx).sum())
            return forward(self, src, tgt, src_len, **more)

        EncoderDecoderModel.forward = counted
        eole_train(config(job))

    return peer.time_training(job, run)


def predict(job: Job) -> dict[str, Any]:
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
        lines = (job.data / f"{part}.src").read_text().splitlines()
        _, _, found = engine.infer_list(lines)
        return [len(best[0].split()) for best in found]

    return peer.time_prediction(job, run)


if __name__ == "__main__":
    peer.main("eole", {"train": train, "predict": predict})
