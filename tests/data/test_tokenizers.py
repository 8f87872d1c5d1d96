import json
import unicodedata

import pytest

from data.tools import SCRIPTS
from regard.atomic_files import json_checksum
from regard.data import TOKENIZER_KINDS, Tokenizer
from regard.errors import ArgumentError, DataError
from regard.symbols import SYMBOLS, UNK

SENTENCES = [
    'The "old" man (he was 97) said: don\'t go!',
    "A man sees the dog. The dog sees a man...",
    "Where are the men, the women and the dogs ?",
    *SCRIPTS.values(),
]
# code points that this Python knows: for the others, normal forms are not settled


def nfc(text):
    return unicodedata.normalize("NFC", text)


def train(kind, texts=SENTENCES, **options):
    return Tokenizer.train(kind, texts, **options)


@pytest.fixture(scope="module", params=TOKENIZER_KINDS)
def tokenizer(request):
    return train(request.param)


@pytest.mark.sample(20)
@pytest.mark.parametrize("text", SENTENCES)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(UNK < number < tokenizer.vocab_size for number in ids)
    assert tokenizer.decode(ids) == nfc(text)


def test_unknown_characters():
    tokenizer = train("char", ["abc"])
    assert tokenizer.encode("axb") == [4, UNK, 5]
    assert tokenizer.decode([4, UNK, 5]) == "ab"
    assert tokenizer.decode([4, UNK, 5, UNK], unk="?") == "a?b?"
    assert tokenizer.decode([4, UNK, 5, UNK], unk=["x", "yz"]) == "axbyz"
    assert tokenizer.decode([4, UNK, 5, UNK], unk=["x"]) == "axb"


@pytest.mark.parametrize("number", [-1, 7])
def test_ids_of_another_vocabulary(number):
    tokenizer = train("char", ["abc"])
    for call in (tokenizer.decode, tokenizer.tokens):
        with pytest.raises(ArgumentError, match=f"from 0 to 6, .* but it is {number}"):
            call([4, number])


def test_text_cannot_name_special_symbols(tokenizer):
    names = " ".join(SYMBOLS)
    for learner in (tokenizer, train(tokenizer.kind, [names, "".join(SYMBOLS)] * 9)):
        for text in (names, "".join(SYMBOLS), *SYMBOLS):
            assert min(learner.encode(text)) >= UNK


def test_what_the_kinds_make_of_one_text():
    text = 'He said "go!", 23 times'
    expected = {
        "char": [*'He␣said␣"go!",␣23␣times'],
        "space": ["He", "said", '"go!",', "23", "times"],
        "word": ["He", "said", '"', "go", "!", '"', ",", "23", "times"],
        "bpe": ["▁He", "▁said", "▁", '"', "go", "!", '"', ",", "▁", "2", "3", "▁times"],
    }
    for kind, tokens in expected.items():
        tokenizer = train(kind, [text, "go"] * 2)
        assert tokenizer.tokens(tokenizer.encode(text)) == tokens


def test_normal_form_and_case(tokenizer):
    assert tokenizer.encode("e\u0301te\u0301") == tokenizer.encode("été")
    lower = train(tokenizer.kind, case="lower")
    assert lower.encode("THE DOG") == lower.encode("the dog")
    if tokenizer.kind == "label":  # the whole text is one
        assert lower.decode(lower.encode(SENTENCES[1].upper())) == SENTENCES[1].lower()
        assert tokenizer.encode(SENTENCES[1].upper()) != tokenizer.encode(SENTENCES[1])
    else:
        assert lower.decode(lower.encode("A MAN")) == "a man"
        assert tokenizer.encode("THE DOG") != tokenizer.encode("the dog")
    plain = train("char", ["e\u0301é"], nfc=False)
    assert plain.decode(plain.encode("e\u0301é")) == "e\u0301é"


