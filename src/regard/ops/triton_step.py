# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Triton kernels of a decoding step of a Transformer: one new vector for each row.

At a step the weights are read once for a few vectors, and a kernel that does little ends before the
next one has started. So a product takes what stands around it along: the norm of what it reads, the
activation of what it writes, the residual sum. Attention takes the rotation of queries and keys
along, and the growth of the cache, which it reads in the order of the hypotheses' parents.

Sums are float32, in an order that depends on the number of rows alone.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.triton_launch import on

#: Most vectors of a step for which `linear` is faster than a product of a library.
MAX_ROWS: Final = 16
#: Most of them that are multiplied without the units for matrices.
FEW: Final = 1
#: Warps of a program, each of which multiplies other features.
PARTS: Final = 4
#: Features of one turn of a norm.
BLOCK_NORM: Final = 512
#: Numbers of which a row of scores has a multiple.
ALIGNED: Final = 64
ACTIVATIONS: Final = {None: 0, "relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4}


class StepNorm(NamedTuple):
    """A layer norm, or if it has no mean a root mean square norm, of the rows of a matrix."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    has_mean: bool


class StepLinear(NamedTuple):
    """Weights of a linear map; its bias may be None."""

    weight: Float[Tensor, "outputs inputs"]
    bias: Float[Tensor, " outputs"] | None


def linear(
    x: Float[Tensor, "rows inputs"],
    maps: tuple[StepLinear, ...],
    *,
    norm: StepNorm | None = None,
    activation: str | None = None,
    gate: StepLinear | None = None,
    residual: Float[Tensor, "rows outputs"] | None = None,
    residual_norm: StepNorm | None = None,
) -> Float[Tensor, "rows outputs"]:
    """Return `residual + activation(W norm(x) + b)`, with the outputs of up to three maps in a row.

    Args:
        x: vectors.
        maps: their weights.
        norm: of the vectors before the product.
        activation: a key of `ACTIVATIONS`; of the gate if there is one.
        gate: a map whose activated outputs multiply those of the only map.
        residual: added to the result.
        residual_norm: of the residual.
    """
    (rows, inputs), x = x.shape, x.contiguous()
    outputs = [len(one.weight) for one in maps]
    out = x.new_empty(rows, sum(outputs))
    three = (*maps, *[maps[-1]] * (3 - len(maps)))
    few, columns, block = rows <= FEW, 32 if sum(outputs) > 2048 else 16, 256
    if few:
        columns = 4
        block = min(512 if gate is not None else 1024, triton.next_power_of_2(inputs))
    blocks = sum(triton.cdiv(n, columns) for n in outputs)
    block_rows = max(1 if few else 16, triton.next_power_of_2(rows))
    none, plain = x, StepNorm(x, None, 0.0, True)
    before, beside = norm or plain, residual_norm or plain
    residual = residual if residual is None else residual.contiguous()
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    with on(x):
        _linear_kernel[(blocks,)](
            x,
            *(one.weight for one in three),
            *(none if one.bias is None else one.bias for one in three),
            none if gate is None else gate.weight,
            none if gate is None or gate.bias is None else gate.bias,
            before.weight,
            none if before.bias is None else before.bias,
            none if residual is None else residual,
            beside.weight,
            none if beside.bias is None else beside.bias,
            out,
            rows,
            before.eps,
            beside.eps,
            INPUTS=inputs,
            N0=outputs[0],
            N1=outputs[1] if len(maps) > 1 else 0,
            N2=outputs[2] if len(maps) > 2 else 0,
            NORM=_norm_kind(norm),
            NORM_BIAS=before.bias is not None,
            BIASED=maps[0].bias is not None,
            GATED=gate is not None,
            GATE_BIAS=gate is not None and gate.bias is not None,
            ACTIVATION=ACTIVATIONS[activation],
            RESIDUAL=residual is not None,
            RESIDUAL_NORM=_norm_kind(residual_norm),
            RESIDUAL_BIAS=beside.bias is not None,
            FEW=few,
            PARTS=PARTS,
            ROWS=block_rows,
            COLUMNS=columns,
            BLOCK=block,
            BLOCK_NORM=BLOCK_NORM,
            PRECISION="ieee" if exact else "tf32",
            num_warps=2 if few else PARTS,
            num_stages=4,
        )
    return out


def scores(
    x: Float[Tensor, "rows inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"],
) -> Float[Tensor, "rows outputs"]:
    """Return `W x + b` for a long W.

    Rows of the result stand at aligned addresses: where the number of outputs is odd, as that of a
    vocabulary, products of a library are several times slower otherwise.
    """
    if len(x) <= MAX_ROWS:
        return linear(x, (StepLinear(weight, bias),))
    outputs = len(weight)
    whole = outputs // ALIGNED * ALIGNED
    out = x.new_empty(len(x), whole + ALIGNED)[:, :outputs]
    torch.mm(x, weight[:whole].T, out=out[:, :whole])
    torch.mm(x, weight[whole:].T, out=out[:, whole:])
    with on(x):
        _bias_kernel[(len(x), triton.cdiv(outputs, 2048))](
            out, bias, outputs, out.stride(0), BLOCK=2048, num_warps=4
        )
    return out


def normal_sum(
    x: Float[Tensor, "rows dim"], addend: Float[Tensor, "rows dim"] | None, norm: StepNorm
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]:
    """Return `x + addend`, or `x` if there is none, before a norm and after it."""
    (rows, dim), x = x.shape, x.contiguous()
    total = x if addend is None else torch.empty_like(x)
    normal = torch.empty_like(x)
    with on(x):
        _norm_kernel[(rows,)](
            x,
            x if addend is None else addend.contiguous(),
            norm.weight,
            norm.weight if norm.bias is None else norm.bias,
            total,
            normal,
            norm.eps,
            DIM=dim,
            DIM_P=triton.next_power_of_2(dim),
            ADDED=addend is not None,
            BIASED=norm.bias is not None,
            CENTRED=norm.has_mean,
            num_warps=4 if dim <= 2048 else 8,
        )
    return total, normal


@triton.jit
def _norm_kernel(
    x,
    addend,
    weight,
    bias,
    total,
    normal,
    eps,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    ADDED: tl.constexpr,
    BIASED: tl.constexpr,
    CENTRED: tl.constexpr,
):
    """Write the sum of one row, and its norm."""
    feature = tl.arange(0, DIM_P)
    inside = feature < DIM
    own = tl.program_id(0).to(tl.int64) * DIM + feature
    factor = tl.load(weight + feature, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + own, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        value += tl.load(addend + own, mask=inside, other=0.0).to(tl.float32)
        # the norm is that of the sum as it is kept
        value = value.to(total.dtype.element_ty)
        tl.store(total + own, value, mask=inside)
        value = value.to(tl.float32)
    if CENTRED:
        value = tl.where(inside, value - tl.sum(value, axis=0) / DIM, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, axis=0) / DIM + eps) * factor
    if BIASED:
        value += tl.load(bias + feature, mask=inside, other=0.0).to(tl.float32)
    tl.store(normal + own, value, mask=inside)


@triton.jit(do_not_specialize=["outputs"])
def _bias_kernel(out, bias, outputs, stride, BLOCK: tl.constexpr):
    """Add a bias to a piece of a row, which has room after its end."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < stride
    own = out + tl.program_id(0).to(tl.int64) * stride + column
    addend = tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)
    tl.store(own, tl.load(own, mask=inside, other=0.0).to(tl.float32) + addend, mask=inside)


