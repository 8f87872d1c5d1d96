"""Boolean attention masks. In every mask of this package, True means "may attend".

All builders return masks that broadcast to (batch, heads, q_len, kv_len), so they combine with
`&` and go into any attention function unchanged. Queries and keys are aligned at the bottom
right: the last query stands at the position of the last key, as it does when one new token
attends to a cache.

Example:
    >>> mask = regard.masks.causal(3) & regard.masks.padding(torch.tensor([3, 1]), 3)
    >>> mask[1, 0]
    tensor([[ True, False, False],
            [ True, False, False],
            [ True, False, False]])
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.device import can_read_values
from regard.errors import ArgumentError

Mask = Bool[Tensor, "#batch #heads #q_len #kv_len"]
Bias = Float[Tensor, "#batch #heads #q_len #kv_len"]


def padding(lengths: Int[Tensor, " batch"], max_len: int) -> Bool[Tensor, "batch 1 1 max_len"]:
    """Lets every query see the first `lengths[b]` keys of sequence b.

    Examples:
        >>> regard.masks.padding(torch.tensor([1, 3]), 3)[:, 0, 0]
        tensor([[ True, False, False],
                [ True,  True,  True]])
    """
    _require_size("max_len", max_len)
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ArgumentError(
            "lengths",
            "be a 1-D integer tensor, one length per sequence",
            f"{tuple(lengths.shape)} of {lengths.dtype}",
            "pass the number of real tokens of each row",
        )
    if can_read_values(lengths) and lengths.numel() and int(lengths.max()) > max_len:
        raise ArgumentError(
            "lengths",
            f"be at most max_len = {max_len}, the padded length",
            int(lengths.max()),
            "count real tokens alone, and pad to the longest row",
        )
    positions = torch.arange(max_len, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def causal(
    q_len: int, kv_len: int | None = None, *, device: torch.device | None = None
) -> Bool[Tensor, "1 1 q_len kv_len"]:
    """Lets query i see keys up to its own position, the last query being the newest token.

    Aligned to the bottom right like FlashAttention, not to the top left like the `is_causal`
    flag of `scaled_dot_product_attention`: one query against a cache of n keys sees all n.

    Examples:
        >>> regard.masks.causal(2, 3)[0, 0]
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """
    queries, keys = _positions(q_len, kv_len, device)
    return (keys <= queries)[None, None]


def window(
    q_len: int, kv_len: int | None = None, *, size: int, device: torch.device | None = None
) -> Bool[Tensor, "1 1 q_len kv_len"]:
    """Lets query i see the keys less than `size` positions away, on both sides.

    `window(...) & causal(...)` allows the newest `size` keys, the own position included.

    Examples:
        >>> regard.masks.window(3, size=2)[0, 0]
        tensor([[ True,  True, False],
                [ True,  True,  True],
                [False,  True,  True]])
    """
    _require_size("size", size)
    queries, keys = _positions(q_len, kv_len, device)
    return ((queries - keys).abs() < size)[None, None]


def per_row(mask: Tensor | None, batch: int) -> Tensor | None:
    """The mask with a row of its own for each sequence, so that states can be reordered.

    Examples:
        >>> regard.masks.per_row(regard.masks.causal(2), batch=3).shape
        torch.Size([3, 1, 2, 2])
    """
    return None if mask is None else mask.expand(batch, -1, -1, -1)


def check(
    mask: Tensor, batch: int, heads: int, q_len: int, kv_len: int, *, name: str = "mask"
) -> None:
    """Raises unless `mask` is boolean and broadcasts to (batch, heads, q_len, kv_len).

    Examples:
        >>> regard.masks.check(regard.masks.causal(2), batch=5, heads=3, q_len=2, kv_len=2)
    """
    if mask.dtype != torch.bool:
        raise ArgumentError(
            name,
            "be boolean, True where a query may attend",
            mask.dtype,
            "compare it with something first, or pass numbers to be added to the scores as `bias`",
        )
    check_broadcast(mask, batch, heads, q_len, kv_len, name=name)


def check_broadcast(
    tensor: Tensor, batch: int, heads: int, q_len: int, kv_len: int, *, name: str
) -> None:
    """Raises unless `tensor` broadcasts to (batch, heads, q_len, kv_len) and has all four axes.

    Examples:
        >>> bias = torch.zeros(1, 3, 2, 2)
        >>> regard.masks.check_broadcast(bias, batch=5, heads=3, q_len=2, kv_len=2, name="bias")
    """
    wanted = (batch, heads, q_len, kv_len)
    shape = tuple(tensor.shape)
    if len(shape) != 4 or any(
        have not in (1, want) for have, want in zip(shape, wanted, strict=True)
    ):
        raise ArgumentError(
            name,
            f"broadcast to (batch, heads, q_len, kv_len) = {wanted}",
            shape,
            "use the builders in regard.masks, or add axes of length 1 with `[:, None]`",
        )


def _positions(
    q_len: int, kv_len: int | None, device: torch.device | None
) -> tuple[Tensor, Tensor]:
    """Positions of queries as a column and of keys as a row."""
    kv_len = q_len if kv_len is None else kv_len
    _require_size("q_len", q_len)
    _require_size("kv_len", kv_len)
    queries = torch.arange(kv_len - q_len, kv_len, device=device)
    keys = torch.arange(kv_len, device=device)
    return queries[:, None], keys


def _require_size(name: str, value: int) -> None:
    if value < 1:
        raise ArgumentError(name, "be at least 1", value, "an empty axis has nothing to attend to")
