"""Where the steps of a recurrence looked, found from their hidden states."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.additive_attention import PATHS
from regard.ops.backend import implementation
from regard.ops.product import scaled_product
from regard.ops.self_attentive_rnn.score import AdditiveScore, DotScore, Score
from regard.ops.softmax import masked_softmax


def weights_of(
    score: Score,
    hidden: Float[Tensor, "batch length hidden"],
    key: Float[Tensor, "batch kv_len score_dim"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Bool[Tensor, "batch kv_len"],
) -> Float[Tensor, "batch 1 length kv_len"]:
    """The weights of all steps by one call: once the states are known, no step needs another."""
    query = score.query(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
    may = mask[:, None, None]
    if isinstance(score, AdditiveScore):
        args = (query, key, score.v, value, may, True)
        weights = implementation("additive_attention", PATHS, *args)(*args).weights
    elif isinstance(score, DotScore):
        # not by the operator, which has no path of its own for every backend of this one
        weights = masked_softmax(scaled_product(query, key.mT, score.scale)[:, None], may)
    else:
        rows = [score.scores(one, key) for one in query.unbind(dim=1)]
        weights = masked_softmax(torch.stack(rows, dim=1)[:, None], may)
    assert weights is not None
    return weights