def _norm_kind(norm: StepNorm | None) -> int:
    return 0 if norm is None else 1 if norm.has_mean else 2


@triton.jit
def _moments(
    x,
    row,
    is_row,
    eps,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the mean of each row, or zero, and the inverse of its deviation from it."""
    offset = row.to(tl.int64) * SIZE
    shift = tl.load(x + offset, mask=is_row, other=0.0).to(tl.float32)
    if KIND == 2:
        shift = shift * 0.0
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    powers = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in tl.static_range(0, SIZE, BLOCK):
        feature = start + tl.arange(0, BLOCK)
        inside = is_row[:, None] & (feature < SIZE)[None, :]
        part = tl.load(x + offset[:, None] + feature[None, :], mask=inside, other=0.0)
        part = tl.where(inside, part.to(tl.float32) - shift[:, None], 0.0)
        sums += part
        powers += part * part
    total, squares = tl.sum(sums, axis=1), tl.sum(powers, axis=1)
    mean = total / SIZE
    if KIND == 2:
        mean = mean * 0.0
    variance = squares / SIZE - mean * mean
    return mean + shift, tl.rsqrt(tl.maximum(variance, 0.0) + eps)


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == 1:
        x = tl.maximum(x, 0.0)
    if KIND == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if KIND == 3:
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    if KIND == 4:
        x = x * tl.sigmoid(x)
    return x


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x,
    weight_0,
    weight_1,
    weight_2,
    bias_0,
    bias_1,
    bias_2,
    gate,
    gate_bias,
    norm_weight,
    norm_bias,
    residual,
    residual_weight,
    residual_bias,
    out,
    rows,
    eps,
    residual_eps,
    INPUTS: tl.constexpr,
    N0: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    NORM: tl.constexpr,
    NORM_BIAS: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    GATE_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RESIDUAL_NORM: tl.constexpr,
    RESIDUAL_BIAS: tl.constexpr,
    FEW: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write some columns of the result."""
    block = tl.program_id(0)
    row = tl.arange(0, ROWS)
    is_row = row < rows
    B0: tl.constexpr = (N0 + COLUMNS - 1) // COLUMNS
    B1: tl.constexpr = (N1 + COLUMNS - 1) // COLUMNS
    weight, bias = weight_0, bias_0
    first, size = block * 0, block * 0 + N0
    if block >= B0:
        weight, bias = weight_1, bias_1
        first, size = block * 0 + N0, block * 0 + N1
        block -= B0
        if block >= B1:
            weight, bias = weight_2, bias_2
            first, size = block * 0 + (N0 + N1), block * 0 + N2
            block -= B1
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < size
    if NORM:
        mean, scale = _moments(x, row, is_row, eps, INPUTS, NORM, ROWS, BLOCK_NORM)
    if FEW:
        of_row = x + row.to(tl.int64)[:, None] * INPUTS
        of_column = column.to(tl.int64)[:, None] * INPUTS
        sums = tl.zeros([ROWS, COLUMNS, BLOCK], dtype=tl.float32)
        gates = tl.zeros([ROWS, COLUMNS, BLOCK if GATED else 1], dtype=tl.float32)
        for start in range(0, INPUTS, BLOCK):
            feature = start + tl.arange(0, BLOCK)
            inside = (feature < INPUTS)[None, :]
            read = is_column[:, None] & inside
            w = tl.load(weight + of_column + feature[None, :], mask=read, other=0.0)
            if GATED:
                g = tl.load(gate + of_column + feature[None, :], mask=read, other=0.0)
            part = tl.load(of_row + feature[None, :], mask=is_row[:, None] & inside, other=0.0)
            part = part.to(tl.float32)
            if NORM:
                factor = tl.load(norm_weight + feature, mask=feature < INPUTS, other=0.0)
                part = (part - mean[:, None]) * scale[:, None] * factor.to(tl.float32)[None, :]
                if NORM_BIAS:
                    addend = tl.load(norm_bias + feature, mask=feature < INPUTS, other=0.0)
                    part += addend.to(tl.float32)[None, :]
            sums += part[:, None, :] * w.to(tl.float32)[None, :, :]
            if GATED:
                gates += part[:, None, :] * g.to(tl.float32)[None, :, :]
        sums = tl.sum(sums, axis=2)
        gates = tl.sum(gates, axis=2)
    else:
        # features are divided among the warps, whose products are summed up at the end
        PART: tl.constexpr = BLOCK // PARTS
        of_row = x + row.to(tl.int64)[None, :, None] * INPUTS
        of_column = column.to(tl.int64)[None, None, :] * INPUTS
        within = tl.arange(0, PARTS)[:, None] * PART + tl.arange(0, PART)[None, :]
        sums = tl.zeros([PARTS, ROWS, COLUMNS], dtype=tl.float32)
        gates = tl.zeros([PARTS, ROWS, COLUMNS], dtype=tl.float32)
        for start in range(0, INPUTS, BLOCK):
            feature = start + within
            inside = feature < INPUTS
            read = is_column[None, None, :] & inside[:, :, None]
            w = tl.load(weight + of_column + feature[:, :, None], mask=read, other=0.0)
            if GATED:
                g = tl.load(gate + of_column + feature[:, :, None], mask=read, other=0.0)
            seen = is_row[None, :, None] & inside[:, None, :]
            part = tl.load(of_row + feature[:, None, :], mask=seen, other=0.0)
            if NORM:
                factor = tl.load(norm_weight + feature, mask=inside, other=0.0).to(tl.float32)
                normal = (part.to(tl.float32) - mean[None, :, None]) * scale[None, :, None]
                normal = normal * factor[:, None, :]
                if NORM_BIAS:
                    addend = tl.load(norm_bias + feature, mask=inside, other=0.0)
                    normal += addend.to(tl.float32)[:, None, :]
                part = normal.to(x.dtype.element_ty)
            sums = tl.dot(part, w, sums, input_precision=PRECISION)
            if GATED:
                gates = tl.dot(part, g, gates, input_precision=PRECISION)
        sums = tl.sum(sums, axis=0)
        gates = tl.sum(gates, axis=0)
    if BIASED:
        sums += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if GATE_BIAS:
            gates += tl.load(gate_bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
        sums = sums * _activated(gates, ACTIVATION)
    else:
        sums = _activated(sums, ACTIVATION)
    inside = is_row[:, None] & is_column[None, :]
    place = row.to(tl.int64)[:, None] * (N0 + N1 + N2) + (first + column)[None, :]
    if RESIDUAL:
        before = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        if RESIDUAL_NORM:
            mean, scale = _moments(
                residual, row, is_row, residual_eps, N0, RESIDUAL_NORM, ROWS, BLOCK_NORM
            )
            before = (before - mean[:, None]) * scale[:, None]
            factor = tl.load(residual_weight + column, mask=is_column, other=0.0)
            before = before * factor.to(tl.float32)[None, :]
            if RESIDUAL_BIAS:
                addend = tl.load(residual_bias + column, mask=is_column, other=0.0)
                before += addend.to(tl.float32)[None, :]
        sums += before
    tl.store(out + place, sums, mask=inside)


class StepAttention(NamedTuple):
    """The contexts, (rows, heads * head_dim), and the caches with one more position."""

    context: Tensor
    key: Tensor
    value: Tensor


def attention(
    query: Float[Tensor, "rows inner"],
    new_key: Float[Tensor, "rows kv_inner"],
    new_value: Float[Tensor, "rows kv_inner"],
    key: Float[Tensor, "rows kv_heads positions head_dim"],
    value: Float[Tensor, "rows kv_heads positions head_dim"],
    *,
    order: Int[Tensor, " rows"] | None = None,
    frequencies: Float[Tensor, " pairs"] | None = None,
    bias: Float[Tensor, "#rows #heads 1 kv_len"] | None = None,
    window: int | None = None,
) -> StepAttention:
    """Attend from one new vector of each row to those before it and to itself.

    Args:
        query: of all heads in a row; its rows may stand in a wider matrix.
        new_key: of all heads of keys.
        new_value: likewise.
        key: of the positions before, rotated.
        value: of the positions before.
        order: row i continues what row `order[i]` holds; None if each row continues its own.
        frequencies: of rotary positions, in radians per position, float64.
        bias: added to the scores.
        window: number of latest positions that are seen; None for all.
    """
    (rows, kv_heads, past, size), inner = key.shape, query.shape[1]
    heads = inner // size
    key, value = key.contiguous(), value.contiguous()
    longer = [key.new_empty(rows, kv_heads, past + 1, size) for _ in range(2)]
    context = query.new_empty(rows, inner)
    strides = (0, 0, 0)
    if bias is not None:
        spread = bias.expand(rows, heads, 1, past + 1)
        strides = (spread.stride(0), spread.stride(1), spread.stride(3))
    with on(query):
        _attention_kernel[(rows, heads)](
            query,
            new_key,
            new_value,
            key,
            value,
            *longer,
            query if order is None else order,
            query if frequencies is None else frequencies,
            query if bias is None else bias,
            context,
            size**-0.5,
            past,
            past + 1 if window is None else window,
            query.stride(0),
            new_key.stride(0),
            new_value.stride(0),
            *strides,
            KV_HEADS=kv_heads,
            GROUP=heads // kv_heads,
            SIZE=size,
            SIZE_P=triton.next_power_of_2(size),
            ORDERED=order is not None,
            ROTATED=frequencies is not None,
            BIASED=bias is not None,
            BLOCK=16 if rows * heads > 2048 or past <= 16 else 64,
            num_warps=2,
        )
    return StepAttention(context, *longer)


@triton.jit
def _rotated(x, feature, inside, angle, ROTATED: tl.constexpr, SIZE: tl.constexpr):
    """Return the vector at this address, rotated."""
    own = tl.load(x + feature, mask=inside, other=0.0).to(tl.float32)
    if ROTATED:
        is_left = feature < SIZE // 2
        partner = tl.where(is_left, feature + SIZE // 2, feature - SIZE // 2)
        other = tl.load(x + partner, mask=inside, other=0.0).to(tl.float32)
        own = own * tl.cos(angle) + tl.where(is_left, -other, other) * tl.sin(angle)
    return own


@triton.jit(do_not_specialize=["past", "window"])
def _attention_kernel(
    query,
    new_key,
    new_value,
    key,
    value,
    long_key,
    long_value,
    order,
    frequencies,
    bias,
    context,
    scale,
    past,
    window,
    q_row,
    k_row,
    v_row,
    b_row,
    b_head,
    b_column,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_P: tl.constexpr,
    ORDERED: tl.constexpr,
    ROTATED: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Attend with one query; the first of those that share keys and values writes the caches."""
    NEVER: tl.constexpr = float("-inf")
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    before = row
    if ORDERED:
        before = tl.load(order + row)
    kv_head = head // GROUP
    feature = tl.arange(0, SIZE_P)
    is_feature = feature < SIZE
    is_written = is_feature & (feature * 0 + head % GROUP == 0)
    angle = tl.zeros([SIZE_P], dtype=tl.float32)
    if ROTATED:
        pair = tl.where(feature < SIZE // 2, feature, feature - SIZE // 2)
        speed = tl.load(frequencies + pair, mask=is_feature, other=0.0)
        turns = speed * past * 0.15915494309189535
        angle = ((turns - tl.floor(turns)) * 6.283185307179586).to(tl.float32)
    q = _rotated(query + row * q_row + head * SIZE, feature, is_feature, angle, ROTATED, SIZE)
    q = q * scale
    k = _rotated(new_key + row * k_row + kv_head * SIZE, feature, is_feature, angle, ROTATED, SIZE)
    v = tl.load(new_value + row * v_row + kv_head * SIZE + feature, mask=is_feature, other=0.0)
    k = k.to(long_key.dtype.element_ty)
    longer = ((row * KV_HEADS + kv_head) * (past + 1)) * SIZE
    tl.store(long_key + longer + past * SIZE + feature, k, mask=is_written)
    tl.store(long_value + longer + past * SIZE + feature, v, mask=is_written)
    highest = tl.sum(q * k.to(tl.float32), axis=0)
    addends = bias + row * b_row + head * b_head
    if BIASED:
        highest += tl.load(addends + past * b_column).to(tl.float32)
    total = highest * 0.0 + 1.0
    mixed = v.to(tl.float32)
    older = ((before * KV_HEADS + kv_head) * past) * SIZE
    for start in range(0, past, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_place = place < past
        offset = place[:, None] * SIZE + feature[None, :]
        inside = is_place[:, None] & is_feature[None, :]
        k_old = tl.load(key + older + offset, mask=inside, other=0.0)
        v_old = tl.load(value + older + offset, mask=inside, other=0.0)
        copied = is_place[:, None] & is_written[None, :]
        tl.store(long_key + longer + offset, k_old, mask=copied)
        tl.store(long_value + longer + offset, v_old, mask=copied)
        scores = tl.sum(q[None, :] * k_old.to(tl.float32), axis=1)
        if BIASED:
            scores += tl.load(addends + place * b_column, mask=is_place, other=0.0).to(tl.float32)
        scores = tl.where(is_place & (past - place < window), scores, NEVER)
        higher = tl.maximum(highest, tl.max(scores, axis=0))
        share = tl.exp(scores - higher)
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(share, axis=0)
        mixed = mixed * shrink + tl.sum(share[:, None] * v_old.to(tl.float32), axis=0)
        highest = higher
    target = context + row * (KV_HEADS * GROUP * SIZE) + head * SIZE + feature
    tl.store(target, mixed / total, mask=is_feature)
