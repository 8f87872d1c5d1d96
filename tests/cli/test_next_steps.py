"""What an error says to type can be typed where it was said, and works."""

import json
import re
import shlex

import pytest

from cli.tools import BRIEF, done, regard, sentence, words

SOURCES = words(60)
PAIRS = [(word, word[::-1]) for word in SOURCES]
GOOD = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)

#: a file that cannot be read as it is, and what of the sentence mends it
FILES = {
    "third column": (
        "".join(f"{src}\t{tgt}\tsaid by Ann\n" for src, tgt in PAIRS),
        r'columns="0,1"',
    ),
    "bad line": (f"{GOOD}abc\t\n", r"skip_bad=True|--skip-bad"),
    "too long": (f"{GOOD}{'ab ' * 5000}\tb\n", r"skip_bad=True|--skip-bad"),
    "other keys": (
        "".join(json.dumps({"one": src, "by": src, "other": tgt}) + "\n" for src, tgt in PAIRS),
        r'columns="one,other"',
    ),
    "another name": (
        "en\tfr\n" + GOOD,
        r'columns="0,1"',
    ),
}


def written(folder, content, name="pairs"):
    path = folder / f"{name}.{'jsonl' if content.startswith('{') else 'tsv'}"
    path.write_text(content)
    return path.name


def found(pattern, said):
    match = re.search(pattern, said)
    assert match, said
    return match[0]


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", FILES)
def test_what_is_said_of_training_data_works_in_a_shell(in_folder, case):
    content, pattern = FILES[case]
    asked = ["columns=en,de"] if case == "another name" else []
    name = written(in_folder, content)
    said = sentence(regard("train", name, *asked, *BRIEF, "-q"), 1)
    done(regard("train", name, *shlex.split(found(pattern, said)), *BRIEF, "-q"))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["evaluate", "align"])
def test_what_is_said_of_pairs_for_a_run_works(run, tagged, in_folder, verb):
    name = written(in_folder, FILES["other keys"][0])
    said = sentence(regard(verb, run, name), 1)
    done(regard(verb, run, name, *shlex.split(found(r"--columns one,other", said))))

    name = written(in_folder, "a b\tb a\tV;PST\tsaid by Ann\n")
    said = sentence(regard(verb, tagged, name), 1)
    done(regard(verb, tagged, name, *shlex.split(found(r"--columns 0,1,2", said))))

    name = written(in_folder, f"{GOOD}abc\t\n")
    said = sentence(regard(verb, run, name), 1)
    done(regard(verb, run, name, *shlex.split(found(r"--skip-bad", said))))


@pytest.mark.parametrize("verb", ["predict", "show", "check"])
def test_missing_features_are_told_of_once(tagged, run, verb):
    def asked(folder, text):
        if verb == "predict":
            return regard(verb, folder, stdin=f"{text}\n\n{text}\n")
        return regard(verb, folder, text)

    result = asked(tagged, "abc")
    done(result)
    assert result.stderr.splitlines()[0] == (
        "regard: the run was trained with features, but 'abc' has none: write them after a tab, as "
        "in $'abc\\tPRS'; the run knows 'PRS', 'PST', 'V'."
    )
    assert result.stderr.count("features") == 1
    typed = found(r"\$'(.*)'(?=;)", result.stderr)[2:-1].replace("\\t", "\t")
    assert "features" not in asked(tagged, typed).stderr
    assert "features" not in asked(run, "abc").stderr


@pytest.mark.parametrize(
    "verb", ["align", "check", "compare", "heads", "predict", "show", "what-if"]
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(verb, in_folder):
    name = "none/out.csv" if verb == "predict" else "none/out.html"
    said = sentence(regard(verb, "no-run", "no-run", *["a"] * (verb == "compare"), "-o", name), 1)
    assert said.startswith(f"{name}: the file cannot be written (No such file")
