"""Small files in the form of the public ones."""

import gzip
import json

TREES = [
    "(3 (2 It) (4 (3 (2 is) (4 lovely)) (2 .)))",
    "(1 (2 No) (0 (1 bad) (2 film)))",
    "(2 (2 A) (2 film))",
]


def write(folder, name, rows):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join("\t".join(row) + "\n" if isinstance(row, tuple) else f"{row}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def cmudict(folder, words=40):
    """Each word is said as it is written; every third one in a second way, too."""
    rows = []
    for number in range(words):
        word = f"{number:03}".translate(str.maketrans("0123456789", "ABCDEFGHIJ"))
        rows.append((word, " ".join(word)))
        if number % 3 == 0:
            rows.append((word, " ".join(reversed(word))))
    write(folder, "cmudict_g014b2b/train.tsv.gz", rows)
    test = [("ABBA", "A B B A"), ("ABE", "A B E", "E B A", "")]
    write(folder, "cmudict_g014b2b/test.multiref.tsv.gz", test)
    return rows


def sigmorphon(folder):
    for name in ("train", "dev", "test"):
        rows = [("kor", "가 값b", f"k a {name}"), ("ice", "á", "a u")]
        write(folder, f"g2p_sigmorphon2021/low.{name}.tsv.gz", rows)


def inflection(folder):
    rows = [("german", "gehen", "ging", "V;PST"), ("albanian", "shok", "shok", "N;SG")]
    for name in ("train-medium", "dev", "test"):
        write(folder, f"inflection_2017_task1/{name}.tsv.gz", rows)


def multi30k(folder):
    for name in ("train", "val", "test_2016_flickr"):
        rows = [("A Dog.", "Ein Hund.", "Un chien.", "Pes."), (name, "zwei", "deux", "dva")]
        write(folder, f"multi30k/{name}.en-de-fr-cs.tsv.gz", rows)
    write(folder, "multi30k/test_2017_flickr.en-de-fr.tsv.gz", [("A Cat.", "Eine Katze.", "x")])


def tatoeba_all(folder):
    """All pairs of French in one file; German and Chinese in three, with a sentence each."""
    french = [(f"Go {i}.", f"Va {i}.") for i in range(60)] + [("Run dev!", "Cours !")]
    write(folder, "tatoeba_eng_fra/pairs.eng-fra.tsv.gz", french)
    for name in ("train", "dev", "test"):
        german = [("en", "de"), (f"Run {name}!", f"Lauf {name}!"), (f"Now {name}.", f"Nun {name}.")]
        write(folder, f"tatoeba_eng_deu/{name}.tsv.gz", german)
        head = ("en", "zh", "script", "id", "user", "id", "user", "simplified")
        rows = [
            (f"Run {name}!", "跑，漢。", *"aaaaa", "跑，汉。"),
            (f"Run {name}!", "跑。", *"bbbbb", ""),
        ]
        write(folder, f"tatoeba_eng_cmn/{name}.tsv.gz", [head, *rows])


def sst(folder):
    write(folder, "sst/trees.train.txt.gz", TREES)
    write(folder, "sst/trees.dev.txt.gz", ["(4 (4 lovely) (2 film))", "(0 lovely)"])
    write(folder, "sst/trees.test.txt.gz", ["(0 (1 -LRB-) (2 1\\/2))", TREES[2]])


def ptb(folder):
    for name in ("train", "valid", "test"):
        write(folder, f"ptb/ptb.{name}.txt.gz", [f" the {name} <unk> is here ", "", " a b N "] * 5)


BABI = ("task", "story_id", "story", "question", "answer", "support")


def babi(folder):
    """Two questions about each of some stories, of tasks 1 and 3."""
    for name, tasks in {"train_1k": "13", "train_10k_without_task3": "1", "test": "13"}.items():
        rows = [BABI]
        for task in tasks:
            for story in range(30):
                for place in ("hall", "shed"):
                    text = f"Mary left {story}. | John went to the {place}."
                    rows.append((task, str(story), text, "Where is John?", place, "2"))
        write(folder, f"babi/{name}.tsv.gz", rows)


def squad(folder):
    answers = [["red stone", 19], ["red stone", 19]]
    asked = [{"id": "1", "q": "What is the house made of?", "a": answers}]
    context = "The house is made of red stone. A garden lies behind it."
    line = json.dumps({"title": "House", "context": context, "qas": asked})
    for name in ("train", "dev", "test"):
        write(folder, f"squad11_part/{name}.jsonl.gz", [line])
