# %% layer
import torch

import regard
from regard.layers import SelfAttentiveRNN

torch.manual_seed(0)
words = ["the", "FBI", "is", "chasing", "a", "criminal", "on", "the", "run"]
x = torch.randn(1, len(words), 16)
layer = SelfAttentiveRNN(input_size=16, hidden_size=16, cell="rnn")
out = layer(x, need_weights=True)

# %% by-hand
score = layer.attention.as_score()
c, history = torch.zeros(1, 16), []
for t in range(len(words)):
    h = torch.tanh(layer.input_proj(x[:, t]) + layer.recurrent_proj(c))
    history.append(h)
    H = torch.stack(history, dim=1)  # h_1 ... h_t
    alpha = layer.attention.scores(h[:, None], H).softmax(-1)  # (1, 1, 1, t)
    c = (alpha[0, 0] @ H[0]).reshape(1, 16)
    assert torch.allclose(c, out.context[:, t], atol=1e-6)
print("nine steps by hand, equal to the layer")

# %% map
weights = out.weights[0, 0].detach()
regard.show(weights, words).save("untrained.svg")
even = 1 / 4
print(f"chasing -> FBI: {weights[3, 1]:.2f}, even would be {even:.2f}")

# %% longest
longest = weights[-1, : len(words)]
print(f"weights of the last word: {longest.min():.3f} to {longest.max():.3f}")
