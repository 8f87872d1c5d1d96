"""Fine-tuning: a run that starts from the network, the tokenisers and the weights of another.

The settings of the other model become those of the run, once, by `new_config`; from the first
checkpoint on, the run needs the other model no more. Vocabularies that are tables grow by what is
new in the data, and so do embeddings and output layers.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from regard.atomic_files import content_checksum, write_atomic
from regard.data import EncodedPairs, Pair, SourceEncoder, StoryEncoder, TargetEncoder, Tokenizer
from regard.data.corpus import corpus_problem, note_path
from regard.data.series_windows import SeriesScaler
from regard.data.text_files import fingerprint
from regard.errors import ArgumentError
from regard.messages import message
from regard.models import LABEL_PRESETS, TAG_PRESETS, AnyModel
from regard.safe_read import read_bytes
from regard.symbols import PAD, SYMBOLS, UNK
from regard.tasks import Encoders, Task, TaskType, TextInput, choose_task
from regard.training.adapters import adapted_config
from regard.training.checkpoint import weights_of_step
from regard.training.config import Config, all_options, make_config, size_table
from regard.training.run_folder import BEFORE, RunFolder, Saved, find_run, split_step

Say = Callable[[str], None]

#: settings that follow from the network and its tokenisers, and may not be others
FIXED: Final = (
    *("preset", "size", "src_tokenizer", "tgt_tokenizer", "src_case", "stack", "scale_vectors"),
    "shared_vocab",
)
#: settings that come along unless others are given
FREE: Final = ("vocab_size", "max_src_len", "max_tgt_len", "label_smoothing", "metric", "beam")
#: those of `FIXED` and `FREE` that concern the source alone, which another output leaves
OF_SOURCE: Final = ("size", "src_tokenizer", "src_case", "stack", "scale_vectors", "max_src_len")
#: options of presets that change no weight's meaning
FREE_OPTIONS: Final = (
    *("dropout", "attention_dropout", "word_dropout", "noise", "linear_start"),
    "longest",
)
#: task options that say what the output is
OUTPUT_OPTIONS: Final = frozenset({"numbers", "separator"})
#: presets that may start from the encoder of any other
READERS: Final = (frozenset(LABEL_PRESETS), frozenset(TAG_PRESETS))
#: names of the same part in several networks
SAME_PARTS: Final = (
    (re.compile(r"^classifier\.encoder\."), "encoder."),
    (re.compile(r"^language\.embedding\."), "encoder.embedding."),
    (re.compile(r"^language\.body\.decoder\."), "encoder.encoder."),
    (re.compile(r"^language\.body\.stack\."), "encoder.stack."),
    (re.compile(r"^language\.body\."), "encoder.body."),
)
#: tensors with a row for each token; those of a bag of n-grams are fitted to the data of each run
TOKEN_ROWS: Final = re.compile(r"(embedding\.table\.weight|output\.(weight|bias))$")
FITTED: Final = re.compile(r"\bbag\.")
#: what networks of one part have their names in
OUTER: Final = re.compile(r"^(classifier|language)\.")
#: layers as settings name them, and tensors of layers and embeddings
LAYERS: Final = re.compile(r"layers:(\d+)(?:-(\d+))?")
LAYER: Final = re.compile(r"\.(?:layers|ahead|back)\.(\d+)\.")
EMBEDDING: Final = re.compile(r"(^|\.)embedding\.")
#: examples to mix in whose targets are looked at, and the most of these that may be unknown
CHECKED, MOST_UNKNOWN = 1000, 0.5
#: deviation of new rows about the mean of the others, as a share of theirs
NEW_ROW_NOISE: Final = 0.1
#: new tokens that a sentence names
NAMED: Final = 8


class StartModel(NamedTuple):
    """A model to start from, as its run folder holds it."""

    name: str
    folder: RunFolder
    saved: Saved

    @property
    def checksum(self) -> str:
        """The checksum of weights and tokenisers."""
        weights = {
            name: content_checksum(weight.detach().cpu().contiguous().numpy().tobytes())
            for name, weight in self.saved.model.state_dict().items()
        }
        return fingerprint(weights=weights, encoders=[e.fingerprint for e in self.encoders])

    @property
    def encoders(self) -> Encoders:
        """Its tokenisers."""
        return self.saved.task.encoders


def open_start(name: str, checksum: str | None = None) -> StartModel:
    """Open a model to start from; raises RegardError if it is missing, damaged or another one."""
    run, step = split_step(name)
    folder = RunFolder(find_run(run))
    if folder.read_config().adapter is not None:
        rule = "be a model of its own"
        fix = f"`regard export {run} --to transformers` writes it merged, to start from"
        raise ArgumentError("start", rule, f"{name!r}, which is an adapter", fix)
    weights = None if step is None else weights_of_step(folder, step)
    start = StartModel(name, folder, folder.load(weights=weights))
    if checksum is not None and start.checksum != checksum:
        rule = f"be the model with the checksum {checksum} that the run was begun with"
        fix = "restore it from a copy, or start a new run with another -o"
        raise ArgumentError("start", rule, f"{name!r} with {start.checksum}", fix)
    return start


def new_config(settings: Mapping[str, Any]) -> Config:
    """Return the config of a new run; with `start`, network and tokenisers of that model in it.

    Raises ArgumentError for a setting that contradicts them.
    """
    if settings.get("start") is None:
        return make_config(settings)
    if settings.get("adapter") is not None:
        return adapted_config(settings)
    start = open_start(str(settings["start"]), settings.get("start_checksum"))
    given = {**settings, **settings.get("model", {}), **settings.get("task_options", {})}
    theirs, preset = start.saved.config, str(given.get("preset", start.saved.config.preset))
    same = preset == theirs.preset and not any(
        given.get(name, theirs.task_options.get(name)) != theirs.task_options.get(name)
        for name in OUTPUT_OPTIONS
    )
    if preset != theirs.preset and not any(
        preset in these and theirs.preset not in these for these in READERS
    ):
        _refuse("preset", theirs.preset, preset, start)
    taken = _inherited(start, preset, same=same)
    fixed: list[str] = [name for name in FIXED if name in taken]
    own = {n: v for n, v in settings.items() if v is not None and not (n in fixed and v == "auto")}
    own |= {"preset": preset, "start": start.name, "start_checksum": start.checksum}
    config = make_config({**taken, **own})
    for name in fixed:
        if getattr(config, name) != taken[name]:
            _refuse(name, taken[name], getattr(config, name), start)
    before = all_options(preset, theirs.model_size, taken["model"])
    for name, value in all_options(preset, config.model_size, config.model).items():
        if name not in FREE_OPTIONS and value != before[name]:
            _refuse(name, before[name], value, start)
    return config


def _inherited(start: StartModel, preset: str, *, same: bool) -> dict[str, Any]:
    """Return the settings that come along, by name."""
    theirs, encoders = start.saved.config, start.encoders
    found = {name: getattr(theirs, name) for name in (*FIXED, *FREE)}
    found["size"] = theirs.model_size
    if start.saved.task.has_sources and isinstance(encoders.source, Tokenizer):
        found["src_tokenizer"] = _named(encoders.source)
    if isinstance(encoders.target, Tokenizer):
        found["tgt_tokenizer"] = _named(encoders.target)
    if same:
        return found | {"model": theirs.model, "task_options": theirs.task_options}
    options = start.saved.task.type.input.options_type.model_fields
    own = {name: value for name, value in theirs.task_options.items() if name in options}
    found = {name: found[name] for name in OF_SOURCE} | {"task_options": own}
    if not start.saved.task.has_sources and isinstance(encoders.source, Tokenizer):
        found["src_tokenizer"] = _named(encoders.source)
    if size_table(preset) is not size_table(theirs.preset):  # names mean something else there
        return found | {"model": {}}
    options = all_options(theirs.preset, theirs.model_size, theirs.model)
    if options.get("encoder_layers") is not None:
        options["layers"] = options["encoder_layers"]
    usual = all_options(preset, theirs.model_size, {})
    chosen = {n: v for n, v in options.items() if n in usual and v not in (None, usual[n])}
    return found | {"model": chosen}


def _named(tokenizer: Tokenizer) -> str:
    """Return what settings call a tokeniser; sets of labels have no name there."""
    return tokenizer.kind if tokenizer.kind not in ("labels", "imported") else "auto"


def _refuse(name: str, theirs: Any, ours: Any, start: StartModel) -> None:
    fix = "leave it out, or train without --from"
    raise ArgumentError(name, f"be {theirs!r}, as {start.name} has it", repr(ours), fix)


def check_start(config: Config) -> None:
    """Raise ArgumentError for settings that do not go with starting from a model."""
    for name in ("src_vectors", "tgt_vectors"):
        file = getattr(config, name)
        if config.start is not None and file is not None:
            rule = "be left out where a run starts from a model, which has embeddings"
            raise ArgumentError(name, rule, repr(file), "leave one of them out")


def check_input(start: StartModel, config: Config, first: Callable[[], Sequence[Pair]]) -> None:
    """Raise ArgumentError if the first examples are no input of a model."""
    theirs = start.saved.task.input
    text = isinstance(start.encoders.source, Tokenizer)
    found = choose_task(
        config.model_copy(update={"src_tokenizer": "auto"}) if text else config, first
    )
    if found.task.input is not type(theirs) and not (
        text and issubclass(found.task.input, TextInput)
    ):
        rule = f"read what the data hold, which is {found.task.input.facts.several}"
        value = f"{start.name!r}, which reads {theirs.facts.several}"
        raise ArgumentError("start", rule, value, "name another model, or train without --from")


def start_encoders(
    start: StartModel,
    task: TaskType,
    config: Config,
    pairs: Iterable[Pair],
    *,
    file: str,
    why: str,
    say: Say,
) -> Encoders:
    """Return the encoders of a model, with the tokens, characters or labels that are new in data.

    What a vocabulary of subwords lacks stays in smaller parts. Labels of which none is known make
    an encoder of their own.
    """
    theirs = start.saved.task
    same = task.output is type(theirs.output)
    if same and not any(map(_grows, start.encoders)):
        return start.encoders
    learned = task.learn(config, pairs, file=file, why=why, say=lambda sentence: None)
    source = _extended(start.encoders.source, learned.source)
    target: Any = learned.target
    if same and _shares_labels(start.encoders.target, learned.target):
        target = _extended(start.encoders.target, learned.target)
    if isinstance(source, SeriesScaler):
        target = source.number_targets
    if same and start.encoders.source.fingerprint == start.encoders.target.fingerprint:
        target = source
    if config.shared_vocab and isinstance(source, StoryEncoder):
        target = source.tokenizer
    _say_grown(start.encoders.source, source, "source", start.name, say)
    if target is not source and target is not learned.target:
        _say_grown(start.encoders.target, target, "target", start.name, say)
    return Encoders(source, target)


def _say_grown(old: Any, new: Any, side: str, name: str, say: Say) -> None:
    """Say which tokens a model lacks."""
    if not isinstance(old, Tokenizer) or not isinstance(new, Tokenizer):
        return
    shown = new.tokens(range(new.vocab_size))
    fresh = [token for token, i in zip(shown, new.rows_in(old), strict=True) if i < 0]
    if fresh:
        some = ", ".join(fresh[:NAMED]) + (", …" if len(fresh) > NAMED else "")
        names = {"count": len(fresh), "side": message(f"train.side.{side}"), "some": some}
        say(message("train.start.grown", **names, name=name))


def _grows(encoder: SourceEncoder | TargetEncoder) -> bool:
    inner = encoder.tokenizer if isinstance(encoder, StoryEncoder) else encoder
    return isinstance(inner, SeriesScaler) or (isinstance(inner, Tokenizer) and inner.grows)


def _extended(old: Any, learned: Any) -> Any:
    """Return an encoder with what another one knows beyond it, or as it is if it cannot grow."""
    if isinstance(old, StoryEncoder) and isinstance(learned, StoryEncoder):
        return replace(old, tokenizer=old.tokenizer.extended(learned.tokenizer))
    if isinstance(old, SeriesScaler) or (
        isinstance(old, Tokenizer) and isinstance(learned, Tokenizer)
    ):
        return old.extended(learned)
    return old


def _shares_labels(old: TargetEncoder, learned: TargetEncoder) -> bool:
    """Return whether any of the labels is known, or targets are no labels."""
    if not isinstance(old, Tokenizer) or not isinstance(learned, Tokenizer):
        return True
    is_label = old.kind in ("label", "labels")
    return not is_label or max(learned.rows_in(old), default=0) >= len(SYMBOLS)


def fill(start: StartModel, module: AnyModel, task: Task, seed: int) -> str:
    """Copy the weights of a model into a network, as far as parts agree; returns a sentence.

    Raises ArgumentError if none does.
    """
    theirs = {
        _part(n): w for n, w in start.saved.model.state_dict().items() if not FITTED.search(n)
    }
    before, found, new = start.encoders, module.state_dict(), dict[str, None]()
    taken = 0
    for name, weight in found.items():
        old = theirs.get(_part(name))
        side = 0 if _part(name).startswith("encoder.") else 1
        filled = (
            None
            if old is None
            else _filled(name, weight, old, _inner(before[side]), _inner(task.encoders[side]), seed)
        )
        if filled is None:
            top, *below = _part(name).split(".")
            new[".".join([top, *below[:1]]) if len(below) > 1 else top] = None
        else:
            found[name], taken = filled, taken + 1
    if not taken:
        rule = "share weights with the network of the run"
        value = f"{start.name!r}, none of whose {len(theirs):,} tensors agrees"
        raise ArgumentError("start", rule, value, "name another model, or train without --from")
    module.load_state_dict(found)
    parts = message("train.start.new", parts=", ".join(new)) if new else ""
    return message("train.start", name=start.name, taken=taken, total=len(found), new=parts)


def _filled(
    name: str, weight: Tensor, old: Tensor, before: Any, now: Any, seed: int
) -> Tensor | None:
    """Return a tensor with the values of another; None if they do not agree.

    Rows of new tokens are near the mean of the others.
    """
    rows_are_tokens = isinstance(before, Tokenizer) and isinstance(now, Tokenizer)
    if not (rows_are_tokens and TOKEN_ROWS.search(name) and len(old) == before.vocab_size):
        return old.to(weight.dtype) if old.shape == weight.shape else None
    rows = torch.tensor(now.rows_in(before))
    if old.shape[1:] != weight.shape[1:] or len(weight) != len(rows):
        return None
    if int(rows.max()) < len(SYMBOLS):
        return None
    known = old[len(SYMBOLS) :].float()
    noise = torch.Generator().manual_seed(seed + crc32(name.encode()))
    drawn = torch.randn((len(rows), *old.shape[1:]), generator=noise)
    spread = known.std(dim=0, unbiased=False)
    near = known.mean(dim=0) + NEW_ROW_NOISE * spread * drawn
    is_new = (rows < 0).view(-1, *[1] * (old.dim() - 1))
    return torch.where(is_new, near, old.float()[rows.clamp(min=0)]).to(weight.dtype)


def freeze(module: nn.Module, names: Sequence[str]) -> str:
    """Keep parts of a network as they are, and return a sentence about them.

    Raises ArgumentError for a part that it does not have, and if nothing would be left to learn.
    """
    weights = {OUTER.sub("", name): weight for name, weight in module.named_parameters()}
    layers = [int(match[1]) for name in weights if (match := LAYER.search(name))]
    tops = dict.fromkeys(name.partition(".")[0] for name in weights)
    known = ["embeddings", *(top for top in tops if top != "embedding")]
    known += [f"layers:0-{max(layers)}"] if layers else []
    frozen = set[str]()
    for asked in names:
        found = {name for name in weights if _is_part(asked, name)}
        numbers = LAYERS.fullmatch(asked)
        if not found or (numbers and int(numbers[2] or numbers[1]) > max(layers)):
            rule = f"name parts of the network, which are {', '.join(known)}"
            raise ArgumentError("freeze", rule, repr(asked), "choose some of them")
        frozen |= found
    if len(frozen) == len(weights):
        rule = "leave some of the network to learn"
        raise ArgumentError("freeze", rule, repr(",".join(names)), "name fewer parts")
    for name in frozen:
        weights[name].requires_grad_(False)
    total = sum(weight.numel() for weight in weights.values())
    count = sum(weights[name].numel() for name in frozen)
    return message("train.frozen", parts=", ".join(names), count=count, total=total)


def _is_part(asked: str, name: str) -> bool:
    """Return whether a weight belongs to what a user calls a part of the network."""
    if asked == "embeddings":
        return EMBEDDING.search(name) is not None
    if numbers := LAYERS.fullmatch(asked):
        layer = LAYER.search(name)
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        return layer is not None and first <= int(layer[1]) <= last
    return name == asked or name.startswith(f"{asked}.")


def copy_dev_set(start: StartModel, task: TaskType, encoders: Encoders, folder: RunFolder) -> None:
    """Copy the dev set of a model, if it has one that the run can read: its ids stay the same."""
    path, copied = (one.data / name for one, name in ((start.folder, "dev"), (folder, BEFORE)))
    path, copied = path.with_suffix(".arrow"), copied.with_suffix(".arrow")
    if task.output is not type(start.saved.task.output) or corpus_problem(path) is not None:
        return
    for old, new in zip(map(_inner, start.encoders), map(_inner, encoders), strict=True):
        sizes = [(getattr(e, "targets", 0), getattr(e, "frame_size", 0)) for e in (old, new)]
        if isinstance(old, SeriesScaler) and sizes[0] != sizes[1]:
            return
        grown = isinstance(old, Tokenizer) and isinstance(new, Tokenizer)
        if grown and new.rows_in(old)[: old.vocab_size] != [*range(old.vocab_size)]:
            return
    for one, other in ((path, copied), (note_path(path), note_path(copied))):
        write_atomic(other, read_bytes(one, None))


def check_replay(replay: EncodedPairs, task: Task, config: Config) -> None:
    """Raise ArgumentError if most targets of the examples to mix in are unknown to the model."""
    if task.numbers is not None:
        rule = f"be left out where the output is {task.output.name}"
        raise ArgumentError("replay", rule, repr(config.replay), "leave it out")
    ids = replay.gather("tgt", np.arange(min(len(replay.tgt_lengths), CHECKED))).padded(0)[0]
    unknown = (ids == UNK).sum() / max(1, (ids != PAD).sum())
    if unknown > MOST_UNKNOWN:
        rule = "hold examples of what the model knew before"
        value = f"{config.replay!r}, of whose target tokens {unknown:.0%} are unknown to it"
        raise ArgumentError("replay", rule, value, "name examples of the same task")


def _inner(encoder: Any) -> Any:
    return encoder.tokenizer if isinstance(encoder, StoryEncoder) else encoder


def _part(name: str) -> str:
    """Return the name of a tensor, the same for the same part of several networks."""
    for pattern, same in SAME_PARTS:
        name = pattern.sub(same, name)
    return name
