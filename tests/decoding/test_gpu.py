"""The same targets on a GPU, and no step that waits for it."""

from dataclasses import replace

import pytest
import torch

from decoding.test_presets import batch, fitting_prefix, model_of
from models.cases import TOKEN_PRESETS, VARIANTS
from regard.decoding import DecodingOptions, decode, force_decode
from regard.decoding.batch_pruning import BatchPruning
from regard.decoding.search_history import read_hypotheses
from regard.models import COPY_PRESETS, PRESETS
from regard.ops import use_backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

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


VOCAB = 601  # so many that the best are looked for by blocks
LIMITS = {"max_len_ratio": 1.0, "max_len_extra": 2}  # by which rows end at different steps
UNATTENDED = {
    "greedy": DecodingOptions(beam=1, **LIMITS),
    "beam": DecodingOptions(beam=4, nbest=2, **LIMITS),
    "all rules": DecodingOptions(
        **LIMITS,
        beam=3,
        min_len=2,
        length_penalty=0.6,
        coverage_penalty=0.2,
        no_repeat_ngram=2,
        prefix=[[5], [], [7, 8], *[[]] * 29],
        forbid_unknown=True,
    ),
}


class Watched:
    """Makes torch raise, from the first step to the last, where the host waits for the device."""

    def __init__(self, monkeypatch, model):
        own = model.step
        self.steps = 0

        def step(*args, **named):
            torch.cuda.set_sync_debug_mode("error")
            self.steps += 1
            return own(*args, **named)

        def read(*args):
            torch.cuda.set_sync_debug_mode("default")
            return read_hypotheses(*args)

        monkeypatch.setattr(model, "step", step)
        monkeypatch.setattr("regard.decoding.search.read_hypotheses", read)


@pytest.fixture
def quiet_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_gpu(preset):
    torch.manual_seed(3)
    src_vocab = VOCAB if preset in COPY_PRESETS else 17
    model = PRESETS[preset](src_vocab, VOCAB, "tiny", dropout=0.0).cuda().eval()
    return model, [part.cuda() for part in batch()]


@pytest.mark.parametrize("options", UNATTENDED)
@pytest.mark.parametrize("preset", ["bahdanau", "gnmt", "transformer"])
@pytest.mark.usefixtures("quiet_again")
def test_no_step_waits_for_the_device(preset, options, monkeypatch):
    model, source = on_gpu(preset)
    first = decode(model, *source, UNATTENDED[options], need_weights=True)  # compiles kernels
    watched = Watched(monkeypatch, model)
    again = decode(model, *source, UNATTENDED[options], need_weights=True)
    assert watched.steps > 5
    assert again == first


@pytest.mark.parametrize("preset", sorted({*TOKEN_PRESETS} - {"bahdanau", "gnmt", "transformer"}))
@pytest.mark.usefixtures("quiet_again")
def test_nor_does_any_other_model(preset, monkeypatch):
    model, source = on_gpu(preset)
    decode(model, *source, UNATTENDED["beam"], need_weights=True)
    watched = Watched(monkeypatch, model)
    decode(model, *source, UNATTENDED["beam"], need_weights=True)
    assert watched.steps > (1 if preset.startswith("classifier") else 5)


@pytest.mark.usefixtures("quiet_again")
def test_asking_at_once_waits_for_the_device(monkeypatch):
    model, source = on_gpu("bahdanau")
    decode(model, *source, UNATTENDED["beam"])
    monkeypatch.setattr(BatchPruning, "after", lambda self, done: bool(done.any()) and None)
    Watched(monkeypatch, model)
    with pytest.raises(RuntimeError, match="synchroniz"):
        decode(model, *source, UNATTENDED["beam"])


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_late_rows_have_the_same_targets_there(lag, monkeypatch):
    model, (src, lengths) = model_of("bahdanau").cuda(), batch()
    options = DecodingOptions(beam=4, nbest=3, max_len=8)
    found = decode(model, src.cuda(), lengths.cuda(), options)
    monkeypatch.setattr("regard.decoding.search.lag_for", lambda device: lag)
    other = decode(model, src.cuda(), lengths.cuda(), options)
    for row, same in zip(found, other, strict=True):
        assert [h.tokens for h in row] == [h.tokens for h in same]
        assert [h.score for h in row] == pytest.approx([h.score for h in same], abs=1e-9)
