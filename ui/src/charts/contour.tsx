// Contour: the result over two parameters as a heat map, with the trials on it.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { number, oneLine } from "../format";
import { Empty, Loading } from "../parts/small";
import { useStore } from "../store";
import { rampTable } from "../theme";
import { ChartFrame, ColourBar, type FrameProps, placeholder, useChart } from "./frame";
import { circle } from "./paint";
import { ordered, useVarying } from "./params";
import { type Area, type AxisSpec, Plot, type PlotSpec, widened } from "./plot";
import type { ChartProps } from "./registry";
import { MetricSelect, ParamSelect, metricOf } from "./select";

interface Side {
  name?: string;
  log?: boolean;
  categories?: (string | null)[] | null;
}

interface Contour {
  note?: string;
  x?: Side;
  y?: Side;
  xs?: number[];
  ys?: number[];
  z?: (number | null)[][];
  points?: [number, number, number | null][];
}

const MAX_DOTS = 500;

/** One axis: half a cell beyond the first and the last; all trials at one place get an axis around it. */
function sideSpec(side: Side | undefined, label: string, values: number[], whole: boolean): AxisSpec {
  if (side?.categories) return { label, categories: side.categories.map(optionText), min: -0.5, max: side.categories.length - 0.5 };
  const log = Boolean(side?.log);
  const half = (i: number, j: number): number => {
    const [a, b] = [values[i]!, values[j]!];
    return log ? a * Math.sqrt(a / b) : a - (b - a) / 2;
  };
  const last = values.length - 1;
  const limits = isConstant(values) ? widened(values[0]!, values[0]!, log) : { min: half(0, 1), max: half(last, last - 1) };
  return { label, log, whole: whole && !log, ...limits };
}

/** The text of an option; null is Python's None. */
const optionText = (option: string | null | undefined): string => (option === null ? "None" : (option ?? "–"));
const isConstant = (values: number[]): boolean => spanOf(values) <= 1e-12 * Math.abs(values[0] ?? 0);
const spanOf = (values: number[]): number => (values.length ? Math.max(...values) - Math.min(...values) : 0);

/** The answer with one cell for a side that does not vary: there its first cell has the trials. */
function compact(answer: Contour): Contour {
  let { xs = [], ys = [], z = [] } = answer;
  if (isConstant(ys)) [ys, z] = [ys.slice(0, 1), z.slice(0, 1)];
  if (isConstant(xs)) [xs, z] = [xs.slice(0, 1), z.map((row) => row.slice(0, 1))];
  return { ...answer, xs, ys, z };
}

function range(z: (number | null)[][]): [number, number] {
  let [min, max] = [Infinity, -Infinity];
  for (const row of z) {
    for (const v of row) {
      if (v === null) continue;
      min = Math.min(min, v);
      max = Math.max(max, v);
    }
  }
  return [min, max];
}

function heat(area: Area, answer: Contour, isMax: boolean): void {
  const { xs = [], ys = [], z = [] } = answer;
  const table = rampTable(area.colors.ramp);
  const [min, max] = range(z);
  const c = area.context;
  const edges = (values: number[], at: (v: number) => number, whole: [number, number]) => {
    const places = values.map(at);
    if (places.length === 1) return whole;
    const between = places.slice(1).map((p, i) => (p + places[i]!) / 2);
    return [2 * places[0]! - between[0]!, ...between, 2 * places[places.length - 1]! - between[between.length - 1]!];
  };
  const ex = edges(xs, area.x, [area.left, area.left + area.width]);
  const ey = edges(ys, area.y, [area.top + area.height, area.top]);
  z.forEach((row, j) =>
    row.forEach((v, i) => {
      if (v === null || v === undefined) return;
      const share = max > min ? (v - min) / (max - min) : 0.5;
      const [r, g, b] = table[Math.round(255 * (isMax ? 1 - share : share))]!;
      c.fillStyle = `rgb(${r} ${g} ${b})`;
      c.fillRect(ex[i]!, ey[j + 1]!, ex[i + 1]! - ex[i]! + 1, ey[j]! - ey[j + 1]! + 1);
    }),
  );
}

