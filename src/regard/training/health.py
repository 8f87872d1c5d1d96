"""What a trainer can tell from looking at a model's attention and outputs, in words."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class AttentionHealth(NamedTuple):
    """How attention is spread, over the rows of real outputs.

    Attributes:
        sharpness: mean of the strongest weight of each row.
        column: largest share of all mass that one and the same column of a map gets, on average.
        last: mean mass on the last source token, `</s>`.
        even: what sharpness would be if every row looked at all tokens alike.
    """

    sharpness: float
    column: float
    last: float
    even: float


def attention_health(
    weights: Float[Tensor, "batch heads q_len kv_len"],
    src_lengths: Int[Tensor, " batch"],
    tgt_lengths: Int[Tensor, " batch"],
) -> AttentionHealth:
    """Measures maps of several examples, heads averaged."""
    rows = weights.float().mean(dim=1)
    sharp, column, last, even, count = 0.0, 0.0, 0.0, 0.0, 0
    for i, (src, tgt) in enumerate(zip(src_lengths.tolist(), tgt_lengths.tolist(), strict=True)):
        if src < 3 or tgt < 3:
            continue  # too short to tell a column from a diagonal
        one = rows[i, :tgt, :src]
        sharp += one.amax(dim=-1).mean().item()
        column += one.mean(dim=0).amax().item()
        last += one[:, -1].mean().item()
        even += 1 / src
        count += 1
    if not count:
        return AttentionHealth(0.0, 0.0, 0.0, 0.0)
    return AttentionHealth(sharp / count, column / count, last / count, even / count)


def describe_attention(now: AttentionHealth, before: AttentionHealth | None) -> str | None:
    """A sentence when attention has formed or collapsed since the last look; else None."""
    state, last_state = _state(now), None if before is None else _state(before)
    if state == last_state:
        return None
    return {
        "eos": f"attention has collapsed to </s>: it gets {now.last:.0%} of the mass.",
        "column": f"attention has collapsed to one column: it gets {now.column:.0%} of the mass "
        f"whatever the output; a smaller learning rate or more data may help.",
        "formed": f"attention has formed: the strongest weight of a row is {now.sharpness:.2f} on "
        f"average, where even attention has {now.even:.2f}.",
        "even": None,
    }[state]


def _state(health: AttentionHealth) -> str:
    if health.last > 0.8:
        return "eos"
    if health.column > 0.8:
        return "column"
    if health.even and health.sharpness > max(0.5, 2 * health.even):
        return "formed"
    return "even"


def describe_outputs(
    outputs: Sequence[str], sources: Sequence[str], references: Sequence[Sequence[str]]
) -> str | None:
    """Return a sentence if the outputs hardly depend on the inputs, else None.

    Outputs may be as uniform as the references, as the labels of a classifier are: what counts is
    how often the most frequent output is wrong.
    """
    if len(set(sources)) < 10:
        return None
    (most, times), *_ = Counter(outputs).most_common(1)
    wrong = sum(o == most not in right for o, right in zip(outputs, references, strict=True))
    uniform = Counter(reference for right in references for reference in set(right))
    if times < 0.5 * len(outputs) or wrong < 0.25 * len(outputs):
        return None
    if max(uniform.values()) >= times:
        return None
    shown = most if len(most) <= 40 else most[:37] + "..."
    return (
        f"the outputs hardly depend on the inputs: {times} of {len(outputs)} are {shown!r}; this "
        f"is normal early in training, later try a smaller learning rate or check that the two "
        f"columns belong together."
    )
