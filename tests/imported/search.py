"""Answers of imported models and of `generate`, as ids of transformers."""

import itertools

import numpy as np
import torch

from imported.zoo import LANGUAGE, SOUNDS
from regard.decoding import DecodingOptions, decode

#: sources at a time
BATCH = 50


def batches(family, rows):
    """Places of rows in batches; prompts of one have one length, so that none is padded."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    if family in LANGUAGE:
        groups = itertools.groupby(order, key=lambda i: len(rows[i]))
        parts = [list(places) for _, places in groups]
    else:
        parts = [order]
    return [part[i : i + BATCH] for part in parts for i in range(0, len(part), BATCH)]


def own_answers(family, saved, folder, texts, new=12, **options):
    """Return the ids that our search writes for each text, without prompt and end."""
    rows = saved.task.input.rows(texts)
    ids, found = torch.tensor(folder.vocabulary.rows), {}
    for places in batches(family, rows):
        some = [rows[i] for i in places]
        first = len(some[0]) - 1 if family in LANGUAGE else 0
        told = {**saved.task.target.decoding, **options}
        if family in SOUNDS and told["min_len"]:  # after language, task and no times
            told["min_len"] += 3
        ends = told.get("forced_end", False) and told.get("counted_end", True)
        told["max_len"] = first + new - ends
        asked = saved.task.prefixed(DecodingOptions(**told), some)
        src, lengths = saved.task.input.batch(some)
        src = src.double() if src.is_floating_point() else src
        for i, hypotheses in zip(places, decode(saved.model, src, lengths, asked), strict=True):
            tokens = torch.tensor(hypotheses[0].tokens[first:], dtype=torch.long)
            found[i] = ids[tokens].tolist()
    return [found[i] for i in range(len(texts))]


def generated(family, theirs, folder, texts, new=12, **options):
    """Return the ids that `generate` writes for each text, without prompt, start and end."""
    told = {"max_new_tokens": new, "do_sample": False, "num_beams": 1, **options}
    never = [number for number in folder.vocabulary.ids[:2] if number >= 0]
    never += theirs.generation_config.suppress_tokens or []
    told |= {"suppress_tokens": never} if never else {}  # which regard never writes
    if family in SOUNDS:  # whose answers begin with language, task and no times
        told |= {"max_new_tokens": new - 3, "force_unique_generate_call": True}
    end, found = theirs.generation_config.eos_token_id, {}
    end = end if isinstance(end, list) else [end]
    rows = texts if family in SOUNDS else folder.tokenizer(texts)["input_ids"]
    for places in batches(family, rows):
        some = [texts[i] for i in places]
        if family in SOUNDS:
            frames = [folder.encoders[0].mel(samples) for samples, _ in some]
            given = {"input_features": torch.from_numpy(np.stack(frames)).mT.double()}
        else:
            given = folder.tokenizer(some, padding=True, return_tensors="pt")
        given.pop("token_type_ids", None)
        with torch.no_grad():
            out = theirs.generate(**given, **told)
        start = given["input_ids"].shape[1] if family in LANGUAGE else 1
        for i, row in zip(places, out[:, start:].tolist(), strict=True):
            ends = (place for place, token in enumerate(row) if token in end)
            found[i] = row[: next(ends, len(row))]
    return [found[i] for i in range(len(texts))]
