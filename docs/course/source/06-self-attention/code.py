# %% simple
import torch

import regard
from regard.attention import MultiHeadAttention, SimpleSelfAttention

torch.manual_seed(0)
words = ["the", "cat", "that", "I", "saw", "slept"]
x = torch.randn(1, len(words), 32)
simple = SimpleSelfAttention()(x)
by_hand = (x[0] @ x[0].T).softmax(-1) @ x[0]
assert torch.allclose(simple.context[0], by_hand, atol=1e-5)
print("own weight of each word:", simple.weights[0, 0].diagonal().numpy().round(2))

# %% heads
attention = MultiHeadAttention(32, num_heads=4)
out = attention(x, x, x)
Q, K, V = (proj(x[0]) for proj in (attention.query_proj, attention.key_proj, attention.value_proj))
heads, kept = [], []
for slot in torch.arange(32).split(8):  # each head owns 8 of the 32 columns
    kept.append((Q[:, slot] @ K[:, slot].T / 8**0.5).softmax(-1))
    heads.append(kept[-1] @ V[:, slot])
assert torch.allclose(attention.out_proj(torch.cat(heads, dim=-1)), out.context[0], atol=1e-5)
assert torch.allclose(torch.stack(kept), out.weights[0], atol=1e-5)
print("four heads by hand, equal to the layer;", out.weights.shape)

# %% map
for head in (0, 1):
    regard.show(out.weights[0].detach(), words, layer=0, head=head).save(f"head-{head}.svg")

# %% parameters
for number in (1, 2, 4, 8):
    layer = MultiHeadAttention(32, num_heads=number)
    print(number, "heads:", sum(p.numel() for p in layer.parameters()), "parameters")
