"""Numbers by the graph of this folder: `echo text | python predict.py`, or `predict.py series.csv`.

A line is a source, and its answer is a number. Where sources are vectors, a line is the name of a
.npy file, or a table as JSON has it. Where the model forecasts, the file is a CSV file with a
header, and the answer is the next rows as CSV.

It needs numpy and onnxruntime; and `tokenizers`, if manifest.json says so.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

try:
    import numpy as np
    import onnxruntime
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"predict.py needs {missing.name}, which is not installed: pip install {missing.name}")

if __package__:
    from regard.data import text_codec
else:  # a copy in an exported folder
    import text_codec  # type: ignore[import-not-found,no-redef]

BATCH = 32


class ExportedNumbers:
    """The model of a folder.

    Args:
        folder: that `regard export --to onnx` wrote.
        threads: of the graph; all cores if 0.
    """

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        folder = Path(folder)
        manifest = text_codec.read_manifest(folder, "model.onnx")
        self.names, self.levels = manifest["numbers"]["names"], manifest["numbers"]["levels"]
        self.limits = manifest["limits"]
        self.forecasts = manifest["tokenizers"]["source"]["kind"] == "series"
        self.source = text_codec.source_codec(folder, manifest)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        self.graph = onnxruntime.InferenceSession(
            folder / "model.onnx", settings, providers=["CPUExecutionProvider"]
        )

    def __call__(self, sources: list[Any]) -> np.ndarray:
        """Return the numbers of sources, (sources, steps, targets, estimates).

        The first estimate is the number itself, and the others are the quantiles.
        """
        return self.run([self.source.encode(source) for source in sources])

    def run(self, rows: list[Any]) -> np.ndarray:
        """Return the numbers of encoded sources, computed as one batch."""
        lengths = np.array([len(row) for row in rows], np.int64)
        most = self.limits["positions"]
        if most is not None and max(map(self.source.positions, lengths.tolist())) > most:
            raise ValueError(
                f"a source must have at most {most} tokens, for which the model has positions, but "
                f"one has more: split it."
            )
        like = np.asarray(rows[0])
        src = np.zeros((len(rows), lengths.max(), *like.shape[1:]), self.source.dtype)
        for i, row in enumerate(rows):
            src[i, : len(row)] = row
        given = {"src": src, "lengths": lengths}
        wanted = {port.name for port in self.graph.get_inputs()}
        inputs = {name: value for name, value in given.items() if name in wanted}
        return np.asarray(self.graph.run(["numbers"], inputs)[0])


def predict_lines(
    model: ExportedNumbers, sources: Iterator[str], target: IO[str], batch: int
) -> None:
    """Write the number of each line."""
    while lines := list(islice(sources, batch)):
        target.writelines(f"{number:.6g}\n" for number in model(lines)[:, 0, 0, 0])
        target.flush()


def predict_rows(model: ExportedNumbers, lines: list[str], target: IO[str]) -> None:
    """Write the rows after those of a CSV file: their number from 1, forecasts and quantiles."""
    (found,) = model([lines])
    writer = csv.writer(target, lineterminator="\n")
    own = [[name, *(f"{name}_{level:g}" for level in model.levels)] for name in model.names]
    writer.writerow(["step", *(column for group in own for column in group)])
    for step, row in enumerate(found, start=1):
        writer.writerow([step, *(f"{number:.8g}" for number in row.ravel())])


def main() -> None:
    """Predict numbers for each line of a file, or the rows after those of a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", default="-", help="sources; stdin if -")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"sources at a time; {BATCH}")
    parser.add_argument("--threads", type=int, default=0, help="all cores if 0")
    given = parser.parse_args()
    model = ExportedNumbers(Path(__file__).parent, given.threads)
    if given.batch < 1:
        raise ValueError(f"batch must be at least 1, but it is {given.batch}")
    lines = text_codec.opened_lines(given.file)
    if model.forecasts:
        predict_rows(model, list(lines), sys.stdout)
    else:
        predict_lines(model, lines, sys.stdout, given.batch)


if __name__ == "__main__":
    text_codec.run_program("predict.py", main)
