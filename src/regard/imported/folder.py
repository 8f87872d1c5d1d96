"""Read a folder that `save_pretrained` of transformers wrote as a model of regard, and write one.

Tokens get the ids of regard: pad, bos, eos and unk are 0 to 3. A symbol that the model does not
have, or that it has in another role as well, has a row that is never written.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from regard import extras, safe_read
from regard.data import (
    FrameScaler,
    LogMel,
    PictureEncoder,
    SoundEncoder,
    SourceEncoder,
    Tokenizer,
)
from regard.data.lookup_codecs import ImportedCodec, LabelCodec
from regard.errors import ArgumentError
from regard.imported.described_tokenizers import described
from regard.imported.families import FAMILIES, ImportRefusedError, ModelFamily, Weights
from regard.pretrained.folder import load_config, load_tokenizer, quiet_transformers
from regard.pretrained.folder_checks import (
    CONFIG,
    PROCESSORS,
    PretrainedError,
    check_files,
    model_root,
    stored_files,
)
from regard.symbols import BOS, EOS, PAD, SYMBOLS, UNK

#: bias of the logit of a symbol that is no token of the model
NEVER: Final = -1e4
#: tensors with a row for each token
TOKEN_ROWS: Final = re.compile(r"^(?!classifier\.output).*(table\.weight|output\.(weight|bias))$")
POSITIONS: Final = "embedding.positions.table"
#: what tied output layers are where a folder has one of its own
UNTIED: Final = {"output": "none", "all": "inputs"}
#: when a search ends, by what a configuration says
STOPPING: Final = {"True": "full", "False": "heuristic", "never": "never"}
#: weights of a classifier that no encoder has
OWN: Final = re.compile(r"classifier\.(?!encoder\.)")
#: a text by which the special tokens around texts are seen
PROBE: Final = "a"
#: names of languages, as en, en_XX or fra_Latn
LANGUAGE: Final = re.compile(r"[a-z]{2,3}(_[A-Z][A-Za-z]+)?")
GENERATION: Final = "generation_config.json"
#: files of a tokenizer beside its own that an export brings back
KEPT_FILES: Final = (
    *PROCESSORS,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", GENERATION),
    *("source.spm", "target.spm", "sentencepiece.bpe.model", "vocab.json"),
)
#: most positions that a run reads unless told otherwise
MOST_POSITIONS: Final = 1024


class Vocabulary(NamedTuple):
    """The vocabulary of a model, in the order of regard.

    Attributes:
        ids: the id there of each id here; -1 for a symbol that is none of its tokens.
        rows: the same, with the id of the token whose vector such a symbol is read as.
    """

    ids: list[int]
    rows: list[int]

    @staticmethod
    def of(count: int, symbols: Mapping[int, int | None]) -> "Vocabulary":
        """Return the vocabulary of `count` tokens; `symbols` are the ids of regard's symbols.

        One that several of them share is the first's.
        """
        ids, rows = [-1] * len(SYMBOLS), [0] * len(SYMBOLS)
        for place, number in symbols.items():
            if number is not None and 0 <= number < count:
                rows[place] = number
                ids[place] = -1 if number in ids else number
        rest = [number for number in range(count) if number not in ids[: len(SYMBOLS)]]
        return Vocabulary([*ids, *rest], [*rows, *rest])


class ImportedFolder:
    """A folder of transformers, read as a run of regard.

    Args:
        path: the folder.
        source_language: of the sources of a model of many languages, as its tokenizer calls it.
        target_language: of the targets.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        self.path = Path(path)
        extras.require("transformers", extra="hf", for_=f"the model in {self.path}")
        self.stored = check_files(self.path)
        with quiet_transformers():
            self.config = load_config(self.path)
            self.family = self._family()
            self.options = self._checked(self.family)
            if self.family.reads != "pictures":
                self.tokenizer = load_tokenizer(self.path, self.config)
        self.languages = source_language, target_language

    def _family(self) -> ModelFamily:
        kind = self.config.model_type
        family = FAMILIES.get(kind)
        if family is None:
            raise self._refused(f"its model_type is {kind!r:.40}")
        (name,) = getattr(self.config, "architectures", None) or family.classes[:1]
        if name not in family.classes:
            raise self._refused(f"its class is {name!s:.60}")
        return family

    def _checked(self, family: ModelFamily) -> dict[str, Any]:
        reason = family.refusal(self.config)
        try:
            if not reason:
                return family.options(self.config)
        except ImportRefusedError as error:
            reason = str(error)
        raise self._refused(reason)

    def _refused(self, reason: str) -> ImportRefusedError:
        return ImportRefusedError(
            f"a model must be of a family that regard has layers for ({', '.join(FAMILIES)}) to be "
            f"imported, but {self.path} is not ({reason}): use it as it is, with transformers, "
            f"or train it with adapter=lora."
        )

    @cached_property
    def generation(self) -> dict[str, Any]:
        """The settings of `generate`, and what the configuration says where these say nothing."""
        file = self.path / GENERATION
        read = safe_read.read_json(file, inside=model_root(self.path)) if file.is_file() else {}
        return {**self.config.to_dict(), **{k: v for k, v in read.items() if v is not None}}

    @cached_property
    def tensors(self) -> Weights:
        """The tensors of the folder, by the names of the family's table."""
        found: Weights = {}
        for file in stored_files(self.path):
            with safe_read.open_tensors(file, inside=model_root(self.path)) as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    found[name.removeprefix(self.family.prefix)] = tensors.get_tensor(name)
        return self.family.unpack(found, self.config)

    @cached_property
    def table(self) -> Tensor:
        """The embeddings of the tokens."""
        name = self.family.names[":table"] + ".weight"
        if name not in self.tensors:
            raise self._missing(name)
        return self.tensors[name]

    @property
    def count(self) -> int:
        """Number of tokens of the model."""
        return len(self.table)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer puts before and after a text."""
        if self.languages[0] is not None:
            self._language("source_language", self.languages[0])
            self.tokenizer.src_lang = self.languages[0]
        whole = list(self.tokenizer(PROBE)["input_ids"])
        plain = list(self.tokenizer(PROBE, add_special_tokens=False)["input_ids"])
        start = next(i for i in range(len(whole) + 1) if whole[i : i + len(plain)] == plain)
        return whole[:start], whole[start + len(plain) :]

    def _language(self, name: str, given: str) -> int:
        """Return the id of a language; raises ArgumentError for one that the tokenizer lacks."""
        codes: dict[str, int] = getattr(self.tokenizer, "lang_code_to_id", {})
        number = (codes or self.tokenizer.get_vocab()).get(given)
        if number is None or not hasattr(self.tokenizer, "src_lang"):
            known = [t for t in codes or self.tokenizer.all_special_tokens if LANGUAGE.fullmatch(t)]
            some = ", ".join(known[:8]) if known else "none"
            rule = f"be a language of the tokenizer in {self.path}, as {some}"
            raise ArgumentError(name, rule, repr(given), "choose one, or leave it out")
        return number

    @property
    def stops(self) -> list[Any]:
        """Ids of which each ends a text; `eos` is the first."""
        found = self.generation.get("eos_token_id")
        return found if isinstance(found, list) else [found]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, in the order of regard."""
        own = self.generation
        before, after = self.around if self.family.reads == "text" else ([], [])
        pad = own.get("pad_token_id")
        symbols = {EOS: next(iter(self.stops), None), UNK: self.tokenizer.unk_token_id}
        if self.family.preset == "classifier-transformer":
            symbols = {EOS: after[0] if after else None, UNK: symbols[UNK], PAD: pad, BOS: None}
        elif self.family.preset == "lm-transformer":
            first = before[0] if before else own.get("bos_token_id")
            symbols |= {BOS: symbols[EOS] if first is None else first, PAD: pad}
        else:
            first = own.get("decoder_start_token_id")
            if self.languages[1] is not None and len(after) > 1:  # then targets start with theirs
                first = self._language("target_language", self.languages[1])
            symbols |= {BOS: own.get("bos_token_id") if first is None else first, PAD: pad}
        if not isinstance(symbols[EOS], int):
            raise self._refused(f"its texts end in {symbols[EOS]!r:.60}, and not in one token")
        return Vocabulary.of(self.count, symbols)

    @property
    def ends(self) -> list[int]:
        """Our ids of tokens that end a text as `eos` does."""
        ids = self.vocabulary.ids
        return [ids.index(number) for number in self.stops[1:] if number in ids[EOS + 1 :]]

    @property
    def reads_bos(self) -> bool:
        """True if texts of a language model begin with a special token."""
        return bool(self.around[0])

    @property
    def decoding(self) -> dict[str, Any]:
        """The options of decoding by which `generate` would write targets."""
        stop = STOPPING.get(str(self.generation.get("early_stopping")), "heuristic")
        # what is heard is written after tokens that count nothing there
        first = len(self._spoken()) if self.family.reads == "sounds" else 0
        found: dict[str, Any] = {"length_base": -first, "early_stopping": stop}
        found["length_penalty"] = self._number("length_penalty", 1.0)
        found["no_repeat_ngram"] = self._number("no_repeat_ngram_size", 0)
        # there, lengths count the first token that is read, and `eos`
        least = max(self._number("min_length", 0) - 1, 0)
        found["min_len"] = self._number("min_new_tokens", least - first) + first
        most = self._number("max_new_tokens", self._number("max_length", 0) - 1 - first) + first
        found["ends"] = self.ends
        ids = {number: i for i, number in enumerate(self.vocabulary.ids) if i >= EOS}
        names = {"suppressed": "suppress_tokens", "suppressed_first": "begin_suppress_tokens"}
        for own, name in names.items():
            found[own] = [ids[n] for n in self.generation.get(name) or () if n in ids]
        # a text that reaches the limit ends there, in a token that it forces, or without one
        found["counted_end"] = self.generation.get("forced_eos_token_id") is not None
        found["forced_end"] = True
        if most > 0:
            found["max_len"] = most - found["counted_end"]
        return found

    def _number(self, name: str, default: float) -> Any:
        value = self.generation.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise PretrainedError(
                f"{name} must be a value that generate() can use, but in {GENERATION} of "
                f"{self.path} it is {value!r:.80}: correct it, or delete it there."
            )
        return default if value is None else value

    def _codec(
        self,
        prefix: Sequence[int] = (),
        decoding: dict[str, Any] | None = None,
        *,
        suffix: Sequence[int] = (),
        target: bool = False,
    ) -> ImportedCodec:
        try:
            content = described(self.tokenizer, self.path, model_root(self.path), target=target)
        except ImportRefusedError as error:
            raise self._refused(str(error)) from None
        names = {number: piece for piece, number in self.tokenizer.get_vocab().items()}
        if max(names, default=0) >= self.count:
            raise PretrainedError(
                f"the tokenizer must be that of its model, but in {self.path} it has an id "
                f"{max(names)}, and the model has {self.count:,} tokens: {safe_read.COPY_AGAIN}."
            )
        ids = self.vocabulary.ids
        pieces = [*SYMBOLS, *(names.get(number, f"<{number}>") for number in ids[len(SYMBOLS) :])]
        seen = set[str]()
        for i, piece in enumerate(pieces):
            pieces[i] = f"{piece} ({ids[i]})" if piece in seen else piece
            seen.add(pieces[i])
        first, last = ([ids.index(number) for number in some] for some in (prefix, suffix))
        return ImportedCodec(content, ids, pieces, first, decoding, self.origin, last)

    @property
    def origin(self) -> dict[str, Any]:
        """The configuration, and other files that an export brings back."""
        files = {
            name: safe_read.read_bytes(self.path / name, inside=model_root(self.path)).hex()
            for name in KEPT_FILES
            if (self.path / name).is_file()
        }
        has_own = (self.path / "tokenizer.json").is_file()
        return {"config": self.config.to_dict(), "files": files, "tokenizer.json": has_own}

    def _processor(self, part: str) -> dict[str, Any]:
        """Return the settings by which pictures or recordings are prepared."""
        for name in PROCESSORS:
            if (self.path / name).is_file():
                found = safe_read.read_json(self.path / name, inside=model_root(self.path))
                own: dict[str, Any] = found.get(part, found)
                return own
        raise self._refused(f"it has no {PROCESSORS[0]}")

    def _pictures(self) -> PictureEncoder:
        """Return the encoder of pictures, by the settings of their processor."""
        found, size, channels = self._processor("image_processor"), self.config.image_size, []
        for name, default in (("image_mean", 0.0), ("image_std", 1.0)):
            values = found.get(name) if found.get("do_normalize") else None
            channels.append(values or [default] * self.config.num_channels)
        factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1
        try:
            mean, scale = (tuple(float(one) / factor for one in values) for values in channels)
            sizes = size, size, self.config.num_channels, self.config.patch_size
            made = PictureEncoder(*sizes, mean, scale, class_token=True, origin=self.origin)
            made.check_fields()
        except (TypeError, ValueError, ZeroDivisionError):
            raise self._refused(f"its {PROCESSORS[0]} has no mean for each channel") from None
        return made

    def _sounds(self) -> SoundEncoder:
        """Return the encoder of recordings, by the settings of their processor."""
        found, bands = self._processor("feature_extractor"), self.config.num_mel_bins
        try:
            rate, seconds = found["sampling_rate"], float(found["chunk_length"])
            window, step = (1000 * found[name] / rate for name in ("n_fft", "hop_length"))
            whole = round(seconds * rate / found["hop_length"])
            fits = whole == 2 * self.config.max_source_positions and found["feature_size"] == bands
            if not fits or found.get("dither"):
                raise ValueError
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            reason = f"its {PROCESSORS[0]} makes no frames that it reads"
            raise self._refused(reason) from None
        mel = LogMel(rate, bands, window, step, seconds)
        scaler = FrameScaler(bands, 2, (0.0,) * bands, (1.0,) * bands)
        return SoundEncoder.of(scaler, mel, seconds)

    def _spoken(self) -> list[int]:
        """Return the first tokens of what is heard: its language, the task, and no times."""
        own, (source, target) = self.generation, self.languages
        last = [one for one in [own.get("no_timestamps_token_id")] if one is not None]
        languages, tasks = own.get("lang_to_id") or {}, own.get("task_to_id") or {}
        if not languages:
            return last
        source = own.get("language") if source is None else source
        known = sorted(name.strip("<|>") for name in languages)
        rule = f"be the language that is heard, as {', '.join(known[:8])}"
        if source not in known:
            fix = "import the model with --src-lang (in Python source_language=)"
            raise ArgumentError("source_language", rule, repr(source), fix)
        if target not in (None, source, "en"):
            rule = "be that which is heard, or en to translate it"
            raise ArgumentError("target_language", rule, repr(target), "leave it out")
        task = "transcribe" if target in (None, source) else "translate"
        return [languages[f"<|{source}|>"], tasks[task], *last]

    @cached_property
    def encoders(self) -> tuple[SourceEncoder, Tokenizer]:
        """The encoders of sources and of targets."""
        labels = Tokenizer("label", LabelCodec(list(SYMBOLS)))
        if self.family.reads == "pictures":
            return self._pictures(), labels
        if self.family.reads == "sounds":
            codec = self._codec(self._spoken(), self.decoding, target=True)
            return self._sounds(), Tokenizer("imported", codec, nfc=False)
        before, after = self.around
        if self.family.preset == "lm-transformer":
            if len(before) > 1 or after:
                raise self._refused("its texts have special tokens around them")
            both = Tokenizer("imported", self._codec(decoding={"ends": self.ends}), nfc=False)
            return both, both
        if not after:
            raise self._refused("its sources do not end in a token")
        suffix = [] if after == [self.vocabulary.rows[EOS]] else after
        source = Tokenizer("imported", self._codec(before, suffix=suffix), nfc=False)
        if self.family.preset == "classifier-transformer":
            return source, labels
        first = self.generation.get("forced_bos_token_id")
        if self.languages[1] is not None and not suffix:
            first = self._language("target_language", self.languages[1])
        codec = self._codec([] if first is None else [first], self.decoding, target=True)
        return source, Tokenizer("imported", codec, nfc=False)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the run."""
        model = {name: value for name, value in self.options.items() if value is not None}
        head = self.tensors.get(f"{self.family.names.get('output:')}.weight")
        if head is not None and not torch.equal(head, self.table):
            model["tied"] = UNTIED.get(model["tied"], model["tied"])
        settings = {"preset": self.family.preset, "size": "base", "model": model}
        if self.family.reads == "pictures":
            names = {
                "channels": "num_channels",
                "patch": "patch_size",
                "picture_size": "image_size",
            }
            options = {own: getattr(self.config, theirs) for own, theirs in names.items()}
            limits = {"src_tokenizer": "pictures", "max_src_len": self._pictures().cells}
            return settings | limits | {"task_options": {"stem": "patch", **options}}
        rows = self.vocabulary.rows
        if self.vocabulary.ids[BOS] < 0 and rows[BOS] == rows[EOS]:
            model["bos_as_eos"] = True
        longest = min(MOST_POSITIONS, model.get("max_positions", MOST_POSITIONS + 1) - 1)
        limits = {"max_src_len": longest, "max_tgt_len": longest, "label_smoothing": 0.0}
        if self.family.preset == "lm-transformer":
            model |= {"output_bias": False, "reads_bos": self.reads_bos}
        elif self.family.preset == "transformer":
            model["output_bias"] = False
            limits["shared_vocab"] = self.family.reads == "text"
            limits["beam"] = self._number("num_beams", 1)
        if self.family.reads == "sounds":
            mel = vars(self._sounds().mel)
            options = {"subsample": "conv1d", **mel, "max_seconds": mel["whisper_seconds"]}
            own = {"src_tokenizer": "sound", "stack": 2, "scale_vectors": False}
            return settings | limits | own | {"task_options": options}
        return settings | limits

    def weights(self, module: nn.Module) -> Weights:
        """Return the weights of a network, but those of a classifier's own layers."""
        rest, found = dict(self.tensors), {}
        for name, expected in module.state_dict().items():
            if not OWN.match(name):
                weight = self._weight(name, rest)
                if weight.shape != expected.shape:
                    raise PretrainedError(
                        f"the weights in {self.path} must be those that its {CONFIG} describes, "
                        f"but {self.family.theirs(name) or name} is of the shape "
                        f"{tuple(weight.shape)}, and not {tuple(expected.shape)}: "
                        f"{safe_read.COPY_AGAIN}."
                    )
                found[name] = weight
        self._check_rest(rest)
        return found

    def _weight(self, name: str, rest: Weights) -> Tensor:
        theirs = self.family.theirs(name)
        weight = rest.pop(theirs, None) if theirs is not None else None
        is_bias = name.endswith("output.bias")
        if weight is None and is_bias:
            weight = self.table.new_zeros(self.count)
        if weight is None:
            raise self._missing(theirs or name)
        weight = weight if weight.dtype == torch.float64 else weight.float()
        if name.endswith(POSITIONS):
            return weight[self.family.offset :]
        if TOKEN_ROWS.match(name):
            weight = weight.flatten() if is_bias else weight
            if len(weight) == self.count:
                weight = weight[self.vocabulary.rows]
            if is_bias:
                never = [i for i, number in enumerate(self.vocabulary.ids) if number < 0]
                weight[never] = NEVER
        return weight

    def _missing(self, name: str) -> PretrainedError:
        return PretrainedError(
            f"the weights in {self.path} must be those that its {CONFIG} describes, but they lack "
            f"{name}: save the model again."
        )

    def _check_rest(self, rest: Weights) -> None:
        """Raise for tensors that have no part in the network, and are no copies of others."""
        for name, weight in rest.items():
            copies = name.endswith("embed_tokens.weight")
            known = re.fullmatch(self.family.spare, name) is not None
            if not known or (copies and not torch.equal(weight, self.table)):
                raise self._refused(f"it has weights {name:.80} of its own")
