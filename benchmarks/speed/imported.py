"""Time models of the sizes that people import: regard against `generate` of transformers, in turn.

    python -m benchmarks.speed.imported --device cuda --out FILE

Marian and NLLB translate by beam search, GPT-2 and a Llama of a billion weights write greedily.
All weights are random, and each output is forced to the same number of tokens. On a GPU `generate`
runs twice: with its dynamic cache, and with a static one, for which it compiles the model. On the
CPU `ctranslate2` takes part too. Libraries that are missing are left out;
a folder with transformers may be named by PYTHONPATH.
"""

import argparse
import functools
import gc
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Record

#: tokens of the sources of Multi30k's test set (words, marks and the end), as 16 quantiles
LENGTHS: Final = (8, 10, 10, 11, 11, 12, 13, 13, 14, 14, 15, 16, 17, 18, 19, 24)
#: tokens of each translation; and of each text, after a prompt
TRANSLATED, WRITTEN, PROMPT = 16, 128, 8
FIRST_WORD: Final = 4
WARM_UP: Final = 3


class Size(NamedTuple):
    """Sizes of a model, and what its layers are.

    Attributes:
        own: options of regard's preset.
    """

    dim: int
    heads: int
    feed_forward: int
    layers: int
    vocab: int
    own: dict[str, Any]


MARIAN: Final[dict[str, Any]] = {
    "norm_first": False,
    "activation": "silu",
    "positions": "sinusoidal-halves",
    "tied": "all",
}
NLLB: Final[dict[str, Any]] = {"positions": "sinusoidal-fairseq", "tied": "all"}
GPT2: Final[dict[str, Any]] = {
    "positions": "learned",
    "activation": "gelu-tanh",
    "embed_scale": 1.0,
    "tied": "output",
}
LLAMA: Final[dict[str, Any]] = {
    "positions": "rotary",
    "rotary_base": 500000.0,
    "norm": "rms",
    "bias": False,
    "activation": "silu",
    "gated": True,
    "kv_heads": 8,
    "embed_scale": 1.0,
    "tied": "output",
}
MODELS: Final = {
    "marian": Size(512, 8, 2048, 6, 58101, MARIAN),
    "nllb": Size(1024, 16, 4096, 12, 256206, NLLB),
    "gpt2": Size(768, 12, 3072, 12, 50257, GPT2),
    "llama": Size(2048, 32, 8192, 16, 128256, LLAMA),
}
TRANSLATES: Final = ("marian", "nllb")
BATCHES: Final = {"marian": (1, 32, 256), "nllb": (1, 32, 256), "gpt2": (1, 32), "llama": (1, 32)}


class Cell(NamedTuple):
    """One model in one setting."""

    model: str
    batch: int
    device: str
    precision: str
    threads: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights."""
        return {"32": torch.float32, "bf16": torch.bfloat16}[self.precision]

    @property
    def beam(self) -> int:
        """Width of the search."""
        return 5 if self.model in TRANSLATES else 1

    def rows(self) -> list[list[int]]:
        """Return the sources, or the prompts."""
        draw, size = random.Random(1), MODELS[self.model]
        lengths = LENGTHS if self.model in TRANSLATES else (PROMPT,)
        return [
            [draw.randrange(FIRST_WORD, size.vocab) for _ in range(lengths[i % len(lengths)])]
            for i in range(self.batch)
        ]


def regard(cell: Cell) -> tuple[Any, Callable[[], Any]]:
    """Return regard's model and its search."""
    from regard.decoding import DecodingOptions, decode
    from regard.decoding.graphs import DecodingGraphs
    from regard.models import PRESETS
    from regard.models.cpu import CpuModel, refuse_cpu_model

    size, rows = MODELS[cell.model], cell.rows()
    preset = "transformer" if cell.model in TRANSLATES else "lm-transformer"
    sizes = size._asdict()
    own = {name: sizes[name] for name in ("dim", "heads", "feed_forward", "layers")} | size.own
    with torch.device(cell.device):
        model = PRESETS[preset](size.vocab, size.vocab, **own).to(cell.dtype).eval()
    searched: Any = model
    if cell.device == "cpu" and refuse_cpu_model(model) is None:
        searched = CpuModel(model)
    graphs = DecodingGraphs(model) if cell.device == "cuda" else None
    if cell.model in TRANSLATES:
        options = DecodingOptions(beam=cell.beam, min_len=TRANSLATED, max_len=TRANSLATED)
    else:
        most = PROMPT + WRITTEN
        options = DecodingOptions(beam=1, min_len=most, max_len=most, prefix=rows)
        rows = [[2]] * cell.batch
    src, lengths = padded(rows, cell.device)

    def search() -> list[Any]:
        found = decode(searched, src, lengths, options, graphs=graphs)
        return [hypotheses[0].tokens for hypotheses in found]

    return model, search


