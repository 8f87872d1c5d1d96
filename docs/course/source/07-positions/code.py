# %% order
import torch

import regard
from regard import masks
from regard.attention import MultiHeadAttention
from regard.layers import SinusoidalPositions

torch.manual_seed(0)
attention, positions = MultiHeadAttention(32, num_heads=4), SinusoidalPositions(32)
x, order = torch.randn(1, 7, 32), torch.tensor([3, 0, 6, 1, 5, 2, 4])


def difference(place=lambda x: x, mask=None) -> float:
    """Return the largest change of an output when the inputs are shuffled."""
    plain, shuffled = place(x), place(x[:, order])
    before, after = (attention(y, y, y, mask).context for y in (plain, shuffled))
    return (before[:, order] - after).abs().max().item()


without, with_sines = difference(), difference(positions)
with_mask = difference(mask=masks.causal(7))
print(f"nothing {without:.0e}, sinusoidal {with_sines:.1f}, causal mask alone {with_mask:.1f}")

# %% map
waves = positions(torch.zeros(1, 16, 32))[0]
near = (waves @ waves.T / 32**0.5).softmax(-1)
shown = regard.show(near, [str(p) for p in range(16)])
shown.save("positions.svg")

# %% shift
p, q = (positions(torch.zeros(1, 30, 32), start=start)[0] for start in (0, 5))
angle = torch.atan2(q[:, 0], q[:, 1]) - torch.atan2(p[:, 0], p[:, 1])
turns = set((angle % (2 * torch.pi)).round(decimals=3).tolist())
print("five places further turn the first pair by", turns)
