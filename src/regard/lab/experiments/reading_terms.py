"""What the measurement of reading and its figures both name."""

from typing import Final

RNN, LSTM = "RNN", "LSTM"
SELF_RNN, SELF_LSTM = "self-attentive RNN", "self-attentive LSTM"
#: what looks back, and the same cell that does not
PLAIN: Final = {SELF_RNN: RNN, SELF_LSTM: LSTM}
LECTURE: Final = ("the", "fbi", "is", "chasing", "a", "criminal", "on", "the", "run")
#: the last word of each row of positions; the first word of a sentence is given, not guessed
POSITIONS: Final = (3, 6, 11, 21, 60)
#: sentences of the lecture's form; those whose words the text has are read too
SUBJECTS: Final = (
    "fbi", "company", "government", "bank", "president", "court", "army", "firm", "senate",
    "king", "queen", "duke", "prince", "lord", "soldier", "father", "boy",
)  # fmt: skip
VERBS: Final = (
    "chasing", "buying", "selling", "seeking", "making", "taking", "losing", "planning",
    "coming", "going", "speaking", "leaving", "running", "crying", "standing",
)  # fmt: skip
