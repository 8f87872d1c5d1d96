# %% gradient
import torch

import regard
from regard.layers import RNNStack

torch.manual_seed(0)


def influence(rnn: RNNStack, length: int) -> torch.Tensor:
    """Return the size of d h_t / d x_i for every output t (rows) and every input i (columns)."""
    x = torch.randn(1, length, 32, requires_grad=True)
    states = rnn(x).output[0]
    rows = [torch.autograd.grad(h.sum(), x, retain_graph=True)[0][0].norm(dim=-1) for h in states]
    return torch.stack(rows)


sizes = influence(RNNStack(32, 32, cell="rnn"), 41)
for distance in (0, 10, 20, 40):
    print(f"distance {distance:2}: {sizes[40, 40 - distance]:.1e}")

# %% map
shares = sizes[:12, :12] / sizes[:12, :12].sum(dim=-1, keepdim=True)
shown = regard.show(shares, [f"x{i}" for i in range(1, 13)], [f"h{t}" for t in range(1, 13)])
shown.save("influence.svg")

# %% lstm
for bias in (0.0, 4.0):
    lstm = RNNStack(32, 32, cell="lstm")
    for name, parameter in lstm.named_parameters():
        if "bias" in name and parameter.shape == (128,):
            parameter.data[32:64] += bias / 2  # gates are in the order i, f, g, o
    far = influence(lstm, 41)[40]
    print(f"forget bias + {bias:.0f}: {far[0] / far[40]:.1e} of the gradient arrives over 40 steps")

# %% gates
model = regard.load("reader")  # a trained language model with an LSTM, which comes with regard
network, text = model.module.language, "I do not think that the man who lives next door will come."
x, layer = network.embedding(torch.tensor(model.source_ids([text]))), network.body.layers[0]
out = layer(x, need_weights=True)
i, f, g, o = (layer.input_proj(x) + layer.recurrent_proj(out.context)).chunk(4, dim=-1)
gates = torch.cat([i, f, o], dim=-1).sigmoid()
assert torch.allclose(o.sigmoid() * out.state.memory.tanh(), out.hidden, atol=1e-5)


def between(values: torch.Tensor) -> float:
    """Return the share of values between 0.01 and 0.99."""
    return ((values > 0.01) & (values < 0.99)).float().mean().item()


exact = ((gates == 0) | (gates == 1)).sum().item()
weights = out.weights[out.weights > 0]
print(f"gates: {between(gates):.0%} between 0.01 and 0.99, {exact} of {gates.numel()} are 0 or 1")
print(f"attention weights of the same model: {between(weights):.0%} between 0.01 and 0.99")

# %% hard
z = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
print("soft gate: gradient", torch.autograd.grad(z.sigmoid().sum(), z)[0].numpy().round(2))
print("hard gate: gradient", torch.autograd.grad(z.sign().sum(), z)[0].numpy().round(2))
