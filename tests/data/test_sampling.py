from regard.data.sampling import draw_sample
from regard.data.tokenizer_selection import choose_label_tokenizer, choose_tokenizer


def test_a_sample_is_drawn_from_all_and_is_the_same_each_time():
    items = list(range(10_007))
    sample = draw_sample(iter(items), 1009)
    assert sample == draw_sample(iter(items), 1009)
    assert len(set(sample)) == 1009
    # by hand: 1009 draws have 101 in each tenth, with a standard deviation below 10
    assert all(50 < sum(i // 1001 == tenth for i in sample) < 152 for tenth in range(10))


def test_fewer_items_are_returned_as_they_are():
    assert draw_sample("abc", 5) == ["a", "b", "c"]


def test_targets_sorted_by_label_are_labels():
    """The first 10,000 are one label, which would be none."""
    choice = choose_label_tokenizer(["good"] * 11_000 + ["bad"] * 11_000)
    assert choice is not None
    assert choice.kind == "label"


def test_a_file_that_begins_with_words_is_judged_by_its_sentences_too():
    sentences = [
        f"the {i} cats sat on the {i % 31} mats and saw the {i % 17} dogs" for i in range(40_000)
    ]
    assert choose_tokenizer(["a" * (i % 7 + 1) for i in range(10_000)] + sentences).kind != "char"
