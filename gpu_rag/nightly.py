"""The nightly run: update an index, answer the standing questions whose evidence changed, remove what is old.

One after another, under the index's writer lock from beginning to end, so that two overlapping nights exclude each other. Rows
that failed in earlier nights are tried first. Each step is durable by itself: a night that dies is taken up by the next.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpu_rag.config import Config
from gpu_rag.index.update import UpdateResult, update_locked
from gpu_rag.query.standing import StandingResult, answer_standing, remove_old_runs, standing_questions
from gpu_rag.stage_report import Progress, StageReport
from gpu_rag.store import Cleaned, collect_garbage, writer_lock


@dataclass(frozen=True)
class StandingQuestions:
    """Questions that are asked every night: their file, the folder of their runs, system and config."""

    questions: Path
    out: Path
    system: str
    config: Config


@dataclass(frozen=True)
class NightlyResult:
    """What a night did; `standing` is None where there are no standing questions."""

    update: UpdateResult
    standing: StandingResult | None
    cleaned: Cleaned

    def reports(self) -> tuple[StageReport, ...]:
        """Return the reports of all stages."""
        return self.update.index.reports + (self.standing.run.reports if self.standing is not None else ())

    def num_unfinished(self) -> int:
        """Return how many rows did not reach a final state."""
        asked = self.standing.run.num_unfinished() if self.standing is not None else 0
        return self.update.index.num_unfinished() + asked

    def summary(self) -> str:
        """Return the line that a scheduler logs."""
        parts = [self.update.summary()]
        if self.standing is not None:
            parts.append(self.standing.summary())
        parts.append(f"{self.num_unfinished()} rows unfinished")
        parts.append(f"{len(self.cleaned.generations)} old generations removed")
        return "nightly: " + "; ".join(parts)


def nightly(
    corpus: Path | None,
    index: Path,
    config: Config,
    *,
    delete: Collection[str] = (),
    standing: StandingQuestions | None = None,
    keep: int,
    progress: Progress,
    address: str | None = None,
    retry_listed: bool = False,
) -> NightlyResult:
    """Run one night.

    Args:
        corpus: As `update_index`.
        index: As `update_index`.
        config: As `update_index`.
        delete: As `update_index`.
        standing: Questions to answer over the new generation.
        keep: Generations, and runs of the standing questions, that stay.
        progress: Receives stage events.
        address: Ray cluster; None starts Ray on this machine.
        retry_listed: Try rows again that have used up their attempts.

    Raises:
        StoreError: If another process writes the index.
        InputError: As `update_index` and `answer_standing`.
    """
    if standing is not None:
        standing_questions(standing.questions, standing.out)  # wrong ones are refused before hours of work, not after
    with writer_lock(index):
        updated = update_locked(
            corpus, index, config, delete=delete, progress=progress, address=address, retry_listed=retry_listed
        )
        answered = None
        if standing is not None:
            answered = answer_standing(
                standing.questions, index, standing.out, standing.config,
                system=standing.system, progress=progress, address=address, retry_listed=retry_listed,
            )  # fmt: skip
            remove_old_runs(standing.out, keep)
        return NightlyResult(updated, answered, collect_garbage(index, keep))
