"""Errors that users and callers can act on; plain Python, importable from everywhere."""


class GpuRagError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(GpuRagError, ValueError):
    """Wrong input: the message names the file, line, table, column or key. Exit code 2."""


class ConfigError(InputError):
    """An unknown or invalid config key, or a folder that belongs to another config. Exit code 2."""


class StoreError(GpuRagError):
    """An artifact, shard or manifest is missing, corrupt or of another version. Exit code 2."""


class EngineError(GpuRagError):
    """An engine (encoder, language model, Ray actor) died or returned something unusable."""


class EngineStartError(EngineError):
    """An engine does not start, or every worker that is given it dies: no row's fault, so the run ends."""


class MissingDependencyError(GpuRagError, ImportError):
    """An optional library is not installed or does not load; the message names the extra."""


class EngineDeadError(EngineError):
    """The engine in this worker serves nothing any more: the worker is replaced and its shard tried again."""


class AwaitingAnswersError(GpuRagError):
    """A batch service has to answer first; the message names the request files and what to do. Exit code 3."""
