"""Losses on attention weights: a decoder is taught where to look though nobody says where."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.models.protocol import Tgt
from regard.symbols import PAD


@final
@dataclass(frozen=True)
class AttentionPenalty:
    """A loss on the weights of each step, added to that of its token.

    Where a token can be told without a look, such as an article, its attention is free, and goes
    anywhere. `look_ahead` draws it to where the next token looks, which does not move for it: half
    of the sum of absolute differences, from 0 to 1. So attention goes to a thing as soon as the
    thing is spoken of. `entropy` makes weights sharp; its unit is the nat.

    Attributes:
        look_ahead: weight of the distance to the next token's weights; the last tokens have none.
        entropy: weight of the entropy.
    """

    look_ahead: float = 0.0
    entropy: float = 0.0

    def __call__(
        self, tokens: Tgt, weights: Float[Tensor, "batch heads tgt_len src_len"]
    ) -> Float[Tensor, "batch tgt_len"]:
        """Return the loss of each step.

        Args:
            tokens: read by the steps, `bos` first and padding last.
            weights: of the steps.
        """
        rows = weights.float().mean(dim=1)  # (batch, tgt_len, src_len)
        loss = rows.new_zeros(rows.shape[:2])
        if self.entropy:
            loss = loss - self.entropy * torch.xlogy(rows, rows.clamp(min=1e-9)).sum(dim=-1)
        if self.look_ahead and rows.shape[1] > 2:
            away = 0.5 * (rows[:, :-2] - rows[:, 1:-1].detach()).abs().sum(dim=-1)
            # the step after the next reads a token, so that the next one writes more than `eos`
            away = away.where(tokens[:, 2:] != PAD, 0.0)
            loss = loss + self.look_ahead * torch.nn.functional.pad(away, (0, 2))
        return loss
