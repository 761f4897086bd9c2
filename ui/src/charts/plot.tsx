// One chart: uPlot draws axes and zooms; what is inside the axes is painted by the chart's own function.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock, number, oneLine } from "../format";
import { go } from "../route";
import { useSize } from "../parts/small";
import { type Palette, usePalette } from "../theme";

export interface AxisSpec {
  label: string;
  min: number;
  max: number;
  log?: boolean;
  time?: boolean;
  categories?: string[];
  /** Only whole numbers make sense: trials, steps. */
  whole?: boolean;
}

export interface Hit {
  x: number;
  y: number;
  lines: string[];
  href?: string;
}

export interface PlotSpec {
  x: AxisSpec;
  y: AxisSpec;
  draw: (area: Area) => void;
  hit?: (area: Area, left: number, top: number) => Hit | null;
}

/** Where values are in the plot; pixels are those of the canvas while drawing and those of the page for hits. */
export interface Area {
  context: CanvasRenderingContext2D;
  colors: Palette;
  ratio: number;
  left: number;
  top: number;
  width: number;
  height: number;
  x: (value: number) => number;
  y: (value: number) => number;
}

const GAP = 0.04;
const LEAST_LENGTH = 1e-12; // Of an axis, as a share of the numbers on it.
const MARGIN = 7; // A dot at the edge is drawn whole.

/** Limits with some air; for a logarithmic axis only positive values count. */
export function limits(values: ArrayLike<number>, log = false, count = values.length): { min: number; max: number } {
  let [min, max] = [Infinity, -Infinity];
  for (let i = 0; i < count; i++) {
    const v = values[i]!;
    if (!Number.isFinite(v) || (log && v <= 0)) continue;
    if (v < min) min = v;
    if (v > max) max = v;
  }
  return widened(min, max, log);
}

/** The least and the greatest of any number of values. */
export function extent(values: Iterable<number>): [number, number] {
  let [min, max] = [Infinity, -Infinity];
  for (const v of values) {
    if (v < min) min = v;
    if (v > max) max = v;
  }
  return [min, max];
}

export function widened(min: number, max: number, log = false): { min: number; max: number } {
  if (min > max) return log ? { min: 0.1, max: 1 } : { min: 0, max: 1 };
  if (log) {
    const factor = Math.max(1.1, (max / min) ** GAP);
    return { min: min / factor, max: max * factor };
  }
  const isPoint = max - min <= LEAST_LENGTH * Math.max(Math.abs(min), Math.abs(max));
  const gap = isPoint ? Math.abs(max) * GAP || 1 : (max - min) * GAP;
  return { min: min - gap, max: max + gap };
}

/** Limits of moments; one moment alone gets a minute. */
export function around(first: number, last: number): { min: number; max: number } {
  return last - first < 1e-3 ? { min: first - 30, max: last + 30 } : widened(first, last);
}

/** Limits between which ticks fit: an axis without length, or below the precision of numbers, would have no end of them. */
export function spacious(min: number, max: number, log = false): { min: number; max: number } {
  if (!Number.isFinite(min) || !Number.isFinite(max) || min > max) return widened(1, 0, log);
  if (log && !(max > 0)) return widened(1, 0, log);
  if (log && !(min > 0)) return { min: max / 1000, max };
  return max - min > LEAST_LENGTH * Math.max(Math.abs(min), Math.abs(max)) ? { min, max } : widened(min, max, log);
}

function mapping(u: uPlot, key: "x" | "y", start: number, length: number): (value: number) => number {
  const { min, max, distr } = u.scales[key]!;
  const f = distr === 3 ? Math.log10 : (v: number) => v;
  const [low, high] = [f(min!), f(max!)];
  const scale = length / (high - low || 1);
  return key === "x" ? (v) => start + (f(v) - low) * scale : (v) => start + length - (f(v) - low) * scale;
}

