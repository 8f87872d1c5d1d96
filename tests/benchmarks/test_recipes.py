"""The tables of the recipes are what the results give, and the results are those of the recipes."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = "NVIDIA H200"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shelf(script, tmp_path, monkeypatch):
    """A folder of results, and a recipe in place of those of the repository."""
    newer = {"system": "newer", "by": "us", "figures": {"wer": 3}}
    recipe = script.Recipe("some", "cmudict", settings={"seed": 5}, published=(newer,))
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "recipe_of", lambda name: recipe)
    return tmp_path


def result(seed, wer, **changes):
    figure = {"value": wer, "signature": "wer|x", "higher_is_better": False, "groups": {}}
    scores = {part: {"figures": {"wer": figure}} for part in ("dev", "test")}
    published = [{"system": "theirs", "by": "them", "figures": {"wer": 9.5}, "note": "older"}]
    training = {"steps": 1234, "minutes": 2.5, "tokens_per_s": 5678.9}
    made = {"recipe": "some", "seed": seed, "settings": {}, "options": {}, "decoding": {}}
    made |= {"task": "cmudict", "command": f"regard train recipes/some seed={seed}"}
    made |= {"published": published, "training": training, "scores": scores, "weights": 4321}
    return made | {"device": GPU, "commit": "a" * 40, "changed_since": False} | changes


def on_cpu(seed, wer, **changes):
    curve = {"metric": "per", "points": [[60.0, 0.2], [120.0, 0.1]]}
    return result(seed, wer, **{"device": "cpu", "cores": 2, "curve": curve, **changes})


def record(*runs):
    return {"recipe": runs[0]["recipe"], "runs": list(runs)}


def test_the_pages_are_what_the_results_give(script):
    assert script.render(check_only=True), "run `python benchmarks/recipes.py render`"


def test_the_results_are_those_of_the_recipes_as_they_stand(script):
    for kept in script.results():
        for run in kept["runs"]:
            script.check(run, script.recipe_of(kept["recipe"]), kept["recipe"])


def test_a_figure_is_the_mean_over_seeds_with_its_ends(script):
    three = record(result(1, 7.0), result(2, 7.5), result(3, 9.5))
    table = script.short_table([three], 5)
    row = "| `some` | WER % | 8.00 | 7.00 to 9.50 | 3 | 9.5: theirs, them |"
    assert table.splitlines()[2] == row
    assert table.endswith("\n4 of 5 recipes have no result yet.\n")
    one = script.short_table([record(result(1, 7.0))], 1)
    assert one.splitlines()[2:] == ["| `some` | WER % | 7.00 | - | 1 | 9.5: theirs, them |"]


def test_the_page_has_others_beside_ours_and_every_run(script):
    several = record(result(1, 7.0), result(2, 7.5, at_once=4, cores=None))
    text = script.page([several], {})
    assert "## English words to phonemes: CMUdict" in text
    assert "| theirs, them |  |  |  | 9.5 | older |" in text
    ours = "7.25 (7.00 to 7.50)"
    assert f"| `some` | 4,321 | 2 | {ours} | {ours} |  |" in text
    start = "| `regard train recipes/some seed=2` | 7.50 | 1,234 | 2.5 | 5,679 | "
    assert f"{start}{GPU} | 4 | aaaaaaaaaaaa |" in text
    assert "`wer\\|x`" in text
    assert "Time to quality" not in text  # no curve in an older result


def test_figures_that_cannot_be_compared_stand_in_tables_of_their_own(script):
    german, french = (
        record(result(1, 7.0, recipe=to, task="multi30k", options={"tgt": to}))
        for to in ("de", "fr")
    )
    text = script.page([german, french], {})
    first = text[text.index("English to German") : text.index("English to French")]
    assert "`de`" in first
    assert "`fr`" not in first


def test_a_figure_that_others_do_not_give_is_left_open(script):
    both = result(1, 7.0)
    both["scores"]["test"]["figures"]["per"] = {"value": 2.0, "signature": "per"}
    row = script.short_table([record(both)], 1).splitlines()[2]
    assert row == "| `some` | WER % / PER % | 7.00 / 2.00 | - | 1 | 9.5 / -: theirs, them |"


def made_run(folder, run):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(run))
    return folder


def test_results_are_collected_by_seed_the_later_one_wins(script, shelf):
    script.collect([made_run(shelf / "b", result(2, 7.0)), made_run(shelf / "a", result(1, 8.0))])
    trials = [{"state": "done", "result": result(2, 6.0, settings={"seed": 2})}]
    trials += [{"state": "failed", "result": None}, {"state": "stopped", "result": {}}]
    (shelf / "sweep.json").write_text(json.dumps({"trials": trials, "at_once": 12}))
    (path,) = script.collect([shelf / "sweep.json"])
    assert path.name == "recipes-some.nvidia-h200.json"
    runs = json.loads(path.read_text())["runs"]
    assert [(run["seed"], run["scores"]["test"]["figures"]["wer"]["value"]) for run in runs] == [
        (1, 8.0),
        (2, 6.0),
    ]
    assert "3: newer, us" in script.short_table(script.results(), 1)
    assert [run.get("at_once") for run in runs] == [None, 3]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (result(2, 6.0, settings={"lr": 0.1}), r"'lr'.* differ from recipes/some\.toml"),
        (result(2, 6.0, settings={"minutes": 60}), "'minutes'"),
        (result(2, 6.0, scores={"dev": {}}), "no score"),
        (on_cpu(2, 6.0, settings={"lr": 0.1}), "'lr'"),
        (on_cpu(2, 6.0, curve={}), "must have a curve"),
        (on_cpu(2, 6.0, curve={}, members=["a:1"], scores={"dev": {}}), "no score"),
        ({"loss": 1}, "must be a result or the log of a sweep"),
        ([], "must be a result or the log of a sweep"),
    ],
)
def test_what_is_no_result_of_the_recipe_is_refused(script, shelf, run, says):
    with pytest.raises(SystemExit, match=says):
        script.collect([made_run(shelf / "d", run)])


def test_an_ensemble_is_taken_wherever_it_has_answered(script, shelf):
    together = on_cpu(1, 6.0, curve={}, members=["a:1", "a:2"], training={})
    (path,) = script.collect([made_run(shelf / "e", together)])
    assert path.name == "recipes-some.2-cpu-cores.json"
    (section,) = script.task_sections(script.results())
    assert "| `some` | 4,321 | 1 | 6.00 | 6.00 |" in section
    assert "threads" not in script.runs_section(script.results())  # nothing was trained


def test_runs_of_a_cpu_stand_in_a_file_and_a_column_of_their_own(script, shelf, monkeypatch):
    goal = script.recipe_quality.Goal("some", "per", (0.15, 0.05))
    monkeypatch.setattr(script.recipe_quality, "GOALS", (goal,))
    slow = on_cpu(1, 50.0, settings={"minutes": 60, "eval_every": 5}, scores={"dev": {}}, at_once=1)
    quick = {"metric": "per", "points": [[6.0, 0.15], [12.0, 0.05]]}
    paths = script.collect(
        [made_run(shelf / "cpu", slow), made_run(shelf / "gpu", result(1, 7.0, curve=quick))]
    )
    assert [path.name for path in paths] == [
        "recipes-some.2-cpu-cores.json",
        "recipes-some.nvidia-h200.json",
    ]
    assert "[60.0, 0.2],\n" in paths[0].read_text()
    records = script.results()
    row = "| `some` | WER % | 7.00 | - | 1 | 3: newer, us |"
    assert script.short_table(records, 1).splitlines()[2] == row
    text = script.page(records, {})
    assert "| `regard train recipes/some seed=1 device=cpu threads=2` |  | 1,234 |" in text
    assert f"| recipe | on dev | {GPU} | 2 CPU cores |" in text
    assert "| `some` | PER 15% | 0.1 | 2.0 |\n|  | PER 5% | 0.2 | - |\n" in text
    assert "|  | between evaluations | 0.1 | 1.0 |\n|  | runs at once |  | 1 |" in text


def test_a_time_on_a_cpu_gives_no_headline(script):
    timed = record(on_cpu(1, 7.0, scores={"dev": {}}))
    assert script.short_table([timed], 2) == "No recipe has been measured yet.\n"
    text = script.page([timed], {})
    assert "2 CPU cores" in text
    assert "Signatures" not in text


def test_what_a_cpu_has_learned_by_the_recipe_is_a_result(script, shelf):
    assert "| `some` | WER % | 7.00 |" in script.short_table([record(on_cpu(1, 7.0))], 2)
    shorter = on_cpu(1, 7.0, settings={"minutes": 1})  # and its test set is scored all the same
    with pytest.raises(SystemExit, match="'minutes'"):
        script.collect([made_run(shelf / "s", shorter)])


@pytest.mark.parametrize(
    ("score", "higher", "seconds"), [(0.3, False, 2.0), (0.1, False, None), (0.5, True, 1.0)]
)
def test_a_score_is_reached_at_the_first_evaluation_that_is_as_good(script, score, higher, seconds):
    curve = [(1.0, 0.5), (2.0, 0.3), (3.0, 0.4), (4.0, 0.2)]
    assert script.recipe_quality.reached(curve, score, higher=higher) == seconds


def test_the_time_to_a_score_says_how_many_seeds_have_reached_it(script):
    goal = script.recipe_quality.Goal("some", "bleu", (30.0,))
    curves = [[[60.0, 31.0]], [[180.0, 30.0]], [[60.0, 29.0]]]
    several = record(
        *(
            result(seed, 7.0, curve={"metric": "bleu", "points": points}, at_once=2 * seed)
            for seed, points in enumerate(curves, start=1)
        )
    )
    rows = script.recipe_quality._rows(goal, [several, None])
    assert rows[0] == ["`some`", "BLEU 30", "2.0 (2 of 3 seeds)", ""]
    assert rows[-1] == ["", "runs at once", "2 to 6", ""]


def test_every_goal_is_one_of_a_recipe_and_gets_harder(script):
    for goal in script.recipe_quality.GOALS:
        assert (ROOT / "recipes" / f"{goal.recipe}.toml").exists()
        assert goal.metric in {"per", "bleu", "perplexity", "exact"}
        up = goal.metric in script.recipe_quality.HIGHER
        assert list(goal.scores) == sorted(goal.scores, reverse=not up)


def trial(changes, wer, **more):
    best = {"metric": "dev_per", "value": 0.25, "step": 7, "epoch": 1, "seconds": 90.0}
    made = {"recipe": "some", "changes": changes, "run": "some-1", "state": "done"}
    tested = result(1, 1.0)["scores"]["test"]
    scores = wer and {"dev": result(1, wer)["scores"]["dev"], "test": tested}
    made |= {"result": wer and result(1, wer, scores=scores), "seconds": 99.0, "error": ""}
    return made | {"best": best} | more


def log(*trials):
    head = {"command": "python sweep.py", "commit": "b" * 40, "changed_since": False}
    return {**head, "seconds": 9.0, "minutes_each": 6.0, "at_once": 4, "trials": list(trials)}


def test_what_was_tried_is_kept_without_test_figures_and_shown_best_first(script, shelf):
    unscored = trial(["c=3"], None, state="stopped")
    failed = trial(["d=4"], None, state="failed", best=None)
    sweep = log(trial(["a=1"], 8.0), unscored, trial([], 7.0), failed)
    (shelf / "sweep.json").write_text(json.dumps(sweep))
    path = script.keep_trials(shelf / "sweep.json", "first")
    assert path == shelf / "sweeps" / "first.json"
    assert "test" not in path.read_text()
    kept = script.recipe_trials.kept(shelf / "sweeps")
    assert kept["first"]["left_out"] == 1
    text = script.page([], kept, "We learned much.\n")
    rows = [line for line in text.splitlines() if line.startswith("| `some`")]
    assert rows == [
        "| `some` | as it stood | 7.00 | 1,234 | 2.5 | first |",
        "| `some` | `a=1` | 8.00 | 1,234 | 2.5 | first |",
        "| `some` | `c=3` | stopped, PER 25.00% | 7 | 1.5 | first |",
    ]
    assert text.index("We learned much.") < text.index(rows[0])
    assert f"| first | {GPU} | 6 | 4 | bbbbbbbbbbbb | 3 | 1 |" in text


def test_trials_of_a_metric_that_rises_are_sorted_downwards(script):
    trials = [
        {"field": "sst", "dev": {"exact": value}, "recipe": "some", "changes": [f"a={value}"]}
        | {"steps": 1, "seconds": 1.0, "sweep": "s"}
        for value in (80.0, 82.0)
    ]
    assert script.recipe_trials._table(trials).splitlines()[2].startswith("| `some` | `a=82.0`")


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        ("{", "x", "must be a file of JSON"),
        ("{}", "x", "has no trials"),
        (json.dumps(log(trial([], None, best=None))), "x", "none has"),
        (json.dumps(log(trial([], 7.0))), "../x", "--name must be small letters"),
    ],
)
def test_what_is_no_log_of_a_sweep_is_refused(script, shelf, content, name, says):
    (shelf / "sweep.json").write_text(content)
    with pytest.raises(SystemExit, match=says):
        script.keep_trials(shelf / "sweep.json", name)
    assert not (shelf / "sweeps").exists()


def test_a_file_that_is_missing_is_named_without_a_traceback(script, monkeypatch):
    monkeypatch.setattr("sys.argv", ["recipes.py", "trials", "no.json", "--name", "x"])
    with pytest.raises(SystemExit, match=r"^no\.json: this must be a file of JSON"):
        script.main()