def test_features():
    tokenizer = train("char", ["go"], features=["V", "PST", "V"])
    assert tokenizer.vocab_size == 4 + 2 + 2
    ids = tokenizer.encode("go", ("V", "PST"))
    assert ids == [4, 5, 7, 6]
    assert tokenizer.tokens(ids) == ["g", "o", "[V]", "[PST]"]
    assert tokenizer.decode(ids) == "go"
    assert tokenizer.encode("go", ("N",)) == [4, 5, UNK]
    assert tokenizer.encode_batch(["g", "o"], [("V",), ()]) == [[4, 7], [5]]
    assert tokenizer.encode("V PST") == [UNK] * 5


def test_spans_have_the_text_of_the_tokens(tokenizer):
    for text in SENTENCES:
        tokens, spans = tokenizer.tokens(tokenizer.encode(text)), tokenizer.spans(text)
        for token, (start, end) in zip(tokens, spans, strict=True):
            shown = token.replace("␣", " ").replace("▁", "")
            assert nfc(text[start:end]) == shown


def test_spans_of_text_that_is_not_in_normal_form():
    text = "e\u0301a I\u0307\u0323x"
    tokenizer = train("char", [text], case="lower")
    assert tokenizer.tokens(tokenizer.encode("e\u0301a")) == ["é", "a"]
    assert tokenizer.spans("e\u0301a") == [(0, 2), (2, 3)]
    assert tokenizer.spans("\u1100\u1161\u11a8a") == [(0, 3), (3, 4)]
    assert train("word", [text]).spans(text) == [(0, 3), (4, 8)]


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tok.json")
    again = Tokenizer.load(tmp_path / "tok.json")
    assert again.encode_batch(SENTENCES) == tokenizer.encode_batch(SENTENCES)
    assert (again.kind, again.vocab_size) == (tokenizer.kind, tokenizer.vocab_size)
    assert again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: raw[:-20], "it is not JSON that regard has written"),
        (lambda raw: b"", "it is not JSON that regard has written"),
        (lambda raw: b"[1, 2]", "it is not JSON that regard has written"),
        (lambda raw: b'{"version": 1}', "it is not JSON that regard has written"),
        (lambda raw: b"\xff" + raw, "it is not JSON that regard has written"),
        (lambda raw: raw.replace(b'"T"', b'"U"'), "its checksum is not that of its content"),
    ],
)
def test_damaged_files(tmp_path, damage, reason):
    path = tmp_path / "tok.json"
    train("char").save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        Tokenizer.load(path)
    assert str(caught.value) == (
        f"{path}: {reason}: copy it again from the run that it belongs to, or train that run again."
    )


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match="kind must be one of char, space, word, bpe, unigram"):
        train("chars")
    with pytest.raises(ArgumentError, match=r"vocab_size must be more than 4, .* but it is 4"):
        train("char", vocab_size=4)
    for kind in TOKENIZER_KINDS:
        with pytest.raises(ArgumentError, match="texts must have something in them"):
            train(kind, [])


def test_words_fill_the_room_in_their_order_and_none_comes_twice():
    tokenizer = train("word", ["a cat, a dog"]).grown(["dog", "horse", "cow", "horse", "pig"], 10)
    assert tokenizer.tokens(range(4, 10)) == ["a", "cat", "dog", ",", "horse", "cow"]
    assert tokenizer.encode("a horse and a pig") == [4, 8, UNK, 4, UNK]
    assert tokenizer.decode(tokenizer.encode("a horse, a cow")) == "a horse, a cow"


@pytest.mark.parametrize(
    ("kind", "case", "words", "taken"),
    [
        # what would be cut, or turned into something else, can never be met
        ("word", "keep", ["don't", "e-mail", ". . .", "--", "", "new_york"], ["--", "new_york"]),
        ("word", "lower", ["The", "the", "Straße", "straße"], ["the", "straße"]),
        ("word", "keep", ["e\u0301te\u0301", "\u00e9t\u00e9"], ["\u00e9t\u00e9"]),
        ("space", "keep", ["don't", ". . .", "new\u00a0york", "<unk>", "</s>"], ["don't"]),
        ("space", "upper", ["the", "THE"], ["THE"]),
    ],
)
def test_only_words_that_text_can_name_join_the_vocabulary(kind, case, words, taken):
    tokenizer = train(kind, ["x"], case=case)
    grown = tokenizer.grown(words, 99)
    assert grown.tokens(range(5, grown.vocab_size)) == taken
    for word in taken:
        assert grown.encode(word) == [5 + taken.index(word)]