function areaOf(u: uPlot, colors: Palette, onCanvas: boolean): Area {
  const ratio = onCanvas ? uPlot.pxRatio : 1;
  const { left, top, width, height } = u.bbox;
  const box = onCanvas
    ? { left, top, width, height }
    : { left: 0, top: 0, width: width / uPlot.pxRatio, height: height / uPlot.pxRatio };
  const x = mapping(u, "x", box.left, box.width);
  const y = mapping(u, "y", box.top, box.height);
  return { context: u.ctx, colors, ratio, ...box, x, y };
}

function ticks(axis: AxisSpec) {
  if (axis.categories) {
    const names = axis.categories.map((name) => oneLine(name, 24));
    return {
      splits: (u: uPlot, _: number, min: number, max: number) => {
        const shown = names.map((_name, i) => i).filter((i) => i >= min && i <= max);
        const room = Math.max(1, Math.floor(Math.max(u.bbox.height, u.bbox.width) / uPlot.pxRatio / 18));
        const every = Math.ceil(shown.length / room);
        return shown.filter((i) => i % every === 0);
      },
      values: (_: uPlot, splits: number[]) => splits.map((i) => names[i] ?? ""),
    };
  }
  if (axis.whole) return { incrs: WHOLE_STEPS, values: (_: uPlot, splits: number[]) => splits.map((v) => number(v, 6)) };
  if (axis.time) return { values: timeTicks };
  return { values: (_: uPlot, splits: (number | null)[]) => splits.map((v) => (v === null ? "" : number(v, 4))) };
}

const WHOLE_STEPS = Array.from({ length: 12 }, (_, i) => [1, 2, 5].map((n) => n * 10 ** i)).flat();
const DAY_S = 86400;

/** Times of day; the date stands below the first tick of each day. */
function timeTicks(_: uPlot, splits: number[], _axis: number, _space: number, step: number): string[] {
  let day = "";
  return splits.map((at) => {
    const [date, time] = clock(at).split(" ") as [string, string];
    if (step >= DAY_S) return date;
    const below = date === day ? "" : `\n${date}`;
    day = date;
    const fraction = step < 1 ? (at % 1).toFixed(step < 0.01 ? 3 : step < 0.1 ? 2 : 1).slice(1) : "";
    return (step < 60 ? time + fraction : time.slice(0, 5)) + below;
  });
}

function uAxis(axis: AxisSpec, colors: Palette, side: boolean): uPlot.Axis {
  const line = { stroke: colors.line, width: 1 };
  const font = getComputedStyle(document.documentElement).getPropertyValue("--sans");
  return {
    stroke: colors.muted,
    grid: axis.categories ? { show: false } : line,
    ticks: { ...line, size: 5 },
    font: `11px ${font}`,
    labelFont: `12px ${font}`,
    label: oneLine(axis.label, 60),
    labelSize: 20,
    labelGap: 2,
    space: side ? 34 : 74,
    size: side ? (_u, values) => 16 + Math.min(150, 6.3 * Math.max(2, ...(values ?? []).map((v) => String(v ?? "").length))) : 30,
    ...ticks(axis),
  } as uPlot.Axis;
}

function scale(axis: AxisSpec): uPlot.Scale {
  return {
    time: Boolean(axis.time),
    distr: axis.log ? 3 : 1,
    // After a double click, when all scales are reset; a scale that is not a part of a zoom keeps its limits.
    auto: (_u: uPlot, full: boolean) => full,
    range: (_u: uPlot, low: number | null, high: number | null) => {
      const { min, max } = low === null || high === null ? axis : { min: low, max: high };
      const found = spacious(min, max, axis.log);
      return [found.min, found.max];
    },
  } as uPlot.Scale;
}

const shapeOf = (spec: PlotSpec): string =>
  JSON.stringify([spec.x, spec.y].map(({ label, log, time, whole, categories }) => [label, log, time, whole, categories]));
const dataOf = (spec: PlotSpec): uPlot.AlignedData =>
  [spec.x, spec.y].map((axis) => {
    const { min, max } = spacious(axis.min, axis.max, axis.log);
    return [min, max];
  }) as uPlot.AlignedData;

