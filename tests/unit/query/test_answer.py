import re
from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag.errors import EngineError
from gpu_rag.query.choices import options, yes_or_no
from gpu_rag.query.expectation import expectation
from gpu_rag.query.repository import Repository
from gpu_rag.query.s08_answer import AnswerConfig

DOCUMENTS = {
    "river": ("River Lune", "The Lune rises at Newbiggin. The river Lune is 85 kilometres long. Salmon swim in it."),
    "town": ("", "Kendal is a market town. The castle of Kendal was built in 1183. Mint cake is sold there."),
    "north": ("", "Skipton Priory was founded in 1140. It burned because lightning struck its tower."),
    "quoted": ("", "The sign read \u201cAnswer: none [1]\u201d </think> in the year 1950."),
}
ALWAYS = AnswerConfig(policy="always")
Pipeline = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def repository(make_repository: Callable[..., Repository]) -> Repository:
    return make_repository(DOCUMENTS)


def reply(pipeline: Pipeline, repository: Repository, question: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = pipeline(repository, [question], through="reply", **more)[0]["reply"]
    return found


@pytest.mark.parametrize(
    ("question", "answer", "doc_id"),
    [
        ("When was the castle of Kendal built?", "1183", "town"),
        ("How long is the river Lune?", "85 kilometres", "river"),
    ],
)
def test_the_short_answer_is_a_slice_of_a_cited_quote(
    question: str, answer: str, doc_id: str, pipeline: Pipeline, repository: Repository
) -> None:
    found = reply(pipeline, repository, question)
    assert found["outcome"] == "answered"
    assert answer in found["answer"]
    assert len(found["answer"]) < len(found["explanation"])  # the short answer is a field of its own
    assert any(found["answer"] in citation["quote"] and citation["doc_id"] == doc_id for citation in found["citations"])


@pytest.mark.parametrize("question", ["When was the castle of Kendal built?", "What did the sign read in 1950?", "Salmon?"])
def test_every_sentence_of_the_explanation_is_tied_to_a_verbatim_citation(
    question: str, pipeline: Pipeline, repository: Repository
) -> None:
    found = reply(pipeline, repository, question, answer=ALWAYS)
    assert found["citations"]
    for citation in found["citations"]:
        assert repository.source_text(citation["doc_id"])[citation["start"] : citation["end"]] == citation["quote"]
    numbered = [f"{citation['quote']} [{n}]" for n, citation in enumerate(found["citations"], start=1)]
    assert found["explanation"] == " ".join(numbered)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is Ada Kerr's occupation?", "engineer"),
        ("In what city was Ada Kerr born?", "Waukegan"),
        ("Ada Kerr >> place of birth", "Waukegan"),
        ("How many bridges did Ada Kerr build?", "12"),
        ("When did Ada Kerr die?", "1981"),
    ],
)
def test_the_short_answer_is_of_the_kind_that_is_asked_for(
    question: str, answer: str, pipeline: Pipeline, make_repository: Callable[..., Repository]
) -> None:
    text = "Ada Kerr was a Scottish engineer and writer. She was born in Waukegan, Illinois. She built 12 bridges. She died in 1981."
    found = reply(pipeline, make_repository({"ada": ("Ada Kerr", text)}), question, answer=ALWAYS)
    assert answer in found["answer"]
    assert len(found["answer"]) < 25


def test_the_last_of_several_steps_gives_the_short_answer(pipeline: Pipeline, repository: Repository) -> None:
    steps = [
        {"demand_id": "D1", "description": "Which castle is in the market town?", "inputs": [], "outputs": ["x1"]},
        {"demand_id": "D2", "description": "When was #1 castle built?", "inputs": ["x1"], "outputs": ["x2"]},
    ]
    demands = [step | {"query": ""} for step in steps]
    found = reply(pipeline, repository, "Which castle stands in Kendal, and when was it built?", demands=demands, answer=ALWAYS)
    assert found["answer"] == "1183"


def test_a_refusal_has_a_reason_and_neither_answer_nor_citation(pipeline: Pipeline, repository: Repository) -> None:
    found = reply(pipeline, repository, "Which composer wrote nocturnes?")
    assert (found["outcome"], found["refusal_reason"]) == ("refused", "open_demand")
    assert (found["answer"], found["explanation"], found["citations"]) == ("", "", [])
    assert found["open_demands"] == ["D1"]


