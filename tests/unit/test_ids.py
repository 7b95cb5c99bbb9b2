import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag import ids

_ANY_TEXT = st.text(alphabet=st.characters(), max_size=20)  # lone surrogates too


@given(st.lists(_ANY_TEXT, max_size=5), st.lists(_ANY_TEXT, max_size=5))
def test_hash_is_equal_exactly_where_the_parts_are(first: list[str], second: list[str]) -> None:
    assert (ids.content_hash(*first) == ids.content_hash(*second)) == (first == second)


def test_hash_tells_where_a_part_ends() -> None:
    assert ids.content_hash("ab", "c") != ids.content_hash("a", "bc")
    assert ids.content_hash() != ids.content_hash("")
    assert ids.content_hash("a") != ids.content_hash("a", "")


def test_hash_is_the_same_in_another_process_and_for_all_time() -> None:
    known = ids.content_hash("document", "Mercury", "\u6c34\u661f")
    code = "from gpu_rag.ids import content_hash; print(content_hash('document', 'Mercury', '\u6c34\u661f'))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == known
    assert len(known) == 32


@pytest.mark.parametrize("text", ["a\ud800b", "\x00", "\uffff", "", "\U0010ffff"])
def test_no_text_makes_an_id_fail(text: str) -> None:
    made = {
        ids.chunk_id("d", text, 0), ids.sentence_id("c", text, 0), ids.entity_id(text), ids.fact_id(text, text, text),
        ids.unit_id("mention", "c", "x", text), ids.vector_id(text),
    }  # fmt: skip
    assert len(made) == 6


def test_ids_of_equal_content_differ_by_kind_document_and_occurrence() -> None:
    assert ids.chunk_id("a", "t", 0) != ids.chunk_id("b", "t", 0)
    assert ids.chunk_id("a", "t", 0) != ids.chunk_id("a", "t", 1)
    assert ids.chunk_id("a", "t", 0) != ids.sentence_id("a", "t", 0)
    assert ids.fact_id("x", "y", "z") != ids.fact_id("z", "y", "x")


def test_canonical_json_is_one_text_for_equal_values() -> None:
    assert ids.canonical_json({"b": 1, "a": ["\u00e9"]}) == ids.canonical_json({"a": ["\u00e9"], "b": 1})
    assert ids.canonical_json({"a": ["\u00e9"]}) == '{"a":["\\u00e9"]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        ids.canonical_json(float("nan"))


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_occurrences_make_equal_values_distinct(values: list[str]) -> None:
    counted = ids.occurrences(values)
    assert len(set(zip(values, counted, strict=True))) == len(values)
    for value in set(values):
        mine = [count for other, count in zip(values, counted, strict=True) if other == value]
        assert mine == list(range(len(mine)))
