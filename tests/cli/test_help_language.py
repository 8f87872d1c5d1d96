"""Help of every command is in Chinese, with the options and the code of the English one."""

import ast
import re
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from regard import lab
from regard.cli import commands, console, info
from regard.cli.console import paragraphs, wrap
from regard.lab import runner
from regard.messages import catalogue, help_text, set_language, use_language
from regard.models import PRESETS
from regard.tasks.outputs.forecast import ATTENTION_TITLES
from regard.training.config import OPTIONS, Config, task_options

GROUP = typer.main.get_command(commands.app)
COMMANDS = {"": GROUP, **GROUP.commands}
#: an environment that chooses no language
PLAIN = {"REGARD_LANG": "", "LC_ALL": "C"}
CHINESE = "[\u4e00-\u9fff]"
#: defaults in words that are values
VALUES = {"bahdanau", "small", "auto", "stdout", "1", "NAME-FORMAT", "runs/PRESET"}
VALUES |= {"runs/PRESET, runs/recipes/NAME-SEED"}
#: functions that print, and the beginning of commands that are printed as they are
PRINTING = ("note", "say", "echo", "print", "progress_bar", "print_table", "add_task", "warn")
SHELL = r"regard |echo |python |printf "
#: settings that hold others
HIDDEN = ("model", "task_options")
#: code in an English text: options, words in backticks or quotes, file endings, names in capitals
CODE = re.compile(
    r"`[^`]+`|'[^']*[-*][^']*'|(?<!\w)--?[a-z][\w-]*|(?<!\w)\.[a-z]+\b|"
    r"\b[A-Z]{3,}|<\w+>|\b\d+(?:,\d+)*\b"
)


def shown_params(name):
    command = COMMANDS[name]
    params = command.get_params(typer.Context(command))
    return [param for param in params if not getattr(param, "hidden", False)]


def declared_texts():
    """Texts that help consists of, in English."""
    found = {*console.FRAME, *console.FACT_WORDS}
    for name, command in COMMANDS.items():
        found |= {*paragraphs(command.help), *paragraphs(command.epilog or "")} - {""}
        for param in shown_params(name):
            found |= {param.help, param.show_default} - VALUES
    found |= setting_texts() | {
        (preset.__doc__ or "").splitlines()[0] for preset in PRESETS.values()
    }
    found |= {runner.find(name).question for name in lab.EXPERIMENTS}
    found |= {title for title in ATTENTION_TITLES.values() if title}
    return {text for text in found if isinstance(text, str) and text}


def setting_texts():
    """Descriptions of all settings, and titles of their groups, in English."""
    of_kinds = [field for fields in task_options().values() for field in fields.values()]
    own = [field for name, field in Config.model_fields.items() if name not in HIDDEN]
    described = {field.description for field in (*own, *of_kinds)}
    return described | {*OPTIONS.values(), *info.GROUPS.values()}


@pytest.fixture(autouse=True)
def _own_language():
    yield
    set_language(None)


def shown_help(*words, **environment):
    result = CliRunner().invoke(commands.app, words, env={**PLAIN, **environment})
    assert result.exit_code == 0, result.output
    return result.output


def test_every_help_text_is_in_chinese_and_no_translation_is_stale():
    assert declared_texts() == catalogue("help.zh").keys()
    marks = {":", "; "}
    chinese = {key: text for key, text in catalogue("help.zh").items() if key not in marks}
    lists = {key for key, text in chinese.items() if not re.search(CHINESE, text)}
    assert lists == {text for text in lists if re.search(r", .+ or |; 0 of TSV", text)}
    assert [text for text in chinese.values() if re.search(CHINESE + "[,;:?!]", text)] == []
    assert [
        text for text in chinese.values() if re.search(" [，。；：、）]|[，。；：、（] ", text)
    ] == []


def test_options_numbers_and_code_are_the_same_in_both_languages():
    wrong = []
    for english, chinese in catalogue("help.zh").items():
        wrong += [(one, chinese) for one in CODE.findall(english) if one not in chinese]
        words = re.findall(r"[\w<>*/@=.'-]*[A-Za-z0-9][\w<>*/@=.'-]*", chinese, re.ASCII)
        wrong += [(one, english) for one in words if one.strip("'.") not in english]
    assert wrong == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_in_chinese_has_every_option_and_fits_the_terminal(name):
    words = [name] if name else []
    chinese = shown_help("--lang", "zh", *words, "--help")
    assert chinese.startswith(f"用法：regard {name}")
    assert [line for line in chinese.splitlines() if cell_len(line) > 80] == []
    for param in shown_params(name):
        assert all(option in chinese for option in param.opts if option.startswith("-"))
    assert not re.search(r"Usage|Options|Arguments|Commands|default|required|env var", chinese)
    with use_language("zh"):
        summary = help_text(paragraphs(COMMANDS[name].help)[0])
    assert summary in chinese
    set_language(None)
    assert shown_help(*words, "--help").startswith(f"Usage: regard {name}")


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("--lang", "zh", "lab", "--help"), {}),
        (("lab", "--help", "--lang", "zh"), {}),
        (("lab", "--help"), {"REGARD_LANG": "zh"}),
    ],
    ids=str,
)
def test_help_is_in_the_language_that_is_chosen_anywhere(words, environment):
    found = shown_help(*words, **environment)
    shown = "".join(line.strip() for line in found.splitlines())
    assert "每个实验的随机种子数。[默认：3；用 --full 时为 5；x>=1]" in shown


def printed_literals(path):
    """Texts of several words that a module prints without the catalogue."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(node, "func", None)
        called = getattr(name, "id", getattr(name, "attr", ""))
        if not isinstance(node, ast.Call) or called not in PRINTING:
            continue
        parts = [part for one in node.args for part in (one, *getattr(one, "values", ()))]
        parts += [part for one in node.args for part in getattr(one, "elts", ())]
        for part in parts:
            if isinstance(part, ast.Constant) and re.search("[a-z]{2,} [a-z]{2,}", str(part.value)):
                yield path.name, part.value


def test_no_command_prints_a_text_outside_the_catalogue():
    modules = Path(commands.__file__).parent.glob("*.py")
    found = [one for path in modules for one in printed_literals(path)]
    assert [one for one in found if not re.match(SHELL, one[1])] == []


def test_completion_has_summaries_and_help_texts_in_chinese():
    with use_language("zh"):
        offered = {item.value: item.help for item in GROUP.shell_complete(typer.Context(GROUP), "")}
        assert offered["lab"] == "运行关于注意力的实验，并写出报告。"
        lab = GROUP.commands["lab"]
        offered = {item.value: item.help for item in lab.shell_complete(typer.Context(lab), "--f")}
    assert offered == {
        "--full": "小规模，两个核上几分钟；或完整规模，用一个 GPU。",
    }


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("甲乙丙丁", 4, ["甲乙", "丙丁"]),
        ("甲乙。丙", 5, ["甲", "乙。", "丙"]),
        ("甲（乙）丙", 6, ["甲", "（乙）", "丙"]),
        ("用 --ray 时", 8, ["用 --ray", "时"]),
        ("甲乙。[默认：1]", 12, ["甲乙。", "[默认：1]"]),
    ],
)
def test_lines_break_between_wide_letters_but_not_before_a_closing_mark(text, width, lines):
    assert wrap(text, width) == lines
