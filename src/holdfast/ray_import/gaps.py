"""Results that ``result.json`` of a trial lacks, taken from the state of the experiment.

A driver that is killed leaves a last line that is cut short, and a copy may lack the file or its end. The state knows
the last result, and with each checkpoint the result that it came with. Owns choosing among these. Must never replace
a row that could be read.
"""

from __future__ import annotations

from typing import Any

from holdfast.ray_import.facts import RayTrial, iteration_of, time_of


def fill_gap(trial: RayTrial, last: Any) -> str:
    """Append the results that are later than the last row that was read.

    Args:
        trial: Has the rows that were read, and its checkpoints.
        last: What the state says is its last result.

    Returns:
        Which results are still missing before one of those appended, for a note; "" for none.
    """
    known = [saved.row for saved in trial.saved or () if saved.folder == trial.dirname]
    found = {_key(row): row for row in (*known, last) if isinstance(row, dict) and iteration_of(row) > 0}
    end = trial.rows[-1] if trial.rows else None
    read = {_key(row) for row in trial.rows}
    later = [row for key, row in found.items() if key not in read and (end is None or _is_later(row, end))]
    later.sort(key=lambda row: (time_of(row), iteration_of(row)))
    before, gaps = iteration_of(end) if end is not None else 0, list[str]()
    for row in later:
        first, after = before + 1, iteration_of(row)
        if after > first:
            gaps.append(str(first) if after == first + 1 else f"{first} to {after - 1}")
        before = after
    trial.rows = [*trial.rows, *later]
    return ", ".join(gaps)


def _is_later(row: dict[str, Any], end: dict[str, Any]) -> bool:
    """Of two rows of the same second the iteration decides: after a retry it begins at a lower one."""
    one, other = time_of(row), time_of(end)
    return iteration_of(row) > iteration_of(end) if one == other or not one or not other else one > other


def _key(row: dict[str, Any]) -> tuple[int, float, Any]:
    total = row.get("time_total_s")
    return iteration_of(row), time_of(row), total if isinstance(total, int | float) else None
