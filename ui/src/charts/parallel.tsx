// Parallel coordinates on a canvas: one line per trial, at most a few thousand; the others as density between axes.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count as counted, number, oneLine } from "../format";
import { Select, useSize } from "../parts/small";
import { link } from "../route";
import { useStore } from "../store";
import { type Palette, rampAt, usePalette } from "../theme";
import { ChartFrame, ColourBar, NothingYet } from "./frame";
import { useColumns } from "./history";
import { MAX_READ, type ParamAxis, axisOf, fractions, placeOf, valueOf } from "./params";
import type { ChartProps } from "./registry";
import { metricOf } from "./select";

const MAX_LINES = 5000;
const MAX_AXES = 9;
const BINS = 48;
const MIN_GAP = 92;
const HEIGHT = 420;
const PAD = { top: 46, bottom: 26, left: 54, right: 54 };

interface Axis extends ParamAxis {
  places: Float64Array;
}
/** By the name of a parameter, which may be any text. */
type Brushes = Map<string, [number, number]>;

export function readBrushes(text: string | undefined): Brushes {
  try {
    const given = JSON.parse(text ?? "{}");
    const valid = Object.entries(given).filter(([, v]) => Array.isArray(v) && v.length === 2 && v.every(Number.isFinite));
    return new Map(valid as [string, [number, number]][]);
  } catch {
    return new Map();
  }
}

function passing(axes: Axis[], brushes: Brushes, rows: number): Uint8Array {
  const passes = new Uint8Array(rows).fill(1);
  for (const axis of axes) {
    const brush = brushes.get(axis.name);
    for (let row = 0; row < rows; row++) {
      const place = axis.places[row]!;
      if (brush && !(place >= brush[0] - 1e-9 && place <= brush[1] + 1e-9)) passes[row] = 0;
    }
  }
  return passes;
}

interface Scene {
  axes: Axis[];
  passes: Uint8Array;
  rows: number;
  brushes: Brushes;
  isMax: boolean;
}

const xAt = (i: number, n: number, width: number): number =>
  PAD.left + (n < 2 ? 0 : (i * (width - PAD.left - PAD.right)) / (n - 1));
const yAt = (place: number): number => HEIGHT - PAD.bottom - place * (HEIGHT - PAD.top - PAD.bottom);

function lines(c: CanvasRenderingContext2D, scene: Scene, rows: number[], width: number, style: (row: number) => string): void {
  const { axes } = scene;
  for (const row of rows) {
    c.strokeStyle = style(row);
    c.beginPath();
    let drawn = false;
    axes.forEach((axis, i) => {
      const place = axis.places[row]!;
      if (Number.isNaN(place)) return void (drawn = false);
      const [x, y] = [xAt(i, axes.length, width), yAt(place)];
      if (drawn) c.lineTo(x, y);
      else c.moveTo(x, y);
      drawn = true;
    });
    c.stroke();
  }
}

/** Lines beyond the limit, counted between each pair of neighbours and drawn once per pair of bins. */
function bands(c: CanvasRenderingContext2D, scene: Scene, rows: number[], width: number, color: string): void {
  const { axes } = scene;
  for (let i = 0; i + 1 < axes.length; i++) {
    const counts = new Uint32Array(BINS * BINS);
    let most = 1;
    for (const row of rows) {
      const [a, b] = [axes[i]!.places[row]!, axes[i + 1]!.places[row]!];
      if (Number.isNaN(a) || Number.isNaN(b)) continue;
      const at = Math.min(BINS - 1, Math.floor(a * BINS)) * BINS + Math.min(BINS - 1, Math.floor(b * BINS));
      most = Math.max(most, ++counts[at]!);
    }
    c.strokeStyle = color;
    const [x0, x1] = [xAt(i, axes.length, width), xAt(i + 1, axes.length, width)];
    counts.forEach((n, at) => {
      if (!n) return;
      c.globalAlpha = 0.04 + 0.3 * (Math.log(1 + n) / Math.log(1 + most));
      c.beginPath();
      c.moveTo(x0, yAt((Math.floor(at / BINS) + 0.5) / BINS));
      c.lineTo(x1, yAt(((at % BINS) + 0.5) / BINS));
      c.stroke();
    });
  }
  c.globalAlpha = 1;
}

