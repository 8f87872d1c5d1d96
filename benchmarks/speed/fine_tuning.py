"""Time steps of fine-tuning: regard against the trainers of transformers, with and without compile.

    python -m benchmarks.speed.fine_tuning --device cuda --out FILE

A Marian of 6 + 6 layers learns pairs of the lengths of Multi30k, as `regard train --from FOLDER`
and by `Seq2SeqTrainer`; a Llama of a billion weights, in bf16, learns answers to prompts with LoRA,
as `adapter=lora` and by `Trainer` with peft. Weights are random, and made once by transformers; all
engines have the same pairs, the same number of them in a batch, sorted by length, and the same
precision, rate and dropout. Each has a process of its own, so that it alone counts in its memory.
A folder with transformers, peft and accelerate may be named by PYTHONPATH.
"""

import argparse
import itertools
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch

from benchmarks import harness
from benchmarks.harness import Record
from benchmarks.speed.imported import CONFIGS, LENGTHS, MODELS
from benchmarks.speed.training import NEVER, Finished, Stopwatch

SYMBOLS: Final = ("<pad>", "<s>", "</s>", "<unk>")
#: tokens of prompts and of answers, at least and at most
TALK: Final = (60, 140)
#: the rank of the additions, and the peak learning rates
RANK: Final = 16
RATES: Final = {"marian": 1e-4, "llama": 2e-4}
#: sizes that a CPU trains in seconds, to try this
TINY: Final = {
    "marian": {"dim": 32, "heads": 4, "feed_forward": 64, "layers": 2, "vocab": 300},
    "llama": {"dim": 64, "heads": 8, "feed_forward": 64, "layers": 2, "vocab": 300},
}


