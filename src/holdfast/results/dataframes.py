"""DataFrames. The only place in results that imports pandas, and only when a frame is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.views.results import flatten_result


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


LINEAGE = "lineage"
COPIED_FROM = "copied_from"


def frame_of(rows: Iterable[Mapping[str, Any]], copies: Sequence[tuple[int, str]] = ()) -> Any:
    """Result rows as a DataFrame with one column for each key, nested keys joined by "/".

    Args:
        rows: The rows of a trial. copies: Where it continued as a copy of another trial: before which row, and the
        other's id. If there are any, the
            frame has two columns more: ``lineage`` counts the copies, and ``copied_from`` names the last one.
    """
    flat = [flat_row(row) for row in rows]
    for i, row in enumerate(flat if copies else ()):
        before = [trial_id for start, trial_id in copies if start <= i]
        row.setdefault(LINEAGE, len(before))  # a metric of the user's that is called so is theirs
        row.setdefault(COPIED_FROM, before[-1] if before else None)
    return require_pandas().DataFrame(flat)
