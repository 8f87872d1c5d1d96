"""Answers by the graphs of this folder: `echo text | python decode.py`.

Where sources are vectors, a line is the name of a .npy file, or a table as JSON has it; where they
are pictures, the name of a file; where they are stories, a story and a question with a tab between.
Where the model forecasts, the file is a CSV file with a header, and the answer is the next rows.

It needs numpy and onnxruntime; and what else manifest.json names.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

try:
    import numpy as np
    import onnxruntime
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"decode.py needs {missing.name}, which is not installed: pip install {missing.name}")

if __package__:
    from regard.data import text_codec
    from regard.decoding_options import DecodingOptions
    from regard.export import beam_search as beams
else:  # a copy in an exported folder
    import beam_search as beams  # type: ignore[import-not-found,no-redef]
    import text_codec  # type: ignore[import-not-found,no-redef]
    from decoding_options import DecodingOptions  # type: ignore[import-not-found,no-redef]

BATCH = 32
#: the most tokens of a target
MOST_TOKENS = 100_000
#: batches that are read ahead and sorted by length, so that little is padded
READ_AHEAD = 32


class ExportedGraphs:
    """The graphs of a folder, and its sources.

    Args:
        folder: that `regard export --to onnx` wrote.
        threads: of each call of a graph; all cores if 0.
        names: of the graphs.
    """

    def __init__(self, folder: str | Path, threads: int, *names: str) -> None:
        folder = Path(folder)
        self.manifest = text_codec.read_manifest(folder, *names)
        self.limits = self.manifest["limits"]
        self.source = text_codec.source_codec(folder, self.manifest)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        self.graphs = [
            onnxruntime.InferenceSession(
                folder / name, settings, providers=["CPUExecutionProvider"]
            )
            for name in names
        ]

    def positions(self, rows: list[Any]) -> np.ndarray:
        """Return the number of vectors that the model makes of each source."""
        return np.array([self.source.positions(len(row)) for row in rows])

    def check_positions(self, rows: list[Any]) -> None:
        """Raise for a source that is longer than the positions that the model has learned."""
        most = self.limits["positions"]
        if most is not None and (longest := max(self.positions(rows), default=0)) > most:
            raise ValueError(
                f"a source must have at most {most} tokens, for which the model has positions, but "
                f"one has {longest}: split it."
            )

    def padded(self, rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return sources as one array, and their lengths."""
        lengths = np.array([len(row) for row in rows], np.int64)
        shape = (len(rows), lengths.max(), *np.asarray(rows[0]).shape[1:])
        src = np.full(shape, self.manifest["symbols"]["pad"], self.source.dtype)
        for i, row in enumerate(rows):
            src[i, : len(row)] = row
        return src, lengths


class ExportedNumbers(ExportedGraphs):
    """The model of a folder that predicts numbers, or forecasts."""

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        super().__init__(folder, threads, "model.onnx")
        self.forecasts = self.manifest["tokenizers"]["source"]["kind"] == "series"
        target = (Path(folder) / "tokenizer.tgt.json").read_text(encoding="utf-8")
        self.scale: list[float] = json.loads(target)["scale"]

    def __call__(self, sources: list[Any]) -> np.ndarray:
        """Return the numbers of sources, (sources, steps, targets, estimates).

        The first estimate is the number itself, and the others are the quantiles.
        """
        return self.run([self.source.encode(source) for source in sources])

    def run(self, rows: list[Any]) -> np.ndarray:
        """Return the numbers of encoded sources, computed as one batch."""
        self.check_positions(rows)
        given = dict(zip(("src", "lengths"), self.padded(rows), strict=True))
        inputs = {port.name: given[port.name] for port in self.graphs[0].get_inputs()}
        return np.asarray(self.graphs[0].run(["numbers"], inputs)[0])


