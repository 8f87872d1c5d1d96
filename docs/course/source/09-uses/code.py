# %% inputs
import torch

from regard.attention import MultiHeadAttention
from regard.models import PatchInput, VectorInput

torch.manual_seed(0)
attention = MultiHeadAttention(32, num_heads=4)
sequences = {
    "9 words": torch.nn.Embedding(100, 32)(torch.randint(100, (1, 9))),
    "a picture of 28 x 28": PatchInput(1, 7, 32)(torch.rand(1, 1, 28, 28)),
    "50 frames of sound": VectorInput(80, 32)(torch.randn(1, 50, 80)),
}
for name, x in sequences.items():
    shape = list(attention(x, x, x).weights.shape)
    print(f"{name:21} -> {x.shape[1]:2} vectors -> weights {shape}")

# %% align
import regard

out = regard.load("g2p")("photograph")
(weights,) = out.maps["cross"][0]
for phoneme, row in zip(out.tokens, weights, strict=False):
    print(phoneme, "<-", out.src_tokens[int(row.argmax())], f"{row.max():.2f}")
out.save("photograph.svg")
