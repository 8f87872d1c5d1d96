"""Operators: each a folder with its definition, its fast paths and its maths.

Examples:
    >>> regard.ops.BACKENDS
    ('auto', 'reference', 'torch', 'cpu', 'triton')
"""

from regard.ops.additive_attention import additive_attention
from regard.ops.attentive_rnn import attentive_rnn
from regard.ops.attentive_rnn.reference import AttentiveOutput, AttentiveState, AttentiveWeights
from regard.ops.backend import BACKENDS, active_backend, use_backend
from regard.ops.dot_product_attention import dot_product_attention
from regard.ops.monotonic_alignment import monotonic_alignment
from regard.ops.primitives import AttentionOutput, dropout, masked_softmax
from regard.ops.recurrence.scores import AdditiveScore, DotScore, ScoreFunction
from regard.ops.self_attentive_rnn import self_attentive_rnn
from regard.ops.self_attentive_rnn.reference import History, SelfAttentiveOutput

__all__ = [
    "BACKENDS",
    "AdditiveScore",
    "AttentionOutput",
    "AttentiveOutput",
    "AttentiveState",
    "AttentiveWeights",
    "DotScore",
    "History",
    "ScoreFunction",
    "SelfAttentiveOutput",
    "active_backend",
    "additive_attention",
    "attentive_rnn",
    "dot_product_attention",
    "dropout",
    "masked_softmax",
    "monotonic_alignment",
    "self_attentive_rnn",
    "use_backend",
]
