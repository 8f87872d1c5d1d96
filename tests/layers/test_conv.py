import pytest
import torch

from layers.tools import away_from_zero, close
from regard import masks
from regard.layers import ConvDecoder, ConvEncoder, GatedConvolution

BATCH, LENGTH, DIM, KV_LEN = 5, 7, 3, 11
each_kernel = pytest.mark.parametrize("kernel", [1, 2, 3, 5])


def gated(conv, x):
    """A gated convolution one number after another: x is (padded, dim)."""
    weight, bias = conv.conv.weight, conv.conv.bias
    dim, width = weight.shape[1], weight.shape[2]
    rows = []
    for t in range(len(x) - width + 1):
        row = []
        for feature in range(dim):
            value, gate = (
                bias[out]
                + sum(weight[out, i, k] * x[t + k, i] for i in range(dim) for k in range(width))
                for out in (feature, dim + feature)
            )
            row.append(value / (1 + torch.exp(-gate)))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def encoder(kernel=3, layers=2):
    return away_from_zero(ConvEncoder(DIM, layers, kernel_size=kernel)).double().eval()


def decoder(kernel=3, layers=2):
    return away_from_zero(ConvDecoder(DIM, layers, kernel_size=kernel)).double().eval()


def vectors(length=LENGTH):
    return torch.randn(BATCH, length, DIM, dtype=torch.float64)


def started(module, key=None, value=None):
    mask = masks.padding(torch.tensor([11, 2, 1, 5, 7]), KV_LEN)
    key = vectors(KV_LEN) if key is None else key
    return module.start(key, vectors(KV_LEN) if value is None else value, mask)


@each_kernel
def test_gated_convolution_by_hand(kernel):
    conv = away_from_zero(GatedConvolution(DIM, kernel)).double()
    x = vectors()
    output = conv(x)
    assert output.shape == (BATCH, LENGTH - kernel + 1, DIM)
    for row in (0, BATCH - 1):
        close(output[row], gated(conv, x[row]))


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_encoder_layer_by_hand(kernel):
    module, x = encoder(kernel, 1), vectors()
    edge = torch.zeros(kernel // 2, DIM, dtype=torch.float64)
    padded = torch.cat([edge, x[1], edge])
    expected = (x[1] + gated(module.layers[0], padded)) * 0.5**0.5
    close(module(x)[1], expected)


def test_decoder_layer_by_hand():
    module, x, key, value = decoder(3, 1), vectors(), vectors(KV_LEN), vectors(KV_LEN)
    output, _, (weights,) = module(x, started(module, key, value), need_weights=True)
    row, n = 1, 2  # this row's memory has two real vectors
    edge = torch.zeros(2, DIM, dtype=torch.float64)
    hidden = gated(module.layers[0], torch.cat([edge, x[row]]))
    query = (module.query_projs[0](hidden) + x[row]) * 0.5**0.5
    looks = torch.softmax(query @ key[row, :n].T, dim=-1)
    hidden = (hidden + module.context_projs[0](looks @ value[row, :n])) * 0.5**0.5
    close(output[row], (x[row] + hidden) * 0.5**0.5)
    close(weights[row, 0, :, :n], looks)
    assert not weights[row, 0, :, n:].any()


@each_kernel
@pytest.mark.parametrize("pieces", [(1,) * LENGTH, (3, 4), (1, 5, 1)])
def test_decoder_pieces_equal_the_whole(kernel, pieces):
    module, x = decoder(kernel), vectors()
    first = started(module)
    whole = module(x, first, need_weights=True)
    state, outputs, maps = first, [], []
    for piece in x.split(pieces, dim=1):
        output, state, weights = module(piece, state, need_weights=True)
        outputs.append(output)
        maps.append(torch.stack(weights))
    close(torch.cat(outputs, dim=1), whole.output)
    close(torch.cat(maps, dim=3), torch.stack(whole.weights))
    close(state.recent, whole.state.recent)
    assert state.position == whole.state.position == LENGTH


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_variance_is_kept_at_the_start(dropout):
    conv = GatedConvolution(64, 3, dropout=dropout)
    variance = conv(torch.randn(16, 101, 64)).var()
    # the paper's section 3.5: outputs of a gated unit have about the variance of its inputs
    assert 0.5 < variance < 2.0