def transformers(cell: Cell, *, static: bool = False) -> tuple[Any, Callable[[], Any]]:
    """Return the model of transformers, and its search."""
    import transformers as library

    library.logging.set_verbosity_error()
    size = MODELS[cell.model]
    config = CONFIGS[cell.model](library, size)
    config._attn_implementation = "sdpa"
    kind = library.AutoModelForCausalLM
    if cell.model in TRANSLATES:
        kind = library.AutoModelForSeq2SeqLM
    with torch.device(cell.device):
        model = kind.from_config(config).to(cell.dtype).eval()
    ids, lengths = padded(cell.rows(), cell.device)
    mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
    # an end follows the tokens of both
    count = (TRANSLATED if cell.model in TRANSLATES else WRITTEN) + 1
    settings = {"num_beams": cell.beam, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2}
    if static:
        settings["cache_implementation"] = "static"

    def search() -> list[Any]:
        found = model.generate(
            input_ids=ids,
            attention_mask=mask,
            min_new_tokens=count - 1,
            max_new_tokens=count,
            forced_eos_token_id=2,
            **settings,
        )
        outputs: list[Any] = found[:, -count:-1].tolist()
        return outputs

    return model, search


def ctranslate2(cell: Cell) -> tuple[Any, Callable[[], Any]]:
    """Return CTranslate2's search with random weights for a model of the same shape."""
    from ctranslate2.specs.common_spec import Activation

    from benchmarks.peers.ctranslate2 import translator

    size = MODELS[cell.model]
    words = list(map(str, range(size.vocab)))
    activation = Activation.SWISH if cell.model == "marian" else Activation.RELU
    own = {"pre_norm": size.own.get("norm_first", True), "activation": activation}
    engine = translator(size, words, words, "32", cell.threads, **own)
    batch = [[str(i) for i in row] for row in cell.rows()]
    # one more, in the place of the end that the others score
    limits = dict.fromkeys(("min_decoding_length", "max_decoding_length"), TRANSLATED + 1)

    def search() -> list[Any]:
        found = engine.translate_batch(batch, beam_size=cell.beam, **limits)
        return [result.hypotheses[0][:-1] for result in found]

    return None, search


def _translation(library: Any, size: Size, kind: str, **own: Any) -> Any:
    sides: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": size.layers, f"{side}_attention_heads": size.heads}
        sides |= {f"{side}_ffn_dim": size.feed_forward}
    symbols = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return getattr(library, kind)(
        vocab_size=size.vocab, d_model=size.dim, max_position_embeddings=512, scale_embedding=True,
        **sides, **symbols, **own,
    )  # fmt: skip


def _gpt2(library: Any, size: Size) -> Any:
    return library.GPT2Config(
        vocab_size=size.vocab, n_embd=size.dim, n_head=size.heads, n_layer=size.layers
    )


def _llama(library: Any, size: Size) -> Any:
    return library.LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.dim,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.own["kv_heads"],
        tie_word_embeddings=True,
    )


