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
