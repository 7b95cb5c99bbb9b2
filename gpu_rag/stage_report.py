"""What a run says of its stages while they run, and of every row at their end."""

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gpu_rag.schemas import FINAL_STATES

_LISTED_IN_REPORT = 20


class Progress(Protocol):
    """Where the executor says how far it is."""

    def stage_started(self, label: str, total: int) -> None:
        """Say that a stage begins with `total` pieces of work to compute."""

    def advanced(self, label: str, rows: int) -> None:
        """Say that so many pieces of work are committed."""

    def stage_finished(self, report: "StageReport") -> None:
        """Say that a stage is done."""


@dataclass
class StageReport:
    """What one stage did with every row.

    Attributes:
        label: Stage, such as `04_extract`.
        rows: Rows that came in; `states` adds up to it.
        distinct: Different pieces of work among them.
        cached: Of these, committed by an earlier run.
        computed: Of these, computed now, or again after an earlier failure.
        states: Rows per state.
        seconds: Wall time of the stage.
        peak_rss_bytes: Peak memory of any worker so far, 0 if none ran.
        metrics: Sums over the rows, such as `cut_tokens`.
        listed: The rows that did not reach a final state, with state and reason.
    """

    label: str
    rows: int = 0
    distinct: int = 0
    cached: int = 0
    computed: int = 0
    states: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    listed: list[dict[str, str]] = field(default_factory=list)

    def num_unfinished(self) -> int:
        """Return how many rows did not reach a final state."""
        return sum(count for state, count in self.states.items() if state not in FINAL_STATES)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values, the first rows of `listed` only."""
        return asdict(self) | {"listed": self.listed[:_LISTED_IN_REPORT]}
