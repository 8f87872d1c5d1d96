"""Runs whose sources are recordings, by the command line and in Python."""

import json
import shutil

import pytest
import soundfile

import regard
from cli.tools import SMALL, done
from cli.tools import regard as command
from regard.seeing.trace.storage import from_json
from regard.tasks.inputs.sound import SoundInput
from regard.training import RunFolder
from sounds import RATE, tones, write_wavs

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow

SOUND = (f"rate={RATE}", "bands=20", "stack=4", "device=cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sounds")


def train(data, output, *settings):
    done(command("train", data, "-o", output, "-q", *SMALL, *SOUND, *settings))
    return output


@pytest.fixture(scope="module")
def data(folder):
    return write_wavs(folder / "train.tsv", tones(60))


@pytest.fixture(scope="module")
def run(folder, data):
    """A run that has heard tones for a moment, with all that helps to hear."""
    masks = ("time_masks=1", "band_masks=1", "band_mask_width=2", "speed=0.1")
    ctc = ("ctc=0.5", "ctc_search=0.3", "subsample=conv", "tgt_tokenizer=space")
    return train(data, folder / "run", "steps=12", "eval_every=6", "preset=location", *masks, *ctc)


@pytest.fixture(scope="module")
def model(run):
    return regard.load(run, device="cpu")


@pytest.fixture(scope="module")
def spoken(folder):
    return write_wavs(folder / "test.tsv", tones(5, seed=9))


def test_the_run_knows_what_it_reads(run, model):
    assert isinstance(model.task.input, SoundInput)
    card = RunFolder(run).card_file.read_text()
    assert "recordings at 8,000 Hz, 20 log-mel bands every 10 ms, 4 joined to one" in card
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert "dev_per" in first  # of tokens that are separated by spaces


@pytest.mark.usefixtures("plain_steps")
def test_answers_are_the_same_in_whatever_form_sources_come(run, model, spoken, tmp_path):
    names = sorted((spoken.parent / "test").iterdir(), key=lambda path: int(path.stem))
    answers = done(command("predict", run, *names)).splitlines()
    assert len(answers) == 5
    lines = tmp_path / "names.txt"
    lines.write_text("".join(f"{name}\n" for name in names))
    assert done(command("predict", run, lines)).splitlines() == answers
    records = tmp_path / "names.jsonl"
    records.write_text("".join(json.dumps({"src": str(name)}) + "\n" for name in names))
    assert done(command("predict", run, records)).splitlines() == answers
    assert [output.text for output in model(list(map(str, names)))] == answers
    read = [soundfile.read(name, dtype="float32") for name in names]
    assert [model(samples).text for samples in read] == answers
    assert model(names[0].read_bytes()).text == answers[0]


@pytest.mark.parametrize("form", ["transcripts", "beside", "labels"])
def test_a_folder_of_recordings_is_data(folder, data, tmp_path, form):
    for line in data.read_text().splitlines():
        name, text = line.split("\t")
        place = tmp_path / "data" / (text[0] if form == "labels" else "")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, place)
        if form == "beside":
            (place / name.split("/")[1]).with_suffix(".txt").write_text(f"{text}\n")
    if form == "transcripts":
        rows = data.read_text().replace("train/", "")
        (tmp_path / "data" / "transcripts.tsv").write_text(rows)
    kind = "label" if form == "labels" else "space"
    run = train(tmp_path / "data", tmp_path / "run", "steps=1", f"tgt_tokenizer={kind}")
    found = regard.load(run, device="cpu")
    assert isinstance(found.task.input, SoundInput)
    assert sorted(found.tgt_tokenizer.tokens(range(4, 10))) == list("abcdef")


def test_maps_have_times_and_the_spectrogram(run, model, spoken, tmp_path):
    name = spoken.parent / "test" / "1.wav"
    shown = done(command("show", run, name))
    assert "0.04 s" in shown
    for ending in ("html", "svg", "png", "json"):
        done(command("show", run, name, "-o", tmp_path / f"map.{ending}"))
        assert (tmp_path / f"map.{ending}").stat().st_size > 1000
    trace = from_json(json.loads((tmp_path / "map.json").read_text()))
    backdrop = trace.source.backdrop
    assert backdrop.kind == "spectrogram"
    assert backdrop.grid == (1, len(trace.source.tokens))
    assert backdrop.seconds == pytest.approx(0.04 * len(trace.source.tokens))
    assert [token.text for token in trace.source.tokens][:3] == ["0.00 s", "0.04 s", "0.08 s"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["preset=pointer"], "preset must be one that reads recordings"),
        (["subsample=conv", "stack=3"], "stack must be 2, 4 or another power of 2"),
        (["ctc_search=0.3"], "ctc_search must be 0 unless CTC is trained"),
        (["bands=400"], "bands must each hold a frequency"),
        (["src_case=lower"], "src_case must be left out where sources are recordings"),
        (["max_seconds=0.05"], "a recording must have from 0.02 to 0.05 seconds"),
    ],
)
def test_settings_that_do_not_fit_are_refused(data, tmp_path, settings, reason):
    result = command("train", data, "-o", tmp_path / "run", *SMALL, f"rate={RATE}", *settings)
    assert result.exit_code in (1, 2)
    assert reason in result.output
