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

# %% pronoun
chinese = regard.load("translate-en-zh")
for text in ("I like this cat because it is small.", "I saw a cat. It is very big."):
    out = chinese(text)
    row = out.maps["cross"][0][0][out.tokens.index("它")]
    named = dict(zip((s.strip("▁").lower() for s in out.src_tokens), row, strict=True))
    print(f"{out.text}  它 <- it {named['it']:.2f}, cat {named['cat']:.2f}")
out.save("pronoun.svg", words=False)
out = regard.load("reader")("The cat is tired because it ran a lot.")
row = out.maps["decoder-history"][0][0][out.src_tokens.index("it")]
past = dict(zip(out.src_tokens[:5], row, strict=False))
print("it <-", ", ".join(f"{word} {weight:.2f}" for word, weight in past.items()))

# %% gender
german = regard.load("translate-en-de")
nouns = {"cat": "sie", "lamp": "sie", "dog": "er", "table": "er", "book": "es", "house": "es"}
agree = 0
for noun, pronoun in nouns.items():
    said = german(f"The {noun} is big. It is new.").text
    agree += f" {pronoun} " in said.lower()
    print(f"{said}  ({pronoun})")
print(f"{agree} of {len(nouns)} pronouns agree with their noun")

# %% classes
from torch import nn


class ScaledDotProductAttention(nn.Module):
    """The class of document 5."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = d_k

    def forward(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> tuple:
        """Return the mixture of the values and its weights."""
        scores = torch.matmul(Q, K.transpose(-2, -1)) / self.d_k**0.5
        attn_weights = nn.Softmax(dim=-1)(scores)
        output = torch.matmul(attn_weights, V)
        return output, attn_weights


def split(y: torch.Tensor) -> torch.Tensor:
    """Divide the width among four heads, as the document does."""
    return y.view(1, -1, 4, 8).transpose(1, 2)


def encoder(x: torch.Tensor) -> torch.Tensor:
    """Return what its TransformerEncoder computes, with the end that the document lacks."""
    q, k, v = (
        split(p(x)) for p in (attention.query_proj, attention.key_proj, attention.value_proj)
    )
    mixed, _ = ScaledDotProductAttention(8)(q, k, v)
    return attention.out_proj(mixed.transpose(1, 2).reshape(1, -1, 32))


error = (encoder(x) - attention(x, x, x).context).abs().max().item()
padded = torch.cat([x, torch.zeros(1, 3, 32)], dim=1)
change = (encoder(padded)[:, :6] - encoder(x)).abs().max().item()
order = torch.tensor([3, 0, 5, 1, 4, 2])
moved = (encoder(x)[:, order] - encoder(x[:, order])).abs().max().item()
print(f"against regard {error:.0e}, with padding {change:.2f}, shuffled {moved:.0e}")
