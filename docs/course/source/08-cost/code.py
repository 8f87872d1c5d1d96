# %% count
import torch

from regard import ops
from regard.attention import MultiHeadAttention
from regard.lab.experiments.cost import longest_chain, multiply_adds
from regard.layers import RNNStack

torch.manual_seed(0)
width = 64
rnn, attention = RNNStack(width, width, cell="rnn"), MultiHeadAttention(width, num_heads=1)
counted = {}
with ops.use_backend("reference"):
    for n in (32, 64, 128, 256):
        x = torch.randn(1, n, width)
        runs = {
            "RNN": lambda x=x: rnn(x).output,
            "attention": lambda x=x: attention(x, x, x).context,
        }
        for name, run in runs.items():
            counted[name, n] = multiply_adds(run), longest_chain(run())
            print(f"n = {n:3}, {name:9}: {counted[name, n][0]:10,} multiply-adds,"
                  f" chain of {counted[name, n][1]}")  # fmt: skip

# %% formula
n, d = 256, width
assert counted["RNN", n][0] == 2 * n * d * d  # input and recurrent matrix
assert counted["attention", n][0] == 4 * n * d * d + 2 * n * n * d  # projections, then pairs
print("the pairs outweigh the projections from n =", 2 * d)

# %% map
import regard

shares = torch.tensor([[4 * n * d * d, 2 * n * n * d] for n in (32, 64, 128, 256, 512)])
shares = shares / shares.sum(-1, keepdim=True)
regard.show(shares, ["projections", "pairs"], ["n=32", "n=64", "n=128", "n=256", "n=512"]).save(
    "shares.svg"
)
