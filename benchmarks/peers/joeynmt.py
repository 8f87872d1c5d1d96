"""JoeyNMT: its `train`, and its `predict`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from joeynmt import prediction, training
from joeynmt.config import parse_global_args

from benchmarks.peers.cases import BEAM, CLIP, LENGTH, PREDICT_BATCH, RATE, Attentive
from benchmarks.peers.drive import Clock, Job


def config(job: Job) -> dict[str, Any]:
    def side(lang: str, part: str) -> dict[str, Any]:
        return {
            "lang": lang,
            "level": "word",
            "max_length": 1000,
            "voc_file": str(job.data / f"vocab.{part}"),
        }

    parts = {part: str(job.data / part) for part in ("train", "dev", "test")}
    return {
        "name": "benchmark",
        "model_dir": str(job.scratch),
        "use_cuda": False,
        "data": {
            **parts,
            "dataset_type": "plain",
            "src": side("src", "src"),
            "trg": side("tgt", "tgt"),
        },
        "training": {
            "optimizer": "adam",
            "learning_rate": RATE,
            "scheduling": "exponential",
            "decrease_factor": 1.0,
            "clip_grad_norm": CLIP,
            "batch_size": job.case.batch,
            "batch_type": "sentence",
            "normalization": "tokens",
            "epochs": 1000,
            "logging_freq": 1000,
            "validation_freq": 1_000_000,
        },
        "testing": {
            "batch_size": PREDICT_BATCH,
            "beam_size": BEAM,
            "beam_alpha": -1,
            "min_output_length": LENGTH,
            "max_output_length": LENGTH,
            "eval_metrics": [],
        },
        "model": model(job),
    }


def model(job: Job) -> dict[str, Any]:
    n = job.case.sizes
    if isinstance(n, Attentive):
        common: dict[str, Any] = {
            "type": "transformer",
            "num_layers": n.layers,
            "num_heads": n.heads,
            "hidden_size": n.dim,
            "ff_size": n.feed_forward,
            "dropout": 0.0,
            "layer_norm": "pre",
            "embeddings": {"embedding_dim": n.dim, "scale": True, "dropout": 0.0},
        }
        return {"initializer": "xavier_uniform", "encoder": common, "decoder": common}
    common = {
        "type": "recurrent",
        "rnn_type": n.cell,
        "num_layers": 1,
        "dropout": 0.0,
        "embeddings": {"embedding_dim": n.embed, "scale": False, "dropout": 0.0},
    }
    return {
        "initializer": "xavier_uniform",
        "encoder": {**common, "hidden_size": n.hidden // 2, "bidirectional": True},
        "decoder": {
            **common,
            "hidden_size": n.hidden,
            "hidden_dropout": 0.0,
            "attention": "bahdanau",
            "input_feeding": True,
            "init_hidden": "bridge",
        },
    }


def train(job: Job, clock: Clock) -> None:
    step = training.TrainManager._train_step

    def counted(self: Any, batch: Any) -> Any:
        clock.count(batch.nseqs, batch.src_length.sum() - batch.nseqs, batch.ntokens)
        return step(self, batch)

    training.TrainManager._train_step = counted
    training.train(rank=0, world_size=None, cfg=config(job), skip_test=True)


def predict(job: Job) -> Callable[[str], list[int]]:
    args = parse_global_args(config(job), rank=0, mode="train")
    model, _, dev, test = prediction.prepare(args, rank=0, mode="train")
    # the option is read from the config and never passed on
    prediction.search = partial(prediction.search, min_output_length=LENGTH)

    def run(part: str) -> list[int]:
        found = prediction.predict(
            model=model,
            data={"dev": dev, "test": test}[part],
            device=args.device,
            n_gpu=0,
            args=args.test,
            autocast=args.autocast,
        )
        return [len(tokens) for tokens in found[3]]

    return run
