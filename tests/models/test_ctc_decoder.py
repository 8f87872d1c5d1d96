"""CTC beside a decoder: its loss, the scores of prefixes, and both in a search."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from regard import models
from regard.decoding import DecodingOptions, decode
from regard.models import PRESETS, JointDecoder, VectorInput, with_input
from regard.models.ctc_decoder import PrefixState, ctc_loss, recordable_ctc_loss
from regard.models.protocol import inference
from regard.symbols import BOS, EOS, PAD

VOCAB = 7
PRESET_NAMES = ("bahdanau", "transformer")


def written(path) -> tuple[int, ...]:
    """The target that CTC writes by a path: repetitions merge, and blanks go."""
    return tuple(token for token, _ in itertools.groupby(path) if token != PAD)


def all_targets(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of each target, summed over all paths."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        chance = math.exp(sum(float(log_probs[t, token]) for t, token in enumerate(path)))
        found[written(path)] = found.get(written(path), 0.0) + chance
    return found


@pytest.fixture(scope="module")
def scores():
    torch.manual_seed(0)
    return torch.randn(2, 5, VOCAB, dtype=torch.float64).log_softmax(-1)


TARGETS = [(4, 5), (6, 4, 4)]


@pytest.mark.parametrize("target", TARGETS)
def test_prefixes_have_the_probability_of_all_their_paths(scores, target):
    lengths = torch.tensor([5, 3])
    state = PrefixState.of(scores, lengths)
    every = [all_targets(scores[i, :length]) for i, length in enumerate(lengths.tolist())]
    for done in range(len(target) + 1):
        prefix = target[:done]
        if done:
            state = state.extended(torch.tensor([target[done - 1]] * 2))
        log_probs = state.next_log_probs()
        for row, chances in enumerate(every):
            total = sum(p for t, p in chances.items() if t[:done] == prefix)
            if not total:
                continue
            expected = dict.fromkeys(range(4, VOCAB), 0.0)
            for t, p in chances.items():
                if t[:done] == prefix and len(t) > done and t[done] in expected:
                    expected[t[done]] += p
            expected[EOS] = chances.get(prefix, 0.0)
            for token, chance in expected.items():
                found = math.exp(float(log_probs[row, token])) * total
                assert found == pytest.approx(chance, rel=1e-6, abs=1e-12)


def test_a_target_without_room_costs_nothing(scores):
    targets = torch.tensor([[4, 4, 4, 4], [4, 4, PAD, PAD]])
    found = ctc_loss(scores.float().requires_grad_(), torch.tensor([5, 2]), targets)
    assert found.tolist() == [0.0, 0.0]


def joint(name: str, search_weight: float = 0.3) -> models.EncoderDecoder:
    torch.manual_seed(3)
    model = with_input(PRESETS[name](1, VOCAB, "tiny"), adapter(name))
    decoder = JointDecoder(
        model.decoder,
        memory_size=model.encoder.output_size,
        weight=0.5,
        search_weight=search_weight,
    )
    return models.EncoderDecoder(model.encoder, decoder)


def adapter(name: str) -> VectorInput:
    plain = PRESETS[name](1, VOCAB, "tiny").encoder
    return VectorInput(3, plain.input_size, positions=plain.embedding.positions, stack=2)


@pytest.fixture
def batch():
    torch.manual_seed(5)
    src, lengths = torch.randn(2, 11, 3), torch.tensor([11, 7])
    tgt = torch.tensor([[BOS, 4, 5, 5, 6], [BOS, 6, 4, PAD, PAD]])
    return src, lengths, tgt


def test_the_loss_is_weighted_and_reaches_the_encoder(batch):
    src, lengths, tgt = batch
    model = joint("bahdanau").train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    penalty = model(src, lengths, tgt).penalty
    memory = model.encode(src, lengths)
    expected = 0.5 * ctc_loss(model.decoder.project(memory.output), memory.lengths, tgt[:, 1:])
    torch.testing.assert_close(penalty[:, 0], expected)
    kept = model(src, lengths, tgt, keep=torch.tensor([0, 2, 5])).penalty
    torch.testing.assert_close(kept, torch.stack([expected[0], expected[0] * 0, expected[1]]))
    penalty.sum().backward()
    assert model.encoder.embedding.project.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_one_step_at_a_time_equals_all_at_once(name, batch):
    src, lengths, tgt = batch
    model = joint(name)
    with inference(model):
        whole = model(src, lengths, tgt).logits.log_softmax(-1)
        state = model.start(model.encode(src, lengths))
        for t, tokens in enumerate(tgt.unbind(1)):
            out = model.step(tokens, state)
            state = out.state
            real = tgt[:, t] != PAD
            found = out.logits.log_softmax(-1)
            torch.testing.assert_close(found[real], whole[real, t], rtol=1e-4, atol=1e-4)


def test_a_search_weighs_both(batch):
    src, lengths, _ = batch
    model = joint("bahdanau", search_weight=0.0)
    with inference(model):
        own = model(src, lengths, batch[2]).logits.log_softmax(-1)
        model.decoder.search_weight = 0.25
        both = model(src, lengths, batch[2]).logits
        memory = model.encode(src, lengths)
        state = PrefixState.of(model.decoder.project(memory.output).log_softmax(-1), memory.lengths)
    expected = 0.75 * own[:, 0] + 0.25 * state.next_log_probs().float()
    torch.testing.assert_close(both[:, 0], expected)
    found = decode(model, src, lengths, DecodingOptions(beam=3, max_len=4))
    assert all(len(hypotheses[0].tokens) <= 4 for hypotheses in found)


def test_the_loss_and_its_gradient_are_those_of_torch():
    torch.manual_seed(1)
    lengths = torch.tensor([13, 9, 5, 2])
    targets = torch.tensor([[4, 4, 6, 5, 5], [6, 5, 4, PAD, PAD], [5, PAD, PAD, PAD, PAD]])
    targets = torch.cat([targets, torch.tensor([[4, 4, 5, PAD, PAD]])])  # has no room
    logits = (3 * torch.randn(4, 13, VOCAB, dtype=torch.float64)).requires_grad_()
    found = recordable_ctc_loss(logits.log_softmax(-1), lengths, targets)
    expected = torch.nn.functional.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        targets,
        lengths,
        (targets != PAD).sum(dim=1),
        blank=PAD,
        reduction="none",
        zero_infinity=True,
    )
    torch.testing.assert_close(found, expected)
    weights = torch.tensor([1.0, 2.0, -0.5, 3.0], dtype=torch.float64)
    (own,) = torch.autograd.grad(found @ weights, logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected @ weights, logits)
    torch.testing.assert_close(own, theirs)
    assert not own[3].any()
    assert not own[1, 9:].any()


def test_an_empty_target_is_blanks():
    logits = torch.randn(1, 3, VOCAB, dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(1, 0, dtype=torch.long)
    found = recordable_ctc_loss(logits.log_softmax(-1), torch.tensor([3]), empty)
    torch.testing.assert_close(found, -logits.log_softmax(-1)[..., PAD].sum(dim=1))
    found.sum().backward()
    assert logits.grad.isfinite().all()
