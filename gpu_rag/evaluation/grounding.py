"""Grounding of a run: which demands are completed by an annotation, which citations are verbatim."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

SourceText = Callable[[str], str | None]


def completed_demands(lineage: dict[str, Any]) -> list[bool]:
    """Return for each demand of one lineage row, in order, whether it has at least one valid annotation.

    The stage that wrote the table admits only valid annotations, so one that stands there is valid.
    """
    annotated = {annotation["demand_id"] for annotation in lineage["annotations"]}
    return [demand["demand_id"] in annotated for demand in lineage["demands"]]


def verbatim_citations(answers: pa.Table, source_text: SourceText) -> tuple[int, int]:
    """Return (verbatim, all) citations: verbatim if `source_text(doc_id)[start:end]` is the quote and not empty.

    Args:
        answers: `schemas.ANSWERS`.
        source_text: Source text of a document, None for one that does not exist.
    """
    num_verbatim = num_citations = 0
    for citations in answers.column("citations").to_pylist():
        for citation in citations:
            text = source_text(citation["doc_id"])
            num_citations += 1
            num_verbatim += bool(citation["quote"]) and (
                text is not None and text[citation["start"] : citation["end"]] == citation["quote"]
            )
    return num_verbatim, num_citations
