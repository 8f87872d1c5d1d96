"""Positions as a bias on the scores, for mechanisms with heads: the interface."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from regard.masks import Bias


class PositionBias(nn.Module, ABC):
    """Adds to the scores what the distance of query and key says.

    Queries stand at the last positions of the keys, as with a cache.
    """

    @property
    def mixes(self) -> bool:
        """Whether `mix` has anything to add, for which the weights are needed."""
        return False

    @abstractmethod
    def forward(self, query: Float[Tensor, "batch heads q_len head_dim"], kv_len: int) -> Bias:
        """What is added to the scaled scores."""

    def mix(
        self, weights: Float[Tensor, "batch heads q_len kv_len"]
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """What is added to the contexts, if `mixes`."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the contexts")
