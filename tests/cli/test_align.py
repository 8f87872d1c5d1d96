"""`regard align`: Pharaoh lines on stdout, error rates on stderr."""

import gzip
import json

import pytest

from cli.tools import SMALL, done, regard, sentence

# trains and decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow

PAIRS = ["ab c\tc ab", "d e f\tf e d", "a\ta"]
GOLD = ["0-1 1-0", "0-2 1-1 2p0", "0-0"]


@pytest.fixture(scope="session")
def spaced(runs):
    """A run whose tokens are words, with many layers and heads."""
    lines = [f"{a} {b} c\tc {b} {a}\n" for a in "abcdef" for b in "abcdef" if a != b]
    (runs / "spaced.tsv").write_text("".join(lines))
    sizes = ["dim=16", "heads=2", "layers=2", "feed_forward=16", "batch_sentences=16"]
    args = ["--preset", "transformer", "size=tiny", "steps=3", *sizes]
    tokens = ["src_tokenizer=space", "tgt_tokenizer=space"]
    done(regard("train", runs / "spaced.tsv", "-o", runs / "spaced", "-q", *args, *tokens))
    return runs / "spaced"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(line + "\n" for line in PAIRS))
    (tmp_path / "gold").write_text("".join(line + "\n" for line in GOLD))
    return tmp_path / "pairs.tsv", tmp_path / "gold"


def test_a_line_for_each_pair(spaced, files):
    result = regard("align", spaced, files[0])
    lines = done(result).splitlines()
    assert len(lines) == 3
    for line, pair in zip(lines, PAIRS, strict=True):
        source, target = (len(side.split()) for side in pair.split("\t"))
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert all(i < source and j < target for i, j in links)
        assert len({j for _, j in links}) == len(links)
    assert result.stderr == "links by statistics\n"
    looked = regard("align", spaced, files[0], "--by", "attention")
    done(looked)
    assert looked.stderr == "links by mean\n"


def test_gold_finds_the_best_and_names_it(spaced, files):
    result = regard("align", spaced, files[0], "--gold", files[1])
    assert len(done(result).splitlines()) == 3
    assert result.stderr.startswith("links by ")
    assert "diagonal" in result.stderr
    assert "AER" in result.stderr


def test_json_has_every_rate(spaced, files):
    found = json.loads(done(regard("align", spaced, files[0], "--gold", files[1], "--json")))
    assert found["pairs"] == len(found["alignments"]) == 3
    diagonal = found["tried"].pop("diagonal")
    # the mean, 2 layers and 2 x 2 heads, each also by the next step, and statistics
    assert len(found["tried"]) == 15
    assert found["chosen"] == min(found["tried"], key=lambda name: found["tried"][name]["aer"])
    # 0-0 1-1, 0-0 1-1 2-2, 0-0: 1-1 of the second pair and 0-0 of the third are right
    assert diagonal["aer"] == pytest.approx(1 - 4 / 11)


def test_the_choice_can_be_made(spaced, files):
    def made(by, *args):
        return json.loads(done(regard("align", spaced, files[0], "--json", "--by", by, *args)))

    for by in ("1:0+1", "1", "mean+1", "statistics"):
        assert made(by)["chosen"] == by
    assert made("attention")["chosen"] == "mean"
    assert [*made("0:1", "--gold", files[1])["tried"]] == ["0:1", "diagonal"]
    # head 0 and head 1 of the layer are not the same, nor is a head with a shift
    assert len({tuple(made(by)["alignments"]) for by in ("1:0", "1:1", "1:0+1")}) == 3


def test_letters_are_linked_where_a_side_is_read_by_letters(run, tmp_path):
    (tmp_path / "p").write_text("abc\tcba\n")
    letters = done(regard("align", run, tmp_path / "p")).split()
    assert {link.split("-")[1] for link in letters} <= {"0", "1", "2"}
    assert set(done(regard("align", run, tmp_path / "p", "--words")).split()) <= {"0-0"}


def test_files_may_be_two_or_stdin_or_hold_the_gold_themselves(spaced, files, tmp_path):
    plain = done(regard("align", spaced, files[0]))
    for i, name in enumerate(("src", "tgt")):
        (tmp_path / name).write_text("".join(p.split("\t")[i] + "\n" for p in PAIRS))
    assert done(regard("align", spaced, tmp_path / "src", tmp_path / "tgt")) == plain
    assert done(regard("align", spaced, "-", stdin="\n".join(PAIRS))) == plain
    one = tmp_path / "all.tsv.gz"
    counted = ["1-2 2-1", "1-3 2-2 3p1", "1-1"]
    rows = [f"{pair}\t{gold}\n" for pair, gold in zip(PAIRS, counted, strict=True)]
    one.write_bytes(gzip.compress("".join(rows).encode()))
    own = regard("align", spaced, one, "--gold", one, "--gold-first", 1, "--json")
    by_file = regard("align", spaced, files[0], "--gold", files[1], "--json")
    assert done(own) == done(by_file)


