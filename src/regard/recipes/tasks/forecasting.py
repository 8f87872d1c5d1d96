"""Long-horizon forecasting: the transformer temperatures, the exchange rates and the illness data.

Numbers are standardised by the training rows, and errors are means over all windows, steps and
series, as in Zhou et al. (2021), https://arxiv.org/abs/2012.07436, and the papers after it. The
first 20 months of the transformer temperatures are used, 12 for training and 4 each for dev and
test; of the other sets 70, 10 and 20%. Published figures of the illness data leave out the test
windows of the last batch of 32 if it is not full.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np

from regard.api import Model
from regard.data import read_lines
from regard.data.series import read_series
from regard.data.series_windows import SeriesWindows
from regard.errors import ArgumentError
from regard.recipes.paper_metrics import MetricValue
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, TaskScores, find_file
from regard.tasks.inputs.series import split_rows
from regard.tasks.outputs.forecast import ForecastOutput, window_scores

TABLE: Final = "series.csv"
SHARES: Final = (0.7, 0.1, 0.2)


class PublicSeries(NamedTuple):
    """A public table.

    Attributes:
        folder: of the dataset.
        file: its name there.
        split: training, dev and test rows, or shares.
        columns: names of the columns if the file has none.
        full_batches: windows of a batch, if windows of an incomplete last one do not count.
    """

    folder: str
    file: str
    split: tuple[float, float, float] = SHARES
    columns: tuple[str, ...] = ()
    full_batches: int = 1


SETS: Final[dict[str, PublicSeries]] = {
    "ett-h1": PublicSeries("ett", "ETTh1.csv", (8640, 2880, 2880)),
    "ett-m1": PublicSeries("ettm1", "ETTm1.csv", (34560, 11520, 11520)),
    "exchange": PublicSeries(
        "exchange_rate", "exchange_rate.txt", columns=tuple(f"rate {i}" for i in range(1, 9))
    ),
    "illness": PublicSeries("illness", "national_illness.csv", full_batches=32),
}


def prepare(
    folder: Path,
    *,
    series: Literal["ett-h1", "ett-m1", "exchange", "illness"],
    horizon: int,
) -> TaskData:
    """Read a table; an example is the number of the row at which a forecast begins."""
    if series not in SETS:
        raise ArgumentError("series", f"be one of {', '.join(SETS)}", repr(series), "choose one")
    public = SETS[series]
    lines = list(read_lines(find_file(folder, public.folder, public.file)))
    header = [",".join(public.columns)] if public.columns else lines[:1]
    rows = lines if public.columns else lines[1:]
    ends = split_rows(public.split, len(rows), public.file)
    sets = {"dev": _windows(ends.train, ends.dev, horizon)}
    test = _windows(ends.dev, ends.test, horizon)
    sets["test"] = test[: len(test) // public.full_batches * public.full_batches]
    train = [RecipeExample("", (line,)) for line in (*header, *rows)]
    settings = {"horizon": horizon, "split": list(public.split)}
    return TaskData(train, sets, settings, table=TABLE)


def _windows(first: int, end: int, horizon: int) -> list[RecipeExample]:
    return [RecipeExample(str(row), (TABLE,)) for row in range(first, end - horizon + 1)]


def evaluate(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Return the errors of a model on windows, beside those of the baselines."""
    output = cast(ForecastOutput, model.task.output)
    options, scaler = output.options, output.input.encoder
    table = read_series(str(model.config.data), time=options.time, gaps=options.gaps)
    values = scaler.encode(table.select(scaler.columns, "copy it again").values)
    starts = np.array([int(example.src) for example in examples]) - options.rows_read
    windows = SeriesWindows(
        [values], look_back=options.rows_read, horizon=options.horizon, targets=scaler.targets
    ).at(starts)
    sums = window_scores(output, model.trained, windows, model.device)
    metrics = []
    for name, found in sums.items():
        own = name == model.config.preset
        for score, value in found.scores().items():
            if value == value and (own or score == "mse"):
                label = score if own else f"{score} of {name}"
                higher = score == "coverage"
                signature = f"{score}|standardised|windows:{len(windows)}|steps:{options.horizon}"
                metrics.append(MetricValue(label, value, signature, higher))
    return TaskScores(metrics, [])


TASK: Final = RecipeTask(prepare, evaluate)
