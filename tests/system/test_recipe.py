"""A recipe from public files to figures: the model must have learned."""

import json
import random

import pytest

from cli.tools import done, regard
from recipes import made

pytestmark = pytest.mark.system

RECIPE = """
preset = "bahdanau"
size = "tiny"
hidden = 64
embed = 32
batch_tokens = 1024
lr = 1e-2
steps = 300
threads = 1
device = "cpu"
report = false

[recipe]
task = "sigmorphon"
part = "low"
"""


def spoken(count, seed):
    """Two languages with one script: in the second, the letters are said the other way round."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        word = "".join(draw.choices("abcdefgh", k=draw.randint(2, 5)))
        rows.append(("fore", word, " ".join(word.upper())))
        rows.append(("back", word, " ".join(word.upper()[::-1])))
    return rows


@pytest.mark.long
def test_one_model_learns_two_languages_and_is_scored_in_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count in (("train", 400), ("dev", 60), ("test", 60)):
        rows = spoken(count, seed=count + len(name))
        made.write(tmp_path, f"data/g2p_sigmorphon2021/low.{name}.tsv.gz", rows)
    (tmp_path / "spoken.toml").write_text(RECIPE)
    done(regard("train", "spoken", "--data-dir", "data", "-q"))
    result = json.loads((tmp_path / "runs" / "recipes" / "spoken-1" / "result.json").read_text())
    for part in ("dev", "test"):
        figure = result["scores"][part]["figures"]["wer"]
        assert figure["groups"].keys() == {"fore", "back"}
        assert figure["value"] < 20
