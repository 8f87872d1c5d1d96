"""A card of a model that was never trained, for tests."""

from regard.api.bundled_models import BundledCard, CardScore, CardText


def card(name="abc", **changes):
    """Return a card; its scores are made up."""
    score = CardScore(
        set="test", rows=12, metric="exact", value=0.75, low=0.5, high=0.875, signature="exact|a:b"
    )
    english = CardText(
        what="letters to letters", reads="letters", data="a list", limits=("It is small.",)
    )
    chinese = CardText(what="字母到字母", reads="字母", data="一张表", limits=("它很小。",))
    facts = {
        "name": name,
        "text": {"en": english, "zh": chinese},
        "examples": ("a b", "cab"),
        "continues": False,
        "scores": (score,),
        "scores_32": (score.model_copy(update={"value": 0.8}),),
        "beam": 5,
        "preset": "bahdanau",
        "weights": 1234,
        "bits": 8,
        "ms_per_source": 7.4,
        "threads": 2,
        "licence": "of nobody",
        "attribution": "From nobody.",
        "trained": "a CPU",
        "packed": "regard",
        "command": "regard train a.tsv",
        "settings": {"lr": 0.5},
        "mistakes": (("a|b", "c", "d"),),
    }
    return BundledCard.model_validate(facts | changes)
