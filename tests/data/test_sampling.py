from regard.data.pairs import draw_sample
from regard.data.tokenizers import choose_label_tokenizer


def test_a_sample_is_drawn_from_all_and_is_the_same_each_time():
    items = list(range(10_007))
    sample = draw_sample(iter(items), 1009)
    assert sample == draw_sample(iter(items), 1009)
    assert len(set(sample)) == 1009
    # by hand: 1009 draws have 101 in each tenth, with a standard deviation below 10
    assert all(50 < sum(i // 1001 == tenth for i in sample) < 152 for tenth in range(10))


def test_targets_sorted_by_label_are_labels():
    """The first 10,000 are one label, which would be none."""
    choice = choose_label_tokenizer(["good"] * 11_000 + ["bad"] * 11_000)
    assert choice is not None
    assert choice.kind == "label"
