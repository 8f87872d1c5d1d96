"""Traces to draw, made by hand."""

from dataclasses import replace

import numpy as np

from regard.seeing import DecodingInfo, Map, ModelInfo, Text, Token, Trace
from regard.seeing.trace.trace import Backdrop, series, spectrogram

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<b>",
    "<img src=x onerror=window.hacked=2>",
    "&amp;",
    '"',
    "👩‍👩‍👧‍👦",
    "مرحبا",
    "今日",
    "x" * 300,
    "",
    "\n",
    "\u202eevil",
    "{{title}}",
    "--><!--",
    "javascript:window.hacked=3",
)


def peaked(rows, columns, *, heads=1, sharp=4.0, seed=0, causal=False):
    """Weights (heads, rows, columns) with a peak near the diagonal."""
    draw = np.random.default_rng(seed)
    centre = np.linspace(0, columns - 1, rows)[:, None]
    near = -np.abs(np.arange(columns)[None, :] - centre)
    scores = sharp * near * draw.uniform(0.1, 1, (heads, 1, 1))
    scores = scores + draw.normal(size=(heads, rows, columns))
    if causal:
        ahead = np.triu(np.ones((rows, columns), dtype=bool), k=1)
        scores = np.where(ahead, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def spanned(text, pieces, *, probs=None):
    """A text of which each piece is a token; a piece that follows no space goes on with a word."""
    tokens, at, word = [], 0, -1
    for i, piece in enumerate(pieces):
        start = text.index(piece, at)
        word += start > at or start == 0
        prob = None if probs is None else probs[i]
        other = () if probs is None else (("other", 0.05), ("<unk>", 0.01))
        tokens.append(
            Token(piece, span=(start, start + len(piece)), word=word, prob=prob, alternatives=other)
        )
        at = start + len(piece)
    tokens.append(Token("</s>", special=True, prob=None if probs is None else 0.99))
    return Text(text, tuple(tokens))


#: what `regard check --methods` measures of a method
MEASURED = (
    *("gain", "gain_low", "gain_high", "insertion", "deletion"),
    *("comprehensiveness", "sufficiency"),
)


def sentence(heads=4, layers=2):
    """A translation with sub-words and derived values."""
    source = spanned("the cat sat on the mat .", ["the", "cat", "sat", "on", "the", "ma", "t", "."])
    pieces = ["le", "chat", "s'", "est", "as", "sis", "sur", "le", "tapis", "."]
    probs = [0.97, 0.93, 0.71, 0.88, 0.64, 0.99, 0.91, 0.95, 0.83, 0.99]
    target = spanned("le chat s' est assis sur le tapis .", pieces, probs=probs)
    rows, columns = len(target.tokens), len(source.tokens)
    maps = [Map.of("cross", i, peaked(rows, columns, heads=heads, seed=i)) for i in range(layers)]
    maps += [
        Map.of("encoder-self", i, peaked(columns, columns, heads=heads, seed=7 + i))
        for i in range(layers)
    ]
    maps += [
        Map.of("decoder-self", i, peaked(rows, rows, heads=heads, seed=9 + i, causal=True))
        for i in range(layers)
    ]
    draw = np.random.default_rng(3)
    looked = maps[0].weights.mean(axis=0)
    ablation = (4 * looked + draw.normal(scale=0.2, size=looked.shape)).astype(np.float32)
    return Trace(
        source,
        target,
        tuple(maps),
        model=ModelInfo("enfr", "transformer", "a3f09c2e11", 12000),
        decoded=DecodingInfo("beam", 5, 0, -2.31),
        derived={
            "ablation": ablation,
            "gradient": np.abs(looked + draw.normal(scale=0.05, size=looked.shape)).astype("f4"),
            "rollout": looked,
        },
        checks={
            "tau_ablation": 0.62,
            "tau_ablation_random": 0.01,
            "shuffled_kept": 0.2,
            "faithfulness": {
                "ablation": dict.fromkeys(MEASURED, 0.4),
                "random": dict.fromkeys(MEASURED, -0.01),
            },
            "sentences": ["Attention and ablation order the inputs more alike than by chance."],
        },
        notes=("made by hand",),
    )


def written():
    """What a language model wrote, with what it had read; scores in contrast to a hostile token."""
    read = Text.of(["<s>", "the", "cat", "sat"])
    map_ = Map.of("decoder-self", 0, peaked(4, 4, causal=True))
    rows = replace(map_, weights=map_.weights[:, 2:], rows="target", columns="source")
    scores = np.array([[-0.01, 1, -2, 0], [0, 1, 2, 3]], dtype=np.float32)
    derived = {"ablation": scores / 1000, f"gradient versus {HOSTILE[0]}": scores}
    return Trace(read, Text.of(["sat", "down"]), (rows,), derived=derived)


def hostile():
    """Tokens that want to be more than text."""
    text = Text.of(HOSTILE)
    size = len(HOSTILE)
    return Trace(
        text,
        text,
        (Map.of("cross", 0, peaked(size, size)),),
        model=ModelInfo(name=HOSTILE[0], kind=HOSTILE[2]),
        notes=(*HOSTILE[:3], HOSTILE[8]),
        checks={
            HOSTILE[0]: HOSTILE[2],
            "sentences": [HOSTILE[0], HOSTILE[8]],
            "faithfulness": {HOSTILE[0]: {"gain": HOSTILE[1], "insertion": HOSTILE[0]}, "x": None},
        },
    )


def long(layers=6, heads=8, size=512):
    """A map of a long text, so flat that it is hard to pack."""
    words = [f"w{i}" for i in range(size)]
    maps = tuple(
        Map.of("cross", i, peaked(size, size, heads=heads, sharp=0.1, seed=i))
        for i in range(layers)
    )
    return Trace(Text.of(words), Text.of(words), maps)


def unknown():
    """Characters of which some are unknown, to whole words that are single pieces."""
    letters = ["c", "a", "f", "e\u0301", " ", "n", "\u0303", "o", "\u200d", "\u2003"]
    tokens, at = [], 0
    for letter in letters:
        known = "<unk>" if len(letter) > 1 or letter == "n" else letter
        word = None if letter.isspace() else int(at > 5)
        tokens.append(Token(known, (at, at + len(letter)), word))
        at += len(letter)
    pieces = [Token(f"\u2581{word}", None, i) for i, word in enumerate(["coffee", "boy"])]
    source, target = Text("".join(letters), tuple(tokens)), Text("coffee boy", tuple(pieces))
    return Trace(source, target, (Map.of("cross", 0, peaked(2, 10)),))


def far():
    """Arabic to Chinese."""
    source = Text.of(["مرحبا", "بالعالم", "كيف", "حالك", "اليوم", "؟"])
    target = Text.of(["你好", "世界", "今日", "你", "好", "吗", "？"], "你好世界今日你好吗？")
    return Trace(source, target, (Map.of("cross", 0, peaked(7, 6, heads=2)),))


def memory():
    """Arabic to Chinese, by a model with a memory of its own."""
    trace = far()
    return replace(trace, maps=(*trace.maps, Map.of("memory", 0, peaked(7, 5))))


def frames():
    """Sounds: labels are the numbers of frames that were joined."""
    source = Text("a.npy", tuple(Token(f"{2 * i}-{2 * i + 1}") for i in range(60)))
    looked = peaked(3, 60)
    maps = (Map.of("cross", 0, looked),)
    return Trace(source, Text.of(["a", "b", "c-d-e"]), maps, derived={"ablation": looked[0]})


def pictured():
    """A picture of 4 x 6 patches that a class token looks at, and what each patch looks at."""
    y, x = np.mgrid[:64, :96]
    pixels = np.stack([2 * x, 3 * y, 128 + 0 * x], axis=-1) % 256
    backdrop = Backdrop.of("picture", pixels, grid=(4, 6), first=1)
    names = [f"patch {row + 1},{column + 1}" for row in range(4) for column in range(6)]
    text = Text("p.png", (Token("[CLS]", special=True), *map(Token, names)), backdrop)
    weights = np.full((8, 25, 25), 0.2 / 24, dtype=np.float32)
    for head in range(8):
        weights[head, :, 1 + 2 * head] = 0.8  # each head looks at a patch of its own
    return Trace(text, text, (Map.of("encoder-self", 0, weights),))


def heard():
    """A recording of 2 s that four words look at, each at its own time."""
    draw = np.random.default_rng(1)
    source = Text("s.wav", tuple(Token(f"{i / 50:.2f} s") for i in range(100)))
    levels = draw.uniform(-6, 0, (40, 200))
    source = replace(source, backdrop=spectrogram(levels, 100, 2.0))
    target = spanned("the cat sat on", ["the", "cat", "sat", "on"], probs=[0.9, 0.8, 0.7, 0.6])
    looked = Map.of("cross", 0, peaked(5, 100, heads=2))
    own = Map.of("decoder-self", 0, peaked(5, 5, causal=True))
    return Trace(source, target, (looked, own))


def measured(features=3):
    """A series of numbers."""
    table = np.random.default_rng(2).normal(size=(30, features)).cumsum(axis=0)
    source = Text("a.npy", tuple(Token(str(i)) for i in range(30)), series(table))
    return Trace(source, Text.of(["a", "b", "c"]), (Map.of("cross", 0, peaked(3, 30)),))


def wide():
    """A map that is too large for its window, of two heads that look at different halves."""
    weights = np.zeros((2, 90, 90), dtype=np.float32)
    weights[0, :, :45], weights[1, :, 45:] = 1 / 45, 1 / 45
    names = Text.of([f"w{i}" for i in range(90)])
    return Trace(names, names, (Map.of("cross", 0, weights),))


def from_the_right():
    """A short text that is written from right to left, and its translation."""
    source, target = (
        spanned("שלום לך עולם", ["שלום", "לך", "עולם"]),
        spanned("hello world", ["hello", "world"]),
    )
    weights = peaked(len(target.tokens), len(source.tokens))
    return Trace(source, target, (Map.of("cross", 0, weights),))
