# %% inputs
import torch

from regard.attention import MultiHeadAttention
from regard.models import VectorInput

torch.manual_seed(0)
attention = MultiHeadAttention(32, num_heads=4)
sequences = {
    "9 words": torch.nn.Embedding(100, 32)(torch.randint(100, (1, 9))),
    "a picture of 28 x 28": torch.nn.Conv2d(1, 32, 7, 7)(torch.rand(1, 1, 28, 28)).flatten(2).mT,
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

# %% dialogue
from regard.data import read_pairs

said = ["I am Ann .", "I am Bob .", "Who am I?", "Ann"]
roles = ["user", "assistant", "user", "assistant"]
messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
(pair,) = read_pairs([{"messages": messages}])
print(pair.src, "->", pair.tgt)

# %% turns
names = ["Ann", "Bob", "Eve", "Tom", "Ida", "Max"]
frame = pair.src.replace("am I?", "").split()  # the first question; the other is its neighbour
words = [*names, *dict.fromkeys(frame), "am I?", "are you?"]
blank = torch.tensor([words.index(word) for word in [*frame, "am I?"]])
places = [frame.index("Ann"), frame.index("Bob")]


def dialogues(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dialogues with other names and either question, and the name that answers."""
    x, both = blank.repeat(number, 1), torch.rand(number, len(names)).argsort(-1)[:, :2]
    asked = torch.randint(2, (number,))
    x[:, places], x[:, -1] = both, x[:, -1] + asked
    return x, both[torch.arange(number), asked]


embed = torch.nn.Embedding(len(words), 32)
spots = torch.nn.Parameter(torch.randn(len(blank), 32))
look = MultiHeadAttention(32, num_heads=1)
optimizer = torch.optim.Adam([*embed.parameters(), spots, *look.parameters()], lr=0.01)
before = after = 0.0
for _ in range(80):
    x, name = dialogues(64)
    states = embed(x) + spots
    weights = look(states[:, -1:], states, states).weights[:, 0, 0]
    right = (weights * (x == name[:, None])).sum(-1)  # to answer is to copy a word of the dialogue
    optimizer.zero_grad()
    (-right.log().mean()).backward()
    optimizer.step()
    before, after = before or right.mean().item(), right.mean().item()
print(f"weight on the name that is asked for: {before:.2f} before training, {after:.2f} after")

# %% turns-map
x = blank.repeat(2, 1)
x[1, -1] += 1
states = embed(x) + spots
rows = look(states[:, -1:], states, states).weights[:, 0, 0].detach()
regard.show(rows, [*frame, "?"], ["am I?", "are you?"]).save("dialogue.svg")