class Cell(NamedTuple):
    """One model, as one engine trains it.

    Attributes:
        rows: pairs of a batch.
        warm_up: steps that are not timed.
        seconds: of timed steps at most.
    """

    model: str
    engine: str
    rows: int
    device: str
    steps: int
    warm_up: int
    seconds: float

    def watch(self) -> Stopwatch:
        """Return what times its steps."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return Stopwatch(torch.device(self.device), self.steps, self.seconds, self.warm_up)


def write_model(name: str, device: str, folder: Path) -> None:
    """Write a model with random weights and its tokenizer, of which each word is one token."""
    import transformers as library
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    size = MODELS[name]._replace(**(TINY[name] if device == "cpu" else {}))
    config = CONFIGS[name](library, size)
    config.eos_token_id, config.forced_eos_token_id, config.tie_word_embeddings = 2, None, True
    kind = library.AutoModelForSeq2SeqLM if name == "marian" else library.AutoModelForCausalLM
    torch.manual_seed(1)
    with torch.device(device):
        model = kind.from_config(config).to(torch.float32 if name == "marian" else torch.bfloat16)
    model.generation_config = library.GenerationConfig.from_model_config(config)
    model.save_pretrained(folder)
    words = [*SYMBOLS, *(f"w{i}" for i in range(len(SYMBOLS), size.vocab))]
    pieces: Any = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pieces.post_processor = processors.TemplateProcessing(
        single="$A </s>" if name == "marian" else "<s> $A",
        special_tokens=[(symbol, i) for i, symbol in enumerate(SYMBOLS)],
    )
    marks = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SYMBOLS, strict=True))
    library.PreTrainedTokenizerFast(tokenizer_object=pieces, **marks).save_pretrained(folder)


def pairs_of(name: str, vocab: int, count: int) -> list[tuple[str, str]]:
    """Draw pairs: each target repeats words of its source, so that there is something to learn."""
    draw, most = random.Random(1), vocab - len(SYMBOLS)
    # frequent words are frequent, as in a language
    weights = list(itertools.accumulate(1 / (i + 10) for i in range(most)))
    found = []
    for i in range(count):
        lengths = (LENGTHS[i % len(LENGTHS)] - 1,) * 2
        if name != "marian":
            lengths = draw.randint(*TALK), draw.randint(*TALK)
        ids = draw.choices(range(len(SYMBOLS), vocab), cum_weights=weights, k=max(lengths))
        source, target = (" ".join(f"w{n}" for n in ids[:length]) for length in lengths)
        found.append((source, target))
    draw.shuffle(found)
    return found


def regard(cell: Cell, folder: Path, pairs: list[tuple[str, str]]) -> Stopwatch:
    """Train by the loop of a run that starts from the folder."""
    from rich.console import Console

    from regard.training import RunFolder, new_config
    from regard.training.schedule import Progress
    from regard.training.setup import prepare

    settings: Record = {"start": str(folder), "batch_sentences": cell.rows, "seed": 1}
    settings |= {
        "lr": RATES[cell.model],
        "schedule": "constant",
        "warmup": 0,
        "device": cell.device,
    }
    settings |= {"precision": "bf16", "label_smoothing": 0.0, "weight_decay": 0.01}
    settings |= {"steps": NEVER, "eval_every": NEVER, "save_every": NEVER, "metric": "loss"}
    settings |= {"baseline": False, "features": False}
    if cell.model == "llama":
        settings |= {"adapter": "lora", "adapter_rank": RANK}
    run = RunFolder(folder.parent / f"run-{cell.model}")
    run.create()
    config = new_config(settings)
    run.write_config(config)
    prepared = prepare(config, run, Console(quiet=True), pairs)
    watch = cell.watch()
    with suppress(Finished):
        # as after the evaluation before the first step
        prepared.train(Progress(evaluated=0), watch)  # type: ignore[arg-type]
    return watch


def trainer(
    cell: Cell, folder: Path, pairs: list[tuple[str, str]], *, compiled: bool = False
) -> Stopwatch:
    """Train by the trainer of transformers."""
    import transformers as library

    library.logging.set_verbosity_error()
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    options = {"attn_implementation": "sdpa"}
    sides = [tokenizer(list(side)).input_ids for side in zip(*pairs, strict=True)]
    arguments: Record = {
        "output_dir": str(folder.parent / "trainer"),
        "per_device_train_batch_size": cell.rows,
        "max_steps": cell.steps,
        "learning_rate": RATES[cell.model],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        "bf16": True,
        "use_cpu": cell.device == "cpu",
        "optim": "adamw_torch_fused",
        "adam_beta2": 0.98,
        "train_sampling_strategy": "group_by_length",
        "dataloader_drop_last": True,
        "dataloader_num_workers": 4 if cell.device == "cuda" else 0,
        "dataloader_persistent_workers": cell.device == "cuda",
        "torch_compile": compiled,
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 1,
    }
    if cell.model == "marian":
        model = library.AutoModelForSeq2SeqLM.from_pretrained(folder, **options)
        kind, settings = library.Seq2SeqTrainer, library.Seq2SeqTrainingArguments
        data = [{"input_ids": src, "labels": tgt} for src, tgt in zip(*sides, strict=True)]
    else:
        import peft

        model = library.AutoModelForCausalLM.from_pretrained(folder, **options)
        lora = peft.LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, lora)
        kind, settings = library.Trainer, library.TrainingArguments
        end = tokenizer.eos_token_id
        data = [
            {"input_ids": [*src, *tgt[1:], end], "labels": [-100] * len(src) + [*tgt[1:], end]}
            for src, tgt in zip(*sides, strict=True)
        ]
    watch, tokens = cell.watch(), [torch.zeros((), dtype=torch.long, device=cell.device)]

    class Watched(kind):  # type: ignore[misc, valid-type]
        def training_step(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            # the host waits for no sum before the last step
            read = inputs["attention_mask"].sum()
            if cell.model == "marian":
                read = read + (inputs["labels"] != -100).sum()
            tokens.append(tokens[-1] + read)
            self.last_loss = super().training_step(model, inputs, *rest, **options)
            return self.last_loss

    class Steps(library.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            watch.on_step(SimpleNamespace(step=state.global_step, tokens=0), run.last_loss)

    collator = library.DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=8)
    run = Watched(
        model=model,
        args=settings(**arguments),
        train_dataset=data,
        data_collator=collator,
        callbacks=[Steps()],
    )
    with suppress(Finished):
        run.train()
    watch.tokens = torch.stack(tokens[1:]).tolist()
    return watch


ENGINES: Final[dict[str, Callable[..., Stopwatch]]] = {
    "regard": regard,
    "trainer": trainer,
    "trainer compiled": lambda *args: trainer(*args, compiled=True),
}


def measured(cell: Cell, folder: Path, pairs: list[tuple[str, str]]) -> Record:
    """Return the record of a cell, in a process of its own."""
    record: Record = cell._asdict()
    try:
        found = harness.timed(lambda: ENGINES[cell.engine](cell, folder, pairs))
        record |= found["value"].found() | {"seconds": found["seconds"]}
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return record | {"error": f"{type(error).__name__}: {lines[0]:.300}"}
    if cell.device == "cuda":
        record["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        record["reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return record


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def speed(args: argparse.Namespace, home: Path) -> Iterator[list[Record]]:
    """Yield the record of each cell; those that compile for a minute come last."""
    rows = {"marian": args.pairs, "llama": args.talks}
    cells = itertools.product(args.models, args.engines)
    for name, engine in sorted(cells, key=lambda cell: "compiled" in cell[1]):
        folder = home / name
        if not folder.exists():
            alone(write_model, name, args.device, folder)
        vocab = TINY[name]["vocab"] if args.device == "cpu" else MODELS[name].vocab
        pairs = pairs_of(name, vocab, rows[name] * args.batches)
        limits = args.steps, args.warm_up, args.seconds
        cell = Cell(name, engine, rows[name], args.device, *limits)
        yield [alone(measured, cell, folder, pairs)]


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cuda", help="a CPU trains tiny models")
    add("--models", type=harness.names, default=list(RATES), help="with commas between them")
    add("--engines", type=harness.names, default=list(ENGINES), help="with commas between them")
    add("--pairs", type=int, default=128, help="sentence pairs of a batch")
    add("--talks", type=int, default=16, help="prompts with answers of a batch")
    add("--batches", type=int, default=100, help="of a pass")
    add("--steps", type=int, default=300, help="at most")
    add("--warm-up", type=int, default=100, help="steps that are not timed")
    add("--seconds", type=float, default=10.0, help="of timed steps at most")
    add("--budget", type=float, default=210.0, help="seconds after which nothing new is begun")
    return parser.parse_args()


def main() -> None:
    args = parse()
    versions = {name: metadata.version(name) for name in ("transformers", "peft", "accelerate")}
    result = harness.provenance(**harness.versions(args.device), **versions)
    with tempfile.TemporaryDirectory() as home:
        found = speed(args, Path(home))
        sys.exit(not harness.collect(result, found, args.out, budget=args.budget))


if __name__ == "__main__":
    main()
