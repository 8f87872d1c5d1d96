"""Queries one after another, for additive mechanisms whose keys change with what was looked at."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regard import ops
from regard.attention.interface import Past
from regard.masks import Mask
from regard.ops import AttentionOutput


def attend_stepwise(
    queries: Float[Tensor, "batch q_len hidden"],
    keys: Callable[[Past], Float[Tensor, "batch kv_len hidden"]],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None,
    past: Past | None,
    need_weights: bool,
) -> AttentionOutput:
    """Contexts and weights of all queries, each of which sees where those before it looked.

    Args:
        queries: projected.
        keys: from the past of a step to the keys that it sees, projected.
        v: the weights of the features.
        value: what is mixed.
        mask: True where a query may attend.
        past: what was looked at before the first query; None if nothing was.
        need_weights: whether to return the weights.
    """
    if past is None:
        past = Past(torch.zeros(queries.shape[0], dtype=torch.long, device=queries.device), None)
    contexts, maps = [], []
    for t in range(queries.shape[1]):
        row = mask if mask is None or mask.shape[2] == 1 else mask[:, :, t : t + 1]
        context, weights = ops.additive_attention(
            queries[:, t : t + 1], keys(past), v, value, row, need_weights=True
        )
        assert weights is not None
        past = past.after(weights)
        contexts.append(context)
        maps.append(weights)
    return AttentionOutput(
        torch.cat(contexts, dim=1), torch.cat(maps, dim=2) if need_weights else None
    )
