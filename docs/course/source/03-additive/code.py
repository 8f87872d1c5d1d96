# %% example
import torch

key = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9], [1.0, 1.1, 1.2]])
value = torch.tensor([[1.0, 1.1, 1.2], [1.3, 1.4, 1.5], [1.6, 1.7, 1.8], [1.9, 2.0, 2.1]])
query = key[0]

scores = torch.stack([torch.tanh(query + k).sum() for k in key])  # W = U = identity, v = ones
weights = scores.exp() / scores.exp().sum()
context = sum(weight * v for weight, v in zip(weights, value, strict=True))
print("scores ", scores.numpy().round(4))
print("weights", weights.numpy().round(4), "sum", round(weights.sum().item(), 4))
print("context", context.numpy().round(4))

# %% regard
from regard import ops

found = ops.additive_attention(query[None, None], key[None], torch.ones(3), value[None],
                               need_weights=True)  # fmt: skip
assert torch.allclose(found.weights[0, 0, 0], weights)
assert torch.allclose(found.context[0, 0], context)

# %% document
printed = {
    "scores": [0.14, 0.35, 0.56, 0.77],
    "scaled scores": [0.08, 0.20, 0.32, 0.44],
    "weights": [0.15, 0.22, 0.31, 0.32],
    "context": [1.61, 1.72, 1.83],
}
dots = key @ query
scaled = dots / 3**0.5
right = {"scores": dots, "scaled scores": scaled, "weights": scaled.softmax(0)}
right["context"] = right["weights"] @ value
for stage, numbers in right.items():
    print(f"{stage:13} printed {printed[stage]}, right {numbers.numpy().round(4)}")

# %% own-softmax
own = torch.tensor(printed["scaled scores"]).softmax(0)
print("softmax of the printed scaled scores:", own.numpy().round(4))
print("sum under the printed weights:", (torch.tensor(printed["weights"]) @ value).numpy().round(4))

# %% map
import regard

out = regard.load("g2p")("attention")
out.save("attention.svg")
print(out.text)

# %% saturate
large = torch.stack([torch.tanh(query + 100 * k).sum() for k in key])
print("weights for keys 100 times as long:", large.softmax(0).numpy().round(4))

# %% love
for name in ("translate-en-fr", "translate-en-zh"):
    out = regard.load(name)("I love machine learning.")
    first = out.maps["cross"][0][0][0]
    row = ", ".join(f"{s.strip('▁')} {w:.2f}" for s, w in zip(out.src_tokens, first, strict=True))
    print(f"{out.text}  {out.tokens[0]} <- {row}")
out.save("love.svg", words=False)

# %% help
out = regard.load("translate-en-de")("Can you help me?")
helfen, help = out.tokens.index("▁helfen"), out.src_tokens.index("▁help")
rows = out.maps["cross"][0][0]
print(f"{out.text}  helfen <- help {rows[helfen][help]:.2f}, Kannst <- help {rows[0][help]:.2f}")
out.save("help.svg", words=False)
