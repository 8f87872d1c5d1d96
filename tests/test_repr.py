"""What a user sees of regard's own objects: in `dir`, in completion, and in the interpreter."""

import inspect

import regard


def test_every_public_class_describes_itself():
    classes = [thing for name in dir(regard) if inspect.isclass(thing := getattr(regard, name))]
    assert classes
    assert all(cls.__repr__ is not object.__repr__ for cls in classes)
