"""Local attention (Luong et al., 2015, https://arxiv.org/abs/1508.04025, section 3.2)."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.attention.interface import Attention, Past, Projected, Scorer, projected
from regard.errors import ArgumentError
from regard.masks import Mask
from regard.ops import AttentionOutput, masked_softmax
from regard.ops.check import check_equal, check_positive, check_width


@final
class PositionPredictor(nn.Module):
    """The centre of attention on a source of length S: `S * sigmoid(v . tanh(W query))`.

    Examples:
        >>> predictor = regard.attention.PositionPredictor(query_size=5, hidden_size=7)
        >>> predictor(torch.randn(2, 3, 5), torch.tensor([[11.0], [4.0]])).shape
        torch.Size([2, 3])
    """

    def __init__(self, query_size: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(query_size=query_size, hidden_size=hidden_size)
        self.query_proj = nn.Linear(query_size, hidden_size, bias=False)
        self.v = nn.Linear(hidden_size, 1, bias=False)

    def forward(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        lengths: Float[Tensor, "batch #q_len"],
    ) -> Float[Tensor, "batch q_len"]:
        """A real position from 0 to the length of the source, for each query."""
        share = torch.sigmoid(self.v(torch.tanh(self.query_proj(query))).squeeze(-1))
        return lengths * share


@final
class LocalAttention(Attention):
    """Attends to a window of the keys.

    Without a predictor the window moves with the decoder, one key per step (local-m); past the end
    of the source it stays at the last key. With one, each query chooses its own centre p (local-p),
    and the weights fade from it as `exp(-(s - p)^2 / (2 sigma^2))`, sigma being half of
    `half_width`: they then add up to less than 1, as in the paper.

    Args:
        scorer: the mechanism whose scores are used inside the window.
        half_width: the window reaches this many keys to either side of its centre (D in the paper).
        predictor: chooses the centres of local-p; None is local-m.

    Examples:
        >>> scorer = regard.attention.MultiplicativeAttention(5, 7)
        >>> attention = regard.attention.LocalAttention(scorer, half_width=1)
        >>> key = torch.randn(1, 4, 7)
        >>> (attention(torch.randn(1, 2, 5), key, key).weights > 0)[0, 0]
        tensor([[ True,  True, False, False],
                [ True,  True,  True, False]])
    """

    def __init__(
        self, scorer: Scorer, half_width: int, predictor: PositionPredictor | None = None
    ) -> None:
        super().__init__()
        check_positive(half_width=half_width)
        if not hasattr(scorer, "scores"):
            raise ArgumentError(
                "scorer",
                "have the methods of regard.attention.Scorer",
                type(scorer).__name__,
                "pass an AdditiveAttention, MultiplicativeAttention or ScaledDotProductAttention",
            )
        self.scorer = scorer
        self.half_width = half_width
        self.predictor = predictor

    def project_keys(self, key: Float[Tensor, "batch kv_len key_size"]) -> Projected:
        """The keys as the scorer projects them."""
        return self.scorer.project_keys(key)

    def forward(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
        value: Float[Tensor, "batch kv_len value_size"],
        mask: Mask | None = None,
        *,
        past: Past | None = None,
        need_weights: bool = True,
    ) -> AttentionOutput:
        """See `Attention.forward`. Local-m reads the number of the step from `past`."""
        check_width("query", query, None)
        check_width("value", value, None)
        keys = projected(self.scorer, key)
        check_equal("agree in batch", query=query.shape[0], key=keys.shape[0], value=value.shape[0])
        check_equal("agree in kv_len", key=keys.shape[1], value=value.shape[1])
        scores = self.scorer.scores(query, Projected(keys))
        batch, _, q_len, kv_len = scores.shape
        if mask is not None:
            masks.check(mask, batch, 1, q_len, kv_len)
        positions = torch.arange(kv_len, device=query.device)
        centre = self._centres(query, _source_lengths(mask, positions, batch), past)
        distance = positions - centre[:, None, :, None]  # (batch, 1, q_len, kv_len)
        window = distance.abs() <= self.half_width
        weights = masked_softmax(scores, window if mask is None else window & mask)
        if self.predictor is not None:
            sigma = self.half_width / 2
            weights = weights * torch.exp(-(distance**2) / (2 * sigma**2)).to(weights.dtype)
        context = weights.squeeze(1).to(value.dtype) @ value
        return AttentionOutput(context, weights if need_weights else None)

    def _centres(
        self, query: Tensor, lengths: Float[Tensor, "batch #q_len"], past: Past | None
    ) -> Float[Tensor, "batch q_len"]:
        if self.predictor is not None:
            centres: Tensor = self.predictor(query, lengths)
            return centres
        steps = torch.arange(query.shape[1], device=query.device)[None].float()
        if past is not None:
            steps = steps + past.position[:, None]
        return steps.minimum(lengths - 1)


def _source_lengths(
    mask: Tensor | None, positions: Tensor, batch: int
) -> Float[Tensor, "batch #q_len"]:
    """One past the last key that a query may see."""
    if mask is None:
        return positions.new_full((batch, 1), positions.shape[0]).float()
    return (mask * (positions + 1)).amax(dim=-1).squeeze(1).expand(batch, -1).float()
