"""Answers of imported models and of `generate`, as ids of transformers."""

import torch

from float64_mode import KeepFloat64
from imported.zoo import LANGUAGE
from regard.decoding import DecodingOptions, decode


def own_answers(saved, folder, texts, new=12, **options):
    """Return the ids that our search writes for each text, without prompt and end."""
    rows = saved.task.input.rows(texts)
    ids, found = torch.tensor(folder.vocabulary.rows), []
    groups = [[row] for row in rows] if not saved.task.has_sources else [rows]
    for some in groups:
        first = 0 if saved.task.has_sources else len(some[0]) - 1
        told = {**saved.task.target.decoding, **options}
        told["max_len"] = first + new - told.get("forced_end", False)
        asked = saved.task.prefixed(DecodingOptions(**told), some)
        src, lengths = saved.task.input.batch(some)
        for hypotheses in decode(saved.model, src, lengths, asked):
            tokens = torch.tensor(hypotheses[0].tokens[first:], dtype=torch.long)
            found += [ids[tokens].tolist()]
    return found


def generated(theirs, folder, family, texts, new=12, **options):
    """Return the ids that `generate` writes for each text, without prompt, start and end."""
    told = {"max_new_tokens": new, "do_sample": False, "num_beams": 1, **options}
    never = [number for number in folder.vocabulary.ids[:2] if number >= 0]
    told |= {"suppress_tokens": never} if never else {}
    config, found = theirs.generation_config, []
    groups = [[text] for text in texts] if family in LANGUAGE else [texts]
    for some in groups:
        given = folder.tokenizer(some, padding=True, return_tensors="pt")
        given.pop("token_type_ids", None)
        with KeepFloat64(), torch.no_grad():
            out = theirs.generate(**given, **told)
        out = out[:, given["input_ids"].shape[1] if family in LANGUAGE else 1 :]
        for row in out.tolist():
            end = row.index(config.eos_token_id) if config.eos_token_id in row else len(row)
            found.append(row[:end])
    return found
