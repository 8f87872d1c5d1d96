"""Fine-tuning of imported models: the dev loss at each evaluation, and whether resume is exact."""

import torch

from imported.zoo import ENCODERS, LANGUAGE, PICTURES, SOUNDS, pictures, recordings, sentences
from regard.training import new_config, resume_run, start_run
from training.tools import last_checkpoint

STEPS = 8
BRIEF = {
    "steps": STEPS,
    "eval_every": STEPS // 2,
    "save_every": STEPS // 2,
    "schedule": "constant",
    "lr": 3e-3,
    "dropout": 0.0,
    "report": False,
    "baseline": False,
    "device": "cpu",
    "precision": "32",
}


def tune(family, path, home, texts=160):
    """Fine-tune the model of a folder; return losses, and whether a resumed run has its weights."""
    rows = sentences(texts)
    if family in PICTURES:
        from PIL import Image

        for i, picture in enumerate(pictures(texts)):
            Image.fromarray(picture).save(home / f"{i}.png")
            rows[i] = f"{i}.png\t{'dark' if picture.mean() < 77 else 'light'}"
    elif family in SOUNDS:
        import soundfile

        for i, (samples, rate) in enumerate(recordings(texts)):
            soundfile.write(home / f"{i}.wav", samples, rate)
            rows[i] = f"{i}.wav\t{rows[i]}"
    elif family in ENCODERS:
        rows = [f"{row}\t{'cat' in row}" for row in rows]
    elif family not in LANGUAGE:
        rows = [f"{row}\t{' '.join(row.split()[::-1])}" for row in rows]
    data = home / "data.txt"
    data.write_text("".join(f"{row}\n" for row in rows))
    config = new_config({"data": str(data), "start": str(path), **BRIEF})
    whole = start_run(config, home / "whole", quiet=True)
    half = config.model_copy(update={"steps": STEPS // 2})
    start_run(half, home / "parts", quiet=True)
    parts = resume_run(home / "parts", {"steps": STEPS}, quiet=True)
    losses = [row["dev_loss"] for row in whole.read_metrics()]
    ours, theirs = (last_checkpoint(run.path) for run in (whole, parts))
    exact = ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
    return losses, exact
