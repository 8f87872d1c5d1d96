"""Cases: a folder of files that somebody has crafted, and a command line that reads them."""

import base64
import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import soundfile
from PIL import Image
from pyarrow import parquet

from fuzz.mutations import ODD, dumps, flip, lie, mutate, replace_kind
from regard.atomic_files import json_checksum
from regard.data import FrameScaler, LogMel, PictureEncoder, SoundEncoder, Tokenizer
from regard.seeing import Map, Text, Trace
from regard.seeing.trace import storage
from regard.seeing.trace.trace import series
from regard.training import RunFolder, make_config, start_run
from untrained import write_run

WORDS = ("abc", "bcad", "dab", "a b c", "cab d", "abc, abd.", "dcba")
SIZES = {
    "recurrent": {"hidden": 8, "embed": 4},
    "attentive": {"dim": 8, "heads": 2, "feed_forward": 8, "layers": 1},
    "convolutional": {"dim": 8, "layers": 1},
}
#: preset, sizes, tokenisers of source and target, features
RUNS = {
    "bahdanau": ("recurrent", "char", "char", ()),
    "transformer": ("attentive", "bpe", "unigram", ()),
    "conv": ("convolutional", "space", "space", ()),
    "luong": ("recurrent", "word", "char", ()),
    "seq2seq": ("recurrent", "char", "char", ("V", "PST")),
    "memory": ("recurrent", "char", "space", ()),
    "monotonic": ("recurrent", "char", "char", ()),
    "self-attentive": ("recurrent", "char", "char", ()),
    "rnn": ("recurrent", "char", "char", ()),
    "lm-rnn": ("recurrent", "char", "char", ()),
    "lm-transformer": ("attentive", "char", "char", ()),
    "rnn-dot": ("recurrent", "vectors", "char", ()),
}


class Case(NamedTuple):
    """What is run in which folder."""

    kind: str
    words: list[str]
    stdin: str


def make_bases(folder: Path) -> None:
    """Write the files that cases start from, none of which takes long to make."""
    for preset, (sizes, src_kind, tgt_kind, features) in RUNS.items():
        src, tgt = (_side(kind, features) for kind in (src_kind, tgt_kind))
        options = SIZES[sizes]
        run = RunFolder(folder / preset)
        write_run(run.path, src, tgt, preset, scale=1, data="pairs.tsv", beam=2, **options)
        run.metrics.append({"step": 3, "dev_loss": 1.5, "seconds": 1.0})
        shutil.rmtree(run.data)
    _write_media(folder / "media")
    _media_run(folder / "pictures", PictureEncoder(6, 10, 3, 2, (90.0,) * 3, (50.0,) * 3))
    scaler = FrameScaler(9, 4, (0.0,) * 9, (1.0,) * 9)
    _media_run(folder / "sounds", SoundEncoder.of(scaler, LogMel(8000, 9), 2.0))
    _write_data(folder)
    short = {"steps": 2, "eval_every": 1, "save_every": 1, "size": "tiny", "hidden": 8, "embed": 4}
    small = {"batch_sentences": 4, "average": 1, "eval_pairs": 2, "device": "cpu", "threads": 1}
    settings = {"data": str(folder / "pairs.tsv"), "dev": str(folder / "pairs.tsv")}
    start_run(make_config({**settings, **short, **small}), folder / "trained", quiet=True)


def _side(kind: str, features: tuple[str, ...]) -> Tokenizer | FrameScaler:
    if kind == "vectors":
        return FrameScaler(2, 1, (0.0, 0.5), (1.0, 2.0))
    return Tokenizer.train(kind, WORDS * 5, vocab_size=24, features=features)


def _media_run(path: Path, src: PictureEncoder | SoundEncoder) -> None:
    sizes = {"beam": 2, "stack": 4, **SIZES["recurrent"]}
    write_run(path, src, Tokenizer.train("char", WORDS), "bahdanau", scale=1, **sizes)


