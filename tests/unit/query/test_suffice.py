from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag.query.repository import Repository
from gpu_rag.query.s07_suffice import SCALES, SufficeConfig

DOCUMENTS = {
    "river": ("River Lune", "The Lune rises at Newbiggin. The river Lune is 85 kilometres long. Salmon swim in it."),
    "town": ("", "Kendal is a market town. The castle of Kendal was built in 1183. Mint cake is sold there."),
}
Pipeline = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def repository(make_repository: Callable[..., Repository]) -> Repository:
    return make_repository(DOCUMENTS)


def features(sufficiency: dict[str, Any]) -> dict[str, float]:
    return {item["name"]: item["value"] for item in sufficiency["features"]}


def decide(pipeline: Pipeline, repository: Repository, question: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = pipeline(repository, [question], through="sufficiency", **more)[0]["sufficiency"]
    return found


def test_evidence_that_states_the_answer_suffices_and_says_it_is_uncalibrated(
    pipeline: Pipeline, repository: Repository
) -> None:
    found = decide(pipeline, repository, "When was the castle of Kendal built?")
    assert found["sufficient"]
    assert found["reason"] == ""
    assert found["calibration"] == "uncalibrated"
    assert found["threshold"] == SufficeConfig().threshold
    assert set(features(found)) == {*SCALES, "demand_coverage"}


def test_a_demand_without_annotation_is_open(pipeline: Pipeline, repository: Repository) -> None:
    found = decide(pipeline, repository, "Which composer wrote nocturnes?")
    assert not found["sufficient"]
    assert found["reason"] == "open_demand"
    assert found["open_demands"] == ["D1"]


def test_without_a_passage_there_is_no_evidence(pipeline: Pipeline, repository: Repository) -> None:
    found = decide(pipeline, repository, "When was the castle of Kendal built?", retrieved={})
    assert (found["sufficient"], found["reason"]) == (False, "no_evidence")


def test_a_name_or_year_that_no_passage_holds_is_below_the_threshold(pipeline: Pipeline, repository: Repository) -> None:
    found = decide(pipeline, repository, "When was the castle of Skipton built?")
    assert (found["sufficient"], found["reason"]) == (False, "below_threshold")
    assert features(found)["name_coverage"] == 0.0
    assert features(decide(pipeline, repository, "When was the castle of Kendal built?"))["name_coverage"] == 1.0


def test_the_threshold_decides(pipeline: Pipeline, repository: Repository) -> None:
    found = decide(pipeline, repository, "When was the castle of Kendal built?", suffice=SufficeConfig(threshold=99.0))
    assert (found["sufficient"], found["reason"]) == (False, "below_threshold")


def test_a_matching_question_scores_above_one_about_something_else(pipeline: Pipeline, repository: Repository) -> None:
    near = decide(pipeline, repository, "How long is the river Lune?")
    far = decide(pipeline, repository, "How many engines did the airline buy?")
    assert near["score"] > far["score"]


def test_a_negated_question_against_a_plain_sentence_is_a_mismatch(pipeline: Pipeline, repository: Repository) -> None:
    plain = decide(pipeline, repository, "How long is the river Lune?")
    negated = decide(pipeline, repository, "How long isn't the river Lune?")
    assert features(plain)["negation_mismatch"] == 0.0
    assert features(negated)["negation_mismatch"] == 1.0
