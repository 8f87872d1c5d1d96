from regard.data.tokenizers import choose_label_tokenizer


def test_targets_sorted_by_label_are_labels():
    """The first 10,000 are one label, which would be none."""
    choice = choose_label_tokenizer(["good"] * 11_000 + ["bad"] * 11_000)
    assert choice is not None
    assert choice.kind == "label"
