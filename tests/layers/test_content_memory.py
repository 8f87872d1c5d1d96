"""An external memory: its weights, what it writes, and what it reads."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from regard.errors import ArgumentError
from regard.layers import ContentMemory

BATCH, SLOTS, WIDTH, INPUT = 2, 5, 3, 7


def drawn(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.double
    )


def memory():
    torch.manual_seed(1)
    return ContentMemory(INPUT, SLOTS, WIDTH).double()


def by_loops(module, x, slots):
    """The equations of the paper, one number at a time; batch row 0."""
    made = (x @ module.heads.weight.T + module.heads.bias).tolist()
    read_key, write_key, erase, add = (made[i * WIDTH : (i + 1) * WIDTH] for i in range(4))
    betas = [1 + math.log1p(math.exp(b)) for b in made[4 * WIDTH :]]

    def weights(key, beta, rows):
        cosines = [
            sum(a * b for a, b in zip(key, row, strict=True))
            / (math.hypot(*key) * math.hypot(*row))
            for row in rows
        ]
        shares = [math.exp(beta * c) for c in cosines]
        return [s / sum(shares) for s in shares]

    w = weights(write_key, betas[0], slots)
    slots = [
        [
            m * (1 - w[i] / (1 + math.exp(-e))) + w[i] * math.tanh(a)
            for m, e, a in zip(row, erase, add, strict=True)
        ]
        for i, row in enumerate(slots)
    ]
    w = weights(read_key, betas[1], slots)
    read = [sum(w[i] * row[j] for i, row in enumerate(slots)) for j in range(WIDTH)]
    return read, w, slots


def test_two_steps_are_those_of_the_paper():
    module, x = memory(), drawn(BATCH, INPUT)
    for row in range(BATCH):
        slots, rows = module.start(BATCH), module.first.tolist()
        for _ in range(2):
            found = module(x, slots)
            read, weights, rows = by_loops(module, x[row], rows)
            slots = found.slots
            torch.testing.assert_close(
                found.read[row], torch.tensor(read).double(), atol=1e-6, rtol=0
            )
            torch.testing.assert_close(
                found.weights[row], torch.tensor(weights).double(), atol=1e-6, rtol=0
            )
            torch.testing.assert_close(slots[row], torch.tensor(rows).double(), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_gradients_of_two_steps():
    module, first = memory(), drawn(BATCH, SLOTS, WIDTH).requires_grad_()
    inputs = drawn(2, BATCH, INPUT).requires_grad_()

    def steps(x, slots):
        one = module(x[0], slots)
        two = module(x[1], one.slots)
        return one.read, two.read, two.weights, two.slots

    assert gradcheck(steps, (inputs, first))


def test_slots_of_zeros_have_finite_gradients():
    module, slots = memory(), torch.zeros(BATCH, SLOTS, WIDTH).double().requires_grad_()
    found = module(drawn(BATCH, INPUT), slots)
    (grad,) = torch.autograd.grad(found.read.sum() + found.slots.sum(), slots)
    assert grad.isfinite().all()


def test_slots_are_kept_in_float32_by_half_precision():
    module, x = memory().bfloat16(), drawn(BATCH, INPUT).bfloat16()
    found = module(x, module.start(BATCH))
    assert found.slots.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        found = memory().float()(x.float(), memory().float().start(BATCH))
    assert found.slots.dtype == torch.float32


@pytest.mark.plain
def test_a_memory_has_slots():
    with pytest.raises(ArgumentError, match="slots must be at least 1, but it is 0"):
        ContentMemory(INPUT, 0, WIDTH)
