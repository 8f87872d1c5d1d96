"""`regard chat`: talk with a run that was trained on conversations."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from regard import api
from regard.cli.commands import ChatArgs
from regard.cli.console import note, one_line
from regard.data.stories import Turn, join_turns
from regard.decoding_options import given_options
from regard.errors import ArgumentError
from regard.messages import message
from regard.tasks import TextInput

#: the speakers of a conversation, as chat data names them
SYSTEM: Final = "system"
USER: Final = "user"
ASSISTANT: Final = "assistant"
#: in front of what is typed in a terminal
PROMPT: Final = f"{USER}> "


def chat(args: ChatArgs) -> None:
    """Answer each line of stdin, with all turns before it as the source."""
    model = _chat_model(args.run, args.device)
    before = [] if args.system is None else [_turn("--system", SYSTEM, args.system)]
    options = given_options(beam=args.beam, max_len=args.max_len)
    turns: list[Turn] = []
    for line in _typed():
        if not line.strip():
            continue
        turns.append(_turn("the line", USER, line))
        kept = _fitting(model, before, turns)
        if len(kept) < len(turns):
            note(message("chat.dropped", count=len(turns) - len(kept)))
            turns = kept
        answer = model(join_turns([*before, *turns]), attention=False, **options).text
        typer.echo(one_line(answer))
        if answer.strip():
            turns.append(Turn(ASSISTANT, answer))


def _chat_model(run: Path, device: str) -> api.Model:
    """Load a run; raises ArgumentError unless it answers conversations."""
    model: Any = api.load(run, device=device)
    if isinstance(model, api.Model):
        task = model.task
        if task.numbers is None and type(task.input) is TextInput:
            return model
    fix = 'train one on lines such as {"messages": [{"role": "user", "content": "..."}, ...]}'
    raise ArgumentError("RUN", "be trained on conversations", run, fix)


def _turn(name: str, role: str, text: str) -> Turn:
    content = " ".join(text.split())
    if not content:
        raise ArgumentError(name, "have a text", repr(text), "fill it in, or leave it out")
    return Turn(role, content)


def _fitting(model: api.Model, before: list[Turn], turns: list[Turn]) -> list[Turn]:
    """Return the last turns that fit into a source of the run, at least one."""
    most = model.config.max_src_len
    first = 0
    while first + 1 < len(turns):
        (row,) = model.source_ids([join_turns([*before, *turns[first:]])])
        if len(row) - 1 <= most:
            break
        first += 1
    return turns[first:]


def _typed() -> Iterator[str]:
    """Yield lines until the input ends; in a terminal, each after a prompt."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            typer.echo()
            return
