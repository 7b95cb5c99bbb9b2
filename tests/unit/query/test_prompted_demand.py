"""Stage 01 by a language model, on scripted answers."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.engines.generation import Completion, GenerationRequest
from gpu_rag.engines.usage import with_usage
from gpu_rag.query.s01_demand import STAGE, DemandConfig, induce_demands

Run = Callable[..., list[dict[str, Any]]]
QUESTION = "When did the birthplace of Ada get its railway?"


@pytest.fixture
def run(scripted: Any) -> Run:
    def induce(reply: Any, questions: list[str] | None = None, **config: Any) -> list[dict[str, Any]]:
        llm, engine = scripted(reply)
        asked = questions or [QUESTION]
        work = pa.table({"work_key": [str(row) for row in range(len(asked))], "question": asked})
        table = induce_demands(work, config=DemandConfig(method="llm", **config), llm=llm)
        assert table.schema.names == STAGE.result_schema.names
        assert len(engine.sent) == len(asked)
        return table.to_pylist()

    return induce


def items(*pairs: tuple[str, list[str]]) -> Callable[[GenerationRequest], str]:
    return lambda _: json.dumps({"demands": [{"description": text, "uses": uses} for text, uses in pairs]})


def test_demands_are_ordered_and_use_earlier_ones(run: Run) -> None:
    (row,) = run(items(("Where was Ada born?", []), ("When did #1 get its railway?", ["D1"])))
    assert (row["state"], row["reason"], row["llm_calls"]) == ("ok", "", 1)
    assert row["demands"] == [
        {"demand_id": "D1", "description": "Where was Ada born?", "query": f"{QUESTION} Where was Ada born?",
         "inputs": [], "outputs": ["x1"]},
        {"demand_id": "D2", "description": "When did #1 get its railway?",
         "query": f"{QUESTION} When did #1 get its railway?", "inputs": ["x1"], "outputs": ["x2"]},
    ]  # fmt: skip


def test_the_query_is_formed_as_for_any_method(run: Run) -> None:
    (row,) = run(items(("Where was Ada born?", [])), query="demand")
    assert row["demands"][0]["query"] == "Where was Ada born?"


def test_a_reference_in_the_text_is_an_input_too(run: Run) -> None:
    (row,) = run(items(("Where was Ada born?", []), ("When did #1 get its railway?", [])))
    assert row["demands"][1]["inputs"] == ["x1"]


def test_a_reference_to_itself_or_a_later_demand_is_left_out_and_noted(run: Run) -> None:
    (row,) = run(items(("Where?", ["D2"]), ("When?", ["D2", "D1"]), ("Who was #9?", [])))
    assert [demand["inputs"] for demand in row["demands"]] == [[], ["x1"], []]
    assert row["demands"][2]["description"] == "Who was #9?"
    assert row["reason"] == "left out 3 references to no earlier demand"


def test_blank_and_repeated_demands_are_left_out_and_the_rest_numbered_anew(run: Run) -> None:
    (row,) = run(items(("Where?", []), (" .. ", []), ("where?", []), ("When did #3 open?", ["D3"]), ("Why #4?", ["D2", "D4"])))
    assert [demand["demand_id"] for demand in row["demands"]] == ["D1", "D2", "D3"]
    assert [demand["description"] for demand in row["demands"]] == ["Where?", "When did #1 open?", "Why #2?"]
    assert [demand["inputs"] for demand in row["demands"]] == [[], ["x1"], ["x2"]]
    assert "1 blank demands" in row["reason"]
    assert "1 repeated demands" in row["reason"]


def test_without_a_usable_demand_the_question_is_the_one_demand(run: Run) -> None:
    (row,) = run(items(("?", []), ("  ", [])))
    assert row["demands"] == [{"demand_id": "D1", "description": QUESTION, "query": QUESTION, "inputs": [], "outputs": ["x1"]}]
    assert row["state"] == "ok"
    assert "no usable demand" in row["reason"]


def test_a_demand_that_does_not_fit_is_left_out_and_the_others_stay(run: Run) -> None:
    (row,) = run(items(("x" * 10_000, []), ("Where?", ["D999"]), ("When?", [])))
    assert [demand["description"] for demand in row["demands"]] == ["Where?", "When?"]
    assert "left out demands.0" in row["reason"]


def test_more_than_five_demands_are_cut_to_five(run: Run) -> None:
    (row,) = run(items(*((f"Fact {number}?", []) for number in range(8))))
    assert len(row["demands"]) == 5


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ("Sure! Here is the JSON", "invalid"),
        ("", "invalid"),
        ('{"demands": []}', "invalid"),
        ('{"demands": [null, 3]}', "invalid"),
        (Completion("0", '{"demands": [', "length"), "truncated"),
        (Completion("0", "", "content_filter"), "declined"),
        (Completion("0", "", "error", "429"), "error"),
        (Completion("0", "", "pending"), "pending"),
    ],
)
def test_a_failed_answer_is_the_row_s_state_and_its_cost_is_counted(reply: Any, state: str, run: Run) -> None:
    (row,) = run(lambda _: reply)
    assert (row["state"], row["demands"], row["llm_calls"]) == (state, None, 1)
    assert row["reason"] or state == "pending"


def test_a_bad_row_leaves_its_neighbours_alone_and_rows_are_joined_by_id(run: Run) -> None:
    def reply(request: GenerationRequest) -> str:
        text = request.messages[-1].content
        return "garbage" if "number 3" in text else items((text[-12:], []))(request)

    rows = run(reply, [f"Where is number {number}?" for number in range(8)])
    assert [row["state"] for row in rows] == ["ok"] * 3 + ["invalid"] + ["ok"] * 4
    assert all(f"number {n}" in row["demands"][0]["description"] for n, row in enumerate(rows) if n != 3)


def test_the_other_methods_ask_nothing(run: Run) -> None:
    decomposition = pa.array([[]], schemas.DECOMPOSITION)
    work = pa.table({"work_key": ["0"], "question": [QUESTION], "decomposition": decomposition})
    table = with_usage(induce_demands(work, config=DemandConfig()))
    assert table.column("llm_calls").to_pylist() == [0]
    assert STAGE.engines_for(DemandConfig()) == ()
    assert STAGE.engines_for(DemandConfig(method="llm")) == ("llm",)
