"""yoyodyne: its data module and its models in Lightning's trainer.

It knows no least length of an output, so its prediction is not measured.
"""

from typing import Any

import lightning
from torch import optim
from yoyodyne.data import DataModule
from yoyodyne.models import (
    SoftAttentionGRUModel,
    SoftAttentionLSTMModel,
    TransformerModel,
    base,
    modules,
)

from benchmarks.peers.cases import CLIP, RATE, Attentive
from benchmarks.peers.drive import Clock, Job

LONGEST = 1000


def data(job: Job) -> DataModule:
    sides = [(job.data / f"train.{side}").read_text().splitlines() for side in ("src", "tgt")]
    file = job.scratch / "train.tsv"
    file.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in zip(*sides, strict=True)))
    return DataModule(
        model_dir=str(job.scratch),
        train=str(file),
        source_sep=" ",
        target_sep=" ",
        tie_embeddings=False,
        batch_size=job.case.batch,
        max_source_length=LONGEST,
        max_target_length=LONGEST,
    )


def model(job: Job, found: DataModule) -> base.BaseModel:
    n = job.case.sizes
    common: dict[str, Any] = {
        "compute_accuracy": False,
        "decoder_dropout": 0.0,
        "max_source_length": LONGEST,
        "max_target_length": LONGEST,
        "optimizer": lambda weights: optim.Adam(weights, lr=RATE),
        "target_vocab_size": found.target_vocab_size,
        "vocab_size": found.vocab_size,
    }
    if isinstance(n, Attentive):
        sizes = {"embedding_size": n.dim, "hidden_size": n.feed_forward, "layers": n.layers}
        encoder = modules.TransformerEncoder(attention_heads=n.heads, dropout=0.0, **sizes)
        return TransformerModel(
            source_encoder=encoder,
            decoder_attention_heads=n.heads,
            decoder_hidden_size=n.feed_forward,
            decoder_layers=n.layers,
            embedding_size=n.dim,
            **common,
        )
    kinds = {
        "gru": (modules.GRUEncoder, SoftAttentionGRUModel),
        "lstm": (modules.LSTMEncoder, SoftAttentionLSTMModel),
    }
    encoder_kind, kind = kinds[n.cell]
    encoder = encoder_kind(
        bidirectional=True, dropout=0.0, embedding_size=n.embed, hidden_size=n.hidden // 2, layers=1
    )
    return kind(
        source_encoder=encoder,
        decoder_hidden_size=n.hidden,
        decoder_layers=1,
        embedding_size=n.embed,
        **common,
    )


def train(job: Job, clock: Clock) -> None:
    step = base.BaseModel.training_step

    def counted(self: Any, batch: Any, batch_idx: int) -> Any:
        src, tgt = batch.source.lengths(), batch.target.lengths()
        # start and end of the source, end of the target
        clock.count(len(src), src.sum() - 2 * len(src), tgt.sum())
        return step(self, batch, batch_idx)

    base.BaseModel.training_step = counted
    found = data(job)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(job.scratch),
    )
    trainer.fit(model(job, found), found)
