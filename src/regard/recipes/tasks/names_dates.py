"""Small tasks by character: names to other scripts, and written dates to ISO 8601."""

from pathlib import Path
from typing import Final

from regard.recipes.paper_metrics import character_errors, exact, mean_over_groups
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows, split_train

#: files of names by the code of the script's language, which begins a source
SCRIPTS: Final = {"ar": "arabic", "ja": "katakana"}
CHARACTERS: Final = {"src_tokenizer": "char", "tgt_tokenizer": "char"}
SETS: Final = ("train", "dev", "test")


def prepare_names(folder: Path) -> TaskData:
    """Read names in Latin letters, as `ar cuypers`, with their forms in the script.

    A name has several forms in some sets, and some names are in two sets: training leaves out those
    of dev and test, in any script, so that a score tells how new names are written.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {name: {} for name in SETS}
    for code, script in SCRIPTS.items():
        for name, forms in found.items():
            for latin, written, *_ in rows(
                find_file(folder, "translit_wikidata", f"{script}.{name}.tsv"), 2
            ):
                forms.setdefault((code, latin), []).append("".join(written.split()))
    held = {latin for name in SETS[1:] for _, latin in found[name]}
    sets = {
        name: [
            RecipeExample(f"{code} {latin}", tuple(dict.fromkeys(written)), group=code)
            for (code, latin), written in forms.items()
            if name != "train" or latin not in held
        ]
        for name, forms in found.items()
    }
    return split_train(sets, {**CHARACTERS, "metric": "exact"})


def prepare_dates(folder: Path) -> TaskData:
    """Read dates as people write them in eight locales, as `en_US Mar 3, 1998`.

    Training has each of them with and without its locale. `test` has it; `test-bare` does not, so
    that days and months in numbers are ambiguous there.
    """
    written = {
        name: [
            (locale, date, iso)
            for locale, date, iso, *_ in rows(find_file(folder, "dates_babel", f"{name}.tsv"), 3)
        ]
        for name in SETS
    }
    sets = {
        name: [RecipeExample(f"{locale} {date}", (iso,)) for locale, date, iso in lines]
        for name, lines in written.items()
    }
    bare = {name: [RecipeExample(date, (iso,)) for _, date, iso in written[name]] for name in SETS}
    sets["train"] = [*sets["train"], *dict.fromkeys(bare["train"])]
    return split_train({**sets, "test-bare": bare["test"]}, {**CHARACTERS, "metric": "exact"})


NAMES: Final = RecipeTask(
    prepare_names, evaluate_by(mean_over_groups(exact), mean_over_groups(character_errors))
)
DATES: Final = RecipeTask(prepare_dates, evaluate_by(exact))