def rewritten(tmp_path, kind, change):
    """The file of a tokeniser that somebody has changed, and its checksum with it."""
    path = tmp_path / "tok.json"
    train(kind).save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["checksum"]
    change(content)
    path.write_text(json.dumps({**content, "checksum": json_checksum(content)}), encoding="utf-8")
    return path


def with_model(**parts):
    return lambda content: content["model"]["model"].update(parts)


SYMBOLS_ONLY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("char", lambda c: c.pop("kind")),
        ("char", lambda c: c.update(kind=["char"])),
        ("char", lambda c: c.update(kind="chars")),
        ("char", lambda c: c.pop("model")),
        ("char", lambda c: c.update(model="abc")),
        ("char", lambda c: c.update(model=["a", "b", "c", "d", "e"])),
        ("char", lambda c: c["model"].append(5)),
        ("word", lambda c: c["model"].append("\ud800")),
        ("char", lambda c: c.update(nfc="maybe")),
        ("char", lambda c: c.update(case="Title")),
        ("char", lambda c: c.update(features="V")),
        ("char", lambda c: c.update(patterns=["(a+)+$"])),
        ("char", lambda c: c.update(version=[1])),
        ("bpe", lambda c: c.update(kind="unigram")),
        ("bpe", lambda c: c["model"].update(normalizer={"type": "NFD"})),
        ("bpe", lambda c: c["model"].update(pre_tokenizer={"type": "Split", "pattern": "(a+)+"})),
        ("bpe", lambda c: c["model"].pop("model")),
        ("bpe", lambda c: c["model"].update(added_tokens=0)),
        ("bpe", with_model(vocab=SYMBOLS_ONLY)),
        ("bpe", with_model(vocab={**SYMBOLS_ONLY, "a": 2**40}, merges=[])),
        ("bpe", with_model(vocab={**SYMBOLS_ONLY, "a": 5}, merges=[])),
        ("bpe", with_model(merges=[["a"]])),
        ("bpe", with_model(unk_token=None)),
        ("bpe", with_model(byte_fallback=True)),
        ("unigram", with_model(unk_id=99)),
        ("unigram", with_model(vocab=[])),
        ("unigram", with_model(vocab=[*([s, 0.0] for s in SYMBOLS_ONLY), ["a", float("nan")]])),
        ("unigram", with_model(vocab=[*([s, 0.0] for s in SYMBOLS_ONLY), ["", -1.0]])),
    ],
)
def test_files_of_strangers(tmp_path, kind, change):
    with pytest.raises(DataError, match="copy it again from "):
        Tokenizer.load(rewritten(tmp_path, kind, change))


def test_a_label_is_one_token_whatever_it_looks_like():
    labels = ["very  positive", "negative", " negative", "<unk>", "negative"]
    tokenizer = train("label", labels, vocab_size=5, min_count=2)  # limits of open vocabularies
    assert tokenizer.tokens(range(4, tokenizer.vocab_size)) == ["negative", "very positive"]
    assert tokenizer.summary == "label, 2"
    assert tokenizer.encode_batch(["negative ", "very positive"]) == [[4], [5]]
    assert tokenizer.encode("never seen") == tokenizer.encode("<unk>") == [UNK]
    assert tokenizer.encode("  ") == []
    assert tokenizer.decode([5]) == "very positive"
    assert tokenizer.spans("  very positive ") == [(2, 15)]
    assert tokenizer.spans(" ") == []