/** At most `limit` rows, evenly over all, so that no part of the experiment is left out. */
function sample(rows: number[], limit: number): [number[], number[]] {
  if (rows.length <= limit) return [rows, []];
  const step = rows.length / limit;
  const drawn = new Set(Array.from({ length: limit }, (_, i) => rows[Math.floor(i * step)]!));
  return [[...drawn], rows.filter((row) => !drawn.has(row))];
}

function paint(canvas: HTMLCanvasElement, scene: Scene, colors: Palette, width: number): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(HEIGHT * ratio);
  const c = canvas.getContext("2d")!;
  c.scale(ratio, ratio);
  const chosen: number[] = [];
  const others: number[] = [];
  for (let row = 0; row < scene.rows; row++) (scene.passes[row] ? chosen : others).push(row);
  const isBrushed = scene.brushes.size > 0;
  const [drawn, rest] = sample(chosen, MAX_LINES);
  c.lineWidth = 1;
  if (isBrushed) bands(c, scene, others, width, colors.faint);
  if (rest.length) bands(c, scene, rest, width, colors.series[0]!);
  const metric = scene.axes[scene.axes.length - 1]!.places;
  const rank = (row: number) => (scene.isMax ? 1 - metric[row]! : metric[row]!);
  drawn.sort((a, b) => (Number.isNaN(rank(a)) ? -1 : Number.isNaN(rank(b)) ? 1 : rank(b) - rank(a)));
  c.globalAlpha = drawn.length > 1000 ? 0.25 : drawn.length > 150 ? 0.5 : 0.8;
  c.lineWidth = drawn.length > 150 ? 1 : 1.4;
  lines(c, scene, drawn, width, (row) => (Number.isNaN(rank(row)) ? colors.faint : rampAt(colors.ramp, rank(row))));
  c.globalAlpha = 1;
  scene.axes.forEach((axis, i) => paintAxis(c, axis, xAt(i, scene.axes.length, width), scene.brushes.get(axis.name), colors));
}

/** Both ends and the middle; of whole numbers the one that is nearest to it. */
function marksOf(axis: Axis): [number, string][] {
  const values = [0, 0.5, 1].map((place) => valueOf(axis, place));
  const shown = axis.whole ? [...new Set(values.map(Math.round))] : values;
  return shown.map((v) => [placeOf(axis, v), number(v, axis.whole ? 15 : 3)]);
}

function paintAxis(c: CanvasRenderingContext2D, axis: Axis, x: number, brush: [number, number] | undefined, colors: Palette): void {
  const font = getComputedStyle(document.documentElement).getPropertyValue("--sans");
  c.strokeStyle = colors.muted;
  c.lineWidth = 1;
  c.beginPath();
  c.moveTo(x, yAt(0));
  c.lineTo(x, yAt(1));
  c.stroke();
  c.textAlign = "center";
  c.fillStyle = colors.text;
  c.font = `600 12px ${font}`;
  c.fillText(oneLine(axis.name, 16), x, 16);
  c.fillStyle = colors.muted;
  c.font = `11px ${font}`;
  const marks: [number, string][] = axis.categories
    ? axis.categories.map((name, i) => [axis.categories!.length > 1 ? i / (axis.categories!.length - 1) : 0.5, name])
    : marksOf(axis);
  const every = Math.ceil(marks.length / 14);
  marks.forEach(([place, text], i) => {
    if (i % every) return;
    const y = yAt(place);
    const label = oneLine(text, 12);
    const half = c.measureText(label).width / 2 + 3;
    c.fillStyle = colors.surface;
    c.globalAlpha = 0.82;
    c.fillRect(x - half, y - 7, half * 2, 14);
    c.globalAlpha = 1;
    c.fillStyle = colors.muted;
    c.fillText(label, x, y + 4);
  });
  if (!brush) return;
  c.fillStyle = colors.accent;
  c.globalAlpha = 0.25;
  c.fillRect(x - 9, yAt(brush[1]), 18, yAt(brush[0]) - yAt(brush[1]));
  c.globalAlpha = 1;
  c.strokeStyle = colors.accent;
  c.strokeRect(x - 9, yAt(brush[1]), 18, yAt(brush[0]) - yAt(brush[1]));
}

