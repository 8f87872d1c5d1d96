"""A stranger adds an input and an output: a file or two, and a line among `INPUTS` or `OUTPUTS`."""

import random

import pytest
import torch

from examples import dna, rating
from export.tools import run_readme
from regard import tasks
from regard.evaluation import score
from regard.models import CLASSIFIERS
from regard.models.protocol import inference
from regard.symbols import SYMBOLS
from tasks import life
from tasks.toys import RECURRENT, TOYS, Toy, _tsv

pytestmark = [
    pytest.mark.usefixtures("plain_steps"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


def _read(draw: random.Random) -> tuple[str, str]:
    bases = draw.choices("ACGTN", k=draw.randint(3, 6))
    qualities = "".join(chr(draw.randint(33, 73)) for _ in bases)
    return f"{''.join(bases)} {qualities}", str(1 + bases.count("A"))


SETTINGS = ("preset=classifier-rnn", *RECURRENT)
NEW = {
    "DNA": Toy("dna to label", _tsv("reads", _read), SETTINGS, "ACGTN II5!+"),
    "DNA rated": Toy(
        "dna to rating", _tsv("rated", _read), (*SETTINGS, "ordinal=true"), "ACGTN II5!+"
    ),
    "ratings": Toy(
        "text to rating",
        _tsv("stars", lambda draw: ("good " * (n := draw.randint(1, 5)), f"{n}")),
        (*SETTINGS, "ordinal=true"),
        "good good",
    ),
}


@pytest.fixture(autouse=True)
def _added(monkeypatch):
    monkeypatch.setattr(tasks, "INPUTS", {"dna": dna.DnaInput, **tasks.INPUTS})
    monkeypatch.setattr(tasks, "OUTPUTS", {"rating": rating.RatingOutput, **tasks.OUTPUTS})
    for name, toy in NEW.items():
        monkeypatch.setitem(TOYS, name, toy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "DNA rated" else pytest.mark.long) for name in NEW],
)
def test_every_command_knows_them(name, tmp_path):
    found = life.Life(name, tmp_path).walk(*life.VERBS[:-1])
    assert set(found.values()) == {"yes"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("onnx_registry")
def test_a_graph_and_its_program_read_and_answer_them(tmp_path):
    whole = life.Life("DNA rated", tmp_path)
    assert whole.walk("train", "export") == {"train": "yes", "export": "yes"}
    run_readme(tmp_path / "onnx", blocked=("torch", "regard"))
    assert {file.name for file in (tmp_path / "onnx").glob("*.py")} >= {"dna_codec.py", "decode.py"}


def test_kappa_by_hand():
    # weights are squares: 1 - (0 + 0 + 4) / 3 / expected, of all pairs of a prediction and a target
    found, gold = [1, 2, 3], [1, 2, 5]
    expected = sum((a - b) ** 2 for a in found for b in gold) / 9
    right = 1 - (4 / 3) / expected
    value = score("kappa", list(map(str, found)), list(map(str, gold))).value
    assert value == pytest.approx(right)


def test_ranks_are_by_number():
    labels = ["2", "10", "1"]  # by frequency, as the vocabulary has them
    assert rating._ranks(labels) == [1, 2, 0]
    with pytest.raises(rating.ArgumentError, match="ordinal must be for numbers"):
        rating._ranks(["good", "bad"])


def test_cuts_part_the_probability_in_order():
    classifier = CLASSIFIERS["rnn"](src_vocab=11, classes=1, size="tiny")
    model = rating.OrdinalClassifier(classifier, [1, 2, 0])
    src, tgt = torch.tensor([[5, 7, 2], [4, 2, 0]]), torch.tensor([[1], [1]])
    with inference(model):
        probs = model(src, torch.tensor([3, 2]), tgt).logits[:, 0].exp()
        assert torch.allclose(probs.sum(dim=1), torch.ones(2), atol=1e-5)
        model.first.data += 40.0  # the lowest label, which is the last of the vocabulary
        assert (
            model(src, torch.tensor([3, 2]), tgt).logits[:, 0].argmax(dim=1) == 2 + len(SYMBOLS)
        ).all()