export function ContourChart({ query, change }: ChartProps) {
  const store = useStore();
  const { params, mode } = store.experiment!;
  const metric = metricOf(store, query.metric);
  const varying = useVarying();
  const isChosen = Boolean(query.x && query.y);
  const choice = ordered(params, varying);
  const x = query.x ?? choice.find((name) => name !== query.y) ?? "";
  const y = query.y ?? choice.find((name) => name !== x) ?? "";
  if (params.length < 2) return <ContourFrame><Empty title="Nothing to draw"><p>{`A contour needs two parameters, and this experiment has ${params.length ? `one: ${oneLine(params[0], 60)}` : "none"}.`}</p></Empty></ContourFrame>;
  const controls = (
    <>
      <ParamSelect label="x" value={x} onChange={(v) => change({ x: v })} />
      <ParamSelect label="y" value={y} onChange={(v) => change({ y: v })} />
      <MetricSelect value={metric} onChange={(m) => change({ metric: m })} />
    </>
  );
  if (!varying && !isChosen) return <ContourFrame controls={controls}><Loading what="Loading trials ..." /></ContourFrame>;
  return <ContourOf key={`${x}\n${y}`} x={x} y={y} metric={metric} mode={mode ?? "min"} varying={varying} controls={controls} />;
}

function ContourFrame(more: Omit<FrameProps, "title" | "about">) {
  return <ChartFrame title="Contour" about="Results over two parameters, interpolated between trials (dots)." {...more} />;
}

interface ContourProps {
  x: string;
  y: string;
  metric: string;
  mode: "min" | "max";
  varying: string[] | null;
  controls: ComponentChildren;
}

function ContourOf({ x, y, metric, mode, varying, controls }: ContourProps) {
  const answer = useChart<Contour>("contour", { metric, x, y });
  const data = useMemo(() => answer.data && compact(answer.data), [answer.data]);
  const isEmpty = !data?.z?.length || !data.xs?.length || !data.ys?.length;
  const trials = data?.points ?? [];
  const spec = useMemo(() => (isEmpty ? null : contourSpec(data!, x, y, metric, mode)), [data, x, y, metric, mode]);
  const constant = [x, y].filter((name) => varying && !varying.includes(name)).map((name) => oneLine(name, 60));
  const flat = constant.length === 2 ? `All trials have the same ${constant.join(" and the same ")}: there is nothing to compare. Choose parameters that vary.` : null;
  const [low, high] = range(data?.z ?? []);
  return (
    <ContourFrame
      controls={controls}
      note={[constant.length === 1 ? `All trials have the same ${constant[0]}: colours change along the other axis only.` : "", data?.note ?? ""].filter(Boolean).join(" ")}
      table={{
        columns: [{ title: x, right: !data?.x?.categories }, { title: y, right: !data?.y?.categories }, { title: metric, right: true }],
        count: trials.length,
        cell: (i, c) => {
          const categories = [data?.x, data?.y][c]?.categories;
          return categories ? optionText(categories[trials[i]![c]!]) : number(trials[i]![c]);
        },
      }}
    >
      {placeholder(answer, isEmpty, "A contour needs trials with two parameters and results.") ??
        (flat ? (
          <Empty title="Nothing varies"><p>{flat}</p></Empty>
        ) : (
          <>
            <Plot spec={spec!} height={460} summary={`${metric} over ${oneLine(x, 40)} and ${oneLine(y, 40)}`} />
            <ColourBar metric={metric} mode={mode} low={low} high={high} />
          </>
        ))}
    </ContourFrame>
  );
}

function contourSpec(data: Contour, x: string, y: string, metric: string, mode: string): PlotSpec {
  const points = data.points ?? [];
  const dots = points.slice(0, MAX_DOTS);
  return {
    x: sideSpec(data.x, x, data.xs!, points.every((p) => Number.isInteger(p[0]))),
    y: sideSpec(data.y, y, data.ys!, points.every((p) => Number.isInteger(p[1]))),
    draw: (area) => {
      heat(area, data, mode === "max");
      for (const [px, py] of dots) dot(area, px, py);
    },
    hit: (area, left, top) => {
      const i = closest(data.xs!, area.x, left);
      const j = closest(data.ys!, area.y, top);
      const v = data.z![j]?.[i];
      if (v === null || v === undefined) return null;
      const name = (side: Side | undefined, at: number) => oneLine(side?.categories ? optionText(side.categories[at]) : number(at), 30);
      const lines = [`${metric} about ${number(v)}`, `${oneLine(x, 30)} ${name(data.x, data.xs![i]!)}`, `${oneLine(y, 30)} ${name(data.y, data.ys![j]!)}`];
      return { x: left, y: top, lines };
    },
  };
}

/** White within black: to be seen on every colour. */
function dot(area: Area, x: number, y: number): void {
  circle(area, x, y, 2.6, "#0e1315", true);
  circle(area, x, y, 1.2, "#ffffff", true);
}

function closest(values: number[], at: (v: number) => number, place: number): number {
  let found = 0;
  for (let i = 1; i < values.length; i++) {
    if (Math.abs(at(values[i]!) - place) < Math.abs(at(values[found]!) - place)) found = i;
  }
  return found;
}
