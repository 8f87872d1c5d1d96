"""The tables of the recipes are what the results give, and the results are those of the recipes."""

import json

import pytest

from benchmarks.harness import ROOT
from benchmarks.pages import recipes as pages
from benchmarks.quality import recipes as collected
from regard.recipes import Recipe

GPU = "NVIDIA H200"
PUBLISHED = {"system": "theirs", "by": "them", "figures": {"wer": 9.5}, "note": "older"}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of results, and a recipe in place of those of the repository."""
    recipe = Recipe("some", "cmudict", settings={"seed": 5}, published=(PUBLISHED,))
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    for module in (pages, collected):
        monkeypatch.setattr(module, "recipe_of", lambda name: recipe)
    return tmp_path


def result(seed, wer, **changes):
    figure = {"value": wer, "signature": "wer|x", "higher_is_better": False, "groups": {}}
    scores = {part: {"figures": {"wer": figure}} for part in ("dev", "test")}
    training = {"steps": 1234, "minutes": 2.5, "tokens_per_s": 5678.9}
    made = {"recipe": "some", "seed": seed, "settings": {}, "options": {}, "decoding": {}}
    made |= {"task": "cmudict", "command": f"regard train recipes/some seed={seed}"}
    made |= {"training": training, "scores": scores, "weights": 4321}
    return made | {"device": GPU, "commit": "a" * 40, "changed_since": False} | changes


def on_cpu(seed, wer, **changes):
    curve = {"metric": "per", "points": [[60.0, 0.2], [120.0, 0.1]]}
    return result(seed, wer, **{"device": "cpu", "cores": 2, "curve": curve, **changes})


def record(*runs):
    return {"recipe": runs[0]["recipe"], "runs": list(runs), "published": [PUBLISHED]}


def made_run(folder, run):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(run))
    return folder


def collect(shelf, *runs):
    folders = [made_run(shelf / str(i), run) for i, run in enumerate(runs)]
    return collected.collect(folders, shelf)


def test_the_results_are_those_of_the_recipes_as_they_stand():
    for kept in pages.results():
        for run in kept["runs"]:
            collected.check(run, pages.recipe_of(kept["recipe"]), kept["recipe"])


def test_a_figure_is_the_mean_over_seeds_with_its_ends():
    three = record(result(1, 7.0), result(2, 7.5), result(3, 9.5))
    table = pages.overview([three], 5)
    row = "| `some` | WER % | 8.00 | 7.00 to 9.50 | 3 | 9.5: theirs, them |"
    assert table.splitlines()[2] == row
    assert table.endswith("\n4 of 5 recipes have no result yet.\n")
    one = pages.overview([record(result(1, 7.0))], 1)
    assert one.splitlines()[2:] == ["| `some` | WER % | 7.00 | - | 1 | 9.5: theirs, them |"]


def test_others_stand_beside_ours_and_every_run_is_listed():
    several = record(result(1, 7.0), result(2, 7.5, at_once=4, cores=None))
    text = pages.task_sections([several])
    assert text.startswith("## English words to phonemes: CMUdict")
    assert "| theirs, them |  |  |  | 9.5 | older |" in text
    ours = "7.25 (7.00 to 7.50)"
    assert f"| `some` | 4,321 | 2 | {ours} | {ours} |  |" in text
    start = "| `regard train recipes/some seed=2` | 7.50 | 1,234 | 2.5 | 5,679 | "
    assert f"{start}{GPU} | 4 | aaaaaaaaaaaa |" in pages.runs([several])
    assert "`wer\\|x`" in pages.signatures([several])


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (result(2, 6.0, settings={"lr": 0.1}), r"'lr'.* differ from recipes/some\.toml"),
        (result(2, 6.0, settings={"minutes": 60}), "'minutes'"),
        (result(2, 6.0, scores={"dev": {}}), "no score"),
        (on_cpu(2, 6.0, settings={"minutes": 1}), "'minutes'"),
        (on_cpu(2, 6.0, settings={"lr": 0.1}), "'lr'"),
        (on_cpu(2, 6.0, curve={}), "must have a curve"),
        (on_cpu(2, 6.0, curve={}, members=["a:1"], scores={"dev": {}}), "no score"),
        ({"loss": 1}, "must be the result of a recipe's run"),
        ([], "must be the result of a recipe's run"),
    ],
)
def test_what_is_no_result_of_the_recipe_is_refused(shelf, run, says):
    with pytest.raises(SystemExit, match=says):
        collect(shelf, run)


def test_every_goal_is_one_of_a_recipe_and_gets_harder():
    for goal in pages.GOALS:
        assert (ROOT / "recipes" / f"{goal.recipe}.toml").exists()
        up = goal.metric in pages.HIGHER
        assert list(goal.scores) == sorted(goal.scores, reverse=not up)
