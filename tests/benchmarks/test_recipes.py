"""The tables of the recipes are what the results give, and the results are those of the recipes."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(seed, wer, **changes):
    figure = {"value": wer, "signature": "wer|x", "higher_is_better": False, "groups": {}}
    scores = {part: {"figures": {"wer": figure}} for part in ("dev", "test")}
    published = [{"system": "theirs", "by": "them", "figures": {"wer": 9.5}, "note": "older"}]
    training = {"steps": 1234, "minutes": 2.5, "tokens_per_s": 5678.9}
    made = {"recipe": "some", "seed": seed, "settings": {}, "options": {}, "decoding": {}}
    made |= {"published": published, "training": training, "scores": scores, "weights": 4321}
    return made | {"device": "cpu", "commit": "a" * 40, "changed_since": False} | changes


def test_the_pages_are_what_the_results_give(script):
    assert script.render(check_only=True), "run `python benchmarks/recipes.py render`"


def test_the_results_are_those_of_the_recipes_as_they_stand(script):
    for record in script.results():
        for run in record["runs"]:
            script.check(run, script.recipe_of(record["recipe"]), record["recipe"])


def test_a_figure_is_the_mean_over_seeds_with_its_ends(script):
    record = {"recipe": "some", "runs": [result(1, 7.0), result(2, 7.5), result(3, 9.5)]}
    table = script.short_table([record])
    row = "| `some` | WER 8.00 (7.00 to 9.50)% | 3 | WER 9.5%: theirs, them |"
    assert table.splitlines()[-1] == row
    page = script.page([record])
    assert "theirs, them; older" in page
    assert "| `some` | 3 | 4,321 | 1,234 | 2.5 | 5,679 | cpu | aaaaaaaaaaaa |" in page
    assert "WER 7.00%" in script.short_table([{"recipe": "some", "runs": [result(1, 7.0)]}])


def made_run(folder, seed, wer, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result(seed, wer, **changes)))
    return folder


def test_results_are_collected_by_seed_the_later_one_wins(script, tmp_path, monkeypatch):
    recipe = script.Recipe("some", "cmudict", settings={"seed": 5}, published=({"new": 1},))
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "recipe_of", lambda name: recipe)
    script.collect([made_run(tmp_path / "b", 2, 7.0), made_run(tmp_path / "a", 1, 8.0)])
    trials = [{"state": "done", "result": result(2, 6.0, settings={"seed": 2})}]
    trials += [{"state": "failed", "result": None}, {"state": "stopped", "result": {}}]
    (tmp_path / "sweep.json").write_text(json.dumps({"trials": trials}))
    (path,) = script.collect([tmp_path / "sweep.json"])
    runs = json.loads(path.read_text())["runs"]
    assert [(run["seed"], run["scores"]["test"]["figures"]["wer"]["value"]) for run in runs] == [
        (1, 8.0),
        (2, 6.0),
    ]
    assert [run["published"] for run in runs] == [[{"new": 1}]] * 2
    with pytest.raises(SystemExit, match=r"'lr'.* differ from recipes/some\.toml"):
        script.collect([made_run(tmp_path / "d", 2, 6.0, settings={"lr": 0.1})])
    with pytest.raises(SystemExit, match="no score"):
        script.collect([made_run(tmp_path / "e", 2, 6.0, scores={"dev": {}})])


def test_the_table_stands_between_its_markers(script):
    readme = f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n"
    new = script.with_table(readme, "| new |\n")
    assert new == f"before\n{script.BEGIN}\n\n| new |\n\n{script.END}\nafter\n"
    assert script.with_table(new, "| new |\n") == new
    with pytest.raises(SystemExit, match="markers"):
        script.with_table("no markers", "x")