BAD_GOLD = {
    "no link": ("0-1\n0-1 x\n0-0\n", "line 2: 'x' is not a link"),
    "out of range": ("0-1\n3-0\n0-0\n", "line 2: a link joins words 3 and 0"),
    "bytes": (b"0-1\n\xff\n0-0\n", "line 2: invalid UTF-8"),
}


@pytest.mark.parametrize("case", BAD_GOLD)
def test_bad_gold(spaced, files, case):
    content, fragment = BAD_GOLD[case]
    files[1].write_bytes(content if isinstance(content, bytes) else content.encode())
    assert fragment in sentence(regard("align", spaced, files[0], "--gold", files[1]), 1)


BAD_USAGE = {
    "no layer": (["--by", "7"], ["--by", "auto, statistics, attention", "1:1+1", "'7'"]),
    "no head": (["--by", "1:5"], ["--by", "'1:5'"]),
    "shift of two": (["--by", "1+2"], ["--by", "'1+2'"]),
    "batch": (["--batch", 0], ["--batch", "regard align --help"]),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", BAD_USAGE)
def test_bad_usage(spaced, files, case):
    args, fragments = BAD_USAGE[case]
    said = sentence(regard("align", spaced, files[0], *args), 2)
    assert all(fragment in said for fragment in fragments), said


def test_a_bad_pair_has_an_empty_line_in_its_place(spaced, files, tmp_path):
    good = done(regard("align", spaced, files[0])).splitlines()
    mixed = [PAIRS[0], "no tab", PAIRS[1], "a\t", "", PAIRS[2]]
    (tmp_path / "mixed").write_text("".join(f"{line}\n" for line in mixed))
    result = regard("align", spaced, tmp_path / "mixed", "--skip-bad")
    assert done(result).split("\n") == [good[0], "", good[1], "", "", good[2], ""]
    assert (
        "3 bad lines were left out (1 missing tab, 1 empty target, 1 empty line)" in result.stderr
    )
    saved = tmp_path / "saved"
    found = json.loads(
        done(regard("align", spaced, tmp_path / "mixed", "--skip-bad", "--json", "-o", saved))
    )
    assert found["pairs"] == 3
    assert (
        found["alignments"] == saved.read_text().split("\n")[:-1] == result.stdout.split("\n")[:-1]
    )


def test_empty_lines_at_the_end_have_no_place(spaced, files):
    plain = done(regard("align", spaced, files[0], "--gold", files[1]))
    for file in files:
        file.write_text(file.read_text() + "\n\n")
    assert done(regard("align", spaced, files[0], "--gold", files[1])) == plain
    files[1].write_text(files[1].read_text() + "0-0\n")
    said = sentence(regard("align", spaced, files[0], "--gold", files[1]), 1)
    assert "a line for each of the 3 pairs, but it has 6" in said


def test_gold_of_a_bad_pair_is_not_asked_for(spaced, files, tmp_path):
    words = ["--by", "0:0", "--json"]
    one = json.loads(done(regard("align", spaced, files[0], "--gold", files[1], *words)))
    (tmp_path / "mixed").write_text(f"{PAIRS[0]}\nno tab\n{PAIRS[1]}\n{PAIRS[2]}\n")
    (tmp_path / "more").write_text(f"{GOLD[0]}\n0-0 7-7\n{GOLD[1]}\n{GOLD[2]}\n")
    mixed = ["align", spaced, tmp_path / "mixed", "--skip-bad", "--gold"]
    two = json.loads(done(regard(*mixed, tmp_path / "more", *words)))
    assert one["tried"] == two["tried"]
    said = sentence(regard(*mixed, files[1], *words), 1)
    assert "a line for each of the 4 pairs, but it has 3" in said
    (tmp_path / "more").write_text(f"{GOLD[0]}\n\n{GOLD[1]}\n7-7\n")
    assert "more, line 4: a link joins" in sentence(regard(*mixed, tmp_path / "more", *words), 1)


def test_a_model_without_attention(runs, run, tmp_path):
    args = ["-q", "--preset", "seq2seq", *SMALL, "steps=1"]
    done(regard("train", runs / "run.tsv", "-o", tmp_path / "s", *args))
    (tmp_path / "p").write_text("abc\tcba\n")
    said = sentence(regard("align", tmp_path / "s", tmp_path / "p"), 1)
    assert "attention between source and target" in said
    assert "seq2seq" in said