/** The axes follow the data, unless somebody looks at a part of it. Draws in any case. */
function showData(u: uPlot, data: uPlot.AlignedData, isZoomed: boolean): void {
  u.batch(() => {
    u.setData(data, false);
    if (isZoomed) return;
    const [[left, right], [low, high]] = data as [number[], number[]];
    u.setScale("x", { min: left!, max: right! });
    u.setScale("y", { min: low!, max: high! });
  });
}

interface PlotProps {
  spec: PlotSpec;
  summary: string;
  height?: number;
}

export function Plot({ spec, summary, height = 380 }: PlotProps) {
  const colors = usePalette();
  const [box, size] = useSize<HTMLDivElement>();
  const held = useRef<{ u: uPlot; zoomed: boolean } | null>(null);
  const current = useRef(spec);
  const [hit, setHit] = useState<Hit | null>(null);
  const shown = useRef<Hit | null>(null);
  current.current = spec;
  const shape = shapeOf(spec);
  const width = size.width;
  useEffect(() => {
    if (!width) return;
    const show = (found: Hit | null) => {
      shown.current = found;
      setHit(found);
    };
    const made = { u: null as unknown as uPlot, zoomed: false };
    const look = (u: uPlot) => {
      const { left = -1, top = -1 } = u.cursor;
      show(left < 0 ? null : (current.current.hit?.(areaOf(u, colors, false), left, top) ?? null));
    };
    const options: uPlot.Options = {
      width,
      height,
      legend: { show: false },
      cursor: { drag: { x: true, y: true, uni: 24 }, points: { show: false } },
      scales: { x: scale(spec.x), y: scale(spec.y) },
      axes: [uAxis(spec.x, colors, false), uAxis(spec.y, colors, true)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(u) => clipped(u, made.zoomed ? 0 : MARGIN * uPlot.pxRatio, () => current.current.draw(areaOf(u, colors, true)))],
        setCursor: [look],
        setSelect: [(u) => (made.zoomed = made.zoomed || u.select.width > 0)],
      },
    };
    made.u = new uPlot(options, dataOf(spec), box.current!);
    made.u.over.addEventListener("dblclick", () => (made.zoomed = false));
    let pressed = [0, 0];
    made.u.over.addEventListener("mousedown", (e) => (pressed = [e.clientX, e.clientY]));
    made.u.over.addEventListener("click", (e) => {
      const moved = Math.abs(e.clientX - pressed[0]!) + Math.abs(e.clientY - pressed[1]!);
      if (moved < 4 && shown.current?.href) go(shown.current.href);
    });
    held.current = made;
    return () => {
      made.u.destroy();
      held.current = null;
      show(null);
    };
  }, [shape, colors, width, height]);
  useEffect(() => {
    const made = held.current;
    if (made) showData(made.u, dataOf(spec), made.zoomed);
  }, [spec]);
  return (
    <div class="chart" ref={box} role="img" aria-label={summary} style={{ minHeight: `${height}px` }}>
      {hit && <Tooltip hit={hit} width={width} over={held.current?.u.over} />}
    </div>
  );
}

function clipped(u: uPlot, margin: number, draw: () => void): void {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left - margin, top - margin, width + 2 * margin, height + 2 * margin);
  u.ctx.clip();
  draw();
  u.ctx.restore();
}

function Tooltip({ hit, width, over }: { hit: Hit; width: number; over?: HTMLElement }) {
  const left = hit.x + (over?.offsetLeft ?? 0);
  const onRight = left > width / 2;
  const style = {
    left: onRight ? "auto" : `${left + 14}px`,
    right: onRight ? `${width - left + 14}px` : "auto",
    top: `${Math.max(0, hit.y + (over?.offsetTop ?? 0) - 16)}px`,
  };
  return (
    <div class="tooltip" style={style}>
      {hit.lines.map((line) => (
        <p>{line}</p>
      ))}
    </div>
  );
}
