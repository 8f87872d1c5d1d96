"""What decoding returns: one target, how likely it is, and where the model looked."""

from dataclasses import dataclass, field

from regard.models.protocol import Maps


@dataclass(frozen=True)
class Hypothesis:
    """One target for a source.

    Attributes:
        tokens: the target, without `bos` and `eos`.
        score: what hypotheses are ranked by: `log_prob` with the penalties that were asked for.
        log_prob: the model's log-probability of the whole target, `eos` included.
        token_log_probs: its terms, one per token and one for `eos`.
        attention: by kind, one tensor (heads, q_len, kv_len) per layer, on the CPU. Row t of
            `cross` is where the model looked when it wrote token t, and the last row when it wrote
            `eos`; its columns are the real source tokens. The columns of `decoder-self` and
            `decoder-history` are the tokens that the model had read by then, `bos` first.
        finished: False if the limit of length cut it off and the model would have gone on.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    attention: Maps = field(default_factory=dict, compare=False)
    finished: bool = True

    def __repr__(self) -> str:
        parts = [f"{len(self.tokens)} tokens", f"score={self.score:.4g}"]
        parts += [f"attention={list(self.attention)}"] * bool(self.attention)
        parts += ["finished=False"] * (not self.finished)
        return f"Hypothesis({', '.join(parts)})"
