"""Steps of decoders by kernels and by modules."""

import copy
from functools import partial

import torch

from regard import masks
from regard.attention import RelativeBuckets
from regard.layers import LayerOptions, RotaryPositions, TransformerDecoder
from regard.layers.positions import RotaryScaling
from regard.models.language_model import run_decoder
from regard.ops.backend import refuse_step, steps_by_kernels

BASE = LayerOptions(dropout=0.0)
LLAMA = BASE._replace(
    norm="rms", bias=False, gated=True, activation="silu", num_kv_heads=2,
    rotation=RotaryPositions(8, base=500.0, scaling=RotaryScaling(8.0, 1.0, 4.0, 16.0)),
)  # fmt: skip
#: options of the layers, and the width of their memory
CASES = {
    "plain": (BASE, 9),
    "post": (BASE._replace(norm_first=False, activation="gelu"), 24),
    "language": (BASE._replace(activation="gelu-tanh"), None),
    "llama": (LLAMA, None),
    "window": (LLAMA._replace(window=3, head_dim=6, rotation=None, qkv_bias=True), None),
    "buckets": (
        BASE._replace(
            norm="rms", bias=False,
            shared_bias=lambda causal: RelativeBuckets(
                4, buckets=6, max_distance=5, causal=causal
            ),
        ), 24,
    ),
}  # fmt: skip
DIM, HEADS, HIDDEN, STEPS = 32, 4, 50, 5


def compare(case, dtype, device, rows, *, dim=DIM, steps=STEPS):
    """Raises where steps by kernels are further from float64 than those of the modules."""
    torch.manual_seed(3)
    options, memory_size = CASES[case]
    decoder = TransformerDecoder(dim, HEADS, HIDDEN, 2, options, memory_size=memory_size)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    decoder = decoder.to(dtype).eval()
    exact = copy.deepcopy(decoder).double().to(device)
    decoder, seen = decoder.to(device), torch.Generator().manual_seed(5)
    draw = partial(torch.randn, generator=seen)
    states, models = [], (decoder, exact, decoder)
    memory, lengths = draw(rows, 4, memory_size or 1), torch.arange(rows) % 4 + 1
    for model in models:
        like = next(model.parameters())
        own = memory.to(dtype).to(like)
        mask = masks.padding(lengths, 4).to(device)
        started = model.start(own, mask) if memory_size else model.start_without(rows, like)
        states.append(started)
    errors = [[] for _ in models]
    for step in range(steps):
        x = draw(rows, 1, dim).to(dtype).to(device)
        with torch.no_grad():
            with steps_by_kernels():
                assert refuse_step(x) is None
                found = run_decoder(decoder, x, states[0], need_weights=False)
            outs = [found, exact(x.double(), states[1]), decoder(x, states[2])]
        for own, out in zip(errors, outs, strict=True):
            own.append((out.output - outs[1].output).double().square().mean())
        states = [out.state for out in outs]
        if not step % 2:  # hypotheses change places, within their source if there is one
            parents = torch.randint(rows, (rows,), generator=seen).to(device)
            if memory_size:
                parents = torch.arange(rows, device=device) // 2 * 2
            others = [state.reorder_within_sources(parents) for state in states[1:]]
            states = [states[0].follow(parents), *others]
    kernels, _, modules = (torch.stack(own).mean().sqrt() for own in errors)
    assert kernels <= 1.5 * modules + 1e-7, (kernels, modules)
