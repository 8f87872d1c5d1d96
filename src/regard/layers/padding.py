"""Which steps of a padded batch are real."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.device import can_look_at
from regard.ops.check import check_equal


def real_steps(
    x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, " batch"]
) -> Bool[Tensor, "batch length 1"]:
    """True on the first `lengths[b]` steps of row b."""
    real = masks.padding(lengths, x.shape[1])[:, 0, 0, :, None]
    check_equal("agree in batch", lengths=lengths.shape[0], x=x.shape[0])
    return real


def no_padding(x: Float[Tensor, "batch length width"], lengths: Int[Tensor, " batch"]) -> bool:
    """Whether all rows are known to be full: batches by length mostly are, and cost less then."""
    if not can_look_at(lengths):
        return False
    one_each = lengths.shape == x.shape[:1] and not lengths.is_floating_point()
    return one_each and bool((lengths == x.shape[1]).all())
