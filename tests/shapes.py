"""The run-time checks of `--jaxtyping-packages`, in less time.

jaxtyping binds the arguments of each call by hand and checks them twice, which takes longer than
most of what is called. Here they are checked once, and what is returned after them: the same
annotations by the same checker, and an axis has one length in all annotations of a function.
"""

import contextlib
import dataclasses
import functools
import inspect
import typing

import jaxtyping

original = jaxtyping.jaxtyped
_ARRAY = type(jaxtyping.Float[object, ""])
_enabled = True


@contextlib.contextmanager
def unchecked():
    """Disables the checks of shapes and literals, so that the package's own errors are seen."""
    global _enabled
    _enabled = False
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        _enabled = True
        jaxtyping.config.update("jaxtyping_disable", False)


def jaxtyped(fn=None, *, typechecker):
    """Takes the place of `jaxtyping.jaxtyped`, which the import hook puts on all that it meets."""
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
        fn.__init__ = jaxtyped(fn.__init__, typechecker=typechecker)
    if not inspect.isfunction(fn):
        return fn
    parts = [part for annotation in fn.__annotations__.values() for part in parts_of(annotation)]
    later = inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn)
    if later or any(isinstance(part, (str, typing.ForwardRef)) for part in parts):
        # its body runs after the call, or names are written that may not be there
        return original(fn, typechecker=typechecker)
    # what has no axes is called without a wrapper, which `unchecked` needs for literals alone
    scoped = any(
        isinstance(part, (typing.TypeVar, _ARRAY)) or typing.get_origin(part) is typing.Literal
        for part in parts
    )
    return _in_a_scope(fn, typechecker(fn)) if scoped else typechecker(fn)


def _in_a_scope(fn, checked):
    """Each call has lengths of its own for the axes."""

    @functools.wraps(checked)
    def call(*args, **kwargs):
        __tracebackhide__ = True
        if not _enabled:
            return fn(*args, **kwargs)
        with original("context"):
            return checked(*args, **kwargs)

    return call


def parts_of(annotation):
    """An annotation, and all that it is made of but for literals."""
    yield annotation
    if typing.get_origin(annotation) is not typing.Literal:
        for part in annotation if isinstance(annotation, list) else typing.get_args(annotation):
            yield from parts_of(part)
