"""Signs of life of this process: engines beat when a piece of work is done, and a watchdog outside counts.

A worker whose count stands still for longer than `run.silent_seconds` is taken to hang and is replaced.
"""

import itertools

_beats = itertools.count(1)
_last = 0


def beat() -> None:
    """Say that something was done; safe to call from any thread."""
    global _last
    _last = next(_beats)


def count() -> int:
    """Return how often `beat` was called in this process."""
    return _last
