"""How far a run is: bars on a terminal, one JSON line per stage otherwise."""

import json
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gpu_rag.stage_report import StageReport


class JsonProgress:
    """Writes one JSON line when a stage is done, for logs and schedulers."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream

    def stage_started(self, label: str, total: int) -> None:
        """Say nothing: the line comes when the stage is done."""

    def advanced(self, label: str, rows: int) -> None:
        """Say nothing: the line comes when the stage is done."""

    def stage_finished(self, report: StageReport) -> None:
        """Write the stage's report."""
        line = report.as_dict() | {"seconds": round(report.seconds, 3)}
        self._stream.write(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n")
        self._stream.flush()


class TerminalProgress:
    """Bars on a terminal: committed pieces of work per stage; a context manager."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "TerminalProgress":
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing; the bars stay."""
        self._bars.stop()

    def stage_started(self, label: str, total: int) -> None:
        """Add the stage's bar."""
        self._tasks[label] = self._bars.add_task(label, total=max(total, 1), note="")

    def advanced(self, label: str, rows: int) -> None:
        """Move the stage's bar."""
        self._bars.advance(self._tasks[label], rows)

    def stage_finished(self, report: StageReport) -> None:
        """Fill the stage's bar and say how its rows ended."""
        if report.label not in self._tasks:
            self._tasks[report.label] = self._bars.add_task(report.label, total=1, note="")
        task = self._tasks[report.label]
        states = ", ".join(f"{count} {state}" for state, count in report.states.items())
        cached = f" ({report.cached} of {report.distinct} cached)" if report.cached else ""
        fields: dict[str, Any] = {"note": f"{states}{cached}"}
        self._bars.update(task, completed=self._bars.tasks[task].total, **fields)
