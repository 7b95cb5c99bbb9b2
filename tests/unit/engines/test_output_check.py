"""Whatever a model writes ends in a value or in one error that says where."""

import json
from typing import Any

import pytest

from gpu_rag.engines.output_check import InvalidOutputError, checked_choice, checked_json

NAME = {"type": "string", "minLength": 1, "maxLength": 20}
TRIPLE = {
    "type": "object",
    "properties": {"s": NAME, "p": NAME, "o": NAME},
    "required": ["s", "p", "o"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": NAME, "maxItems": 3},
        "triples": {"type": "array", "items": TRIPLE, "maxItems": 3},
    },
    "required": ["names", "triples"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"names": [], "triples": []}


@pytest.mark.parametrize(
    "text",
    [
        '{"names":[],"triples":[]}',
        ' \n{"names": [], "triples": []}\n',
        '\ufeff{"names":[],"triples":[]}',
        '```json\n{"names":[],"triples":[]}\n```',
        '```\n{"names":[],"triples":[]}\n```',
    ],
)
def test_a_whole_answer_is_taken_also_in_one_fence_or_behind_a_byte_order_mark(text: str) -> None:
    assert checked_json(text, SCHEMA) == (EMPTY, [])


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "```json\n```", "None", "null", "[]", "[[], []]", '"names"', "42",
        '{"names":[],"triples":[],}',
        "{'names':[],'triples':[]}",
        '{"names":[]}',
        '{"Names":[],"triples":[]}',
        '{"names":[],"triples":[],"more":1}',
        '{"names":{},"triples":[]}',
        '{"names":null,"triples":[]}',
        '{"names":"A, B","triples":[]}',
        '{"names":[],"names":["A"],"triples":[]}',
        '{"names":[NaN],"triples":[]}',
        '{"names":[],"triples":[Infinity]}',
        '{"names":[],"triples":[',
        'Sure! Here it is: {"names":[],"triples":[]}',
        '{"names":[],"triples":[]} I hope this helps.',
        '{"names":[],"triples":[]}{"names":[],"triples":[]}',
        '<think>hm</think>{"names":[],"triples":[]}',
        '{"names":' + "[" * 5000 + "]" * 5000 + ',"triples":[]}',
        '{"names":[' + "1" * 5000 + '],"triples":[]}x',
        "{" + '"' + "x" * 1_000_001,
    ],
)  # fmt: skip
def test_anything_else_is_invalid_with_one_short_reason(text: str) -> None:
    with pytest.raises(InvalidOutputError) as raised:
        checked_json(text, SCHEMA)
    assert 0 < len(str(raised.value)) < 250


@pytest.mark.parametrize(
    ("names", "kept", "num_left_out"),
    [
        (["A", None, 3], ["A"], 2),
        (["A", {"x": 1}, "B"], ["A", "B"], 1),
        (["A", ["B"], ""], ["A"], 2),
        (["x" * 10_000, "B"], ["B"], 1),
        (["A", "B", "C", "D", "E"], ["A", "B", "C"], 2),
        ([None, None], [], 2),
        (["A", None, "B", None, "C", "D"], ["A", "B", "C"], 3),
    ],
)
def test_items_that_do_not_fit_are_left_out_and_named_and_the_others_kept(
    names: list[Any], kept: list[str], num_left_out: int
) -> None:
    value, left_out = checked_json(json.dumps({"names": names, "triples": []}), SCHEMA)
    assert value["names"] == kept
    assert len(left_out) == num_left_out
    assert all(note.startswith("left out names.") for note in left_out)


@pytest.mark.parametrize(
    "triple",
    [
        ["A", "r", "B"], {"s": "A", "p": "r"}, {"s": "A", "p": "r", "o": "B", "q": "C"}, {"s": "A", "p": "r", "o": 7},
        {"s": "A", "p": "", "o": "B"}, None, "A r B",
    ],
)  # fmt: skip
def test_a_malformed_triple_costs_itself_alone(triple: Any) -> None:
    good = {"s": "A", "p": "r", "o": "B"}
    value, left_out = checked_json(json.dumps({"names": ["A"], "triples": [good, triple, good]}), SCHEMA)
    assert value == {"names": ["A"], "triples": [good, good]}
    assert left_out == ["left out triples.1"]


def test_a_lone_surrogate_becomes_what_a_table_can_hold() -> None:
    value, _ = checked_json('{"names":["a\\ud800b"],"triples":[]}', SCHEMA)
    assert value["names"] == ["a\ufffdb"]


def test_marks_inside_strings_stay_as_they_are() -> None:
    marks = "<think> Answer: {x}"
    value, _ = checked_json(json.dumps({"names": [marks], "triples": []}), SCHEMA)
    assert value["names"] == [marks]


def test_a_choice_is_taken_with_white_space_around_it_and_nothing_else() -> None:
    assert checked_choice(" P2 \n", ("P1", "P2")) == "P2"
    for text in ("", "p2", "P22", "P2.", "P999"):
        with pytest.raises(InvalidOutputError):
            checked_choice(text, ("P1", "P2"))