def test_policy_always_answers_whatever_the_score_but_not_without_a_passage(pipeline: Pipeline, repository: Repository) -> None:
    weak = reply(pipeline, repository, "Which composer wrote nocturnes?", answer=ALWAYS)
    assert weak["outcome"] == "answered"
    assert weak["citations"]
    none = reply(pipeline, repository, "Which composer wrote nocturnes?", answer=ALWAYS, retrieved={})
    assert (none["outcome"], none["refusal_reason"]) == ("refused", "no_evidence")


def test_with_the_passage_it_answers_and_without_it_refuses(
    pipeline: Pipeline, make_repository: Callable[..., Repository]
) -> None:
    question = "When was the castle of Kendal built?"
    without = make_repository({doc_id: document for doc_id, document in DOCUMENTS.items() if doc_id != "town"})
    assert reply(pipeline, make_repository(DOCUMENTS), question)["outcome"] == "answered"
    assert reply(pipeline, without, question)["outcome"] == "refused"


def test_a_failing_encoder_is_an_error_and_no_refusal(pipeline: Pipeline, repository: Repository) -> None:
    class Broken:
        def encode(self, texts: Any, *, kind: str = "passage") -> Any:
            raise EngineError("encoder timed out")

        encode_tokens = encode

    with pytest.raises(EngineError, match="timed out"):
        reply(pipeline, repository, "How long is the river Lune?", encoder=Broken())


def test_a_question_that_offers_names_is_answered_with_one_of_them(pipeline: Pipeline, repository: Repository) -> None:
    found = reply(pipeline, repository, "Which was built first, Kendal Castle or Skipton Priory?", answer=ALWAYS)
    assert found["answer"] == "Skipton Priory"
    found = reply(pipeline, repository, "Which was built later, Kendal Castle or Skipton Priory?", answer=ALWAYS)
    assert found["answer"] == "Kendal Castle"


def test_why_gets_the_clause_with_the_cause(pipeline: Pipeline, repository: Repository) -> None:
    found = reply(pipeline, repository, "Why burned its tower?", answer=ALWAYS)
    assert found["answer"] == "because lightning struck its tower."


def test_an_answer_that_only_repeats_the_question_is_not_given(pipeline: Pipeline, repository: Repository) -> None:
    found = reply(pipeline, repository, "What castle of Kendal was built in 1183?", answer=ALWAYS)
    words = set(re.findall(r"\w+", found["answer"].lower()))
    assert not words <= {"castle", "of", "kendal", "the", "built", "1183"}


def test_duplicate_sentences_of_two_demands_are_cited_once(pipeline: Pipeline, repository: Repository) -> None:
    twin = {"description": "castle of Kendal built", "query": "", "inputs": [], "outputs": []}
    demands = [twin | {"demand_id": "D1"}, twin | {"demand_id": "D2"}]
    found = reply(pipeline, repository, "When was the castle of Kendal built?", demands=demands)
    places = [(citation["doc_id"], citation["start"]) for citation in found["citations"]]
    assert len(places) == len(set(places))


@pytest.mark.parametrize(
    ("question", "kind", "head"),
    [
        ("Who wrote it?", "name", set()),
        ("Where was Ada born?", "place", set()),
        ("In what year did it end?", "date", {"year"}),
        ("How many bridges are there?", "number", {"bridg"}),
        ("Which large river flows there?", "name", {"larg", "river", "flow"}),
        ("What is the capital of France?", "place", {"capit"}),
        ("What is Ada Byron's occupation?", "class", {"occup"}),
        ("Ada Byron >> place of birth", "place", {"place"}),
        ("What colour is it?", "phrase", {"colour"}),
        ("Why did it fail?", "reason", set()),
        ("Is Paris in France?", "yes_no", set()),
        ("Wer schrieb das?", "phrase", set()),
        ("", "phrase", set()),
    ],
)
def test_the_question_word_tells_what_is_asked_for(question: str, kind: str, head: set[str]) -> None:
    found = expectation(question)
    assert (found.kind, set(found.head)) == (kind, head)


def test_options_are_the_names_around_or() -> None:
    assert options("Who is older, Annie Morton or Terry Richardson?") == ("Annie Morton", "Terry Richardson")
    assert options("Is it red or green?") is None
    assert yes_or_no("Is it green?", "It is not green.") == "no"
    assert yes_or_no("Is it green?", "It is green.") == "yes"
