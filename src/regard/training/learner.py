"""The model of a run, with what changes its weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.data import EncodedPairs, SourceEncoder, Tokenizer, collate
from regard.errors import ArgumentError
from regard.models import SequenceModel
from regard.training.config import Config
from regard.training.fabric import Fabric, FabricModule
from regard.training.objective import Objective
from regard.training.pretrained_embeddings import embeddings, start_from_vectors
from regard.training.run_folder import build_model


class Learner(NamedTuple):
    """The model, the same wrapped with its loss, and what changes its weights."""

    module: SequenceModel
    model: FabricModule
    optimizer: torch.optim.Optimizer


def make_learner(
    config: Config,
    fabric: Fabric,
    src: SourceEncoder,
    tgt: Tokenizer,
    say: Callable[[str], None],
    *,
    resumed: bool,
) -> Learner:
    """A model with the weights that a run begins with; `resumed` if a checkpoint brings others."""
    torch.manual_seed(config.seed)
    module = build_model(config, src, tgt)
    if not resumed:
        start_from_vectors(config, module, src, tgt, say)
    optimizer = torch.optim.AdamW(_groups(module, config), lr=0.0, betas=(0.9, 0.98), fused=True)
    # each process drops its own features
    torch.manual_seed(config.seed + 7919 * fabric.global_rank)
    objective = Objective(module, config.label_smoothing, config.rdrop)
    model, wrapped = fabric.setup(objective, optimizer)
    return Learner(module, model, wrapped)


def check_precision(
    model: FabricModule, corpus: EncodedPairs, fabric: Fabric, precision: str
) -> None:
    """Raise ArgumentError if this CPU cannot train the model in half precision.

    Some chips lack a kernel for one of the layers, which only shows when it is called: one pair
    goes through the model and back. Weights, gradients and random states stay as they are.
    """
    if precision == "32" or fabric.device.type != "cpu":
        return
    batch = collate(corpus, np.arange(1))
    try:
        with torch.random.fork_rng(devices=[]):
            sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
            fabric.backward(model(*sides, batch.tgt_places))
    except RuntimeError as error:
        raise ArgumentError(
            "precision",
            "be one that this CPU has kernels for",
            f"{precision}, and torch says: {str(error).splitlines()[0]}",
            "give precision=32",
        ) from None
    finally:
        model.zero_grad(set_to_none=True)


def can_record(config: Config, fabric: Fabric, precision: str) -> bool:
    """Whether steps can be replayed from graphs: one GPU has the whole batch, and no loss is scaled
    by what the host learns of it."""
    alone = fabric.device.type == "cuda" and fabric.world_size == 1 and config.accumulate == 1
    return config.graphs and alone and precision != "fp16"


def _groups(module: SequenceModel, config: Config) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and other vectors do not.

    Tables that started from word vectors have a share of the learning rate. Without any, they have
    no gradient either, so that clipping does not see what is never used.
    """
    tables = [e.table.weight for e in embeddings(config, module).values()]
    apart = {id(table) for table in tables}
    matrices = [p for p in module.parameters() if p.ndim > 1 and id(p) not in apart]
    vectors = [p for p in module.parameters() if p.ndim <= 1]
    decay = config.weight_decay
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    if tables:
        for table in tables:
            table.requires_grad_(config.vectors_rate > 0)
        groups.append({"params": tables, "weight_decay": decay, "share": config.vectors_rate})
    return groups
