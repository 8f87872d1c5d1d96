"""What of each family was compared with transformers, as a table.

PYTHONPATH=tests python -m imported.table             # write docs/results/imported.md anew
PYTHONPATH=tests python -m imported.table gpt2 t5     # print the rows of some families
"""

import sys
import tempfile
from pathlib import Path

import torch

from imported import test_export, test_logits, zoo
from imported.search import generated, own_answers
from imported.test_search import BEAMS, EXACT
from imported.tuning import tune
from regard.training.run_folder import RunFolder, load_imported

PAGE = Path(__file__).parents[2] / "docs" / "results" / "imported.md"
BEGIN, END = "<!-- imported -->", "<!-- /imported -->"
HEAD = ("family", "class", "logits and maps", "greedy", "beam 4", "dev loss", "resume", "exported")
SOURCES, TOKENS = 200, 20
CHECKS = {
    zoo.LANGUAGE: test_logits.test_language_models,
    zoo.ENCODERS: test_logits.test_encoders,
    zoo.PICTURES: test_logits.test_encoders_of_pictures,
    zoo.SEQ2SEQ: test_logits.test_encoder_decoders,
    zoo.SOUNDS: test_logits.test_readers_of_recordings,
}


def row(family, home):
    """Return the cells of a family; raises AssertionError if logits, maps or an export differ."""
    (home / "exact").mkdir()
    (home / "single").mkdir()
    theirs = zoo.save(family, home / "exact")
    folder = RunFolder(home / "exact").imported
    models = theirs, load_imported(folder), folder
    check = next(check for families, check in CHECKS.items() if family in families)
    check(lambda _: models, family)
    searches = ["-", "-"]
    if family not in zoo.ENCODERS + zoo.PICTURES:
        texts = (zoo.recordings if family in zoo.SOUNDS else zoo.sentences)(SOURCES)
        told = {"new": TOKENS}
        own, other = EXACT if family in zoo.LANGUAGE else BEAMS[0]
        for i, (ours, beams) in enumerate((({"beam": 1}, {}), ({"beam": 4, **own}, other))):
            found = own_answers(family, *models[1:], texts, **ours, **told)
            beams = {"num_beams": ours["beam"], **beams}
            expected = generated(family, theirs, folder, texts, **beams, **told)
            equal = sum(map(list.__eq__, found, expected))
            searches[i] = f"{equal} of {SOURCES}"
    single = zoo.save(family, home / "single", dtype=torch.float32)
    losses, exact = tune(family, home / "single", home)
    test_export.test_what_was_imported_is_written_back(
        lambda *_: (home / "single", single), family, home
    )
    fallen = f"{losses[0]:.2f} → {losses[-1]:.2f}"
    kind = zoo.ZOO[family][0]
    return family, kind, "equal", *searches, fallen, "exact" if exact else "differs", "equal"


def table(families):
    lines = [HEAD, ("---",) * len(HEAD)]
    for family in families:
        with tempfile.TemporaryDirectory() as home:
            lines.append(row(family, Path(home)))
        print(*lines[-1], sep=" | ", flush=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main():
    if sys.argv[1:]:
        table(sys.argv[1:])
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(zoo.ZOO)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
