"""Answers of imported models, greedy and of beam search, against those of `generate`."""

import pytest

from imported.search import generated, own_answers
from imported.zoo import EOS, LANGUAGE, SEQ2SEQ, SOUNDS, recordings, sentences

#: each takes a second
pytestmark = pytest.mark.slow

#: options of beam search as regard and as transformers call them
BEAMS = (
    ({"counted_end": False}, {"forced_eos_token_id": None}),
    ({"early_stopping": "full"}, {"early_stopping": True}),
    ({"early_stopping": "never", "length_penalty": 0.6},) * 2,
    ({"no_repeat_ngram": 2, "min_len": 5}, {"no_repeat_ngram_size": 2, "min_new_tokens": 5}),
)
#: a language model's texts are prompt and answer, so that lengths of answers must not count
SUMS = {"early_stopping": "never", "length_penalty": 0.0}
EXACT = ({**SUMS, "forced_end": True}, {**SUMS, "forced_eos_token_id": EOS})


def check(models, family, count, own, theirs, **both):
    theirs_model, saved, folder = models
    texts = recordings(count) if family in SOUNDS else sentences(count)
    found = own_answers(family, saved, folder, texts, **own, **both)
    told = {"num_beams": own["beam"], **theirs}
    assert found == generated(family, theirs_model, folder, texts, **told, **both)
    assert len({tuple(answer) for answer in found}) > 1
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("family", LANGUAGE + SEQ2SEQ + SOUNDS)
def test_greedy_answers_are_those_of_generate(imported, family):
    check(imported(family), family, 4, {"beam": 1}, {})


@pytest.mark.sample(3)
@pytest.mark.parametrize(("family", "options"), [
    *zip(SEQ2SEQ + SOUNDS, BEAMS * 4, strict=False), *((family, EXACT) for family in LANGUAGE[:2])
])  # fmt: skip
def test_answers_of_beam_search_are_those_of_generate(imported, family, options):
    own, theirs = options
    check(imported(family), family, 4, {"beam": 3, **own}, theirs)


@pytest.mark.long
@pytest.mark.parametrize("family", SEQ2SEQ + SOUNDS)
def test_all_searches_of_200_sources_are_those_of_generate(imported, family):
    models, lengths = imported(family), set()
    check(models, family, 200, {"beam": 1}, {}, new=30)
    for own, theirs in BEAMS:
        found = check(models, family, 200, {"beam": 4, **own}, theirs, new=30)
        lengths |= set(map(len, found))
    assert len(lengths) > 5  # most end before the limit


@pytest.mark.long
@pytest.mark.parametrize("family", LANGUAGE)
def test_all_searches_of_200_prompts_are_those_of_generate(imported, family):
    models = imported(family)
    check(models, family, 200, {"beam": 1}, {}, new=30)
    check(models, family, 200, {"beam": 4, **EXACT[0]}, EXACT[1], new=20)
