import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from layers.tools import (
    away_from_zero,
    close,
    load_from_torch,
    same_bits,
    spoilt,
    weighted_sum,
)
from regard.layers import RecurrentState, RNNStack

BATCH, LENGTH, INPUT, HIDDEN = 5, 7, 3, 11
LENGTHS = torch.tensor([7, 4, 0, 1, 5])
TORCH = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

each_cell = pytest.mark.parametrize("cell", TORCH)
each_shape = pytest.mark.parametrize(
    ("layers", "both_ways"), [(1, False), (1, True), (2, False), (3, True)]
)


def pair(cell, layers=1, both_ways=False, **kwargs):
    """A stack of torch and ours with its weights."""
    theirs = TORCH[cell](
        INPUT, HIDDEN, layers, batch_first=True, bidirectional=both_ways, **kwargs
    ).double()
    away_from_zero(theirs)
    ours = RNNStack(
        INPUT, HIDDEN, cell=cell, num_layers=layers, bidirectional=both_ways,
    )  # fmt: skip
    return theirs, load_from_torch(ours.double(), theirs)


def inputs(stack, dtype=torch.float64):
    """Inputs and a state to start from."""
    states = (BATCH, stack.num_layers * stack.directions, HIDDEN)
    hidden = torch.randn(states, dtype=dtype)
    memory = torch.randn(states, dtype=dtype) if stack.cell == "lstm" else None
    return torch.randn(BATCH, LENGTH, INPUT, dtype=dtype), RecurrentState(hidden, memory)


def torch_state(state):
    """As torch has it: layers first, a pair for an LSTM."""
    hidden = state.hidden.transpose(0, 1).contiguous()
    if state.memory is None:
        return hidden
    return hidden, state.memory.transpose(0, 1).contiguous()


def our_state(state):
    parts = state if isinstance(state, tuple) else (state, None)
    return RecurrentState(*(None if s is None else s.transpose(0, 1) for s in parts))


def states(state):
    return [state.hidden] if state.memory is None else [state.hidden, state.memory]


def tensors(output, state):
    return [output, *states(state)]


def packed(theirs, x, state, lengths=LENGTHS):
    """Outputs and final states by `PackedSequence`, which has no rows without any step."""
    rows = lengths.nonzero()[:, 0]
    pack = pack_padded_sequence(x[rows], lengths[rows], batch_first=True, enforce_sorted=False)
    output, last = theirs(pack, torch_state(state.reorder(rows)))
    output, _ = pad_packed_sequence(output, batch_first=True, total_length=LENGTH)
    last = our_state(last)
    memory = None if state.memory is None else state.memory.index_copy(0, rows, last.memory)
    return (
        x.new_zeros(BATCH, LENGTH, output.shape[2]).index_copy(0, rows, output),
        RecurrentState(state.hidden.index_copy(0, rows, last.hidden), memory),
    )


@pytest.mark.sample(10)
@each_cell
@each_shape
def test_equals_torch(cell, layers, both_ways):
    theirs, ours = pair(cell, layers, both_ways)
    x, state = inputs(ours)
    output, last = ours(x)
    expected, expected_last = theirs(x)
    close(tensors(output, last), tensors(expected, our_state(expected_last)))
    output, last = ours(x, None, state)
    expected, expected_last = theirs(x, torch_state(state))
    close(tensors(output, last), tensors(expected, our_state(expected_last)))


@pytest.mark.sample(10)
@each_cell
@each_shape
def test_lengths_equal_packed_sequences(cell, layers, both_ways):
    theirs, ours = pair(cell, layers, both_ways)
    x, state = inputs(ours)
    close(tensors(*ours(x, LENGTHS, state)), tensors(*packed(theirs, x, state)))
    zero = ours.init_state(BATCH, x)
    close(tensors(*ours(x, LENGTHS)), tensors(*packed(theirs, x, zero)))


@each_cell
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_without_steps_keeps_its_state(cell, dtype):
    _, ours = pair(cell, 2, True)
    ours = ours.to(dtype)
    x, state = inputs(ours, dtype)
    output, last = ours(x, LENGTHS, state)
    empty = (LENGTHS == 0).nonzero()[:, 0]
    assert not output[empty].any()
    same_bits(states(last.reorder(empty)), states(state.reorder(empty)))


@each_cell
def test_steps_equal_forward(cell):
    _, ours = pair(cell, 3)
    x, state = inputs(ours)
    expected = ours(x, None, state)
    outputs = []
    for x_t in x.unbind(1):
        output, state = ours.step(x_t, state)
        outputs.append(output)
    close(tensors(torch.stack(outputs, 1), state), tensors(*expected))


@pytest.mark.gpu
@each_cell
@pytest.mark.parametrize("train", [True, False])
def test_cuda_equals_cpu(cell, train):
    stack = RNNStack(INPUT, HIDDEN, cell=cell, num_layers=2, bidirectional=True).train(train)
    x, state = inputs(stack, torch.float32)
    expected = tensors(*stack(x, LENGTHS, state))
    cuda = RecurrentState(*(None if t is None else t.cuda() for t in (state.hidden, state.memory)))
    stack.cuda()
    # cuDNN would round the factors of its products to ten bits
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for start in (x, spoilt(x, LENGTHS)):
            actual = tensors(*stack(start.cuda(), LENGTHS.cuda(), cuda))
            close([t.cpu() for t in actual], expected, 1e-5)
    if train:
        weighted_sum(*actual).backward()
        assert all(p.grad.isfinite().all() for p in stack.parameters())
