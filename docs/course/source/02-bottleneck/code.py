# %% sizes
import torch

from regard.models import PRESETS

torch.manual_seed(0)
readable = {}
for preset in ("seq2seq", "bahdanau"):
    model = PRESETS[preset](src_vocab=30, tgt_vocab=40, size="tiny").eval()
    for length in (5, 50):
        src = torch.randint(4, 30, (1, length))
        state = model.start(model.encode(src, torch.tensor([length])))
        summary = state.rnn.hidden.numel()
        memory = 0 if state.source is None else state.source.values.numel()
        readable[preset, length] = summary + memory
        print(f"{preset:8} {length:2} tokens: {summary + memory:5} numbers for the decoder")

# %% capacity
import math

bits = 50 * math.log2(26)
print(f"50 random tokens out of 26 carry {bits:.0f} bits")
print(f"{readable['seq2seq', 50]} float32 numbers have {32 * readable['seq2seq', 50]} bits")
