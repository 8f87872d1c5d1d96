"""The engines of benchmarks.speed.decoding, each in a process of its own.

`open` builds a model with random weights and searches some times, `round` times one round, `close`
frees the model and returns the peak of memory. So engines take turns without sharing an allocator,
and regard may be imported from another checkout.
"""

import functools
import gc
import importlib.util
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from benchmarks import harness

VOCAB: Final = 8000
#: tokens of every source and every output, the end not counted
LENGTH: Final = 20
#: ids below are pad, bos, eos and unk, in all engines
FIRST_WORD: Final = 4
#: sources that are searched one after the other, at batch 1
SINGLES: Final = 3
#: Searches of a round go on until so many seconds have passed: after a pause, in which others had
#: their turn, the host's caches are cold.
ROUND_SECONDS: Final = 0.25
#: passes that are not timed: kernels are compiled in the first, and graphs recorded in the second
WARM_UP: Final = 2
#: dim, heads, feed-forward and layers of regard's preset `transformer`, for the other engines
TRANSFORMER: Final = {"small": (256, 4, 1024, 3), "base": (512, 8, 2048, 6)}

#: of CTranslate2
COMPUTE_TYPES: Final = {"32": "float32", "bf16": "bfloat16"}

Ids = list[list[int]]


class Cell(NamedTuple):
    """One model in one setting, which all engines run."""

    preset: str
    size: str
    precision: str
    beam: int
    batch: int


class Engine(Protocol):
    """A model with the sources of a cell.

    Attributes:
        model: a module of torch, or None.
    """

    model: Any

    @property
    def path(self) -> str:
        """The name of what is called."""

    def search(self, batch: int, length: int) -> list[Any]:
        """Return one output of `length` tokens for each source of a batch, without its end."""


def sources(cell: Cell) -> list[Ids]:
    """Return the batches that are searched in turn, the same for all engines."""
    draw = random.Random(1)
    return [
        [[draw.randrange(FIRST_WORD, VOCAB) for _ in range(LENGTH)] for _ in range(cell.batch)]
        for _ in range(SINGLES if cell.batch == 1 else 1)
    ]


def decoding_graphs(model: Any) -> Any | None:
    """Return the recorder of a model's searches, or None if this checkout of regard has none.

    On the CPU it runs the same functions without recording them.
    """
    if importlib.util.find_spec("regard.decoding.graphs") is None:
        return None
    from regard.decoding.graphs import DecodingGraphs

    return DecodingGraphs(model, records=next(model.parameters()).is_cuda)


def prepared(model: Any, device: str) -> Any:
    """Return the model that `Predictor` searches large requests with."""
    if device != "cpu" or importlib.util.find_spec("regard.models.cpu") is None:
        return model
    from regard.models.cpu import CpuModel, refuse_cpu_model

    return model if refuse_cpu_model(model) else CpuModel(model)


class Regard:
    """`decode` of regard as predictions call it, or plain.

    On a GPU searches are replayed from CUDA graphs, on the CPU steps run by compiled kernels, if
    this checkout can.
    """

    def __init__(self, cell: Cell, device: str, threads: int, *, plain: bool = False) -> None:
        import torch

        from regard.decoding import DecodingOptions, decode
        from regard.models import PRESETS

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        model = PRESETS[cell.preset](VOCAB, VOCAB, cell.size)
        self.model = model.to(device, dtype_of(cell.precision)).eval()
        self.searched = self.model if plain else prepared(self.model, device)
        self.graphs = None if plain or device == "cpu" else decoding_graphs(self.model)
        given = {} if self.graphs is None else {"graphs": self.graphs}
        self.decode = functools.partial(decode, **given)
        self.batches = [torch.tensor(ids, device=device) for ids in sources(cell)]
        self.lengths = torch.full((cell.batch,), LENGTH, device=device)
        self.options = functools.partial(DecodingOptions, beam=cell.beam)

    @property
    def path(self) -> str:
        """How many graphs are recorded by now, or how else steps run."""
        compiled = "plain" if self.searched is self.model else "compiled steps"
        return compiled if self.graphs is None else repr(self.graphs)

    def search(self, batch: int, length: int) -> list[Any]:
        """Return the best hypothesis of each source."""
        options = self.options(min_len=length, max_len=length)
        found = self.decode(self.searched, self.batches[batch], self.lengths, options)
        return [hypotheses[0].tokens for hypotheses in found]


