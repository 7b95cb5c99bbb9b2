"""Query stage 01, demand: turn each question into ordered evidence demands.

Input:  `question` and, for `gold`, the question's own `decomposition`.
Output: `schemas.DEMANDS`, 1:1; at most five demands a question.
Device: CPU.
Source: LineageRAG, "Evidence-Demand Induction" (eq. 2 and 3): r_j = (id, description, inputs, outputs).
"""

import re
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from gpu_rag import schemas
from gpu_rag.query.frame import query_stage, result_table

MAX_DEMANDS = 5
_REFERENCE = re.compile(r"#(\d+)")


class DemandConfig(BaseModel):
    """How demands are induced.

    Attributes:
        method: `whole`: the question is the one demand. `gold`: the question's own decomposition, for evaluation only; a
            question without one falls back to `whole`.
        query: What a demand is retrieved with: the question and the demand's description, or the description alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["whole", "gold"] = "whole"
    query: Literal["question_and_demand", "demand"] = "question_and_demand"


def induce_demands(work: pa.Table, *, config: DemandConfig) -> pa.Table:
    """Return the demands of each question."""
    values = [
        _gold(question, steps[:MAX_DEMANDS], config) if config.method == "gold" and steps else _whole(question)
        for question, steps in zip(work.column("question").to_pylist(), work.column("decomposition").to_pylist(), strict=True)
    ]
    return result_table(work, schemas.DEMANDS.schema.field("demands"), values)


def _whole(question: str) -> list[dict[str, Any]]:
    return [{"demand_id": "D1", "description": question, "query": question, "inputs": [], "outputs": ["x1"]}]


def _gold(question: str, steps: list[dict[str, str]], config: DemandConfig) -> list[dict[str, Any]]:
    """Return one demand per step; a reference `#k` to an earlier step makes its variable `xk` an input."""
    demands = []
    for number, step in enumerate(steps, start=1):
        description = step["question"]
        earlier = sorted({int(k) for k in _REFERENCE.findall(description) if 0 < int(k) < number})
        query = f"{question} {description}" if config.query == "question_and_demand" else description
        demands.append(
            {
                "demand_id": f"D{number}",
                "description": description,
                "query": query,
                "inputs": [f"x{k}" for k in earlier],
                "outputs": [f"x{number}"],
            }
        )
    return demands


STAGE = query_stage(
    number=1,
    name="demand",
    version=1,
    reads=("question", "decomposition"),
    after=schemas.QUESTIONS,
    writes=schemas.DEMANDS,
    run=induce_demands,
)
