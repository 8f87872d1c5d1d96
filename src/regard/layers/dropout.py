"""Dropout that costs little on a CPU."""

from typing import final

from torch import Tensor, nn

from regard import ops


@final
class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, whose random numbers are drawn by `ops.dropout`.

    Examples:
        >>> regard.layers.dropout.Dropout(0.5).eval()(torch.ones(2))
        tensor([1., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return ops.dropout(x, self.p) if self.training else x
