"""Stage 05 by a language model, on scripted answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag.query.prompted.select import describe_provenance, excerpt
from gpu_rag.query.s05_select import STAGE, SelectConfig, select

DOCS = {f"d{row}": (f"Title {row}", f"Fact number {row} stands here. " + "more words " * 60) for row in range(8)}
DEMANDS = [
    {"demand_id": f"D{k}", "description": f"Fact {k}?", "query": f"Fact {k}?", "inputs": [], "outputs": [f"x{k}"]}
    for k in (1, 2)
]


@pytest.fixture
def run(make_repository: Any, scripted: Any, prompted_work: Any) -> Callable[..., tuple[list[dict[str, Any]], Any]]:
    def choose(reply: Any = None, *, documents: Any = DOCS, script: Any = None, config: Any = None, **more: Any) -> Any:
        repository = make_repository(documents)
        llm, engine = scripted(reply, **(script or {}))
        work = prompted_work(repository, more.pop("questions", ["Q?"]), demands=DEMANDS, **more)
        table = select(work, config=SelectConfig(**{"method": "llm", "k": 3} | (config or {})), repository=repository, llm=llm)
        assert table.schema.names == STAGE.result_schema.names
        return table.to_pylist(), engine

    return choose


def chosen(*labels: Any) -> Callable[[Any], str]:
    return lambda _: json.dumps({"passages": list(labels)})


def ranks(row: dict[str, Any]) -> list[tuple[int, str]]:
    return [(item["pool_rank"], item["reason"]) for item in row["selection"]]


def test_what_the_model_chose_is_kept_in_pool_order(run: Any) -> None:
    (row,), engine = run(chosen("P7", "P2", "P5"))
    assert ranks(row) == [(2, "llm"), (5, "llm"), (7, "llm")]
    assert (row["state"], row["reason"], row["llm_calls"]) == ("ok", "", 1)
    (request,) = engine.sent
    assert request.schema["properties"]["passages"]["items"]["enum"] == [f"P{n}" for n in range(1, 9)]


def test_repeats_are_dropped_and_places_left_are_filled_with_the_earliest(run: Any) -> None:
    (row,), _ = run(chosen("P6", "P6"))
    assert ranks(row) == [(1, "fill"), (2, "fill"), (6, "llm")]


def test_invented_labels_and_those_beyond_k_are_left_out_and_named(run: Any) -> None:
    (row,), _ = run(chosen("P999", "P4", "x", 7, "P5", "P6", "P7"))
    assert [rank for rank, reason in ranks(row) if reason == "llm"] == [4, 5, 6]
    assert row["state"] == "ok"
    assert "left out passages.0" in row["reason"]


@pytest.mark.parametrize("reply", ["garbage", "", "[]", '{"passages": []}', '{"passages": ["P999"]}', '{"passages": "P1"}'])
def test_an_answer_without_a_usable_label_is_invalid(run: Any, reply: str) -> None:
    (row,), _ = run(lambda _: reply)
    assert (row["state"], row["selection"], row["llm_calls"]) == ("invalid", None, 1)


def test_an_empty_pool_and_one_of_k_or_less_make_no_call(run: Any) -> None:
    (row,), engine = run(retrieved={})
    assert (row["state"], row["selection"], row["llm_calls"], engine.sent) == ("ok", [], 0, [])
    (row,), engine = run(retrieved={"D1": ["d1", "d2"], "D2": ["d3"]})
    assert ([reason for _, reason in ranks(row)], engine.sent) == (["fill"] * 3, [])


def test_each_candidate_is_shown_with_title_excerpt_and_provenance(run: Any) -> None:
    _, engine = run(chosen("P1"), retrieved={"D1": [f"d{n}" for n in range(8)], "D2": ["d0"]})
    text = engine.sent[0].messages[-1].content
    assert "D1: Fact 1?" in text
    first = text.split("P1: ")[1].split("P2: ")[0]
    assert "Title" in first
    assert "stands here." in first
    assert len(first.split()) < 110
    both = next(part for part in text.split("\n\n") if "Title 0" in part)
    assert "found by D1 rank" in both
    assert "D2 rank" in both
    assert "2 in all" in both


def provenance_lines(engine: Any) -> list[str]:
    return [line for line in engine.sent[0].messages[-1].content.splitlines() if line.startswith("(found")]


def test_provenance_modes_change_what_is_shown_and_nothing_else(run: Any) -> None:
    retrieved = {"D1": [f"d{n}" for n in range(8)], "D2": [f"d{n}" for n in range(4)]}
    shown, prompts = {}, {}
    for mode in ("correct", "removed", "neutral", "shuffled"):
        _, engine = run(chosen("P1"), config={"provenance": mode}, retrieved=retrieved)
        shown[mode] = provenance_lines(engine)
        prompts[mode] = engine.sent[0].messages[-1].content
    assert len(shown["correct"]) == 8
    assert shown["removed"] == []
    assert [len(line) for line in shown["neutral"]] == [len(line) for line in shown["correct"]]
    assert not any(character.isdigit() for line in shown["neutral"] for character in line)
    assert shown["shuffled"] != shown["correct"]
    assert sorted(shown["shuffled"]) == sorted(shown["correct"])
    without = {mode: [line for line in text.splitlines() if not line.startswith("(found")] for mode, text in prompts.items()}
    assert all(lines == without["correct"] for lines in without.values())


def test_excerpts_are_shortened_before_a_candidate_is_left_out(run: Any) -> None:
    def shown(context: int) -> tuple[int, int, str]:
        (row,), engine = run(chosen("P1"), script={"max_context_tokens": context})
        text = engine.sent[0].messages[-1].content
        return text.count("stands here."), text.count("words"), row["reason"]

    passages, words, reason = shown(32768)
    assert (passages, reason) == (8, "")
    fewer = shown(1200)
    assert fewer[0] == 8
    assert fewer[1] < words
    assert "excerpts cut to" in fewer[2]
    least = shown(680)
    assert 0 < least[0] < 8
    assert f"{8 - least[0]} of 8 candidates did not fit the prompt" in least[2]


def test_a_label_that_was_not_shown_cannot_be_chosen_but_the_fill_may_take_its_passage(run: Any) -> None:
    (row,), engine = run(chosen("P1"), script={"max_context_tokens": 680})
    enum = engine.sent[0].schema["properties"]["passages"]["items"]["enum"]
    assert len(enum) < 8
    assert len(row["selection"]) == 3


def test_not_even_one_candidate_fits_is_too_long(run: Any) -> None:
    (row,), engine = run(script={"max_context_tokens": 300})
    assert (row["state"], row["llm_calls"], engine.sent) == ("too_long", 0, [])


def test_a_failed_row_leaves_its_neighbours_alone(run: Any) -> None:
    def reply(request: Any) -> str:
        return "garbage" if "Q3" in request.messages[-1].content else json.dumps({"passages": ["P8"]})

    rows, _ = run(reply, questions=[f"Q{n}?" for n in range(6)])
    assert [row["state"] for row in rows] == ["ok"] * 3 + ["invalid"] + ["ok"] * 2


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [("a  b\nc d", 3, "a  b\nc"), ("a b", 5, "a b"), ("", 5, ""), ("\u5b57" * 100, 5, "\u5b57" * 40), ("a b ", 1, "a")],
)
def test_an_excerpt_is_the_start_of_the_text(text: str, words: int, expected: str) -> None:
    assert excerpt(text, words) == expected


def test_no_provenance_is_no_text() -> None:
    assert describe_provenance([], 3) == ""


def test_the_floor_of_excerpts_is_not_above_their_length() -> None:
    with pytest.raises(ValueError, match="min_excerpt_words=20 is above excerpt_words=5"):
        SelectConfig(method="llm", llm={"excerpt_words": 5})  # type: ignore[arg-type]
