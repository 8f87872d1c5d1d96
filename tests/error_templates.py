"""English templates of all errors of the package, read from its sources with `ast`.

A template is the text of a part of an error, such as a rule or a next step, with `{0}`, `{1}` for
what an f-string fills in. An argument is followed through conditional expressions, constants,
variables of the same function, functions that return a text, and parameters of functions that only
pass it on. What is computed in another way stays a placeholder; `Templates.uncovered` counts parts
of errors that are nothing but one.

Run it to list them: `python tests/error_templates.py`.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from itertools import product
from pathlib import Path
from string import Formatter
from typing import NamedTuple

from source_trees import package

SOURCES = Path(__file__).parents[1] / "src" / "regard"
#: parts of the constructors of errors, by position; all other classes take a message
CONSTRUCTORS = {
    "ArgumentError": ("name", "rule", "value", "fix"),
    "DataError": ("file", "", "reason", "fix"),
    "MissingFileError": ("file", "", "reason", "fix"),
    "UnreadableFileError": ("file", "", "reason", "fix"),
    "ServeError": ("", "", "message", "hint"),
    "BadLine": ("kind", "reason", "fix"),
    "ErrorHints": ("", "targets", "", "", "longer"),
    "_option": ("", "", "fix"),
    "Damage": ("reason", "reason"),
}
#: classes whose message a person may read, also within that of another error
MESSAGES = (
    *("RegardError", "BackendError", "ExportError", "RunError", "CheckpointError", "JobError"),
    *("AddressError", "TraceError", "MethodUnavailableError", "MissingExtraError"),
    *("PretrainedError", "UnusableWeightsError", "InvalidJSONError", "PackedError", "ValueError"),
    "ImportRefusedError",
)
#: functions that show a sentence of the command line
SHOWN = {("console.py", "_say")}
#: files whose sentences are for logs alone
LOGS = ("serve/logs.py", "__main__.py", "lab/experiments/word_by_word.py")
#: values that are words of the code
CODE = ("bidirectional", "false", "keep", "onnx", "true")
#: sentences of errors with parts, and words and short phrases that placeholders stand for
OURS = (
    *(
        "{0} must {1}, but it is {2}: {3}.",
        "{0}: {1}: {2}.",
        "{0}, line {1}",
        "{0}: {1}",
        "{0}: {1}.",
    ),
    *("{0} must {1}, but it is {2}", "{0} number", "{0} numbers", "{0} frame", "{0} frames"),
    *("{0} or {1}", "a folder", "a pipe", "a socket", "a device"),
)
#: words that placeholders stand for
WORDS = (
    *("source", "sources", "target", "story", "question", "answer", "features", "text", "texts"),
    *("pairs", "windows", "questions", "pictures", "recordings", "vectors", "rows", "frames"),
    *("patches", "tokens", "characters", "numbers", "train", "dev", "test", "picture"),
    *("recording", "weights", "prompt", "Chinese", "Japanese", "Thai"),
)
#: what pydantic says about values
PYDANTIC = (
    *("Input should {0}", "input should {0}", "Field required", "field required"),
    *("Extra inputs are not permitted", "extra inputs are not permitted"),
    *("be a valid integer, unable to parse string as an integer", "be a valid integer"),
    *("be a valid number, unable to parse string as a number", "be a valid number"),
    *("be a valid boolean, unable to interpret input", "be a valid boolean"),
    *("be a valid string", "be a valid list", "be a valid dictionary"),
    *("be greater than or equal to {0}", "be greater than {0}", "be less than or equal to {0}"),
)
#: what the operating system and the reader of JSON say about files
SYSTEM = (
    *("No such file or directory", "Permission denied", "Is a directory", "Not a directory"),
    *("No space left on device", "Read-only file system", "Input/output error", "File exists"),
    *("Too many open files", "File name too long", "Disk quota exceeded", "Connection refused"),
    *("Cannot allocate memory", "Bad file descriptor", "Expecting value", "Extra data"),
    *("Expecting property name enclosed in double quotes", "Unterminated string starting at"),
    *("Expecting ',' delimiter", "Expecting ':' delimiter", "Invalid control character at"),
)
#: sentences of typer about options and arguments
TYPER = (
    *("No such option: {0}", "No such option: {0} (Possible options: {1})", "Missing command"),
    *("No such command {0}", "No such command {0}. Did you mean {1}?", "Missing argument {0}"),
    *("No such command {0}. Did you mean {1}", "Missing option {0}", "Invalid value for {0}: {1}"),
    *("Got unexpected extra argument(s) ({0})", "Option {0} does not take a value"),
    *("Option {0} requires an argument", "Argument {0} takes {1} values"),
    *("Value {0} is not a valid {1}", "{0} is not one of {1}"),
)
#: functions that return a text of another catalogue
CATALOGUED = {"message", "help_text"}
#: commands, which nobody translates
COMMAND = re.compile(r"(regard|pip install) [\w'\[\]{}-]+")
#: parts that may be names of the code, which nobody translates
NAMES = ("name", "file", "value", "fragment")
#: most texts that a placeholder is replaced by, where all of them are known
MOST_TEXTS = 4
#: most functions of one name whose texts are all read
MOST_NAMESAKES = 2
DEPTH = 6
#: nodes below which there is nothing to remember
LEAVES = (ast.Constant, ast.Name, ast.expr_context, ast.operator, ast.alias, ast.arg, ast.cmpop)


class Hole(NamedTuple):
    """A placeholder: the expression that fills it."""

    source: str


class Site(NamedTuple):
    """A part of an error: its expression, and the functions around it."""

    part: str
    node: ast.expr
    scope: "Scope"


class Scope(NamedTuple):
    """A module, and the function that an expression is in."""

    path: Path
    tree: ast.Module
    function: ast.FunctionDef | None


class Templates:
    """All templates of the sources.

    Attributes:
        found: for each template, the places that have it.
        holes: for each template, the expressions of its placeholders.
        uncovered: places of parts that are computed in a way that is not followed.
    """

    def __init__(self):
        self.found, self.holes, self.uncovered = defaultdict(set), {}, set()
        self.sites = set()
        self._functions, self._constants = defaultdict(list), defaultdict(list)
        self._calls, self._done, self._assigned = defaultdict(list), set(), {}
        scopes = []
        for path, tree in package().trees.items():
            scopes.append(Scope(path.relative_to(SOURCES), tree, None))
            self._index(scopes[-1], tree)
        work = [site for calls in self._calls.values() for site in self._parts(calls)]
        for text in (*OURS, *(f"word:{word}" for word in WORDS), *PYDANTIC, *SYSTEM, *TYPER):
            self.found[text].add("tests/error_templates.py")
            self.holes[text] = []
        while work:
            site = work.pop()
            key = (site.part, id(site.node))
            if key not in self._done:
                self._done.add(key)
                work += self._read(site)

    def _index(self, scope, node):
        """Remember functions, constants and calls below a node."""
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = scope._replace(function=child)
                self._functions[child.name].append(inner)
            elif isinstance(child, ast.Call):
                self._calls[called(child)].append((child, scope))
            elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module):
                for target in getattr(child, "targets", [getattr(child, "target", None)]):
                    if isinstance(target, ast.Name) and target.id.lstrip("_").isupper():
                        self._constants[target.id].append((child.value, scope))
            if not isinstance(child, LEAVES):
                self._index(inner, child)

    def _parts(self, calls):
        """Yield the parts of errors that are constructed by some calls."""
        for call, scope in calls:
            name = called(call)
            if name in CONSTRUCTORS:
                parts = CONSTRUCTORS[name]
            elif name in MESSAGES or (scope.path.name, name) in SHOWN:
                parts = ("message",)
            else:
                continue
            self.sites.add((str(scope.path), call.lineno))
            for part, argument in zip(parts, call.args, strict=False):
                if part:
                    yield Site(part, argument, scope)
            for keyword in call.keywords:
                if keyword.arg in parts:
                    yield Site(keyword.arg, keyword.value, scope)

    def _read(self, site):
        """Record the templates of a part; return the sites that it leads to."""
        more = []
        for template in self._texts(site.node, site.scope, more):
            text, holes = joined(template)
            place = f"{site.scope.path}:{site.node.lineno}"
            if site.part == "kind":  # which a summary counts
                text, holes = joined([Hole("count"), " ", *template])
            if text == "{0}":
                if not more and site.part not in NAMES:
                    self.uncovered.add(place)
            elif is_wordy(text, site.part) and str(site.scope.path) not in LOGS:
                self.found[text].add(place)
                self.holes[text] = holes
        return more

    def _texts(self, node, scope, more, depth=DEPTH):
        """Return the templates of an expression: lists of texts and holes."""
        unknown = [[Hole(ast.unparse(node))]]
        if depth == 0:
            return unknown
        follow = lambda other, where=scope: self._texts(other, where, more, depth - 1)  # noqa: E731
        if isinstance(node, ast.Constant):
            return [[node.value]] if isinstance(node.value, str) else unknown
        if isinstance(node, ast.JoinedStr):
            parts = [self._filled(value, scope, more, depth - 1) for value in node.values]
            return [[piece for one in some for piece in one] for some in product(*parts)]
        if isinstance(node, ast.IfExp):
            return follow(node.body) + follow(node.orelse)
        if isinstance(node, ast.BoolOp):
            return [text for value in node.values for text in follow(value)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [one + other for one, other in product(follow(node.left), follow(node.right))]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):  # a plural, or nothing
            ends = [end.value for end in (node.left, node.right) if isinstance(end, ast.Constant)]
            return [[""], ends] if ends and isinstance(ends[0], str) else unknown
        if isinstance(node, ast.Name):
            return self._named(node.id, scope, more, depth) or unknown
        if isinstance(node, ast.Attribute) and node.attr.isupper():
            return self._constant(node.attr, scope, more, depth) or unknown
        if isinstance(node, ast.Lambda):
            return follow(node.body)
        if isinstance(node, ast.Subscript):
            entry = getattr(node.slice, "value", None)
            return self._looked_up(node.value, scope, more, depth, entry) or unknown
        if isinstance(node, ast.Call):
            return self._returned(node, scope, more, depth) or unknown
        return unknown

    def _filled(self, value, scope, more, depth):
        """Return the templates of a piece of an f-string."""
        if isinstance(value, ast.Constant):
            return [[value.value]]
        hole = [[Hole(ast.unparse(value.value))]]
        if value.format_spec is not None or value.conversion != -1:
            return hole
        found = self._texts(value.value, scope, more, depth)
        known = all(isinstance(part, str) for text in found for part in text)
        if known and len(found) <= MOST_TEXTS:
            return found
        more.append(Site("fragment", value.value, scope))
        return hole

    def _named(self, name, scope, more, depth):
        """Return the templates of a variable, a parameter or a constant."""
        function = scope.function
        if function is None:
            return self._constant(name, scope, more, depth)
        found, assigned = [], False
        for target, given in self._assignments(function):
            for value in values_of(name, target, given):
                assigned = True
                found += self._texts(value, scope, more, depth - 1)
        for value in default_of(name, function):
            found += self._texts(value, scope, more, depth - 1)
        if name in parameters(function):
            more += self._arguments(function, name)
            return found if assigned else [*found, [Hole(name)]]
        return found or self._constant(name, scope, more, depth)

    def _assignments(self, function):
        """Return targets and values of all assignments in a function."""
        if function is not None and function not in self._assigned:
            self._assigned[function] = [
                pair for node in ast.walk(function) for pair in assignments_of(node)
            ]
        return self._assigned.get(function, [])

    def _constant(self, name, scope, more, depth):
        """Return the templates of a constant of this module, or of the only one that has it."""
        all_ = self._constants[name]
        own = [one for one in all_ if one[1].path == scope.path] or (all_ if len(all_) == 1 else [])
        return [text for value, where in own for text in self._texts(value, where, more, depth - 1)]

    def _looked_up(self, node, scope, more, depth, entry=None):
        """Return the templates of the texts in a table: a dictionary, or tuples in any depth."""
        if isinstance(node, ast.Call) and called(node) in ("items", "values"):
            node = node.func.value
        tables = [(node, scope)]
        if isinstance(node, ast.Name):
            own = [
                v for t, v in self._assignments(scope.function) if getattr(t, "id", "") == node.id
            ]
            tables = [(value, scope) for value in own] or self._constants[node.id]
        return [
            text
            for table, where in tables
            if isinstance(table, ast.Dict | ast.Tuple | ast.List) and where.path == scope.path
            for value in leaves(table, entry)
            for text in self._texts(value, where, more, depth - 1)
        ]

    def _returned(self, call, scope, more, depth):
        """Return the templates that a function of the package returns, if few have its name."""
        name = called(call)
        if name in ("get", "pop") and isinstance(call.func, ast.Attribute):
            found = [t for arg in call.args[1:] for t in self._texts(arg, scope, more, depth - 1)]
            return found + self._looked_up(call.func.value, scope, more, depth)
        if name == "format" and isinstance(call.func, ast.Attribute):
            found = self._texts(call.func.value, scope, more, depth - 1)
            return [[piece for part in text for piece in fields_of(part)] for text in found]
        if name in ("removesuffix", "rstrip") and isinstance(call.func, ast.Attribute):
            return self._texts(call.func.value, scope, more, depth - 1)
        where = [one for one in self._functions[name] if returns_text(one.function)]
        own = [one for one in where if one.path == scope.path] or where
        if len(own) > MOST_NAMESAKES:
            return []
        return [
            text
            for one in own
            for value in returned_values(one.function)
            for text in self._texts(value, one, more, depth - 1)
        ]

    def _arguments(self, function, name):
        """Return what calls of a function pass as one of its parameters."""
        names = parameters(function)
        method = bool(names) and names[0] in ("self", "cls")
        callee = function.name
        found = []
        for call, scope in self._calls[callee]:
            place = names.index(name) - method
            keyword = [one.value for one in call.keywords if one.arg == name]
            plain = not any(isinstance(one, ast.Starred) for one in call.args)
            positional = call.args[place : place + 1] if place >= 0 and plain else []
            found += [Site("fragment", value, scope) for value in keyword or positional]
        return found


def called(call):
    """Name of the function that is called."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def parameters(function):
    every = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [one.arg for one in every]


