"""Stage 08 by a language model, on scripted answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag.engines.generation import Completion
from gpu_rag.query.s08_answer import STAGE, AnswerConfig, answer

DOCS = {
    "ada": ("Ada Byers", "Ada Byers was born in Corrow. She died in 1931."),
    "corrow": ("Corrow", "Corrow is a town. It got its railway in 1884."),
}


@pytest.fixture
def run(make_repository: Any, scripted: Any, prompted_work: Any, annotation: Any) -> Callable[..., Any]:
    def reply_to(reply: Any, *, policy: str = "bounded", found: Any = None, questions: Any = ("Q?",), **more: Any) -> Any:
        repository = make_repository(DOCS)
        llm, engine = scripted(reply)
        annotations = [[annotation(repository, *item) for item in found or ()] for _ in questions]
        work = prompted_work(repository, list(questions), annotations=annotations, **more)
        table = answer(work, config=AnswerConfig(method="llm", policy=policy), repository=repository, llm=llm)  # type: ignore[arg-type]
        assert table.schema.names == STAGE.result_schema.names
        return table.to_pylist(), engine, repository

    return reply_to


def label(request: Any, text: str) -> str:
    line = next(line for line in request.messages[-1].content.splitlines() if text in line and line.startswith("["))
    return line[1 : line.index("]")]


def says(text: str, *cites: str) -> Callable[[Any], str]:
    """An answer that cites the sentences that hold a text; one without a blank is cited as it is."""
    return lambda request: json.dumps(
        {"cites": [label(request, cite) if " " in cite else cite for cite in cites], "answer": text}
    )


def test_an_answer_rests_on_the_cited_sentences_of_the_source(run: Any) -> None:
    (row,), _, repository = run(says(" 1884 ", "was born in", "railway in", "was born in"))
    reply = row["reply"]
    assert (row["state"], row["reason"], row["llm_calls"]) == ("ok", "", 1)
    assert (reply["answer"], reply["outcome"]) == ("1884", "answered")
    assert reply["explanation"] == "Ada Byers was born in Corrow. [1] It got its railway in 1884. [2]"
    assert [citation["doc_id"] for citation in reply["citations"]] == ["ada", "corrow"]
    for citation in reply["citations"]:
        assert repository.source_text(citation["doc_id"])[citation["start"] : citation["end"]] == citation["quote"]


@pytest.mark.parametrize("cites", [(), ("S999",), ("999", "P1")])
@pytest.mark.parametrize(("open_demands", "reason"), [((), "no_evidence"), (("D1",), "open_demand")])
def test_an_answer_without_a_real_citation_is_refused(run: Any, cites: Any, open_demands: Any, reason: str) -> None:
    (row,), *_ = run(says("1884", *cites), open_demands=open_demands, found=[("ada", "born")])
    assert row["state"] == "ok"
    assert (row["reply"]["outcome"], row["reply"]["refusal_reason"]) == ("refused", reason)
    assert (row["reply"]["answer"], row["reply"]["citations"]) == ("", [])
    assert ("left out cites.0" in row["reason"]) == bool(cites)


def test_an_invented_citation_is_rejected_and_the_real_ones_stay(run: Any) -> None:
    (row,), *_ = run(says("1884", "S999", "railway in"))
    assert [citation["quote"] for citation in row["reply"]["citations"]] == ["It got its railway in 1884."]


def test_under_always_an_uncited_answer_rests_on_the_annotations(run: Any) -> None:
    (row,), *_ = run(says("Corrow"), policy="always", found=[("ada", "born"), ("corrow", "a town")], refused="below_threshold")
    assert row["reply"]["outcome"] == "answered"
    assert [citation["quote"] for citation in row["reply"]["citations"]] == ["Ada Byers was born in Corrow."]
    (row,), *_ = run(says("Corrow"), policy="always")
    assert (row["reply"]["outcome"], row["reply"]["citations"]) == ("answered", [])


@pytest.mark.parametrize("policy", ["bounded", "always"])
@pytest.mark.parametrize("text", ["", "  \n", "..."])
def test_a_blank_answer_is_a_refusal(run: Any, policy: str, text: str) -> None:
    (row,), *_ = run(says(text, "railway in"), policy=policy)
    assert (row["state"], row["reply"]["outcome"], row["reply"]["refusal_reason"]) == ("ok", "refused", "no_evidence")


def test_what_is_refused_before_is_not_asked(run: Any) -> None:
    (row,), engine, _ = run(says("x"), refused="below_threshold")
    assert (row["reply"]["refusal_reason"], row["llm_calls"], engine.sent) == ("below_threshold", 0, [])
    (row,), engine, _ = run(says("x"), policy="always", select=0)
    assert (row["reply"]["refusal_reason"], row["llm_calls"], engine.sent) == ("no_evidence", 0, [])


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ("The answer is 1884.", "invalid"),
        ("", "invalid"),
        (json.dumps({"cites": [], "answer": "x" * 10_000}), "invalid"),
        ('{"answer": "1884"}', "invalid"),
        (Completion("0", '{"cites": [', "length"), "truncated"),
        (Completion("0", "", "content_filter"), "declined"),
        (Completion("0", "", "error", "429"), "error"),
        (Completion("0", "", "pending"), "pending"),
    ],
)
@pytest.mark.parametrize("policy", ["bounded", "always"])
def test_a_failed_answer_is_the_row_s_state_and_never_a_refusal(run: Any, policy: str, reply: Any, state: str) -> None:
    (row,), *_ = run(lambda _: reply, policy=policy)
    assert (row["state"], row["reply"], row["llm_calls"]) == (state, None, 1)


def test_markers_in_an_answer_are_kept(run: Any) -> None:
    (row,), *_ = run(says("<think>Answer: {{ 7 * 7 }}</think>", "railway in"))
    assert row["reply"]["answer"] == "<think>Answer: {{ 7 * 7 }}</think>"


def test_the_reader_is_shown_what_was_found_once_per_span(run: Any) -> None:
    demands = [
        {"demand_id": f"D{k}", "description": f"Fact {k}?", "query": "", "inputs": [], "outputs": [f"x{k}"]} for k in (1, 2)
    ]
    (_,), engine, _ = run(
        says("x", "railway in"), demands=demands, found=[("ada", "born"), ("ada", "born"), ("corrow", "1884")]
    )
    text = engine.sent[0].messages[-1].content
    found = text.split("FOUND FOR EACH FACT\n")[1].splitlines()[:2]
    born, built = label(engine.sent[0], "was born in"), label(engine.sent[0], "railway in")
    assert found == [f"D1: [{born}]; [{built}]", "D2: nothing"]


def test_rows_are_joined_by_id_and_a_bad_one_stays_alone(run: Any) -> None:
    def reply(request: Any) -> str:
        number = request.messages[-1].content.split("QUESTION\nQ")[1][0]
        return "garbage" if number == "2" else says(f"A{number}", "railway in")(request)

    rows, *_ = run(reply, questions=[f"Q{n}?" for n in range(5)])
    assert [row["state"] for row in rows] == ["ok", "ok", "invalid", "ok", "ok"]
    assert [row["reply"]["answer"] for row in rows if row["reply"]] == ["A0", "A1", "A3", "A4"]


def test_the_tokens_of_a_failure_are_counted(run: Any) -> None:
    (row,), *_ = run(lambda _: "garbage")
    assert row["tokens_in"] > 100
    assert row["tokens_out"] > 0
