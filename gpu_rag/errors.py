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
