# %% check
import regard

model = regard.load("g2p")
trace = model.check("phonology", methods="ablation,attention")
trace.save("phonology.svg", title="where each phoneme of 'phonology' looked")
letters, looked, mattered = (
    trace.source.labels,
    trace.derived["attention"],
    trace.derived["ablation"],
)
for i, phoneme in enumerate(trace.target.labels):
    print(
        f"{phoneme:4} looked at {letters[looked[i].argmax()]}, needed {letters[mattered[i].argmax()]}"
    )

# %% faithfulness
gains = {name: found["gain"] for name, found in trace.checks["faithfulness"].items()}
for name, gain in sorted(gains.items(), key=lambda item: -item[1]):
    print(f"{name:12} gain {gain:.2f}")

# %% same-output
import torch

from regard import ops

key = torch.eye(4)[None, None]
value = torch.ones(1, 1, 4, 3)  # all values are equal
for scale in (0.0, 10.0):
    found = ops.dot_product_attention(key[:, :, :1], key, value, scale=scale, need_weights=True)
    print(
        "weights",
        found.weights.flatten().numpy().round(2),
        "context",
        found.context.flatten().numpy(),
    )
