"""Values of arguments: the model's text, and the JSON value that the schema gives it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text.tool_values import coerce, types_of

NESTED = "[" * 5000

CASES = [
    # text, types, value
    ("3", ("string",), "3"),
    (" a \n", ("string",), " a \n"),
    ("null", ("string",), "null"),
    ("NULL", ("string", "null"), None),
    ("None", ("null", "string"), None),
    ("None", ("string", "integer"), "None"),
    ("null", ("integer",), None),
    (" 3\n", ("integer",), 3),
    ("3.0", ("integer",), 3),
    ("3.5", ("integer",), "3.5"),
    ("nan", ("integer",), "nan"),
    ("9" * 30, ("integer",), int("9" * 30)),
    ("9" * 5000, ("integer",), "9" * 5000),
    ("3.5", ("number",), 3.5),
    ("4.0", ("number",), 4),
    ("inf", ("number",), "inf"),
    ("True", ("boolean",), True),
    ("no", ("boolean",), False),
    ("0", ("boolean",), False),
    ("maybe", ("boolean",), "maybe"),
    ('["a", 1]', ("array",), ["a", 1]),
    ("['a', True, None]", ("array",), ["a", True, None]),
    ("{'a': (1,)}", ("object",), {"a": [1]}),
    ("{1, 2}", ("object",), "{1, 2}"),
    ("[1]", ("object",), "[1]"),
    ("[NaN]", ("array",), "[NaN]"),
    (NESTED, ("array",), NESTED),
    ("x", ("integer", "string"), "x"),
    ("7", ("integer", "string"), 7),
    ('["a.py", "b.py"]', ("string", "array"), ["a.py", "b.py"]),
    ("[a] and [b]", ("string", "array"), "[a] and [b]"),
    ('{"x": 1}', ("number", "object"), {"x": 1}),
    ("7", ("string", "array"), "7"),
    ("7", (), 7),
    ("None", (), None),
    ("True", (), True),
    ("seven", (), "seven"),
    ('{"a": [1.5]}', (), {"a": [1.5]}),
    ("7", ("date",), 7),
    ('["\\ud800"]', ("array",), ["\ud800"]),
]


@pytest.mark.parametrize(("text", "types", "value"), CASES)
def test_a_text_becomes_the_value_its_type_asks_for(text, types, value):
    found = json.loads(coerce(text, types))
    assert found == value
    assert type(found) is type(value)


@given(
    st.text() | st.text("[]{}'\"0123456789.,:eE+- truefalsNn\\"),
    st.lists(
        st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"]),
        max_size=3,
    ).map(tuple),
)
def test_any_text_becomes_json_that_can_be_sent(text, types):
    sent = coerce(text, types)
    sent.encode()
    json.loads(sent, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_schema_of_unions_of_unions_is_read_once():
    root = {"$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 3} for n in range(60)}}
    assert types_of({"$ref": "#/$defs/0"}, root) == ("object", "array")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, ("string",)),
        ({"type": ["integer", "null"]}, ("integer", "null")),
        ({"type": "INT"}, ("integer",)),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ("string", "null")),
        ({"oneOf": [{"type": "number"}, {"$ref": "#/x"}]}, ("number", "object", "array")),
        ({"$ref": "#/$defs/Zip"}, ("string",)),
        ({"allOf": [{"$ref": "#/$defs/Zip"}]}, ("string",)),
        ({"anyOf": [{"$ref": "#/$defs/Zip"}, {"$ref": "#/$defs/F"}]}, ("string", "object")),
        ({"$ref": "#/$defs/Loop"}, ("object", "array")),
        ({"$ref": "elsewhere.json#/Zip"}, ()),
        ({"const": 3}, ("integer",)),
        ({"enum": ["a", "b"]}, ("string",)),
        ({"enum": [1, "b", None]}, ("integer", "string")),
        ({}, ()),
        ({"type": 3, "anyOf": "x"}, ()),
        (None, ()),
        ("string", ()),
    ],
)
def test_types_are_found_wherever_a_schema_states_them(schema, types):
    loop = {"anyOf": [{"$ref": "#/$defs/Loop"}] * 8}
    root = {"$defs": {"Zip": {"type": "string"}, "F": {"type": "object"}, "Loop": loop}}
    assert types_of(schema, root) == types
