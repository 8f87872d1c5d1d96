import pytest
import torch

from layers.tools import away_from_zero, close, gradients, same_bits, spoilt, weighted_sum
from ops.messages import refuses
from regard import masks
from regard.layers import ConvDecoder, ConvEncoder, GatedConvolution

BATCH, LENGTH, DIM, KV_LEN = 5, 7, 3, 11
LENGTHS = torch.tensor([7, 4, 0, 1, 5])
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


def test_encoder_is_centred():
    module, x = encoder(3, 2), vectors()
    other = x.clone()
    other[:, 3] += 1
    changed = (module(other) != module(x)).any(dim=-1)
    # two layers that each reach one position to either side
    assert changed.tolist() == [[False, True, True, True, True, True, False]] * BATCH


def test_encoder_padding_changes_no_bit():
    module, x, mask = encoder(), vectors(), masks.padding(LENGTHS, LENGTH)

    def run(x):
        output = module(x.requires_grad_(), mask)
        return [output, *gradients(weighted_sum(output), x, *module.parameters())]

    same_bits(run(spoilt(x, LENGTHS)), run(x))


def test_encoder_rows_are_as_if_alone():
    module, x = encoder(), vectors()
    output = module(x, masks.padding(LENGTHS, LENGTH))
    for row, n in enumerate(LENGTHS.tolist()):
        assert not output[row, n:].any()
        if n:
            close(output[row, :n], module(x[row : row + 1, :n])[0])


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
def test_decoder_is_causal(kernel):
    module, x = decoder(kernel), vectors()
    state, other = started(module), x.clone()
    other[:, 4] += 1
    before, after = module(x, state).output, module(other, state).output
    same_bits(after[:, :4], before[:, :4])
    assert (after[:, 4] != before[:, 4]).all()


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


def test_decoder_reordered_states_go_on_in_the_new_order():
    module, x = decoder(), vectors()
    rows = torch.tensor([4, 1, 1])
    state = module(x[:, :4], started(module)).state
    expected = module(x[:, 4:], state, need_weights=True)
    actual = module(x[rows, 4:], state.reorder(rows), need_weights=True)
    close(actual.output, expected.output[rows])
    close(actual.weights, tuple(w[rows] for w in expected.weights))


def test_memory_padding_does_not_matter():
    module, x, key, value = decoder(), vectors(), vectors(KV_LEN), vectors(KV_LEN)
    before = module(x, started(module, key, value)).output
    lengths = torch.tensor([11, 2, 1, 5, 7])
    padded = torch.arange(KV_LEN) >= lengths[:, None]
    key[padded], value[padded] = 1e3, -1e3
    close(module(x, started(module, key, value)).output, before)


def test_weights_only_if_asked_for():
    module, x = decoder(), vectors()
    state = started(module)
    without, with_weights = module(x, state), module(x, state, need_weights=True)
    assert without.weights == ()
    assert [w.shape for w in with_weights.weights] == [(BATCH, 1, LENGTH, KV_LEN)] * 2
    close(without.output, with_weights.output)


@pytest.mark.parametrize("kind", [ConvEncoder, ConvDecoder])
def test_dropout_acts_in_training_alone(kind):
    module, x = kind(DIM, 2, dropout=0.5).double(), vectors()
    args = (started(module),) if kind is ConvDecoder else ()

    def run():
        result = module(x, *args)
        return result if kind is ConvEncoder else result.output

    assert not torch.equal(run(), run())
    module.eval()
    assert torch.equal(run(), run())


@pytest.mark.parametrize("kernel", [1, 3])
def test_gradcheck(kernel):
    source, target = encoder(kernel), decoder(kernel)
    x, y = (torch.randn(7, n, DIM, dtype=torch.float64, requires_grad=True) for n in (2, 5))
    mask = masks.padding(torch.tensor([2, 0, 1, 2, 1, 2, 2]), 2)

    def run(x, y, *weights):
        memory = source(x, mask)
        output, _, maps = target(y, target.start(memory, memory, mask), need_weights=True)
        return output, *maps

    leaves = (x, y, *source.parameters(), *target.parameters())
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_variance_is_kept_at_the_start(dropout):
    conv = GatedConvolution(64, 3, dropout=dropout)
    variance = conv(torch.randn(16, 101, 64)).var()
    # the paper's section 3.5: outputs of a gated unit have about the variance of its inputs
    assert 0.5 < variance < 2.0


@pytest.mark.plain
class TestMessages:
    def test_even_kernel(self):
        with refuses("kernel_size", "be odd", "4"):
            ConvEncoder(DIM, 1, kernel_size=4)

    @pytest.mark.parametrize("kind", [ConvEncoder, ConvDecoder])
    def test_sizes(self, kind):
        with refuses("num_layers", "at least 1", "0"):
            kind(DIM, 0)
        with refuses("dim", "at least 1", "0"):
            kind(0, 1)
        with refuses("kernel_size", "at least 1", "-1"):
            kind(DIM, 1, kernel_size=-1)

    def test_width(self):
        x = torch.randn(BATCH, LENGTH, DIM + 2)
        with refuses("x", "(batch, length, 3)", "(5, 7, 5)"):
            GatedConvolution(DIM, 3)(x)
        with refuses("x", "(batch, length, 3)", "(5, 7, 5)"):
            ConvEncoder(DIM, 1)(x)
        module = ConvDecoder(DIM, 1)
        memory = torch.randn(BATCH, KV_LEN, DIM)
        with refuses("x", "(batch, length, 3)", "(5, 7, 5)"):
            module(x, module.start(memory, memory))
        with refuses("key", "(batch, length, 3)", "(5, 7, 5)"):
            module.start(x, memory)
        with refuses("value", "(batch, length, 3)", "(5, 7, 5)"):
            module.start(memory, x)

    def test_empty_sequence(self):
        x = torch.randn(BATCH, 0, DIM)
        module, memory = ConvDecoder(DIM, 1), torch.randn(BATCH, KV_LEN, DIM)
        with refuses("x", "at least 1 entry on the axis length", "(5, 0, 3)"):
            ConvEncoder(DIM, 1)(x)
        with refuses("x", "at least 1 entry on the axis length", "(5, 0, 3)"):
            module(x, module.start(memory, memory))
        with refuses("key", "at least 1 entry on the axis length", "(5, 0, 3)"):
            module.start(x, x)

    def test_mask(self):
        x = torch.randn(BATCH, LENGTH, DIM)
        with refuses("mask", "broadcast to", "(1, 1, 7, 7)"):
            ConvEncoder(DIM, 1)(x, masks.causal(LENGTH))
        with refuses("mask", "broadcast to", "(5, 7)"):
            ConvEncoder(DIM, 1)(x, masks.padding(LENGTHS, LENGTH)[:, 0, 0])
        with refuses("mask", "be boolean", "torch.float32"):
            ConvEncoder(DIM, 1)(x, masks.padding(LENGTHS, LENGTH).float())

    def test_state_of_another_batch(self):
        module, memory = ConvDecoder(DIM, 1), torch.randn(BATCH - 1, KV_LEN, DIM)
        with refuses("state and x", "agree in batch", "state = 4, x = 5"):
            module(torch.randn(BATCH, LENGTH, DIM), module.start(memory, memory))
