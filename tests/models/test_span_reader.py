"""A reader that points at spans: its probabilities are those of all spans that read so."""

from pathlib import Path

import pytest
import torch

from regard.decoding import DecodingGraphs, DecodingOptions, decode
from regard.errors import ArgumentError
from regard.models import PRESETS
from regard.models.span_reader import matches, question_tokens, valid_spans

KEYS = Path(__file__).parent / "keys"
VOCAB = 13  # the last two are marks
SENTENCE, QUESTION = VOCAB - 2, VOCAB - 1
EOS = 2


def build(**options):
    torch.manual_seed(1)
    sizes = {"embed": 5, "hidden": 6, "layers": 1, "longest": 3, "dropout": 0.0}
    return PRESETS["span"](VOCAB, VOCAB, **{**sizes, **options})


def passages():
    rows = [
        [4, 5, 4, 6, SENTENCE, 5, 4, QUESTION, 7, 4, EOS],
        [8, 9, QUESTION, 9, EOS, 0, 0, 0, 0, 0, 0],
    ]
    return torch.tensor(rows), torch.tensor([11, 5])


def span_probs(model, src, lengths):
    """The probabilities of all spans as the text that they read."""
    with torch.no_grad():
        state = model.start(model.encode(src, lengths))
    found = []
    for row in range(len(src)):
        texts = {}
        for i in range(src.shape[1]):
            for n in range(3):
                p = float(state.spans[row, i, n])
                if p:
                    text = tuple(src[row, i : i + n + 1].tolist())
                    texts[text] = texts.get(text, 0.0) + p
        found.append(texts)
    return found


def test_spans_lie_in_the_passage_and_have_no_mark():
    src, lengths = passages()
    valid = valid_spans(src, lengths, VOCAB, 3)
    spans = [(i, n + 1) for i, n in valid[0].nonzero().tolist()]
    first = [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]
    assert spans == [
        *first,
        *((5, 1), (5, 2), (6, 1)),
    ]
    assert [(i, n + 1) for i, n in valid[1].nonzero().tolist()] == [(0, 1), (0, 2), (1, 1)]


def test_the_probability_of_a_text_is_that_of_its_spans():
    src, lengths = passages()
    model = build().double().eval()
    for row, texts in enumerate(span_probs(model, src, lengths)):
        assert sum(texts.values()) == pytest.approx(1)
        for text, p in texts.items():
            tgt = torch.tensor([[1, *text]])
            out = model(src[row : row + 1], lengths[row : row + 1], tgt)
            log_probs = out.logits.log_softmax(-1)[0]
            total = sum(log_probs[t, token].item() for t, token in enumerate([*text, EOS]))
            assert total == pytest.approx(torch.tensor(p).log().item(), abs=1e-4)


def test_beam_search_finds_the_likeliest_texts():
    src, lengths = passages()
    model = build().eval()
    options = DecodingOptions(beam=8, nbest=2, length_penalty=0.0)
    found = decode(model, src, lengths, options)
    graphs = DecodingGraphs(model, records=False)
    again = decode(model, src, lengths, options, graphs=graphs)
    right = span_probs(model, src, lengths)
    for hypotheses, others, texts in zip(found, again, right, strict=True):
        best = sorted(texts, key=texts.__getitem__, reverse=True)[:2]
        assert [tuple(h.tokens) for h in hypotheses] == best
        assert [tuple(h.tokens) for h in others] == best


def test_matches_in_the_question():
    src, lengths = passages()
    asked = question_tokens(src, lengths, QUESTION)
    assert asked[0].nonzero().flatten().tolist() == [8, 9]
    tokens = torch.tensor([[5, 7, 4, 9, 4, 7, 4]])
    asked = torch.tensor([[False] * 5 + [True] * 2])
    alone, before, after = matches(tokens, asked)[0].T.tolist()
    assert alone == [0, 1, 1, 0, 1, 1, 1]
    assert before == [0, 0, 1, 0, 0, 0, 1]  # 7 4 stands in both
    assert after == [0, 1, 0, 0, 0, 1, 0]


def test_one_vocabulary_and_its_folded_tokens():
    with pytest.raises(ArgumentError, match="the vocabularies of the preset span must be one"):
        PRESETS["span"](VOCAB, VOCAB + 1)
    with pytest.raises(ArgumentError, match="folded"):
        build(folded=[0, 1])


def test_names_of_weights_are_frozen():
    shapes = [f"{name} {tuple(t.shape)}" for name, t in build().state_dict().items()]
    assert shapes == (KEYS / "span.txt").read_text().splitlines()
