"""Stories and passages with a question, and conversations: their text form, and their columns.

A source is one string, `story<TAB>question`. A story whose sentences are given one by one has " | "
between them; any other text is split where a sentence ends. A conversation is that of chat data,
`{"messages": [{"role": "user", "content": "Hi"}, ...]}`: its source is one text, `user: Hi |
assistant: Hello | user: Who are you?`, and the last turn is the target.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from regard.data.error_hints import BadLine, shorten
from regard.errors import DataError

#: between sentences that are given one by one
SENTENCE_MARK: Final = " | "
#: between a story and its question
QUESTION_MARK: Final = "\t"
#: names of columns that are recognised
STORY_NAMES: Final = ("story", "passage", "context", "document")
QUESTION_NAMES: Final = ("question", "query")
ANSWER_NAMES: Final = ("answer", "answers")
#: columns of two texts, of which a label says how they relate
TEXT_PAIRS: Final = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence", "question"),
)
PAIR_LABELS: Final = ("label", "gold_label", "labels", "is_duplicate", "target", "score", "class")
#: the end of a sentence: a full stop, perhaps a bracket or quote, and a capital or digit after it
SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]”’]*\s+(?=[\"'(\[“‘]*[^\W_a-z])")
#: key of the texts in the answers of SQuAD
TEXT_KEY: Final = "text"


class Story(NamedTuple):
    """A story or passage, and a question about it."""

    text: str
    question: str

    @property
    def sentences(self) -> list[str]:
        """The sentences, as they were given or as they are found."""
        return split_sentences(self.text)

    @property
    def parts(self) -> list[str]:
        """The sentences if they were given one by one, else the whole text."""
        return [part for part in map(str.strip, self.text.split(SENTENCE_MARK)) if part]

    def __str__(self) -> str:
        return f"{self.text}{QUESTION_MARK}{self.question}"

    @staticmethod
    def of(source: str) -> "Story":
        """Parse a source; without a tab, a last sentence that ends in "?" is the question.

        Raises DataError if there is no question, or nothing before it.
        """
        text, tab, question = source.partition(QUESTION_MARK)
        if not tab:
            *before, question = split_sentences(source) or [""]
            if not question.endswith("?"):
                reason = f"a source must have a question, but {shorten(source)} has none"
                fix = "write it after a tab, or as a last sentence that ends in a question mark"
                raise DataError("source", None, reason, fix, kind="no question")
            text = SENTENCE_MARK.join(before)
        if QUESTION_MARK in question:
            reason = (
                f"a source must be a story and a question, but {source.count(QUESTION_MARK)} tabs "
                f"cut it in more"
            )
            fix = "leave the answer out, for example with `cut -f1,2`"
            raise DataError("source", None, reason, fix, kind="too many columns")
        story = Story(text.strip(), question.strip())
        for name, part in (("story", story.text), ("question", story.question)):
            if not part.strip(" |"):
                reason, fix = f"the {name} is empty", "fill it in, or leave the line out"
                raise DataError("source", None, reason, fix, kind=f"empty {name}")
        return story


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text: at " | " if it has any, else after full stops."""
    if SENTENCE_MARK in text:
        parts = text.split(SENTENCE_MARK)
    else:
        ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
        parts = [text[a:b] for a, b in pairwise(ends)]
    return [part for part in map(str.strip, parts) if part]


def question_columns(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the names of story, question and answer among those of columns, if all are there.

    A premise with its hypothesis, and a label for both, are read in the same way.
    """
    lower = {name.strip().lower(): name for name in reversed(names)}
    pairs = (((one,), (other,), PAIR_LABELS) for one, other in TEXT_PAIRS)
    for known in ((STORY_NAMES, QUESTION_NAMES, ANSWER_NAMES), *pairs):
        found = [next((lower[n] for n in some if n in lower), "") for some in known]
        if all(found):
            return found[0], found[1], found[2]
    return None


def join_source(story: Any, question: Any) -> str:
    """Return the text form of a source; raises BadLine for parts that cannot be one."""
    if isinstance(story, list | tuple):
        for sentence in story:
            _check_part("sentence", sentence)
        story = SENTENCE_MARK.join(_one_line(sentence) for sentence in story)
    _check_part("story", story)
    _check_part("question", question)
    return str(Story(_one_line(story), _one_line(question)))


def _check_part(name: str, text: Any) -> None:
    if text is None or (isinstance(text, str) and not text.strip(" |\t\n")):
        raise BadLine(f"empty {name}", f"the {name} is empty", "fill it in, or leave the line out")
    if not isinstance(text, str):
        reason = f"the {name} must be a string, but it is {shorten(text)}"
        fix = "write a story as a text or a list of sentences, and a question as a text"
        raise BadLine("not a string", reason, fix)


def _one_line(text: str) -> str:
    return text.replace(QUESTION_MARK, " ").strip()


def answers_of(value: Any) -> Any:
    """Return the accepted answers: those of SQuAD lie under "text", and equal ones count once."""
    if isinstance(value, Mapping):
        value = value.get(TEXT_KEY)
    if isinstance(value, list | tuple):
        texts = [one.get(TEXT_KEY) if isinstance(one, Mapping) else one for one in value]
        same = list(dict.fromkeys(texts)) if all(isinstance(t, str) for t in texts) else texts
        return same or None
    return value


def squad_questions(file: str, articles: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the questions of SQuAD as it is published, with their passages and answers.

    Questions that are marked as impossible have no answer, and are counted instead.
    """
    try:
        asked = [
            (part["context"], one)
            for article in articles
            for part in article["paragraphs"]
            for one in part["qas"]
        ]
        found = [
            {"context": context, "question": one["question"], "answers": one["answers"]}
            for context, one in asked
            if not one.get("is_impossible")
        ]
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"its paragraphs must have context, qas, question and answers ({error!r})"
        raise DataError(file, None, reason, "write one object on each line") from None
    return found, len(asked) - len(found)


#: the key of the turns
MESSAGES: Final = "messages"
#: between turns, and between a speaker and what is said
TURN_MARK: Final = " | "
SPEAKER_MARK: Final = ": "


class Turn(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str

    def __str__(self) -> str:
        return f"{self.role}{SPEAKER_MARK}{self.content}"


def join_turns(turns: Sequence[Turn]) -> str:
    """Return turns as one text."""
    return TURN_MARK.join(map(str, turns))


def split_conversation(messages: Any) -> tuple[str, str]:
    """Return all turns but the last as one text, and what the last one says.

    Raises BadLine unless there are two or more messages, each with a role and a content.
    """
    if not isinstance(messages, list | tuple) or len(messages) < 2:
        reason = f"a conversation must have two messages or more, but it is {shorten(messages)}"
        fix = 'write [{"role": "user", "content": "..."}, ...], the answer last'
        raise BadLine("not a conversation", reason, fix)
    *before, answer = (_turn(number, one) for number, one in enumerate(messages, start=1))
    return join_turns(before), answer.content


def _turn(number: int, message: Any) -> Turn:
    parts = []
    for key in Turn._fields:
        value = message.get(key) if isinstance(message, Mapping) else None
        if not isinstance(value, str) or not value.strip():
            reason = f"message {number} must have a text as its {key}, but it is {shorten(value)}"
            raise BadLine("not a message", reason, "fill it in, or leave the line out")
        parts.append(" ".join(value.split()))
    return Turn(*parts)
