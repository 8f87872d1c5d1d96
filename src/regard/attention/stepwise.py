"""Additive attention whose keys depend on earlier weights: queries are taken one after another."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regard import masks, ops
from regard.attention.interface import Past
from regard.masks import Mask
from regard.ops import AttentionOutput
from regard.ops.check import check_equal, check_width


def attend_stepwise(
    queries: Float[Tensor, "batch q_len hidden"],
    keys: Float[Tensor, "batch kv_len hidden"],
    keys_at: Callable[[Tensor, Past], Tensor],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None,
    past: Past | None,
    need_weights: bool,
) -> AttentionOutput:
    """Contexts and weights of all queries, each of which sees the weights of those before it.

    Args:
        queries: projected.
        keys: projected, without what depends on the past.
        keys_at: from these keys and the past of a step to the keys of that step.
        v: weights of the features.
        value: vectors that are mixed.
        mask: True where a query may attend.
        past: steps before the first query; None if there are none.
        need_weights: whether to return the weights.
    """
    batch, q_len = queries.shape[:2]
    check_width("value", value, None)
    check_equal("agree in batch", query=batch, key=keys.shape[0], value=value.shape[0])
    if mask is not None:
        masks.check(mask, batch, 1, q_len, keys.shape[1])
    if past is None:
        past = Past(torch.zeros(batch, dtype=torch.long, device=queries.device), None)
    contexts, maps = [], []
    for t in range(q_len):
        row = mask if mask is None or mask.shape[2] == 1 else mask[:, :, t : t + 1]
        context, weights = ops.additive_attention(
            queries[:, t : t + 1], keys_at(keys, past), v, value, row, need_weights=True
        )
        assert weights is not None
        past = past.after(weights)
        contexts.append(context)
        maps.append(weights)
    return AttentionOutput(
        torch.cat(contexts, dim=1), torch.cat(maps, dim=2) if need_weights else None
    )
