"""Differences in structure (keys and types) between two JSON values; texts and numbers may differ freely."""

from __future__ import annotations

from collections.abc import Iterator


def differences(expected: object, actual: object, where: str = "$") -> list[str]:
    """What is structurally different, one sentence each; empty when nothing is.

    Of an expected list the first item is the pattern for each actual one, unless its items are of several types, which
    makes it a tuple. An empty list fits any list. An object whose keys are numbers is a list, too.
    """
    return list(_differences(expected, actual, where))


def _differences(expected: object, actual: object, where: str) -> Iterator[str]:
    if type(expected) is not type(actual):
        yield f"{where}: {type(actual).__name__} in place of {type(expected).__name__}"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        if expected and all(key.isdecimal() for key in (*expected, *actual)):
            yield from _in_lists(list(expected.values()), list(actual.values()), where)
        else:
            yield from _in_objects(expected, actual, where)
    elif isinstance(expected, list) and isinstance(actual, list) and expected:
        yield from _in_lists(expected, actual, where)


def _in_objects(expected: dict[str, object], actual: dict[str, object], where: str) -> Iterator[str]:
    if expected.keys() != actual.keys():
        yield f"{where}: keys {sorted(actual)} in place of {sorted(expected)}"
    for key in expected.keys() & actual.keys():
        yield from _differences(expected[key], actual[key], f"{where}.{key}")


def _in_lists(expected: list[object], actual: list[object], where: str) -> Iterator[str]:
    is_tuple = len({type(item) for item in expected}) > 1
    if not actual or (is_tuple and len(expected) != len(actual)):
        yield f"{where}: {len(actual)} items in place of {len(expected)}"
        return
    patterns = expected if is_tuple else expected[:1] * len(actual)
    for number, (pattern, item) in enumerate(zip(patterns, actual, strict=True)):
        yield from _differences(pattern, item, f"{where}[{number}]")