@cache
def returned_values(function):
    """Return the expressions that a function returns."""
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    return [node.value for node in returns if node.value is not None]


@cache
def returns_text(function):
    """Return whether a function returns an English text, which is not of the catalogue."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    if {function.name, *map(called, calls)} & CATALOGUED:
        return False
    return function.returns is not None and "str" in ast.unparse(function.returns)


def default_of(name, function):
    """Yield the default of a parameter, if it has one."""
    plain = function.args.posonlyargs + function.args.args
    pairs = [*zip(reversed(plain), reversed(function.args.defaults), strict=False)]
    pairs += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    yield from (value for one, value in pairs if one.arg == name and value is not None)


def assignments_of(node):
    """Yield targets and values of a statement, or of a loop over a table."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign):  # what it was before stays a placeholder
        before = ast.Attribute(node.target, "before")
        yield node.target, ast.BinOp(before, ast.Add(), node.value)
    elif isinstance(node, ast.For | ast.comprehension):
        for leaf in ast.walk(node.target):
            if isinstance(leaf, ast.Name):
                yield leaf, ast.Subscript(node.iter, leaf)


def values_of(name, target, value):
    """Yield the expressions that an assignment gives to a name."""
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple):
        if isinstance(value, ast.IfExp):
            yield from values_of(name, target, value.body)
            yield from values_of(name, target, value.orelse)
        elif isinstance(value, ast.Call) and called(value) == "get":  # a table of tuples
            if name in [one.id for one in target.elts if isinstance(one, ast.Name)]:
                yield ast.Subscript(value.func.value, ast.Name(name))
        elif isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                yield from values_of(name, one, other)