class Exported(ExportedGraphs):
    """The model of a folder that writes tokens."""

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        super().__init__(folder, threads, "encoder.onnx", "step.onnx")
        self.symbols = self.manifest["symbols"]
        #: those of the run
        self.options = DecodingOptions(**self.manifest["search"])
        self.target = text_codec.TokenCodec(Path(folder) / "tokenizer.tgt.json", self.manifest)
        self.encoder, self.step = self.graphs
        self.memory_names = [port.name for port in self.encoder.get_outputs()]
        self.step_names = [port.name for port in self.step.get_outputs()]

    def __call__(self, sources: list[Any], batch: int = BATCH, **options: Any) -> list[str]:
        """Return the best target for each text or table of vectors; see `DecodingOptions`."""
        found = self.search([self.source.encode(one) for one in sources], batch, **options)
        return [self.target.decode(several[0].tokens) for several in found]

    def search(
        self, rows: list[Any], batch: int = BATCH, **options: Any
    ) -> list[list[beams.BeamHypothesis]]:
        """Return the hypotheses of each source, best first.

        Args:
            rows: sources, each a list of ids, eos last, or an array (frames, features).
            batch: sources at a time.
            options: those of `DecodingOptions`; the defaults are those of the run.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, but it is {batch}: choose a larger one.")
        chosen = self.search_options(**options)
        self.check_positions(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: list[list[beams.BeamHypothesis]] = [[] for _ in rows]
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            for i, several in zip(part, self._search([rows[i] for i in part], chosen), strict=True):
                found[i] = several
        return found

    def search_options(self, **given: Any) -> DecodingOptions:
        """Return the options of the run with those given, but for those that the output fixes."""
        fixed = self.manifest["fixed"]
        return replace(self.options, **{k: v for k, v in given.items() if k not in fixed})

    def _search(
        self, rows: list[Any], options: DecodingOptions
    ) -> list[list[beams.BeamHypothesis]]:
        """Return the hypotheses of one batch."""
        state = self.first(*self.padded(rows))
        shape = (len(rows), 1)

        def step(
            tokens: np.ndarray, parents: np.ndarray | None
        ) -> tuple[np.ndarray, list[np.ndarray]]:
            nonlocal state, shape
            if parents is not None:
                state = _reordered(state, parents, same_rows=tokens.shape == shape)
                shape = tokens.shape
            log_probs, state, looked = self.next(tokens.ravel(), state)
            return log_probs, looked

        found = beams.beam_search(step, self.target_limits(rows, options), options)
        return [
            [
                replace(one, attention=[layer[..., :length] for layer in one.attention])
                for one in several
            ]
            for several, length in zip(found, self.positions(rows).tolist(), strict=True)
        ]

    def target_limits(self, rows: list[Any], options: DecodingOptions) -> beams.TargetLimits:
        """Return the lengths of the targets, and the tokens that they never have."""
        pad, bos, eos, unk = (self.symbols[name] for name in ("pad", "bos", "eos", "unk"))
        lengths, exact, most = self.positions(rows), None, options.max_len
        alone = self.limits["one_per_source_token"]  # unk has no text: a target would be too short
        never = [pad, bos, unk] if alone or options.forbid_unknown else [pad, bos]
        limits: np.ndarray
        if alone:
            # tokens end with eos, for which nothing is written; tables of numbers do not
            exact = lengths - [isinstance(row, list) and row[-1:] == [eos] for row in rows]
            limits = exact if most is None else np.minimum(exact, most)
        elif most is not None:
            limits = np.full_like(lengths, most)
        else:
            ratio, extra = self.limits["per_source_token"], self.limits["extra"]
            limits = np.floor(ratio * lengths).astype(lengths.dtype) + extra
        if self.limits["positions"] is not None:
            limits = np.minimum(limits, self.limits["positions"] - 1)
        if limits.max(initial=0) > MOST_TOKENS:
            raise ValueError(
                f"max_len must allow at most {MOST_TOKENS:,} tokens of a target, but it allows "
                f"{limits.max():,}: lower it."
            )
        prefix = getattr(self.target.codec, "prefix", [])
        return beams.TargetLimits(limits, exact, never, bos, eos, prefix)

    def first(self, src: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
        """Encode padded sources; returns the memory and the first state, by name."""
        inputs = {"src": src.astype(self.source.dtype), "lengths": lengths.astype(np.int64)}
        found = self.encoder.run(self.memory_names, inputs)
        return dict(zip(self.memory_names, found, strict=True))

    def next(
        self, tokens: np.ndarray, state: dict[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any], list[np.ndarray]]:
        """Run one step; returns log-probabilities, the next state, and attention weights."""
        found = self.step.run(self.step_names, {"tokens": tokens.astype(np.int64), **state})
        after, looked = dict(state), []
        for name, value in zip(self.step_names, found, strict=True):
            role, _, part = name.partition(".")
            if role == "next":
                after[f"state.{part}"] = value
            elif role == "attention":
                looked.append(value)
        return found[self.step_names.index("log_probs")], after, looked


def _reordered(state: dict[str, Any], parents: np.ndarray, *, same_rows: bool) -> dict[str, Any]:
    """Return the state with each beam in the place of its parent.

    Args:
        state: after a step.
        parents: the beam, counted through all rows, that each beam extends.
        same_rows: whether all rows are still there, with as many beams as before: then the memory
            stays as it is, which all beams of a row share.
    """
    if same_rows and parents.shape[1] == 1:  # a single beam is its own parent
        return state
    index = parents.ravel()
    return {
        name: value if same_rows and name.startswith("memory.") else value.take(index, axis=0)
        for name, value in state.items()
    }


def predict_lines(
    model: Exported,
    sources: Iterator[str],
    target: IO[bytes],
    batch: int,
    options: DecodingOptions,
) -> None:
    """Write the target of each line, or a row for each of several.

    Columns of a row are the number of the line, the rank, the score and the text.
    """
    number = 0
    while lines := list(islice(sources, batch * READ_AHEAD if batch > 1 else 1)):
        rows = [model.source.encode(line) for line in lines]
        for several in model.search(rows, batch, **asdict(options)):
            number += 1
            for rank, one in enumerate(several, start=1):
                row = f"{number}\t{rank}\t{one.score:.4f}\t" * (options.nbest > 1)
                target.write(text_codec.one_line(row + model.target.decode(one.tokens)))
        target.flush()


def predict_numbers(
    model: ExportedNumbers, lines: Iterator[str], target: IO[str], batch: int
) -> None:
    """Write the number of each line; or the rows after those of a CSV file, with quantiles."""
    if not model.forecasts:
        while rows := list(islice(lines, batch)):
            for own in model(rows)[:, 0]:
                target.write(f"{text_codec.number_texts(own, model.scale)[0]}\n")
            target.flush()
        return
    (found,), numbers = model([list(lines)]), model.manifest["numbers"]
    writer = csv.writer(target, lineterminator="\n")
    levels = [f"_{level:g}" for level in numbers["levels"]]
    own = [f"{name}{level}" for name in numbers["names"] for level in ("", *levels)]
    writer.writerow(["step", *own])
    for step, row in enumerate(found, start=1):
        writer.writerow([step, *text_codec.number_texts(row, model.scale, 8)])


def main() -> None:
    """Answer each line of a file, or forecast the rows after those of a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", default="-", help="a source on each line; stdin if -")
    parser.add_argument("--beam", type=int, help="beam width; 1 is greedy search")
    parser.add_argument("--nbest", type=int, help="targets per source, at most the beam width")
    parser.add_argument("--length-penalty", type=float, help="above 0 favours longer targets")
    parser.add_argument("--max-len", type=int, help="most tokens of a target")
    parser.add_argument("--batch", type=int, help=f"sources at a time; {BATCH}, or 1 if typed")
    parser.add_argument("--threads", type=int, default=0, help="all cores if 0")
    given = vars(parser.parse_args())
    file, batch, threads = given.pop("file"), given.pop("batch"), given.pop("threads")
    typed = file == "-" and sys.stdin.isatty()
    size = batch if batch is not None else 1 if typed else BATCH
    if size < 1:
        raise ValueError(f"batch must be at least 1, but it is {size}: choose a larger one.")
    own = {name: value for name, value in given.items() if value is not None}
    folder, lines = Path(__file__).parent, text_codec.opened_lines(file)
    if (folder / "model.onnx").exists():
        predict_numbers(ExportedNumbers(folder, threads), lines, sys.stdout, size)
        return
    model = Exported(folder, threads)
    predict_lines(model, lines, sys.stdout.buffer, size, model.search_options(**own))


if __name__ == "__main__":
    text_codec.run_program("decode.py", main)
