"""Draws a table of transitions as an SVG picture.

Owns the layout: one lane for each state, one row for each transition, with an arrow from lane to lane. Any table fits,
nothing overlaps, and no other program is needed. Must never load a font or anything else from another host.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

LANE, ROW, HEAD, MARGIN, LETTER = 108, 24, 44, 16, 7.3
START = "[*]"
"""The state before the first one; it has no box, its arrow begins at a dot."""

STYLE = """\
svg { --back: #f8f9fb; --edge: #d4d9e1; --text: #1f2933; --box: #e3f2ee; --line: #b9c2ce; --arrow: #0b6e5f; }
@media (prefers-color-scheme: dark) {
  svg { --back: #1a1c1e; --edge: #3a3f45; --text: #dfe3e8; --box: #1e3a35; --line: #4a5158; --arrow: #5fd3bd; }
}
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: var(--text); }
.card { fill: var(--back); stroke: var(--edge); }
.state { fill: var(--box); stroke: var(--arrow); }
.lane { stroke: var(--line); stroke-dasharray: 2 4; }
.arrow { stroke: var(--arrow); stroke-width: 1.6; fill: none; }
.tip, .dot { fill: var(--arrow); }"""


class Arrow(NamedTuple):
    """One transition."""

    source: str
    label: str
    target: str


def draw(title: str, arrows: Sequence[Arrow]) -> str:
    """The picture; states that can be left come first, and rows are sorted by the state that is left."""
    states = list(dict.fromkeys([*(arrow.source for arrow in arrows), *(arrow.target for arrow in arrows)]))
    arrows = sorted(arrows, key=lambda arrow: states.index(arrow.source))
    states.remove(START)
    left = MARGIN * 2 + max(len(arrow.label) for arrow in arrows) * LETTER
    lanes = {state: left + LANE * (number + 0.5) for number, state in enumerate(states)}
    lanes[START] = left
    width, height = left + LANE * len(states) + MARGIN, HEAD + ROW * len(arrows) + MARGIN * 2
    parts = [_lane(state, lanes[state], height) for state in states]
    parts += [_row(arrow, lanes, HEAD + MARGIN + ROW * (number + 0.5)) for number, arrow in enumerate(arrows)]
    size = f"{width:.0f} {height:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{width:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _lane(state: str, x: float, height: float) -> str:
    half = LANE / 2 - 5
    return (
        f'<line class="lane" x1="{x:.1f}" y1="{HEAD}" x2="{x:.1f}" y2="{height - MARGIN:.1f}"/>'
        f'<rect class="state" x="{x - half:.1f}" y="{MARGIN}" width="{half * 2:.1f}" height="28" rx="6"/>'
        f'<text x="{x:.1f}" y="{MARGIN + 19}" text-anchor="middle">{escape(state)}</text>'
    )


def _row(arrow: Arrow, lanes: dict[str, float], y: float) -> str:
    label = f'<text x="{MARGIN}" y="{y + 4:.1f}">{escape(arrow.label)}</text>'
    begin, end = lanes[arrow.source], lanes[arrow.target]
    dot = f'<circle class="dot" cx="{begin:.1f}" cy="{y:.1f}" r="3.5"/>'
    if begin == end:
        loop = f'<path class="arrow" d="M{begin:.1f} {y - 5:.1f}h22a5 5 0 0 1 0 10h-14"/>'
        return f"{label}{loop}{_tip(begin + 2, y + 5, -1)}" + dot.replace(f'cy="{y:.1f}"', f'cy="{y - 5:.1f}"')
    way = 1 if end > begin else -1
    line = f'<path class="arrow" d="M{begin:.1f} {y:.1f}H{end - way * 8:.1f}"/>'
    return f"{label}{dot}{line}{_tip(end - way, y, way)}"


def _tip(x: float, y: float, way: int) -> str:
    return f'<path class="tip" d="M{x:.1f} {y:.1f}l{-9 * way} -4.5v9z"/>'
