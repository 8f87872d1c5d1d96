# %% spread
import torch

import regard
from regard import ops

torch.manual_seed(0)
norms = {}
for width in (4, 64, 1024):
    query, key = torch.randn(1, 1, 500, width), torch.randn(1, 1, 64, width)
    for name, scale in (("none", 1.0), ("1/sqrt(d)", width**-0.5)):
        weights = ops.dot_product_attention(query, key, key, scale=scale, need_weights=True).weights
        p = weights[0, 0]
        jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        norms[width, name] = jacobian.flatten(1).norm(dim=-1).median().item()
        largest = p.max(dim=-1).values.mean()
        print(f"d = {width:4}, scale {name:9}: largest weight {largest:.2f},"
              f" median Jacobian {norms[width, name]:.4f}")  # fmt: skip

# %% map
query, key = torch.randn(6, 1024), torch.randn(8, 1024)
for stem, scale in (("plain", 1.0), ("scaled", 1024**-0.5)):
    rows = (query @ key.T * scale).softmax(-1)
    regard.show(rows, [f"k{i}" for i in range(1, 9)], [f"q{i}" for i in range(1, 7)]).save(
        f"{stem}.svg"
    )

# %% variance
products = torch.randn(20000, 64) * torch.randn(20000, 64)
print(f"variance of one product: {products.var():.2f}")
print(f"variance of a sum of 64: {products.sum(-1).var():.1f}")
