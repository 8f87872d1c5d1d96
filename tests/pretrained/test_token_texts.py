"""Labels, spans and words of the tokens of foreign tokenizers."""

import pytest

from pretrained.families import build_tokenizer
from regard.pretrained.token_texts import continuation, encode, labels, written
from regard.seeing import Trace
from regard.seeing.trace.view import groups

pytestmark = pytest.mark.slow  # transformers takes seconds to load

TEXT = "The cat's 👩‍👧 sat.\nOn"


def byte_level(hugging):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(["The cat sat On the mat"] * 5, trainer)
    return hugging.PreTrainedTokenizerFast(
        tokenizer_object=found, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )


def words(text):
    return [group.label for group in groups(Trace(text, text), "source")]


def test_bytes_of_a_character_are_one_word(hugging):
    tokenizer = byte_level(hugging)
    ids, text = encode(tokenizer, TEXT)
    assert text.text == TEXT
    assert words(text) == ["The", "cat's", " ", "👩‍👧", "sat.", "\n", "On"]
    shown = [token.text for token in text.tokens]
    assert shown[:2] == ["The", "▁cat"]
    assert "\n" in shown
    assert all(TEXT[slice(*token.span)].strip() for token in text.tokens if token.word is not None)
    again = written(tokenizer, ids)
    assert again.text == TEXT
    assert [token.text for token in again.tokens] == shown
    assert [token.word for token in again.tokens][:3] == [0, 1, 1]


def test_an_answer_continues_the_words_of_its_prompt(hugging):
    tokenizer = build_tokenizer(hugging)
    prompt = encode(tokenizer, "the cat")
    ids = tokenizer.convert_tokens_to_ids(["s", "▁sat", "</s>"])
    text = written(tokenizer, ids, after=prompt)
    assert text.text == "the cats sat"
    assert continuation(tokenizer, prompt.ids, ids) == "s sat"
    assert words(text) == ["<s>", "the", "cats", "sat", "</s>"]
    assert text.tokens[:3] == prompt.text.tokens
    assert text.tokens[-1].special
    assert written(tokenizer, []).tokens == ()


@pytest.mark.parametrize("raises", [False, True])
def test_ids_that_no_token_has(hugging, raises, monkeypatch):
    tokenizer = build_tokenizer(hugging)

    def limited(call):
        def sentencepiece(ids, **options):
            if 999 in (ids if isinstance(ids, list) else [ids]):
                raise IndexError("piece id is out of range")
            return call(ids, **options)

        return sentencepiece

    for name in ("convert_ids_to_tokens", "decode") if raises else ():
        monkeypatch.setattr(tokenizer, name, limited(getattr(tokenizer, name)))
    assert labels(tokenizer, [999, 2]) == ["<999>", "</s>"]
    text = written(tokenizer, [*tokenizer.convert_tokens_to_ids(["▁the", "▁cat"]), 999])
    assert [token.special for token in text.tokens] == [False, False, True]


@pytest.mark.parametrize("hostile", ["</script>", "\x1b[31m", "\u202e", "مرحبا", "今日", ""])
def test_texts_that_are_hard_to_draw(hugging, hostile):
    tokenizer = byte_level(hugging)
    _, text = encode(tokenizer, f"The {hostile} cat")
    assert "".join(words(text)).replace(" ", "") == f"The{hostile}cat"