def _write_media(folder: Path) -> None:
    """Write pictures and recordings of all formats that are read, and of some that are not."""
    folder.mkdir()
    draw = np.random.default_rng(1)
    image = Image.fromarray(draw.integers(0, 256, (24, 20, 3), np.uint8))
    wide = Image.fromarray(draw.integers(0, 65536, (24, 20), np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "EPS", "PPM", "ICO", "DDS", "TGA"):
        for mode in ("RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"):
            with suppress(OSError, ValueError):  # not every format has every mode
                picture = wide if mode == "I;16" else image.convert(mode)
                options = {"exif": turned} if name in ("PNG", "JPEG", "WEBP", "TIFF") else {}
                picture.save(folder / f"{name}-{mode.replace(';', '')}.picture", name, **options)
    for way in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        image.save(folder / f"{way}.picture", "TIFF", compression=way)
    tone = np.sin(np.arange(2000) / 3) / 2
    sounds = ("WAV PCM_16", "WAV FLOAT", "WAV ULAW", "WAV MS_ADPCM", "WAVEX PCM_24", "FLAC PCM_16")
    sounds += ("OGG VORBIS", "OGG OPUS", "MP3 MPEG_LAYER_III", "AIFF PCM_16", "RF64 PCM_16")
    for sound in (*sounds, "AU PCM_16", "CAF PCM_16", "W64 PCM_16"):
        for channels in (1, 2):
            name, subtype = sound.split()
            path = folder / f"{name}-{subtype}-{channels}.sound"
            samples = np.stack([tone] * channels, axis=1)
            soundfile.write(path, samples, 16000, format=name, subtype=subtype)


def _write_data(folder: Path) -> None:
    pairs = [(word, word[::-1]) for word in WORDS]
    lines = "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)
    (folder / "pairs.tsv").write_text(lines)
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "pairs.tsv.xz").write_bytes(lzma.compress(lines.encode()))
    (folder / "pairs.tsv.bz2").write_bytes(bz2.compress(lines.encode()))
    rows = [{"src": src, "tgt": tgt, "features": "V;PST"} for src, tgt in pairs]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet")
    np.save(folder / "frames.npy", np.ones((3, 2), np.float32))
    tables = [{"src": [[0.5, 1.0], [1.0, 2.0]], "tgt": "a"}, {"src": "frames.npy", "tgt": "b"}]
    (folder / "tables.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tables))
    (folder / "lines.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (folder / "gold.txt").write_text("0-0 1-1\n" * len(WORDS))
    source, target = Text.of(list("abcd")), Text.of(list("xyz"))
    source = replace(source, backdrop=series(np.arange(8.0).reshape(4, 2)))
    weights = np.full((2, 3, 4), 0.25, np.float32)
    slots = np.full((1, 3, 2), 0.5, np.float32)
    maps = (Map.of("cross", 0, weights), Map.of("cross", 1, weights / 2, missing=True))
    maps = (*maps, Map.of("memory", 0, slots))
    derived = {"ablation": np.ones((3, 4), np.float32)}
    checks = {"tau": 0.5, "sentences": ["it is so"]}
    trace = Trace(source, target, maps, derived=derived, checks=checks)
    (folder / "trace.json").write_text(storage.dumps(trace))


def make_case(seed: int, number: int, bases: Path, folder: Path, outside: Path) -> Case:
    """Write the files of a case and return what to run; the same for the same numbers."""
    rng = random.Random(f"{seed}:{number}")
    kinds = {run_folder: 30, trace: 22, data: 22, command: 14, recipe: 8, resumed: 4, media: 8}
    make = rng.choices(list(kinds), list(kinds.values()))[0]
    if only := os.environ.get("FUZZ_KIND"):
        make = next(one for one in kinds if one.__name__ == only)
    return make(rng, bases, folder, outside)


#: pictures or recordings of a case
MUTANTS = 10


def media(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """Damaged pictures or recordings, one of them or a list."""
    run, suffix = rng.choice((("pictures", ".png"), ("sounds", ".wav")))
    seeds = sorted((bases / "media").glob(f"*.{run[:-1]}"))
    names = []
    for number in range(MUTANTS):
        content = rng.choice(seeds).read_bytes()
        start = rng.choice((64, 200, len(content)))  # headers are where most goes wrong
        content = flip(content[:start], rng) + content[start:]
        names.append(f"{number}{suffix}")
        (folder / names[-1]).write_bytes(content)
    if rng.random() < 0.1:
        words = [rng.choice(("show", "predict")), str(bases / run), names[0]]
        return Case(f"media, {run}, one", words, "")
    (folder / "list.txt").write_text("".join(f"{name}\n" for name in names))
    skip = [] if rng.random() < 0.1 else ["--skip-bad"]
    return Case(f"media, {run}", ["predict", str(bases / run), "list.txt", *skip], "")


def run_folder(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """A run from elsewhere."""
    preset = rng.choice(list(RUNS))
    run = folder / "run"
    shutil.copytree(bases / preset, run)
    shutil.copy(bases / "frames.npy", folder)
    names = ("config.json", "tokenizer.src.json", "tokenizer.tgt.json", "model.safetensors")
    name = rng.choices((*names, "metrics.jsonl"), (5, 4, 4, 3, 1))[0]
    kind = _damage(run / name, rng, outside)
    return Case(f"run folder, {name}, {kind}", *_use(rng, preset, run, bases))


def _use(rng: random.Random, preset: str, run: Path, bases: Path) -> tuple[list[str], str]:
    """A command line that loads a run."""
    text = str(run.parent / "frames.npy") if preset == "rnn-dot" else "abc d"
    if preset == "seq2seq":
        text += "\tV;PST"
    how = rng.randrange(6)
    stdin = f"{text}\nxyz\n\n" if preset != "rnn-dot" else f"{text}\n"
    if how == 0:
        return ["predict", str(run), "--json"], stdin
    if how == 1:
        file = run.parent / "traces.jsonl"
        return ["predict", str(run), "--trace", str(file), "--beam", "3", "--nbest", "2"], stdin
    if how == 2 and preset != "rnn-dot":
        return ["evaluate", str(run), str(bases / "pairs.tsv")], ""
    if how == 3:
        return ["show", str(run), text, *rng.choice(([], ["--json"], ["--plain"]))], ""
    if how == 4 and not preset.startswith("lm"):
        return ["check", str(run), text], ""
    return ["predict", str(run)], stdin


def _damage(path: Path, rng: random.Random, outside: Path) -> str:
    """Change a file in one of the ways that suit it; return which."""
    how = rng.random()
    if how < 0.12:
        replace_kind(path, rng, outside)
        return "kind of file"
    content = path.read_bytes()
    if path.suffix == ".safetensors" and how < 0.7:
        path.write_bytes(lie(content, rng))
        return "header"
    if path.suffix == ".json" and how < 0.85:
        value = json.loads(content)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            value = mutate(value, rng)
        if isinstance(value, dict) and "checksum" in value and rng.random() < 0.8:
            value = _sealed(value)
        path.write_bytes(dumps(value))
        return "structure"
    path.write_bytes(flip(content, rng))
    return "bytes"


def _sealed(value: dict[str, Any]) -> dict[str, Any]:
    """A tokeniser with the checksum of its content, as an attacker would write it."""
    rest = {name: part for name, part in value.items() if name != "checksum"}
    try:
        return {**rest, "checksum": json_checksum(json.loads(dumps(rest)))}
    except RecursionError:
        return value


def trace(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """A trace from elsewhere."""
    several = rng.random() < 0.3
    path = folder / ("trace.jsonl" if several else "trace.json")
    content = (bases / "trace.json").read_bytes()
    how = rng.random()
    kind = "structure"
    if how < 0.1:
        path.write_bytes(content)
        replace_kind(path, rng, outside)
        kind = "kind of file"
    elif how < 0.25:
        path.write_bytes(flip(content, rng))
        kind = "bytes"
    elif how < 0.35:
        value = json.loads(content)
        _swell(value, rng)
        path.write_bytes(dumps(value))
        kind = "deflated weights"
    else:
        value = json.loads(content)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            value = mutate(value, rng)
        lines = [dumps(value)] if not several else [content, dumps(value), content]
        path.write_bytes(b"\n".join(lines))
    forms = ([], ["--list"], ["--plain"], ["--json"], ["--special", "hide"])
    written = [["-o", str(folder / f"out.{ending}")] for ending in ("html", "csv", "svg", "json")]
    line = ["--line", str(rng.choice((0, 1, 2, 3, -1, 10**9)))] if several else []
    return Case(f"trace, {kind}", ["show", str(path), *rng.choice((*forms, *written)), *line], "")


def _swell(value: dict[str, Any], rng: random.Random) -> None:
    """Let deflated weights be more, less or other than their shape says."""
    packed = rng.choice(value["maps"])["weights"]
    size = rng.choice((0, 1, 23, 24, 48, 49, 10_000_000))
    raw = zlib.compress(rng.choice((bytes(size), rng.randbytes(min(size, 1000)))))
    packed["data"] = base64.b64encode(flip(raw, rng) if rng.random() < 0.3 else raw).decode()
    if rng.random() < 0.7:
        large = rng.choice((0, 1, 4, 1000, 2**20, 2**31, 10**12))
        packed["shape"] = rng.choice(([large, 3, 4], [1, large, large], [1, 3, large], [large]))
    packed["encoding"] = rng.choice(("sqrt8", "float16"))


def data(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """A file of data from elsewhere."""
    names = ("pairs.tsv", "pairs.tsv.gz", "pairs.tsv.xz", "pairs.tsv.bz2", "pairs.jsonl")
    names += ("pairs.parquet", "tables.jsonl", "frames.npy", "lines.txt", "gold.txt")
    name = rng.choice(names)
    for extra in ("frames.npy", "pairs.tsv"):
        shutil.copy(bases / extra, folder)
    path = folder / name
    shutil.copy(bases / name, path)
    content = path.read_bytes()
    if path.suffix == ".jsonl" and rng.random() < 0.7:
        rows = [json.loads(line) for line in content.splitlines()]
        path.write_bytes(b"\n".join(dumps(mutate(row, rng)) for row in rows))
        kind = "structure"
    elif name == "pairs.parquet" and rng.random() < 0.3:
        parquet.write_table(_odd_table(rng), path)
        kind = "types"
    elif rng.random() < 0.1 and name not in ("pairs.tsv.gz", "lines.txt", "gold.txt"):
        # a user's own pipe is waited for, so that only files with other files in them may be one
        if name == "tables.jsonl":
            replace_kind(folder / "frames.npy", rng, outside)
        else:
            path.write_bytes(b"")
        kind = "kind of file"
    else:
        path.write_bytes(flip(content, rng))
        kind = "bytes"
    vectors = name in ("tables.jsonl", "frames.npy")
    run = str(bases / ("rnn-dot" if vectors else rng.choice(("bahdanau", "seq2seq", "luong"))))
    skip = rng.choice(([], ["--skip-bad"]))
    if name == "gold.txt":
        words = ["align", run, str(folder / "pairs.tsv"), "--gold", str(path)]
    elif name in ("lines.txt", "frames.npy"):
        words = ["predict", run, str(path), *skip]
    elif rng.random() < 0.15:
        small = ("steps=1", "size=tiny", "hidden=8", "embed=4", "eval_pairs=2", "device=cpu")
        words = ["train", str(path), "-q", "-o", str(folder / "new"), *skip, *small]
    else:
        words = [rng.choice(("evaluate", "evaluate", "align")), run, str(path), *skip]
    return Case(f"data, {name}, {kind}", words, "")


def _odd_table(rng: random.Random) -> pa.Table:
    """A table whose columns have types that no text has."""
    columns: list[Any] = [
        pa.array([1, None, 3]),
        pa.array([1.5, float("nan"), 2]),
        pa.array([b"a", b"\xff", None]),
        pa.array([[1, 2], [], None]),
        pa.array([{"a": 1}, None, {"a": 2}]),
        pa.array([2**62, 0, -(2**62)], pa.timestamp("ns")),
        pa.array([2**52, 0, 1], pa.timestamp("s")),
        pa.array([2**31 - 1, 0, 1], pa.date32()),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array(["a", "", None]),
        pa.array([True, False, None]),
        pa.nulls(3),
    ]
    names = rng.choice((("src", "tgt"), ("a", "b"), ("src", "src"), ("", "\0")))
    return pa.table([rng.choice(columns), rng.choice(columns)], names=list(names))


def recipe(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """A recipe, or settings, as TOML."""
    path = folder / "recipe.toml"
    settings = {"preset": "bahdanau", "hidden": 8, "seed": 1, "steps": 1, "lr": 0.1}
    table: dict[str, Any] = {"task": "sigmorphon", "language": "dutch", "members": ["x:1"]}
    table |= {"decoding": {"beam": 2}, "published": [{"system": "a", "figures": {"wer": 1.0}}]}
    whole: Any = {**settings, "data": str(folder / "missing.tsv")}
    if rng.random() < 0.7:
        whole = {**settings, "recipe": table}
    how = rng.random()
    kind = "structure"
    if how < 0.65:
        for _ in range(rng.choice((1, 1, 2))):
            changed = mutate(whole, rng)
            whole = changed if isinstance(changed, dict) else whole
        path.write_text(_toml(whole), encoding="utf-8", errors="surrogatepass")
    elif how < 0.9:
        path.write_bytes(flip(_toml(whole).encode(), rng))
        kind = "bytes"
    else:
        path.write_text(_toml(whole))
        replace_kind(path, rng, outside)
        kind = "kind of file"
    (folder / "data").mkdir()
    words = ["train", str(path), "--data-dir", str(folder / "data"), "-o", str(folder / "out")]
    if rng.random() < 0.3:
        words.append(f"{rng.choice(('seed', 'recipe.task', 'recipe.decoding.beam', 'hidden'))}=x")
    return Case(f"recipe, {kind}", words, "")


def _toml(value: Any, top: bool = True) -> str:
    if isinstance(value, dict):
        pairs = [f"{json.dumps(str(key))} = {_toml(part, False)}" for key, part in value.items()]
        return "\n".join(pairs) if top else "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(part, False) for part in value) + "]"
    if value is None:
        return '""'
    if value == "@deep@":
        return "[" * 3000 + "]" * 3000
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def resumed(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """A run to go on with."""
    run = folder / "run"
    shutil.copytree(bases / "trained", run)
    files = [path for path in run.rglob("*") if path.is_file()]
    path = rng.choice(sorted(files))
    kind = _damage(path, rng, outside) if path.stat().st_size < 1_000_000 else "nothing"
    if path.suffix == ".arrow" and path.is_file() and rng.random() < 0.7:
        note = path.with_name(f"{path.name}.json")
        found = {**json.loads(note.read_text()), "crc32": zlib.crc32(path.read_bytes())}
        note.write_text(json.dumps(_sealed(found)))
    words = ["train", "--resume", str(run), "-q"]
    return Case(f"resume, {path.suffix or path.name}, {kind}", words, "")


VALUES = ("0", "-1", "1", "2", "9" * 21, "1e400", "nan", "", "x", "a b", "\udcff", "-")
#: options that are tried, by verb; those that end in = are settings
OPTIONS = {
    "predict": "--nbest --length-penalty --min-len --temperature --top-k --top-p --seed --prefix "
    "--no-repeat-ngram --batch --precision --device --num-samples --max-chars --trace",
    "evaluate": "--metrics --beam --columns --save",
    "show": "--kind --layer --head --scale --special --target -o --line",
    "check": "--target --beam -o --device",
    "align": "--gold --by -o --batch",
    "settings": "--json",
    "models": "--json",
    "presets": "--json",
    "export": "--to -o",
    "train": "--preset --size -o --dev --minutes --resume hidden= lr= columns= seed= data= model= "
    "src_vectors= threads=",
    "nonsense": "--help --version",
}


def command(rng: random.Random, bases: Path, folder: Path, outside: Path) -> Case:
    """A command line that nobody would write."""
    shutil.copy(bases / "lines.txt", folder)
    run, pairs = str(bases / "bahdanau"), str(bases / "pairs.tsv")
    shutil.copy(bases / "pairs.tsv", folder)  # options may write there
    odd: tuple[Any, ...] = (folder / "missing", folder, folder / "pairs.tsv", "/dev/null")
    odd += ("a\0b", "\udcff", "", "x" * 60)
    given = {
        "predict": [run, str(folder / "lines.txt")],
        "evaluate": [run, pairs],
        "align": [run, pairs],
        "show": [run, "abc"],
        "check": [run, "abc"],
        "export": [run],
        "train": [str(folder / "missing.tsv")],
    }
    verb = rng.choice(list(OPTIONS))
    words, options = given.get(verb, []), OPTIONS[verb].split()
    if words and rng.random() < 0.4:
        words[rng.randrange(len(words))] = str(rng.choice(odd))
    for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2)))):
        value = str(rng.choice((*VALUES, *map(str, odd), str(folder / "out.json"))))
        if option in ("--num-samples", "--nbest", "--batch", "--beam", "threads="):
            value = rng.choice(("0", "-1", "1", "2", "x", ""))  # memory that a user asks for
        words += [option + value] if option.endswith("=") else [option, value]
    if verb == "export" and "--to" not in words:  # graphs take long to make
        words += ["--to", "x"]
    if verb == "train":  # what happens to name data that are there is trained on, but not for long
        words += ["steps=1", "size=tiny", "device=cpu"]
    if rng.random() < 0.1:
        words.append(str(rng.choice(ODD))[:1000])
    return Case(f"command, {verb}", [verb, *words], "abc\n")
