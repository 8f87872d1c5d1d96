"""A model with its loss: what is wrapped for training."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models import ModelOutput, SequenceModel
from regard.models.protocol import Src, select_positions
from regard.symbols import PAD
from regard.training.loss import cross_entropy
from regard.training.rdrop import rdrop_loss


@final
class Objective(nn.Module):
    """A model with its loss.

    Precision and DDP wrap the call of a module and widen what it returns, so that it pays to
    return one number and not the logits.

    Args:
        model: what is trained.
        smoothing: see `cross_entropy`.
        rdrop: the weight alpha of `rdrop_loss`; with 0 there is one pass and no divergence.
    """

    def __init__(self, model: SequenceModel, smoothing: float = 0.0, rdrop: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing, self.rdrop = model, smoothing, rdrop

    def forward(
        self,
        src: Src,
        lengths: Int[Tensor, " batch"],
        tgt_in: Int[Tensor, "batch tgt_len"],
        tgt_out: Int[Tensor, "batch tgt_len"],
        keep: Int[Tensor, " kept"] | None = None,
        *,
        padded: bool = False,
    ) -> Float[Tensor, ""]:
        """The summed loss of the target tokens that are no padding, a model's own among them.

        Args:
            src: source tokens, or frames.
            lengths: how many of them are real, of each row.
            tgt_in: what the model is given.
            tgt_out: what it is to say.
            keep: the places of what is no padding in `tgt_out`, as a batch has them; without them
                the device is asked.
            padded: whether there may be padding among the places to keep; it does not count.
        """
        if keep is None:
            keep = (tgt_out != PAD).flatten().nonzero().squeeze(1)
        gold = select_positions(tgt_out, keep)
        real = gold != PAD if padded else None
        if not self.rdrop:
            out = self.model(src, lengths, tgt_in, keep=keep)
            loss = cross_entropy(out.logits, gold, self.smoothing, real)
            return _with_penalty(loss, out, real, passes=1)
        # both passes are one over each row twice: every row drops features of its own
        src, lengths, tgt_in = (torch.cat([x, x]) for x in (src, lengths, tgt_in))
        keep = torch.cat([keep, keep + tgt_out.numel()])
        out = self.model(src, lengths, tgt_in, keep=keep)
        loss = rdrop_loss(out.logits, gold, self.smoothing, self.rdrop, real)
        return _with_penalty(loss, out, real, passes=2)


def _with_penalty(
    loss: Tensor, out: ModelOutput, real: Tensor | None, passes: int
) -> Float[Tensor, ""]:
    """The loss and what the model adds to that of each token, mean over the passes."""
    if out.penalty is None:
        return loss
    penalty = out.penalty if real is None else out.penalty * real.repeat(passes)
    return loss + penalty.sum() / passes
