"""The structural comparison of JSON values finds each difference of structure, and no other."""

from __future__ import annotations

import pytest
from json_structure import differences


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1, "b": "x"}, {"a": 2, "b": ""}),
        ([], [1, "x"]),
        ({"a": 1, "b": 1}, {"b": 1, "a": 1}),
        ([[1.0, 2.0]], [[3.0], [4.0, 5.0]]),
        (None, None),
        ([1, "x"], [2, "y"]),
        ({"0": {"a": 1}}, {"0": {"a": 2}, "1": {"a": 3}}),
    ],
)
def test_values_may_differ_freely(expected: object, actual: object) -> None:
    assert differences(expected, actual) == []


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {}),
        ({"a": 1}, {"a": 1, "b": 1}),
        ([1], []),
        ([1, "x"], [1, 2]),
        ([1, "x"], [1]),
        ({"0": {"a": 1}}, {"0": {"a": "x"}}),
        ({"0": {"a": 1}}, {"a": {"a": 1}}),
        ([1], [1, "x"]),
        ([{"a": [1]}], [{"a": ["x"]}]),
        ({"a": 1}, None),
    ],
)
def test_another_key_or_type_is_found(expected: object, actual: object) -> None:
    assert differences(expected, actual) != []
