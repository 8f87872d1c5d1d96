"""The same targets on a GPU."""

from dataclasses import replace

import pytest
import torch

from decoding.test_presets import batch, fitting_prefix, model_of
from models.cases import VARIANTS
from regard.decoding import DecodingOptions, decode, force_decode
from regard.models import PRESETS
from regard.ops import use_backend

pytestmark = pytest.mark.gpu

OPTIONS = {
    "greedy": DecodingOptions(beam=1, max_len=8, no_repeat_ngram=3),
    "beam": DecodingOptions(beam=4, nbest=3, max_len=8, min_len=2),
    "prefix": DecodingOptions(beam=3, max_len=8, prefix=[[5], [], *[[7, 8]] * 30]),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_targets_are_those_of_the_cpu(variant, options):
    model, (src, lengths) = model_of(variant), batch()
    wish = OPTIONS[options]
    if wish.prefix:
        wish = replace(wish, prefix=fitting_prefix(model, src, lengths, wish.prefix))
    there = decode(model, src, lengths, wish, need_weights=True)
    here = decode(model.cuda(), src.cuda(), lengths.cuda(), wish, need_weights=True)
    for cpu, gpu in zip(there, here, strict=True):
        assert [h.tokens for h in cpu] == [h.tokens for h in gpu]
        for one, other in zip(cpu, gpu, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-8)
            for layer, same in zip(
                one.attention.get("cross", ()), other.attention.get("cross", ()), strict=True
            ):
                assert same.device.type == "cpu"
                torch.testing.assert_close(layer, same, atol=1e-6, rtol=0)
    targets = [row[0].tokens for row in here]
    forced = force_decode(model, src.cuda(), lengths.cuda(), targets, wish)
    assert [h.score for h in forced] == pytest.approx([row[0].score for row in here], abs=1e-8)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("preset", ["transformer", "bahdanau", "conv"])
def test_steps_are_the_forward_pass_by_fused_kernels_and_by_the_definition(preset, precision):
    # as many keys as fused kernels have been wrong for, and more; and rows of every length
    torch.manual_seed(3)
    model = PRESETS[preset](50, 60, "tiny", dropout=0.0).cuda().eval()
    lengths = torch.tensor([33, 1, 17, 32, 65, 64, 2, 8], device="cuda")
    src, tgt = (torch.randint(4, 50, (8, n), device="cuda") for n in (65, 70))
    auto = torch.autocast("cuda", precision, enabled=precision != torch.float32)
    with torch.no_grad(), auto:
        whole = model(src, lengths, tgt).logits.float()
        state, steps = model.start(model.encode(src, lengths)), []
        for t in range(tgt.shape[1]):
            logits, state, _ = model.step(tgt[:, t], state)
            steps.append(logits.float())
        with use_backend("reference"):
            right = model(src, lengths, tgt).logits.float()
    near = 1e-4 if precision == torch.float32 else 0.1 * right.abs().max().item()
    torch.testing.assert_close(whole, right, atol=near, rtol=0)
    torch.testing.assert_close(torch.stack(steps, dim=1), right, atol=near, rtol=0)


def test_samples_are_drawn_there():
    model, (src, lengths) = model_of("bahdanau").cuda(), batch()
    options = DecodingOptions(num_samples=3, seed=1, max_len=6, top_k=5, top_p=0.9)
    once, again = (decode(model, src.cuda(), lengths.cuda(), options) for _ in range(2))
    assert once == again
