"""Imported models against those of transformers: logits and maps, on odd, padded batches."""

import pytest
import torch

from float64_mode import KeepFloat64
from imported.zoo import (
    ENCODERS,
    LANGUAGE,
    PICTURES,
    SEQ2SEQ,
    SOUNDS,
    ZOO,
    pictures,
    pixels,
    recordings,
    sentences,
    spectra,
)
from regard.data import pad

EXACT = {"rtol": 0, "atol": 1e-9}


def check(found, expected, real):
    """Compare rows where `real` is True."""
    torch.testing.assert_close(found[real], expected[real], **EXACT)


def check_maps(found, expected, real):
    assert len(found) == len(expected)
    for own, theirs in zip(found, expected, strict=True):
        rows = real[:, None].expand(own.shape[:3])
        check(own, theirs, rows)


def columns(folder):
    """Our ids that are tokens of the model, and theirs."""
    pairs = [(i, number) for i, number in enumerate(folder.vocabulary.ids) if number >= 0]
    assert sorted(number for _, number in pairs) == list(range(folder.count))
    return [list(ids) for ids in zip(*pairs, strict=True)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", LANGUAGE)
def test_language_models(imported, family):
    theirs, saved, folder = imported(family)
    ours, their_ids = columns(folder)
    texts = sentences(5)
    tgt, lengths = pad([[1, *saved.text_target.encode(text)] for text in texts])
    real = torch.arange(tgt.shape[1]) < lengths[:, None]
    given = torch.tensor(folder.vocabulary.rows)[tgt]
    skipped = 0 if ZOO[family][2] else 1  # without a token of its own before a text
    with KeepFloat64(), torch.no_grad():
        expected = theirs(
            given[:, skipped:], attention_mask=real[:, skipped:].long(), output_attentions=True
        )
        alone = theirs(given[:, :1])
    read = folder.tokenizer(texts[0])["input_ids"]
    assert given[0, skipped : lengths[0]].tolist() == read
    src = torch.full((len(texts), 1), 2)
    with torch.no_grad():
        out = saved.model(src, None, tgt, need_weights=True)
    rest = real[:, skipped:]
    check(out.logits[:, skipped:, ours], expected.logits[..., their_ids], rest)
    check(out.logits[:, :1, ours], alone.logits[..., their_ids], real[:, :1])
    assert (out.logits.softmax(-1)[..., [i for i in range(4) if i not in ours]] == 0).all()
    maps = [weights[:, :, skipped:, skipped:] for weights in out.maps["decoder-self"]]
    check_maps(maps, expected.attentions, rest)
    assert all((m.sum(-1) - 1).abs().max() < 1e-9 for m in out.maps["decoder-self"])
    state = saved.model.start(saved.model.encode(src, None))
    for place, tokens in enumerate(tgt.unbind(dim=1)):
        step = saved.model.step(tokens, state, need_weights=True)
        state = step.state
        check(step.logits, out.logits[:, place], real[:, place])
        for one, whole in zip(step.maps["decoder-self"], out.maps["decoder-self"], strict=True):
            check(one[:, :, 0], whole[:, :, place, : place + 1], real[:, place])


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders(imported, family):
    theirs, saved, folder = imported(family)
    texts = sentences(5)
    given = folder.tokenizer(texts, padding=True, return_tensors="pt")
    base = getattr(theirs, theirs.base_model_prefix, theirs)
    with torch.no_grad():
        expected = base(
            given.input_ids, attention_mask=given.attention_mask, output_attentions=True
        )
        memory = saved.model.encode(
            *saved.task.input.batch(saved.task.input.rows(texts)), need_weights=True
        )
    real = given.attention_mask.bool()
    check(memory.output, expected.last_hidden_state, real)
    check_maps(memory.maps["encoder-self"], expected.attentions, real)


@pytest.mark.parametrize("family", PICTURES)
def test_encoders_of_pictures(imported, family):
    theirs, saved, _ = imported(family)
    found = pictures(5)
    src, lengths = saved.task.input.batch(saved.task.input.rows(found))
    with KeepFloat64(), torch.no_grad():
        expected = theirs.vit(pixels(found), output_attentions=True)
        memory = saved.model.encode(src.double(), lengths, need_weights=True)
    real = torch.ones(5, 10, dtype=torch.bool)
    check(memory.output, expected.last_hidden_state, real)
    check_maps(memory.maps["encoder-self"], expected.attentions, real)


@pytest.mark.parametrize("family", SOUNDS)
def test_readers_of_recordings(imported, family):
    theirs, saved, folder = imported(family)
    ours, their_ids = columns(folder)
    src, lengths = saved.task.input.batch(saved.task.input.rows(recordings(5)))
    torch.testing.assert_close(src.mT, spectra(recordings(5)), rtol=0, atol=1e-5)
    src = src.double()
    tgt, tgt_lengths = pad([[1, *saved.text_target.encode(text)] for text in sentences(5, seed=8)])
    given = torch.tensor(folder.vocabulary.rows)[tgt]
    with KeepFloat64(), torch.no_grad():
        expected = theirs(src.mT, decoder_input_ids=given, output_attentions=True)
        out = saved.model(src, lengths, tgt, need_weights=True)
    real = torch.arange(tgt.shape[1]) < tgt_lengths[:, None]
    check(out.logits[..., ours], expected.logits[..., their_ids], real)
    check_maps(out.maps["cross"], expected.cross_attentions, real)
    check_maps(out.maps["decoder-self"], expected.decoder_attentions, real)
    everywhere = torch.ones(5, 50, dtype=torch.bool)
    check_maps(out.maps["encoder-self"], expected.encoder_attentions, everywhere)


@pytest.mark.sample(6)
@pytest.mark.parametrize("family", SEQ2SEQ)
def test_encoder_decoders(imported, family):
    theirs, saved, folder = imported(family)
    ours, their_ids = columns(folder)
    texts = sentences(5)
    given = folder.tokenizer(texts, padding=True, return_tensors="pt")
    src, lengths = saved.task.input.batch(saved.task.input.rows(texts))
    tgt, tgt_lengths = pad([[1, *saved.text_target.encode(text)] for text in sentences(5, seed=8)])
    with KeepFloat64(), torch.no_grad():
        expected = theirs(
            given.input_ids,
            attention_mask=given.attention_mask,
            decoder_input_ids=torch.tensor(folder.vocabulary.rows)[tgt],
            output_attentions=True,
        )
        out = saved.model(src, lengths, tgt, need_weights=True)
    real = torch.arange(tgt.shape[1]) < tgt_lengths[:, None]
    check(out.logits[..., ours], expected.logits[..., their_ids], real)
    check_maps(out.maps["cross"], expected.cross_attentions, real)
    check_maps(out.maps["decoder-self"], expected.decoder_attentions, real)
    read = given.attention_mask.bool()
    check_maps(out.maps["encoder-self"], expected.encoder_attentions, read)
