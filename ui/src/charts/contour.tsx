// Contour: the result over two parameters as a heat map, with the trials on it.
import { useMemo } from "preact/hooks";
import { number, oneLine } from "../format";
import { useStore } from "../store";
import { rampTable, usePalette } from "../theme";
import { ChartFrame, placeholder, useChart } from "./frame";
import { circle } from "./paint";
import { type Area, Plot, type PlotSpec } from "./plot";
import type { ChartProps } from "./registry";
import { MetricSelect, ParamSelect, metricOf } from "./select";

interface Side {
  name?: string;
  log?: boolean;
  categories?: (string | number | boolean)[] | null;
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

function sideSpec(side: Side | undefined, label: string, values: number[]) {
  const categories = side?.categories?.map(String);
  const half = (i: number, j: number): number => {
    const [a, b] = [values[i]!, values[j] ?? values[i]! + 1];
    return side?.log ? a * Math.sqrt(a / b) : a - (b - a) / 2;
  };
  const last = values.length - 1;
  return { label, log: Boolean(side?.log), categories, min: half(0, 1), max: half(last, last - 1) };
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
  const edges = (values: number[], at: (v: number) => number) => {
    const places = values.map(at);
    const between = places.slice(1).map((p, i) => (p + places[i]!) / 2);
    const [first, last] = [places[0]!, places[places.length - 1]!];
    const [a, b] = [between[0] ?? first + 1, between[between.length - 1] ?? last - 1];
    return [2 * first - a, ...between, 2 * last - b];
  };
  const [ex, ey] = [edges(xs, area.x), edges(ys, area.y)];
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
  const x = query.x ?? params[0] ?? "";
  const y = query.y ?? params.find((name) => name !== x) ?? "";
  const answer = useChart<Contour>("contour", { metric, x, y });
  const { data } = answer;
  const colors = usePalette();
  const isEmpty = !data?.z?.length || !data.xs?.length || !data.ys?.length;
  const spec = useMemo((): PlotSpec | null => {
    if (isEmpty) return null;
    const dots = (data!.points ?? []).slice(0, MAX_DOTS);
    return {
      x: sideSpec(data!.x, x, data!.xs!),
      y: sideSpec(data!.y, y, data!.ys!),
      draw: (area) => {
        heat(area, data!, mode === "max");
        for (const [px, py] of dots) circle(area, px, py, 2, area.colors.isDark ? "#0e1315" : "#ffffff", true);
      },
      hit: (area, left, top) => {
        const i = closest(data!.xs!, area.x, left);
        const j = closest(data!.ys!, area.y, top);
        const v = data!.z![j]?.[i];
        if (v === null || v === undefined) return null;
        const name = (side: Side | undefined, at: number) => oneLine(side?.categories ? side.categories[at] : number(at), 30);
        const lines = [`${metric} about ${number(v)}`, `${oneLine(x, 30)} ${name(data!.x, data!.xs![i]!)}`, `${oneLine(y, 30)} ${name(data!.y, data!.ys![j]!)}`];
        return { x: left, y: top, lines };
      },
    };
  }, [data, x, y, mode]);
  const trials = data?.points ?? [];
  return (
    <ChartFrame
      title="Contour"
      about="Results over two parameters, interpolated between trials (dots)."
      controls={
        <>
          <ParamSelect label="x" value={x} onChange={(v) => change({ x: v })} />
          <ParamSelect label="y" value={y} onChange={(v) => change({ y: v })} />
          <MetricSelect value={metric} onChange={(m) => change({ metric: m })} />
        </>
      }
      note={data?.note ?? (isEmpty ? null : `The ${mode === "max" ? "highest" : "lowest"} values are the ${colors.isDark ? "brightest" : "darkest"}.`)}
      table={{
        columns: [{ title: x, right: true }, { title: y, right: true }, { title: metric, right: true }],
        count: trials.length,
        cell: (i, c) => number(trials[i]![c]),
      }}
    >
      {placeholder(answer, isEmpty, "A contour needs trials with two parameters and results.") ?? (
        <Plot spec={spec!} height={460} summary={`${metric} over ${oneLine(x, 40)} and ${oneLine(y, 40)}`} />
      )}
    </ChartFrame>
  );
}

function closest(values: number[], at: (v: number) => number, place: number): number {
  let found = 0;
  for (let i = 1; i < values.length; i++) {
    if (Math.abs(at(values[i]!) - place) < Math.abs(at(values[found]!) - place)) found = i;
  }
  return found;
}