/** The brushes as a filter of the trial table, as far as numbers go. */
export function filterOf(axes: Axis[], brushes: Brushes, metric: string): string {
  const parts = axes.flatMap((axis) => {
    const brush = brushes.get(axis.name);
    if (!brush || axis.categories) return [];
    const [low, high] = brush.map((place) => Number(valueOf(axis, place).toPrecision(6)));
    const name = axis.name === metric ? `metric/${metric}` : `config/${axis.name}`;
    return [`\`${name}\` >= ${low} and \`${name}\` <= ${high}`];
  });
  return parts.join(" and ");
}

export function ParallelChart({ query, change }: ChartProps) {
  const store = useStore();
  const { table, experiment } = store;
  const metric = metricOf(store, query.metric);
  const asked = query.axes?.split("|").filter((name) => experiment!.params.includes(name));
  const params = (asked?.length ? asked : experiment!.params).slice(0, MAX_READ);
  useColumns(store, [...params.map((name) => `config/${name}`), `metric/${metric}`]);
  const axes = useMemo(() => {
    const all = params.map((name) => axisOf(store, name, table.get(`config/${name}`)));
    const varying = all.filter((axis) => axis.min < axis.max); // One value for all trials tells nothing.
    const made = (asked?.length || !varying.length ? all : varying).slice(0, MAX_AXES);
    if (metric) made.push({ ...axisOf(store, metric, table.get(`metric/${metric}`)), log: false });
    return made.map((axis) => ({ ...axis, places: fractions(axis) }));
  }, [table.version, params.join("|"), metric]);
  const brushes = readBrushes(query.brush);
  const passes = useMemo(() => passing(axes, brushes, table.rows), [axes, query.brush]);
  const chosen = passes.reduce((sum, n) => sum + n, 0);
  const isBrushed = brushes.size > 0;
  const filter = filterOf(axes, brushes, metric);
  const setBrush = (name: string, brush: [number, number] | null) => {
    const next: Brushes = new Map(brushes);
    if (brush) next.set(name, brush);
    else next.delete(name);
    change({ brush: next.size ? JSON.stringify(Object.fromEntries(next)) : undefined });
  };
  const rows = useMemo(() => [...passes.keys()].filter((row) => passes[row]), [passes]);
  const left = experiment!.params.length - axes.length + (metric ? 1 : 0);
  return (
    <ChartFrame
      title="Parallel coordinates"
      about="Each line is a trial. Drag along an axis to select a range; click the axis to clear it."
      controls={
        isBrushed && (
          <>
            {filter && <a class="button" href={link(store.id, ["trials"], { filter })}>{`Show ${counted(chosen)} in the table`}</a>}
            <button type="button" onClick={() => change({ brush: undefined })}>Clear</button>
          </>
        )
      }
      note={[
        `${counted(chosen)} of ${counted(table.rows)} trials selected.`,
        chosen > MAX_LINES ? `${counted(MAX_LINES)} are drawn as lines, the others as density.` : "",
        left === 1 ? "1 parameter is not shown: it does not vary, or there are too many." : left > 1 ? `${counted(left)} parameters are not shown: they do not vary, or there are too many.` : "",
      ].join(" ")}
      table={{
        columns: [{ title: "trial" }, ...axes.map((axis) => ({ title: axis.name, right: !axis.categories }))],
        count: rows.length,
        cell: (i, c) => (c ? cellText(axes[c - 1]!, rows[i]!) : table.id(rows[i]!)),
      }}
    >
      {table.rows && axes.length > 1 ? (
        <>
          <Canvas scene={{ axes, passes, rows: table.rows, brushes, isMax: experiment!.mode === "max" }} onBrush={setBrush} />
          {metric && <ColourBar metric={metric} mode={experiment!.mode} low={axes[axes.length - 1]!.min} high={axes[axes.length - 1]!.max} />}
          <Ranges axes={axes} brushes={brushes} onBrush={setBrush} />
        </>
      ) : (
        <NothingYet><p>Lines appear as soon as trials with parameters exist.</p></NothingYet>
      )}
    </ChartFrame>
  );
}