class HuggingFace:
    """`generate` of a Marian model of transformers."""

    path = "generate"

    def __init__(self, cell: Cell, device: str, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        transformers.logging.set_verbosity_error()
        dim, heads, feed_forward, layers = TRANSFORMER[cell.size]
        sides = {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (
                ("layers", layers),
                ("attention_heads", heads),
                ("ffn_dim", feed_forward),
            )
        }
        config = transformers.MarianConfig(
            vocab_size=VOCAB,
            decoder_vocab_size=VOCAB,
            d_model=dim,
            **sides,
            activation_function="relu",
            scale_embedding=True,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            max_position_embeddings=128,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            forced_eos_token_id=None,
        )
        model = transformers.MarianMTModel(config)
        self.model = model.to(device, dtype_of(cell.precision)).eval()
        self.beam = cell.beam
        self.batches = [torch.tensor(ids, device=device) for ids in sources(cell)]
        self.mask = torch.ones_like(self.batches[0])

    def search(self, batch: int, length: int) -> list[Any]:
        """Return the best hypothesis of each source."""
        found = self.model.generate(
            input_ids=self.batches[batch],
            attention_mask=self.mask,
            num_beams=self.beam,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
        )
        outputs: list[Any] = found[:, 1:].tolist()
        return outputs


class CTranslate2:
    """`Translator` on the weights of regard's own preset, as `regard export` writes them."""

    path, model = "translate_batch", None

    def __init__(self, cell: Cell, device: str, threads: int) -> None:
        import ctranslate2

        with tempfile.TemporaryDirectory() as folder:
            # in a process of its own: torch would count towards this one's memory
            words = [sys.executable, "-m", "benchmarks.speed.engines", "write", folder]
            words += [cell.preset, cell.size]
            subprocess.run(words, check=True, stdout=sys.stderr)
            self.translator = ctranslate2.Translator(
                folder,
                device=device,
                compute_type=COMPUTE_TYPES[cell.precision],
                inter_threads=1,
                intra_threads=threads,
            )
        self.beam = cell.beam
        self.batches = [[[str(i) for i in row] for row in ids] for ids in sources(cell)]

    def search(self, batch: int, length: int) -> list[Any]:
        """Return the best hypothesis of each source."""
        found = self.translator.translate_batch(
            self.batches[batch],
            beam_size=self.beam,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return [result.hypotheses[0] for result in found]


def write_ctranslate2(folder: Path, preset: str, size: str) -> None:
    """Write regard's random weights as CTranslate2 reads them."""
    from types import SimpleNamespace
    from typing import cast

    import torch

    from regard.export.ctranslate2_model import write_model
    from regard.models import PRESETS
    from regard.training import Saved

    torch.manual_seed(0)
    model = PRESETS[preset](VOCAB, VOCAB, size)
    saved = SimpleNamespace(model=model, sequence_model=model)
    write_model(cast(Saved, saved), folder, folder)


ENGINES: Final[dict[str, Callable[[Cell, str, int], Engine]]] = {
    "regard": Regard,
    "regard plain": functools.partial(Regard, plain=True),
    "before": Regard,
    "hf": HuggingFace,
    "ctranslate2": CTranslate2,
}


def dtype_of(precision: str) -> Any:
    """Return the type of weights and computation."""
    import torch

    return {"32": torch.float32, "bf16": torch.bfloat16}[precision]


class Worker:
    """The methods that a request may name, and the model between two of them."""

    def __init__(self, engine: str, device: str, threads: int) -> None:
        self.build, self.device, self.threads = ENGINES[engine], device, threads
        self.engine: Engine | None = None
        self.batches = 0

    def open(self, cell: list[Any]) -> dict[str, Any]:
        """Build the model of a cell, search some times, and check the length of the outputs."""
        self._free()
        left = {}
        if self.device == "cuda":
            import torch

            left["start_mib"] = torch.cuda.memory_allocated() / 2**20
        began, wanted = time.perf_counter(), Cell(*cell)
        self.engine = self.build(wanted, self.device, self.threads)
        self.batches = len(sources(wanted))
        for _ in range(WARM_UP):
            for batch in range(self.batches):
                _check_lengths(self.engine.search(batch, LENGTH), wanted)
        model = self.engine.model
        weights = None if model is None else sum(part.numel() for part in model.parameters())
        return {
            "path": self.engine.path,
            "weights": weights,
            "warm_up_s": time.perf_counter() - began,
            **left,
        }

    def round(self) -> dict[str, Any]:
        """Time one round: searches in a row, until their outputs are lists on the host."""
        assert self.engine is not None
        began, cpu_began = time.perf_counter(), time.process_time()
        for searches in itertools.count(1):
            self.engine.search(searches % self.batches, LENGTH)
            seconds = time.perf_counter() - began
            if seconds > ROUND_SECONDS:
                break
        cpu_seconds = time.process_time() - cpu_began
        return {"searches": searches, "seconds": seconds, "cpu_seconds": cpu_seconds}

    def close(self) -> dict[str, Any]:
        """Free the model and return the peak of memory since it was opened."""
        if self.device == "cuda":
            import torch

            peak = torch.cuda.max_memory_allocated() / 2**20
        else:
            peak = harness.peak_rss_mb()
        self._free()
        return {"peak_mib": peak}

    def _free(self) -> None:
        self.engine = None
        if self.device == "cuda":
            import torch

            gc.collect()
            torch.cuda.init()
            # those of cuBLAS stay for each stream that was used, and are no part of the next model
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def _check_lengths(outputs: list[Any], cell: Cell) -> None:
    lengths = sorted({len(output) for output in outputs})
    if lengths != [LENGTH] or len(outputs) != cell.batch:
        raise ValueError(
            f"{len(outputs)} outputs of {lengths} tokens, not {cell.batch} of {LENGTH}"
        )


def main() -> None:
    name, *values = sys.argv[1:]
    if name == "write":
        write_ctranslate2(Path(values[0]), *values[1:])
        return
    device, threads = values
    harness.serve(Worker(name, device, int(threads)))


if __name__ == "__main__":
    main()