def leaves(table, entry=None):
    """Yield the values of a dictionary, or the entries of a tuple, in any depth; or one entry."""
    values = table.values if isinstance(table, ast.Dict) else table.elts
    if isinstance(entry, int) and not isinstance(table, ast.Dict):
        values = values[entry : entry + 1]
    for value in values:
        if isinstance(value, ast.Dict | ast.Tuple | ast.List):
            yield from leaves(value)
        elif isinstance(value, ast.JoinedStr | ast.IfExp | ast.Name) or (
            isinstance(value, ast.Constant) and " " in str(value.value)
        ):
            yield value


def fields_of(part):
    """Yield the pieces of a text that is formatted, or a placeholder itself."""
    if isinstance(part, Hole):
        yield part
        return
    for literal, name, _, _ in Formatter().parse(part):
        yield literal
        if name is not None:
            yield Hole(name)


def joined(template):
    """Return the text of a template, and the expressions of its placeholders."""
    text, holes = "", []
    for part in template:
        if isinstance(part, Hole):
            text += f"{{{len(holes)}}}"
            holes.append(part.source)
        else:
            text += part.replace("{", "{{").replace("}", "}}")
    return text, holes


def is_wordy(text, part):
    """Whether a template has words to translate, beside code in backticks and placeholders."""
    if COMMAND.fullmatch(text) or text in CODE:
        return False
    plain = re.sub(r"`[^`]*`|\{\d+\}", " ", text)
    if part == "value":
        return bool(re.search(r"[a-z]{2,} |^[a-z]{2,}$|[} ] ?[a-z]{2,}\b", text))
    if part in NAMES:
        return " " in text.strip() and bool(re.search(r"[a-z]{2,}", plain))
    return bool(re.search(r"[A-Za-z]{2,}", plain))


if __name__ == "__main__":
    templates = Templates()
    for template, places in sorted(templates.found.items(), key=lambda one: sorted(one[1])):
        sys.stdout.write(f"{sorted(places)[0]}\t{template}\t{templates.holes[template]}\n")
    sys.stderr.write("".join(f"{place}\n" for place in sorted(templates.uncovered)))
    sys.stderr.write(
        f"{len(templates.found)} templates of {len(templates.sites)} sites; "
        f"{len(templates.uncovered)} parts are not followed\n"
    )
