from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag.query.repository import Repository
from gpu_rag.query.s06_ground import GroundConfig, is_valid, substituted

DOCUMENTS = {
    "river": ("River Lune", "The Lune rises at Newbiggin. The river Lune is 85 kilometres long. Salmon swim in it."),
    "town": ("", "Kendal is a market town. The castle of Kendal was built in 1183. Mint cake is sold there."),
    "empty": ("Only a title", ""),
}
Pipeline = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def repository(make_repository: Callable[..., Repository]) -> Repository:
    return make_repository(DOCUMENTS)


def test_the_best_sentence_is_quoted_verbatim_at_its_source_offsets(pipeline: Pipeline, repository: Repository) -> None:
    row = pipeline(repository, ["How long is the river Lune?"], through="annotations")[0]
    best = row["annotations"][0]
    assert best["quote"] == "The river Lune is 85 kilometres long."
    assert best["doc_id"] == "river"
    for annotation in row["annotations"]:
        source = repository.source_text(annotation["doc_id"])
        assert source[annotation["start"] : annotation["end"]] == annotation["quote"]
    assert best["produces"][0]["variable"] == "x1"
    assert best["produces"][0]["value"] in best["quote"]


def test_passages_about_something_else_leave_the_demand_open(pipeline: Pipeline, repository: Repository) -> None:
    row = pipeline(repository, ["Which composer wrote nocturnes?"], through="annotations")[0]
    assert row["annotations"] == []


def test_only_passages_that_the_demand_retrieved_ground_it(pipeline: Pipeline, repository: Repository) -> None:
    question = "How long is the river Lune?"
    row = pipeline(repository, [question], through="annotations", retrieved={"D1": ["town"]})[0]
    assert {annotation["doc_id"] for annotation in row["annotations"]} <= {"town"}


def test_a_later_demand_consumes_what_an_earlier_one_produced(pipeline: Pipeline, repository: Repository) -> None:
    demands = [
        {"demand_id": "D1", "description": "market town", "query": "", "inputs": [], "outputs": ["x1"]},
        {"demand_id": "D2", "description": "castle built", "query": "", "inputs": ["x1"], "outputs": ["x2"]},
    ]
    row = pipeline(repository, ["When was the castle of the market town built?"], through="annotations", demands=demands)[0]
    first = next(a for a in row["annotations"] if a["demand_id"] == "D1")
    second = next(a for a in row["annotations"] if a["demand_id"] == "D2")
    assert first["consumes"] == []
    assert second["consumes"] == [{"variable": "x1", "value": first["produces"][0]["value"]}]


def test_a_reference_to_an_earlier_step_becomes_the_value_found_for_it(pipeline: Pipeline, repository: Repository) -> None:
    assert substituted("#1 >> spouse of #12", {"x1": "Ada"}) == "Ada >> spouse of #12"
    demands = [
        {"demand_id": "D1", "description": "What town sells mint cake?", "query": "", "inputs": [], "outputs": ["x1"]},
        {"demand_id": "D2", "description": "How long is #1?", "query": "", "inputs": ["x1"], "outputs": ["x2"]},
    ]
    retrieved = {"D1": ["river"], "D2": ["river", "town"]}
    more = {"demands": demands, "retrieved": retrieved, "ground": GroundConfig(min_score=0.0)}
    row = pipeline(repository, ["How long?"], through="annotations", **more)[0]
    value = next(b["value"] for a in row["annotations"] if a["demand_id"] == "D1" for b in a["produces"])
    asked = [demands[0], demands[1] | {"description": f"How long is {value}?"}]
    direct = pipeline(repository, ["How long?"], through="annotations", **more | {"demands": asked})[0]
    assert row["annotations"] == direct["annotations"]


def test_one_annotation_of_a_demand_produces_its_value_and_states_it(pipeline: Pipeline, repository: Repository) -> None:
    config = GroundConfig(max_spans=1, min_score=0.0)
    for question in ("How long is the river Lune?", "When was the castle built?", "What is sold?"):
        for ground in (GroundConfig(min_score=0.0), config):
            row = pipeline(repository, [question], through="annotations", ground=ground)[0]
            producing = [annotation for annotation in row["annotations"] if annotation["produces"]]
            assert len(producing) == 1
            assert producing[0]["produces"][0]["value"] in producing[0]["quote"]


def test_at_most_max_spans_annotations_a_demand_the_best_first(pipeline: Pipeline, repository: Repository) -> None:
    config = GroundConfig(max_spans=2, min_score=0.0)
    row = pipeline(repository, ["How long is the river Lune?"], through="annotations", ground=config)[0]
    scores = [annotation["score"] for annotation in row["annotations"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)


def test_an_empty_selection_gives_no_annotation(pipeline: Pipeline, repository: Repository) -> None:
    assert pipeline(repository, ["Kendal?"], through="annotations", retrieved={})[0]["annotations"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_id": "999"},
        {"demand_id": "D9"},
        {"doc_id": "town"},
        {"quote": "The river Lune is 86 kilometres long."},
        {"start": 0, "end": 10, "quote": "River Lune"},  # the title, outside of the passage
        {"type": "rumour"},
        {"produces": [{"variable": "x7", "value": "85"}]},
        {"consumes": [{"variable": "x1", "value": "85"}]},
    ],
)
def test_an_annotation_that_does_not_hold_is_not_admitted(
    change: dict[str, Any], pipeline: Pipeline, repository: Repository
) -> None:
    row = pipeline(repository, ["How long is the river Lune?"], through="annotations")[0]
    good = row["annotations"][0]
    assert is_valid(good, row, repository)
    assert not is_valid(good | change, row, repository)


def test_a_passage_that_is_not_selected_or_not_the_demands_own_invalidates(pipeline: Pipeline, repository: Repository) -> None:
    row = pipeline(repository, ["How long is the river Lune?"], through="annotations")[0]
    good = row["annotations"][0]
    others = [item for item in row["selection"] if item["chunk_id"] != good["chunk_id"]]
    assert not is_valid(good, row | {"selection": others}, repository)
    unretrieved = [candidate | {"events": [{"demand_id": "D2", "rank": 1}]} for candidate in row["pool"]]
    assert not is_valid(good, row | {"pool": unretrieved}, repository)


def test_the_result_of_a_question_does_not_depend_on_its_batch(pipeline: Pipeline, repository: Repository) -> None:
    questions = ["How long is the river Lune?", "When was the castle of Kendal built?", "What is sold in Kendal?"]
    together = pipeline(repository, questions, through="reply")
    alone = [pipeline(repository, [question], through="reply")[0] for question in questions]
    assert together == alone
