from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.engines.usage import with_usage
from gpu_rag.query.s05_select import STAGE, SelectConfig, admit, select, shown_provenance


def demand(demand_id: str) -> dict[str, Any]:
    return {"demand_id": demand_id, "description": demand_id, "query": demand_id, "inputs": [], "outputs": []}


def candidate(chunk_id: str, score: float, **ranks: int) -> dict[str, Any]:
    events = [{"demand_id": demand_id, "rank": rank} for demand_id, rank in ranks.items()]
    best = min(ranks.values(), default=1)
    return {
        "chunk_id": chunk_id, "doc_id": f"doc-{chunk_id}", "events": events, "num_events": len(events), "best_rank": best,
        "same_title": 1, "score": score,
    }  # fmt: skip


POOL = [
    candidate("a", 0.9, D1=1, D2=3),
    candidate("b", 0.2, D2=1),
    candidate("c", 0.8, D1=2),
    candidate("d", 0.7, D1=3),
    candidate("e", 0.1, D3=1),
]
DEMANDS = [demand("D1"), demand("D2"), demand("D3")]


def run(pool: list[dict[str, Any]], demands: list[dict[str, Any]] = DEMANDS, **config: Any) -> list[dict[str, Any]]:
    work = pa.table(
        {
            "work_key": pa.array(["k"], schemas.STRING),
            "question": pa.array(["Q?"], schemas.TEXT),
            "demands": pa.array([demands], schemas.list_of(schemas.DEMAND)),
            "pool": pa.array([pool], schemas.list_of(schemas.CANDIDATE)),
        }
    )
    result = select(work, config=SelectConfig(**config), repository=None)  # type: ignore[arg-type]  # reads no text
    assert with_usage(result).schema.names == STAGE.result_schema.names
    assert result.column("state").to_pylist() == ["ok"]
    selection: list[dict[str, Any]] = result.column("selection").to_pylist()[0]
    return selection


def chunks(selection: list[dict[str, Any]]) -> list[str]:
    return [item["chunk_id"] for item in selection]


def test_every_demand_is_covered_before_places_are_filled_by_score() -> None:
    selection = run(POOL, k=4)
    assert chunks(selection) == ["a", "b", "c", "e"]  # in pool order
    assert [item["reason"] for item in selection] == ["covers D1", "covers D2", "fill", "covers D3"]
    assert [item["pool_rank"] for item in selection] == [1, 2, 3, 5]
    assert [item["doc_id"] for item in selection] == ["doc-a", "doc-b", "doc-c", "doc-e"]


def test_a_passage_covers_one_demand_and_the_next_demand_takes_its_second_best() -> None:
    pool = [candidate("a", 1.0, D1=1, D2=1), candidate("b", 0.9, D1=2), candidate("c", 0.1, D2=2)]
    assert chunks(run(pool, [demand("D1"), demand("D2")], k=2)) == ["a", "c"]


def test_a_single_demand_keeps_the_order_of_its_pool() -> None:
    pool = [candidate("x", 0.1, D1=1), candidate("y", 0.9, D1=2), candidate("z", 0.5, D1=3)]
    assert chunks(run(pool, [demand("D1")], k=2)) == ["x", "y"]


@pytest.mark.parametrize("k", [1, 5, 9])
def test_a_small_pool_is_selected_whole_and_ids_are_distinct(k: int) -> None:
    selection = run([*POOL, POOL[0]], k=k)
    assert len(selection) == len(set(chunks(selection))) == min(k, len(POOL))


def test_an_empty_pool_gives_an_empty_selection_and_state_ok() -> None:
    assert run([]) == []


@pytest.mark.parametrize("mode", ["removed", "neutral"])
def test_without_provenance_the_best_scores_are_selected(mode: str) -> None:
    assert chunks(run(POOL, k=3, provenance=mode)) == ["a", "c", "d"]


def test_shuffled_provenance_is_a_fixed_permutation_of_the_true_events() -> None:
    first = shown_provenance("Q?", POOL, "shuffled")
    assert first == shown_provenance("Q?", POOL, "shuffled")
    assert sorted(map(str, first)) == sorted(str(item["events"]) for item in POOL)
    orders = {str(shown_provenance(f"question {n}", POOL, "shuffled")) for n in range(20)}
    assert len(orders) > 5


def test_filling_by_pool_order_is_a_switch() -> None:
    assert chunks(run(POOL, [demand("D1"), demand("D3")], k=3, fill="pool")) == ["a", "b", "e"]
    assert chunks(run(POOL, [demand("D1"), demand("D3")], k=3, fill="score")) == ["a", "c", "e"]


def test_a_proposal_outside_the_pool_or_repeated_is_dropped_and_the_first_k_count() -> None:
    proposed = [("999", "invented"), ("d", "x"), ("d", "again"), ("b", "y"), ("c", "too many")]
    assert chunks(admit(proposed, POOL, 2)) == ["b", "d"]
    assert chunks(admit([("e", "x")], POOL, 3)) == ["a", "b", "e"]  # filled from the earliest unselected


def test_an_unknown_config_key_is_refused() -> None:
    with pytest.raises(ValueError, match="depth"):
        SelectConfig(depth=3)  # type: ignore[call-arg]
