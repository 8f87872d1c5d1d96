"""Distillation token by token: a model learns the probabilities of an ensemble of runs.

Hinton et al. (2015), https://arxiv.org/abs/1503.02531; for sequences, "word-level" distillation of
Kim and Rush (2016), https://aclanthology.org/D16-1139. With p the mean distribution of the teachers
for a token, q that of the student, and w the weight, the loss of a token is
`w CE(p, q) + (1 - w) CE(gold, q)`; label smoothing concerns the second part alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ArgumentError
from regard.models import LABEL_PRESETS, SPAN_PRESETS, STORY_PRESETS, SequenceModel
from regard.models.protocol import Src
from regard.tasks import Encoders
from regard.training.config import Config
from regard.training.run_folder import RunFolder

#: presets that write no tokens one after another
NOT_TAUGHT: Final = {*LABEL_PRESETS, *SPAN_PRESETS, *STORY_PRESETS}


class Teachers:
    """Trained models whose mean distribution is learned; not part of the student's weights.

    Args:
        models: in evaluation mode, all with one vocabulary.
        weight: share of the loss that is theirs.
    """

    def __init__(self, models: Sequence[SequenceModel], weight: float) -> None:
        self.models, self.weight = tuple(models), weight

    @torch.no_grad()
    def probabilities(
        self,
        src: Src,
        lengths: Int[Tensor, " batch"],
        tgt_in: Int[Tensor, "batch tgt_len"],
        keep: Int[Tensor, " kept"],
    ) -> Float[Tensor, "kept vocab"]:
        """Return the mean distribution of the targets at the positions `keep`, in float32."""
        total: Tensor | None = None
        for model in self.models:
            found = model(src, lengths, tgt_in, keep=keep).logits.float().softmax(dim=1)
            total = found if total is None else total.add_(found)
        assert total is not None
        return total.div_(len(self.models))


def distillation_loss(
    logits: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    taught: Float[Tensor, "tokens vocab"],
    weight: float,
    smoothing: float = 0.0,
    real: Bool[Tensor, " tokens"] | Float[Tensor, " tokens"] | None = None,
) -> Float[Tensor, ""]:
    """Return the summed loss of a student, in float32 at least.

    Args:
        logits: of the student, for every target token.
        target: ids of the target tokens.
        taught: the teachers' distribution of each token.
        weight: share of the teachers in the loss.
        smoothing: label smoothing of the share of the targets.
        real: which targets count, or how much; all of them if None.
    """
    log_q = F.log_softmax(logits, dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
    gold = log_q.gather(1, target[:, None]).squeeze(1)
    hard = (1 - smoothing) * gold + smoothing * log_q.mean(dim=1)
    each = -weight * (taught * log_q).sum(dim=1) - (1 - weight) * hard
    return (each if real is None else each * real).sum()


def teacher_encoders(config: Config) -> Encoders:
    """Return the tokenisers of the teachers, which are the student's, too; loads no weights."""
    found = []
    for name in config.teacher:
        folder = RunFolder(Path(name))
        theirs = folder.read_config()
        task = folder.read_task(theirs)
        if theirs.preset in NOT_TAUGHT or task.input.facts.names_files:
            rule, fix = "write tokens, and read texts", "name runs of text pairs or texts"
            raise ArgumentError("teacher", rule, f"{name!r} with the preset {theirs.preset}", fix)
        found.append(task.encoders)
    if not all(_same(encoders, found[0]) for encoders in found):
        raise _other_tokenizers("one of them", "the first one's")
    return found[0]


def load_teachers(
    config: Config, encoders: Encoders, device: torch.device | str
) -> Teachers | None:
    """Load the teachers of a run; None if it has none.

    Args:
        config: settings of the student.
        encoders: tokenisers of the student.
        device: where the student is trained.
    """
    if not config.teacher:
        return None
    if not _same(teacher_encoders(config), encoders):
        raise _other_tokenizers(config.teacher[0], "the student's")
    models = [RunFolder(Path(name)).load(device).model for name in config.teacher]
    frozen = [cast(SequenceModel, model.requires_grad_(False)) for model in models]
    return Teachers(frozen, config.teacher_weight)


def _same(one: Encoders, other: Encoders) -> bool:
    return all(a.fingerprint == b.fingerprint for a, b in zip(one, other, strict=True))


def _other_tokenizers(which: str, whose: str) -> ArgumentError:
    rule = "be runs with the same tokenisers, since probabilities are compared token by token"
    fix = "train them on the same data with the same settings of tokenisers"
    return ArgumentError("teacher", rule, f"{which} with others than {whose}", fix)
