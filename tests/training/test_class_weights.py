"""Class weights: labels that count more or less in the loss."""

import math

import pytest
import torch
import torch.nn.functional as F

import regard
from api.test_tables import SMALL
from regard.errors import ArgumentError
from regard.training import RunFolder
from regard.training.losses import cross_entropy, definition, rdrop_loss

#: nothing in these texts tells the labels apart, of which one is rare
TEXTS = [f"{a}{b}" for a in "abcdefghijklmno" for b in "pqrstuvwxyz"]
LABELS = ["rare" if i % 8 == 0 else "common" for i in range(len(TEXTS))]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_weighted_losses_and_gradients(smoothing):
    torch.manual_seed(0)
    logits, gold = torch.randn(7, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)[gold]
    plain, own = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    each = F.cross_entropy(plain, gold, reduction="none", label_smoothing=smoothing)
    right = (each * weights).sum()
    # the backward pass writes into the logits that it is given
    found = cross_entropy(own * 1, gold, smoothing, weights)
    assert found.item() == pytest.approx(right.item())
    found.backward()
    right.backward()
    torch.testing.assert_close(own.grad, plain.grad)
    both = torch.randn(14, 5, dtype=torch.float64)
    expected = definition(both[:7], both[7:], gold, smoothing, 0.7, weights)
    assert rdrop_loss(both.clone(), gold, smoothing, 0.7, weights).item() == pytest.approx(
        expected.item()
    )


def test_weights_of_no_labels_are_refused():
    with pytest.raises(ArgumentError, match="class_weights must name labels of the data, "):
        regard.fit(TEXTS, LABELS, class_weights={"odd": 2}, **SMALL)
    with pytest.raises(ArgumentError, match="class_weights must be left out unless targets are"):
        regard.fit(list(zip(TEXTS, TEXTS, strict=True)), "bahdanau", class_weights="balanced")


def test_the_loss_of_dev_is_that_of_the_labels_alone(tmp_path):
    (tmp_path / "dev.tsv").write_text(
        "".join(f"{t}\t{y}\n" for t, y in zip(TEXTS, LABELS, strict=True))
    )
    settings = {**SMALL, "dev": tmp_path / "dev.tsv", "output": tmp_path / "run"}
    model = regard.fit(TEXTS, LABELS, **settings)
    (*_, last) = RunFolder(tmp_path / "run").read_metrics()
    given = model.traces(TEXTS, LABELS)
    terms = [trace.target.tokens[0].prob for trace in given]
    assert {label for t in given for label, _ in t.target.tokens[0].alternatives} == set(LABELS)
    assert last["dev_loss"] == pytest.approx(-sum(map(math.log, terms)) / len(terms), rel=1e-4)
