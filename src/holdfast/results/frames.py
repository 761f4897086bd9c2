"""DataFrames. The only place in results that imports pandas, and only when a frame is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.callbacks.rows import flatten_result


def require_pandas() -> Any:
    """The pandas module.

    Raises:
        ImportError: It is not installed; the message says what works without it.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "DataFrames need pandas, which is not installed: pip install 'holdfast[dataframe]'. Without it, "
            "Result.metrics, Result.metrics_history and `holdfast export PATH results.csv` have the same data."
        ) from error
    return pandas


def flat_row(row: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A result as one level: nested keys joined, the config last."""
    flat = flatten_result({key: value for key, value in row.items() if key != "config"})
    flat.update(flatten_result({"config": row.get("config", {})}))
    flat.update(more)
    return flat


def frame_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Result rows as a DataFrame with one column for each key, nested keys joined by "/"."""
    return require_pandas().DataFrame([flat_row(row) for row in rows])
