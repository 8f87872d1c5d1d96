# %% check
import regard

model = regard.load("g2p")
trace = model.check("phonology", methods="ablation,attention")
trace.save("phonology.svg")
letters = [f"{letter}{place}" for place, letter in enumerate(trace.source.labels, start=1)]
looked, mattered = trace.derived["attention"], trace.derived["ablation"]
for phoneme, weights, costs in zip(trace.target.labels, looked, mattered, strict=True):
    print(f"{phoneme:4} looked at {letters[weights.argmax()]}, needed {letters[costs.argmax()]}")

# %% faithfulness
for name, found in trace.checks["faithfulness"].items():
    print(f"{name:12} gain {found['gain']:.2f}")

# %% same-output
import torch

from regard import ops

key, value = torch.eye(4)[None, None], torch.ones(1, 1, 4, 3)  # all values are equal
for scale in (0.0, 10.0):
    found = ops.dot_product_attention(key[:, :, :1], key, value, scale=scale, need_weights=True)
    print(found.weights.flatten().numpy().round(2), "->", found.context.flatten().numpy())