CONFIGS: Final[dict[str, Callable[[Any, Size], Any]]] = {
    "marian": functools.partial(_translation, kind="MarianConfig", activation_function="swish"),
    "nllb": functools.partial(_translation, kind="M2M100Config"),
    "gpt2": _gpt2,
    "llama": _llama,
}

ENGINES: Final[dict[str, Callable[[Cell], tuple[Any, Callable[[], Any]]]]] = {
    "regard": regard,
    "generate": transformers,
    "generate static": functools.partial(transformers, static=True),
    "ctranslate2": ctranslate2,
}


def padded(rows: list[list[int]], device: str) -> tuple[Tensor, Tensor]:
    """Return rows with pad after the shorter ones, and their lengths."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    return ids, torch.tensor([len(row) for row in rows], device=device)


def engines(cell: Cell, peers: list[str]) -> list[str]:
    """Return the engines that run a cell."""
    found = ["regard"]
    if "transformers" in peers:
        found += ["generate", *(["generate static"] if cell.device == "cuda" else [])]
    if "ctranslate2" in peers and cell.device == "cpu" and cell.model in TRANSLATES:
        found.append("ctranslate2")
    return found


def measured(cell: Cell, names: list[str], rounds: int) -> list[Record]:
    """Return the record of each engine."""
    records: dict[str, Record] = {name: {**cell._asdict(), "engine": name} for name in names}
    searches: dict[str, Callable[[], Any]] = {}
    models = []
    for name in names:
        try:
            model, search = ENGINES[name](cell)
            models.append(model)
            warm = [harness.timed(search) for _ in range(WARM_UP)]
            searches[name] = search
            records[name]["warm_up_s"] = sum(each["seconds"] for each in warm)
            counts = sorted({len(row) for row in warm[-1]["value"]})
            records[name]["tokens"] = counts
        except Exception as error:
            records[name]["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]:.200}"
    timed = harness.in_turn(searches, rounds)
    for name, rounds_of in timed.items():
        seconds = harness.median(rounds_of, "seconds")
        records[name] |= {"seconds": seconds, "rows_per_s": cell.batch / seconds}
    del models, searches
    gc.collect()
    if cell.device == "cuda":
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    return list(records.values())


def speed(args: argparse.Namespace) -> Iterator[list[Record]]:
    """Yield the records of each cell."""
    torch.set_num_threads(args.threads)
    for model in args.models:
        for batch in args.batches or BATCHES[model]:
            cell = Cell(model, batch, args.device, args.precision, args.threads)
            yield measured(cell, engines(cell, args.peers), args.rounds)


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--threads", type=int, default=2, help="of the CPU")
    add("--models", type=harness.names, default=list(MODELS), help="with commas between them")
    add("--batches", type=harness.numbers, default=[], help="those of each model by default")
    add("--precision", choices=["32", "bf16"], help="bf16 on a GPU by default, 32 on the CPU")
    add("--peers", type=harness.names, help="transformers, ctranslate2; those installed by default")
    add("--rounds", type=int, default=5, help="in which each engine has its turn")
    add("--budget", type=float, default=330.0, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    installed = [p for p in ("transformers", "ctranslate2") if importlib.util.find_spec(p)]
    args.peers = installed if args.peers is None else args.peers
    for peer in set(args.peers) - set(installed):
        parser.error(f"--peers must name installed libraries, but {peer} is not on PYTHONPATH.")
    if args.precision is None:
        args.precision = "bf16" if args.device == "cuda" else "32"
    return args


def main() -> None:
    args = parse()
    versions = harness.versions(args.device) | {p: metadata.version(p) for p in args.peers}
    result = harness.provenance(**versions, threads=args.threads)
    result |= {"settings": {"translated": TRANSLATED, "written": WRITTEN, "prompt": PROMPT}}
    if not args.peers:
        print("transformers is not installed: regard runs alone.", file=sys.stderr)
    sys.exit(not harness.collect(result, speed(args), args.out, budget=args.budget))


if __name__ == "__main__":
    main()
