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

# %% ntm
from regard.layers.content_memory import content_weights

memory = torch.nn.functional.normalize(torch.randn(8, 16), dim=-1)  # eight slots


def address(before, key, *, beta, g, s, gamma):
    """Return the weights of the slots: content, interpolation, shift, sharpening."""
    content = (beta * torch.cosine_similarity(key[None], memory, dim=-1)).softmax(-1)
    mixed = g * content + (1 - g) * before
    moved = sum(share * mixed.roll(step) for step, share in s.items())
    return moved**gamma / (moved**gamma).sum()


found = address(torch.full((8,), 1 / 8), memory[2], beta=20.0, g=1.0, s={0: 1.0}, gamma=1.0)
assert torch.allclose(found, content_weights(memory[None], memory[2:3], torch.tensor([[20.0]]))[0])
shares = torch.tensor([0.1, 0.8, 0.1])  # stay, one place further, two places further
turn = {"beta": 1.0, "g": 0.0, "s": dict(enumerate(shares))}  # the content does not count
by_hand = [sum(found[i - j] * shares[j] for j in range(3)) for i in range(8)]
assert torch.allclose(address(found, memory[2], **turn, gamma=1.0), torch.stack(by_hand))
reached = {}
for gamma in (1.0, 2.0):
    rows = [found]
    for _ in range(5):
        rows.append(address(rows[-1], memory[2], **turn, gamma=gamma))
    slot, reached[gamma] = rows[-1].argmax() + 1, rows[-1].max().item()
    print(f"gamma {gamma:.0f}: after five shifts slot {slot}, weight {reached[gamma]:.2f}")
shown = regard.show(torch.stack(rows), [f"M{i}" for i in range(1, 9)], [f"t={t}" for t in range(6)])
shown.save("ntm.svg")
