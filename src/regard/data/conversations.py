"""Conversations: turns of speakers, of which the last is the target.

The form is that of chat data, `{"messages": [{"role": "user", "content": "Hi"}, ...]}`. A source is
one text, `user: Hi | assistant: Hello | user: Who are you?`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from regard.data.error_hints import BadLine, shorten

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
