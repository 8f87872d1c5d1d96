"""Output layers and embeddings that share one table."""

import copy

import pytest
import torch
from safetensors.torch import load, save

from models.cases import BATCH, RECURRENT, SIZES, TGT_LEN, TGT_VOCAB, build, pairs
from regard.errors import ArgumentError
from regard.models import PRESETS
from regard.models.embedding import TokenEmbedding

HAVE_IT = [
    *("seq2seq", "bahdanau", "luong", "rnn-dot", "gnmt", "self-attentive", "monotonic"),
    "transformer",
]
every_preset = pytest.mark.parametrize("preset", HAVE_IT)


def shared(preset, tied="all"):
    """A model of one vocabulary for both sides."""
    torch.manual_seed(1)
    sizes = SIZES.get(preset, RECURRENT)
    return PRESETS[preset](TGT_VOCAB, TGT_VOCAB, **sizes, dropout=0.0, tied=tied)


def one_vocabulary():
    src, lengths, tgt = pairs()
    return src % (TGT_VOCAB - 4) + 4, lengths, tgt


def test_logits_are_products_with_the_vectors_of_the_tokens():
    src, lengths, tgt = pairs()
    model = build("transformer", tied="output").double().eval()
    memory = model.encode(src, lengths)
    decoder = model.decoder
    torch.nn.init.normal_(decoder.output.bias)
    out = decoder.decoder(decoder.embedding(tgt), model.start(memory)).output
    table = decoder.embedding.table.weight
    expected = torch.einsum("btd,vd->btv", out, table) + decoder.output.bias
    torch.testing.assert_close(model(src, lengths, tgt).logits, expected, atol=1e-12, rtol=0)


@every_preset
def test_source_and_target_tokens_have_the_same_vectors(preset):
    model = shared(preset)
    assert model.encoder.embedding.table.weight is model.decoder.embedding.table.weight
    before = model(*one_vocabulary()).logits
    assert before.shape == (BATCH, TGT_LEN, TGT_VOCAB)
    before.pow(2).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@every_preset
def test_a_shared_table_survives_being_saved_and_copied(preset):
    model = shared(preset).eval()
    expected = model(*one_vocabulary()).logits
    other = copy.deepcopy(shared(preset)).eval()
    for weight in other.parameters():
        torch.nn.init.constant_(weight, 0.1)
    content = save({name: t.contiguous() for name, t in model.state_dict().items()})
    other.load_state_dict(load(content))
    assert torch.equal(other(*one_vocabulary()).logits, expected)
    assert other.encoder.embedding.table.weight is other.decoder.embedding.table.weight


@pytest.mark.plain
def test_two_vocabularies_cannot_share_a_table():
    with pytest.raises(ArgumentError, match=r"17 source and 13 target.*shared_vocab=true"):
        build("bahdanau", tied="all")
    with pytest.raises(ArgumentError, match="none, output, inputs, all"):
        build("bahdanau", tied="both")


def test_whole_tokens_are_dropped_and_the_others_scaled():
    torch.manual_seed(3)
    embedding = TokenEmbedding(11, 5, word_dropout=0.25)
    tokens = torch.randint(0, 11, (40, 50))
    x, plain = embedding(tokens), embedding.table(tokens)
    dropped = (x == 0).all(dim=2)
    torch.testing.assert_close(x[~dropped], plain[~dropped] / 0.75)
    assert 0.2 < dropped.float().mean() < 0.3
    assert torch.equal(embedding.eval()(tokens), plain)
