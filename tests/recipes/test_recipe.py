"""Recipes as files: those of the repository, and broken ones."""

from pathlib import Path

import pytest

from regard.errors import ArgumentError, DataError
from regard.models import TEXT_PRESETS
from regard.recipes import Recipe, find, load_saved, read
from regard.training import make_config
from regard.training.config import check_model
from regard.training.defaults import Facts, fill_settings

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "recipes").glob("*.toml"))


@pytest.mark.sample(12)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_of_the_repository_is_whole(path):
    recipe = read(path)
    assert path.read_text().startswith("# ")
    for row in recipe.published:
        assert {"system", "by", "figures"} <= row.keys() <= {"system", "by", "figures", "note"}
    if recipe.members:
        assert not recipe.settings
    else:
        config = make_config(recipe.settings)
        check_model(config)
        # of one GPU; that which is learned on a CPU in ten minutes has time for a slower one
        assert config.minutes <= (20 if path.stem == "sst2-vectors" else 10)
        assert (config.data, config.dev) == ("", None)
        # no figure depends on defaults that follow the data
        reads_pairs = config.preset not in TEXT_PRESETS
        facts = Facts(examples=300, tokens=5.0, on_gpu=False, has_sources=reads_pairs)
        assert fill_settings(config, facts) == config
        assert (config.batch_sentences is None) == (config.batch_tokens is not None)
    for member in (*recipe.members, *recipe.teacher):
        assert (ROOT / "recipes" / f"{member.split(':')[0]}.toml").exists()


def made(folder, text):
    path = folder / "made.toml"
    path.write_text(text)
    return path


def test_what_is_given_replaces_what_is_written(tmp_path):
    text = 'hidden = 8\nlr = 0.1\n[recipe]\ntask = "multi30k"\ntgt = "de"\ndecoding = {beam = 3}\n'
    recipe = read(made(tmp_path, text)).changed(
        {"hidden": 16, "seed": 7, "recipe.tgt": "fr", "recipe.decoding.length_penalty": 1}
    )
    assert recipe.settings == {"hidden": 16, "lr": 0.1, "seed": 7}
    assert recipe.options == {"tgt": "fr"}
    assert recipe.decoding == {"beam": 3, "length_penalty": 1}
    assert recipe.seed == 7


def test_a_recipe_that_is_kept_comes_back(tmp_path):
    row = {"system": "x", "by": "y", "figures": {"wer": 1.5}}
    recipe = Recipe(
        "a", "cmudict", {"dev_words": 3}, {"lr": 0.1}, members=("b:1",), published=(row,)
    )
    recipe.write(tmp_path)
    assert load_saved(tmp_path) == recipe
    assert load_saved(tmp_path / "elsewhere") is None
    (tmp_path / "recipe.json").write_text('{"name": "a"}')
    with pytest.raises(DataError, match=r"recipe\.json: this is not a recipe"):
        load_saved(tmp_path)


def test_recipes_that_come_with_regard_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = find("recipes/cmudict-bahdanau")
    assert path is not None
    assert read(path).task == "cmudict"
    assert find("recipes/cmudict-bahdanau.toml") == path
    assert find("cmudict-bahdanau") is None  # might be a file of pairs that is missing
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "cmudict-bahdanau").write_text("a\tb\n")
    assert find("recipes/cmudict-bahdanau") is None  # data that lie here


BROKEN = {
    "no task": ("[recipe]", ["task must be one of cmudict", "None"]),
    "wrong task": ('[recipe]\ntask = "cmudct"', ["'cmudct'", "'cmudict' is meant"]),
    "wrong option": ('[recipe]\ntask = "tatoeba"\npat = "mini"', ["recipe.pat", "'part' is meant"]),
    "wrong value": ('[recipe]\ntask = "tatoeba"\npart = "big"', ["recipe.part", "'mini'", "'big'"]),
    "missing option": ('[recipe]\ntask = "multi30k"', ["recipe.tgt", "missing"]),
    "no table": ("recipe = 3", ["recipe must be a table", "3"]),
    "members": ('[recipe]\ntask = "cmudict"\nmembers = 3', ["recipe.members", "list"]),
    "data": ('data = "x.tsv"\n[recipe]\ntask = "cmudict"', ["data", "left out", "--data-dir"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_recipe_is_told_in_one_sentence(tmp_path, case):
    text, words = BROKEN[case]
    with pytest.raises(ArgumentError) as caught:
        read(made(tmp_path, text))
    for word in words:
        assert word in str(caught.value)
