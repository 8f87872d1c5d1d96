"""Questions about stories and passages, by the command line and in Python."""

import json
import random

import pytest

import regard
from cli.tools import done, sentence
from cli.tools import regard as command
from regard.data import Pair, Story, StoryEncoder, Tokenizer
from regard.data.story_encoder import MARKS
from regard.data.tokenizers import is_unspaced
from regard.errors import ArgumentError, DataError
from regard.models.embedding import TokenEmbedding
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from regard.tasks import choose_task, open_task
from regard.tasks.inputs.story import StoryInput
from regard.tasks.outputs.span import folded_tokens
from regard.training import make_config
from regard.training.setup import check_settings
from serve.conftest import client_of
from serve.test_app import events

NAMES, PLACES = ("Mary", "John", "Sandra"), ("kitchen", "garden", "office", "hall")
HEADER = "story\tquestion\tanswer\n"
ASKED = "Mary went to the hall. John went to the garden. Where is John?"
BRIEF = ("-q", "device=cpu", "steps=4", "eval_every=4", "batch_sentences=16", "report=false")


def stories(count, seed=1):
    """Who is where: the last sentence about a person tells."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        moves = [(draw.choice(NAMES), draw.choice(PLACES)) for _ in range(draw.randint(2, 4))]
        name = draw.choice([name for name, _ in moves])
        text = " ".join(f"{who} went to the {where}." for who, where in moves)
        found.append((text, f"Where is {name}?", dict(moves)[name]))
    return found


def write(path, rows):
    path.write_text(HEADER + "".join("\t".join(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions")
    write(path / "train.tsv", stories(80))
    write(path / "test.tsv", stories(7, seed=2))
    return path


def trained(folder, name, *settings):
    done(command("train", folder / "train.tsv", "-o", folder / name, *BRIEF, *settings))
    return folder / name


@pytest.fixture(scope="module")
def memory_run(folder):
    return trained(folder, "memory", "preset=memory-network", "dim=8", "lr=0.01")


@pytest.fixture(scope="module")
def span_run(folder):
    return trained(folder, "span", "preset=span", "embed=8", "hidden=8", "src_tokenizer=word")


@pytest.fixture(scope="module")
def written_run(folder):
    return trained(folder, "written", "embed=8", "hidden=8", "tgt_tokenizer=space")


def test_the_columns_decide(folder):
    config = make_config({"data": str(folder / "train.tsv")})
    pairs = [Pair(f"{story}\t{question}", answer, 2) for story, question, answer in stories(3)]
    assert choose_task(config, lambda: pairs).task.input is StoryInput
    plain = [Pair(story, answer, 1) for story, _, answer in stories(3)]
    assert choose_task(config, lambda: plain).task.input is not StoryInput
    story = make_config({"preset": "memory-network"})
    assert choose_task(story, lambda: plain).task.input is StoryInput


def test_a_story_is_answered_with_a_label(memory_run, folder):
    model = regard.load(memory_run)
    assert model.tgt_tokenizer.kind == "label"
    story = ["Mary went to the hall.", "John went to the garden."]
    forms = (ASKED, (story, "Where is John?"), {"story": story, "question": "Where is John?"})
    assert len({model(form).text for form in forms}) == 1
    out = model(ASKED)
    assert out.text in PLACES
    assert out.src_tokens == ["Mary went to the hall", "John went to the garden", "Where is John"]
    assert out.maps["hops"][0].shape == (1, 3, 3)
    assert [one.text for one in model([ASKED, ASKED])] == [out.text] * 2
    other = model.what_if((["Mary went", story[1]], "Where is John?"), replace={0: "John went"})
    assert other.traces[1].source.labels[:2] == ["John went", story[1]]


@pytest.mark.slow
def test_predict_and_evaluate(memory_run, span_run, written_run, folder):
    lines = "".join(f"{story}\t{question}\n" for story, question, _ in stories(5, seed=3))
    for run in (memory_run, span_run, written_run):
        assert len(done(command("predict", run, stdin=lines)).splitlines()) == 5
        found = json.loads(done(command("evaluate", run, folder / "test.tsv", "--json")))
        assert found["pairs"] == 7
    names = [row["name"] for row in found["metrics"]]
    assert names
    both = json.loads(
        done(command("evaluate", span_run, folder / "test.tsv", "--json", "--metrics", "em,f1"))
    )
    assert [row["name"] for row in both["metrics"]] == ["em", "f1"]


def test_show_labels_rows_by_hops_and_columns_by_sentences(memory_run, tmp_path):
    text = done(command("show", memory_run, ASKED))
    answer = regard.load(memory_run)(ASKED).text
    assert "each row is a hop" in text
    assert "unknown to the model" not in text
    assert f"hop 3 → {answer}" in text
    assert "Where is" in text
    for name in ("a.html", "a.svg", "a.json"):
        done(command("show", memory_run, ASKED, "-o", tmp_path / name))
    trace = from_json(json.loads((tmp_path / "a.json").read_text()))
    assert trace.labels("hops") == ["hop 1", "hop 2", f"hop 3 → {answer}"]
    assert trace.source.labels[0] == "Mary went to the hall."
    assert "Mary went to the hall." in (tmp_path / "a.svg").read_text()


def test_check_asks_what_mattered_sentence_by_sentence(memory_run, span_run):
    found = done(command("check", memory_run, ASKED))
    assert "Inputs are sentences" in found
    assert "costs if not known" in found
    assert "costs if not known" in done(command("check", span_run, ASKED))


def test_a_span_is_written_as_the_passage_has_it(span_run):
    model = regard.load(span_run)
    passage = "Mary went to the hall. John went to the garden."
    out = model((passage, "Where is John?"))
    assert out.text
    assert out.text in passage
    assert out.trace.kinds == ["cross"]


@pytest.mark.slow
def test_serve(memory_run):
    with client_of(Models.load([memory_run], device="cpu")) as client:
        info = client.get("/api/info").json()["models"][0]
        assert "a question that ends in a question mark" in info["reads"]
        found = from_json(client.post("/api/run", json={"text": ASKED}).json())
        assert found.kinds == ["cross", "hops"]
        *_, (last, _) = events(client.post("/api/stream", json={"text": ASKED}))
        assert last == "done"
        wrong = client.post("/api/run", json={"text": "Mary went to the hall."})
        assert wrong.status_code == 422
        assert "must have a question" in wrong.text


def test_export_says_what_it_cannot(memory_run, tmp_path):
    pytest.importorskip("onnx")
    said = sentence(command("export", memory_run, "-o", tmp_path / "graph"), 2)
    assert "reads tables of sentences: export a run of bahdanau" in said


def test_a_run_that_stopped_goes_on(folder, tmp_path):
    settings = ("preset=memory-network", "dim=8", "linear_start=3", "seed=3")
    whole = tmp_path / "whole"
    data = folder / "train.tsv"
    done(command("train", data, "-o", whole, *BRIEF, *settings, "save_every=2", "average=1"))
    half = tmp_path / "half"
    brief = [word.replace("steps=4", "steps=2") for word in BRIEF]
    # the budget decides the learning rate, so that a constant one is compared
    same = ("save_every=2", "average=1", "schedule=constant", "warmup=1")
    done(command("train", data, "-o", tmp_path / "same", *BRIEF, *settings, *same))
    done(command("train", data, "-o", half, *brief, *settings, *same))
    done(command("train", "--resume", half, "-q", "steps=4"))
    one, two = (regard.load(tmp_path / name).module.state_dict() for name in ("same", "half"))
    assert one.keys() == two.keys()
    assert "reader.steps" in one
    assert all(bool((one[name] == two[name]).all()) for name in one)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("\tWhere is John?\thall\n", "a.tsv, line 2: the story is empty: fill it in"),
        ("Mary left.\t\thall\n", "a.tsv, line 2: the question is empty: fill it in"),
        ("Mary left.\tWhere?\n", "a.tsv, line 2: the line has 2 columns, and column 3 is asked"),
        ("Mary left.\tWhere?\tParis\n", "a.tsv, line 2: the answer must stand in the passage, but"),
    ],
)
def test_bad_lines_are_named(tmp_path, row, words):
    (tmp_path / "a.tsv").write_text(HEADER + row)
    result = command("train", tmp_path / "a.tsv", "-o", tmp_path / "run", "preset=span", *BRIEF)
    assert words in sentence(result, 1)


def test_bad_sources(memory_run):
    model = regard.load(memory_run)
    for source, words in (
        ("Mary went to the hall.", "a source must have a question"),
        ((["Mary left."], ""), "the question is empty"),
        (([], "Where?"), "the story is empty"),
        ((["Mary and John and Sandra went to the hall twice."], "Who?"), "at most 5 words"),
    ):
        with pytest.raises(DataError, match=words):
            model(source)
    with pytest.raises(ArgumentError, match="source must be a story and a question"):
        model((1, 2, 3))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "memory-network", "tgt_tokenizer": "char"}, "tgt_tokenizer must be label for"),
        ({"preset": "memory-network", "src_tokenizer": "vectors"}, "reads stories and questions"),
        ({"preset": "memory-network", "features": True}, "features must be left out where sources"),
        ({"preset": "span", "shared_vocab": False}, "shared_vocab must be true for the preset"),
        ({"preset": "memory-network", "shared_vocab": True}, "shared_vocab must be false where"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ArgumentError, match=words):
        check_settings(make_config(settings))


def test_words_of_a_passage_start_from_vectors(folder):
    words = folder / "vectors.txt"
    words.write_text("".join(f"{word} {i} 0 0 1\n" for i, word in enumerate(PLACES, 1)))
    settings = ("preset=span", "embed=4", "src_tokenizer=word", "vectors_rate=0")
    model = regard.load(trained(folder, "vectors", *settings, f"src_vectors={words}"))
    tokens = model.task.encoders.source.tokenizer.encode("hall")
    (embedding,) = (m for m in model.module.modules() if isinstance(m, TokenEmbedding))
    row = embedding.table.weight[tokens[0]] * embedding.scale
    assert row.tolist() == [4, 0, 0, 1]


def test_tokens_are_compared_in_lower_case():
    tokenizer = Tokenizer.train("word", ["The the cat Dog"], features=MARKS)
    labels = tokenizer.tokens(range(tokenizer.vocab_size))
    folded = folded_tokens(tokenizer)
    assert folded[labels.index("The")] == labels.index("the")
    assert folded[labels.index("Dog")] == labels.index("Dog")
    assert folded[-2:] == [tokenizer.vocab_size - 2, tokenizer.vocab_size - 1]


def test_answers_are_cut_as_in_their_passage():
    passage = "He was (wounded) twice, in 1758."
    tokenizer = Tokenizer.train("bpe", [passage] * 3 + ["wounded"] * 3, features=MARKS)
    config = make_config({"preset": "span"})
    task = open_task(config, StoryEncoder(tokenizer), tokenizer)
    assert str(task) == "story to span"
    source = str(Story(passage, "What?"))
    pairs = [Pair(source, "wounded", 1), Pair(source, "1758", 2)]
    said = []
    found = list(task.output.usable(pairs, file="a", skip_bad=False, say=said.append))
    assert [pair.tgt for pair in found] == ["(wounded", "1758"]
    assert found[0].more == ("wounded",)
    (row,) = task.input.encoder.encode([source])
    for pair in found:
        ids = tokenizer.encode(pair.tgt)
        assert any(row[i : i + len(ids)] == ids for i in range(len(row)))
    with pytest.raises(DataError, match="a, line 3: the answer must be whole tokens of the passag"):
        list(
            task.output.usable([Pair(source, "ound", 3)], file="a", skip_bad=False, say=said.append)
        )
    short = open_task(make_config({"preset": "span", "longest": 1}), *task.encoders)
    with pytest.raises(DataError, match=r"a: 1 of 1 examples are too long.*with longest=[2-9]"):
        list(short.output.usable([found[0]], file="a", skip_bad=False, say=said.append))
    assert not list(short.output.usable([found[0]], file="a", skip_bad=True, say=said.append))
    assert "1 answers of more than 1 tokens" in said[-1]


def test_spans_of_a_script_without_spaces_are_characters():
    passage = "艾达在一八四三年写下了第一个程序，她的父亲是一位诗人。"
    asked = {"谁写下了第一个程序？": "艾达", "什么时候？": "一八四三年", "父亲是谁？": "诗人"}
    pairs = [Pair(str(Story(passage, text)), answer, 1) for text, answer in asked.items()] * 20
    said = []
    config = make_config({"preset": "memory-network"})
    hops = choose_task(config, lambda: pairs).task
    assert (
        hops.learn(config, pairs, file="a", why="", say=said.append).source.tokenizer.kind == "char"
    )
    config = make_config({"preset": "span"})
    encoders = choose_task(config, lambda: pairs).task.learn(
        config, pairs, file="a", why="", say=said.append
    )
    assert encoders.target.kind == "char"
    assert not is_unspaced(["艾达 Ada"])  # two of five letters
    assert "the script has no spaces, and answers must be whole tokens" in said[-1]
    task = open_task(config, *encoders)
    assert list(task.output.usable(pairs, file="a", skip_bad=False, say=said.append)) == pairs


def test_copied_words_are_reported_and_noted_in_the_map(tmp_path):
    rows = [(f"we study model {i} of text", f"model {i}") for i in range(60)]
    quick = {"steps": 2, "device": "cpu", "report": False, "embed": 8, "hidden": 8, "quiet": True}
    run = tmp_path / "run"
    model = regard.fit(rows, "pointer", output=run, src_tokenizer="word", **quick)
    (tmp_path / "test.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows[:3]))
    said = done(command("evaluate", run, tmp_path / "test.tsv"))
    assert "words that were written stand in their source, and 100.0% of those of the" in said
    notes = model.trace("we study model 3 of text", "model 7").notes
    assert "50% of the words that were written stand in the source" in notes