/** The same ranges by keyboard: from and to of one axis. */
function Ranges({ axes, brushes, onBrush }: { axes: Axis[]; brushes: Brushes; onBrush: (name: string, brush: [number, number] | null) => void }) {
  const [name, setName] = useState("");
  const axis = axes.find((each) => each.name === name) ?? axes[0]!;
  const brush = brushes.get(axis.name);
  const [from, to] = brush ?? [0, 1];
  const set = (low: number, high: number) => {
    const [a, b] = [Math.min(low, high), Math.max(low, high)].map((v) => Math.min(1, Math.max(0, v)));
    onBrush(axis.name, a! <= 0 && b! >= 1 ? null : [a!, b!]);
  };
  return (
    <div class="ranges" role="group" aria-label="Selection by numbers">
      <Select label="range of" value={axis.name} options={axes.map((each) => each.name)} onChange={setName} />
      <RangeEnd key={`${axis.name} from`} label="from" axis={axis} place={from} onChange={(v) => set(v, to)} />
      <RangeEnd key={`${axis.name} to`} label="to" axis={axis} place={to} onChange={(v) => set(from, v)} />
      {brush && <button type="button" onClick={() => onBrush(axis.name, null)}>{`All of ${oneLine(axis.name, 30)}`}</button>}
    </div>
  );
}

function RangeEnd({ label, axis, place, onChange }: { label: string; axis: Axis; place: number; onChange: (place: number) => void }) {
  if (axis.categories) {
    const last = axis.categories.length - 1;
    const places = axis.categories.map((text, i): [string, string] => [String(i), text]);
    const at = last ? (label === "from" ? Math.ceil(place * last - 1e-9) : Math.floor(place * last + 1e-9)) : 0;
    return <Select label={label} value={String(at)} options={places} onChange={(v) => onChange(last ? Number(v) / last : 0)} />;
  }
  const shown = Number(valueOf(axis, place).toPrecision(6));
  const change = (e: Event) => {
    const given = (e.target as HTMLInputElement).valueAsNumber;
    if (Number.isFinite(given)) onChange(placeOf(axis, given));
  };
  return (
    <label class="field">
      <span>{label}</span>
      <input type="number" step={axis.whole ? 1 : "any"} value={shown} onChange={change} />
    </label>
  );
}

function cellText(axis: Axis, row: number): string {
  const v = axis.values[row]!;
  return axis.categories ? (axis.categories[v] ?? "–") : number(v);
}

function Canvas({ scene, onBrush }: { scene: Scene; onBrush: (name: string, brush: [number, number] | null) => void }) {
  const colors = usePalette();
  const [box, { width }] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const start = useRef<{ axis: Axis; place: number } | null>(null);
  const wide = Math.max(width, scene.axes.length * MIN_GAP);
  useEffect(() => {
    if (width && canvas.current) paint(canvas.current, scene, colors, wide);
  }, [scene.axes, scene.passes, colors, wide, width]);
  const at = (e: PointerEvent): { axis: Axis; place: number } | null => {
    const frame = canvas.current!.getBoundingClientRect();
    const n = scene.axes.length;
    const i = Math.round(((e.clientX - frame.left - PAD.left) / (wide - PAD.left - PAD.right)) * (n - 1));
    const place = 1 - (e.clientY - frame.top - PAD.top) / (HEIGHT - PAD.top - PAD.bottom);
    return scene.axes[i] ? { axis: scene.axes[i]!, place: Math.min(1, Math.max(0, place)) } : null;
  };
  const move = (e: PointerEvent, done: boolean) => {
    const from = start.current;
    const to = at(e);
    if (!from || !to) return;
    const [low, high] = [Math.min(from.place, to.place), Math.max(from.place, to.place)].map((v) => Math.round(v * 1000) / 1000);
    if (high! - low! > 0.01) onBrush(from.axis.name, [low!, high!]);
    else if (done) onBrush(from.axis.name, null);
    if (done) start.current = null;
  };
  const names = scene.axes.map((axis) => axis.name).join(", ");
  return (
    <div class="chart scroll-x" ref={box} tabIndex={0} role="img" aria-label={`Parallel coordinates of ${oneLine(names, 200)}`}>
      <canvas
        ref={canvas}
        style={{ width: `${wide}px`, height: `${HEIGHT}px`, cursor: "ns-resize" }}
        onPointerDown={(e) => {
          start.current = at(e);
          canvas.current!.setPointerCapture(e.pointerId);
        }}
        onPointerMove={(e) => e.buttons && move(e, false)}
        onPointerUp={(e) => move(e, true)}
      />
    </div>
  );
}
