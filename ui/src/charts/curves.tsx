// Learning curves: the surviving rows of every trial, with early-stopped and failed trials marked at their ends.
import { useEffect, useMemo } from "preact/hooks";
import { experimentPath, getBinary } from "../api";
import { type TrialTable, decode, valueAt } from "../columns";
import { count as counted, number } from "../format";
import { Check, Empty, Loading, statusWord } from "../parts/small";
import { link } from "../route";
import { type Resource, useResource } from "../resource";
import { type Curve, type CurveSet, type ExperimentStore, joined, split, useStore } from "../store";
import { rampAt, usePalette } from "../theme";
import { ChartFrame } from "./frame";
import { begin, circle, cross, finish, trace } from "./paint";
import { type Area, Plot, type PlotSpec, widened } from "./plot";
import type { ChartProps } from "./registry";
import { MetricSelect, metricOf } from "./select";

const FEW = 8;
const MAX_MARKS = 400;
const REACH = 20;
const NATURAL_ENDS = new Set(["", "returned", "done", "not resumed"]);

export interface Shown {
  row: number;
  id: string;
  curve: Curve;
  last: number;
  rank: number;
  end: "stopped" | "error" | "none";
}

export function howItEnded(table: TrialTable, row: number): Shown["end"] {
  const status = valueAt(table.get("status"), row);
  if (status === "ERROR") return "error";
  const reason = valueAt(table.get("reason"), row);
  return status === "TERMINATED" && typeof reason === "string" && !NATURAL_ENDS.has(reason) ? "stopped" : "none";
}

/** The curves of these trials (of all, if none are named), the worst first so that the best are painted last. */
export function shownCurves(store: ExperimentStore, set: CurveSet | undefined, trials?: string[]): Shown[] {
  const { table } = store;
  const rows = trials ? trials.map((id) => table.row(id)) : [...(set?.curves.keys() ?? [])];
  const found: Shown[] = [];
  for (const row of rows) {
    const curve = row === undefined ? undefined : set?.curves.get(row);
    if (row === undefined || !curve?.steps.length) continue;
    const last = curve.values[curve.values.length - 1]!;
    found.push({ row, id: table.id(row), curve, last, rank: 0, end: howItEnded(table, row) });
  }
  const sign = store.experiment!.mode === "max" ? -1 : 1;
  found.sort((a, b) => sign * (b.last - a.last) || a.row - b.row);
  found.forEach((shown, i) => (shown.rank = found.length > 1 ? 1 - i / (found.length - 1) : 0));
  return found;
}

function bounds(shown: Shown[], log: boolean) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { curve } of shown) {
    x0 = Math.min(x0, curve.steps[0]!);
    x1 = Math.max(x1, curve.steps[curve.steps.length - 1]!);
    for (let i = 0; i < curve.values.length; i++) {
      const v = curve.values[i]!;
      if (!Number.isFinite(v) || (log && v <= 0)) continue;
      if (v < y0) y0 = v;
      if (v > y1) y1 = v;
    }
  }
  return { x: x0 === x1 ? { min: x0 - 1, max: x1 + 1 } : widened(x0, x1), y: widened(y0, y1, log) };
}

function drawCurves(area: Area, shown: Shown[]): void {
  const few = shown.length <= FEW;
  const { series, ramp, best, error } = area.colors;
  const alpha = few ? 1 : shown.length > 300 ? 0.45 : 0.75;
  const colorOf = (s: Shown, i: number) => (few ? series[i]! : rampAt(ramp, s.rank));
  const pointsOf = ({ curve }: Shown) => ({ xs: curve.steps, ys: curve.values, count: curve.steps.length });
  for (let i = 0; i < shown.length; ) {
    const color = colorOf(shown[i]!, i);
    begin(area, { color, width: few ? 1.8 : 1.2, alpha });
    do trace(area, pointsOf(shown[i]!));
    while (++i < shown.length && colorOf(shown[i]!, i) === color);
    finish(area);
  }
  const winner = shown[shown.length - 1];
  if (winner && !few) {
    begin(area, { color: best, width: 2.4 });
    trace(area, pointsOf(winner));
    finish(area);
  }
  shown.slice(-MAX_MARKS).forEach((s, i) => {
    const step = s.curve.steps[s.curve.steps.length - 1]!;
    if (s.end === "stopped") circle(area, step, s.last, 3, few ? colorOf(s, i) : area.colors.muted, false);
    else if (s.end === "error") cross(area, step, s.last, 4, error);
    else if (s.curve.steps.length === 1) circle(area, step, s.last, 2.5, colorOf(s, i), true);
  });
}

function nearestCurve(area: Area, shown: Shown[], left: number, top: number): [Shown, number] | null {
  let found: [Shown, number] | null = null;
  let best = REACH * REACH;
  for (const s of shown) {
    const { steps, values } = s.curve;
    for (let i = 0; i < steps.length; i++) {
      const dx = area.x(steps[i]!) - left;
      if (dx > REACH) break;
      const dy = area.y(values[i]!) - top;
      const distance = dx * dx + dy * dy;
      if (distance <= best) [found, best] = [[s, i], distance];
    }
  }
  return found;
}

export function curvesSpec(store: ExperimentStore, shown: Shown[], metric: string, log: boolean): PlotSpec {
  const { x, y } = bounds(shown, log);
  return {
    x: { label: "step", whole: true, ...x },
    y: { label: metric, log, ...y },
    draw: (area) => drawCurves(area, shown),
    hit: (area, left, top) => {
      const found = nearestCurve(area, shown, left, top);
      if (!found) return null;
      const [s, i] = found;
      const value = s.curve.values[i]!;
      const status = String(valueAt(store.table.get("status"), s.row) ?? "");
      const lines = [`${metric} ${number(value)} at step ${s.curve.steps[i]}`, s.id];
      lines.push(s.end === "stopped" ? "stopped early" : statusWord(status));
      return { x: area.x(s.curve.steps[i]!), y: area.y(value), lines, href: link(store.id, ["trials", s.id]) };
    },
  };
}

export function useCurves(store: ExperimentStore, metric: string): CurveSet | undefined {
  useEffect(() => (metric && store.ready ? store.useCurves(metric) : undefined), [store, metric, store.ready]);
  return store.curves.get(metric);
}

/** The curves of a few trials, all their points; everything else is left where it is. */
export function useCurvesOf(store: ExperimentStore, metric: string, trials: string[]): Resource<CurveSet> {
  const key = JSON.stringify([store.id, metric, trials]);
  const version = trials.map((id) => store.versionOf(id)).join();
  return useResource<CurveSet>(key, version, async (signal) => {
    const curves = new Map<number, Curve>();
    if (metric && trials.length) {
      const query = { metric, trials: joined(trials) };
      split(decode(await getBinary(experimentPath(store.id, "/curves"), query, signal)), curves);
    }
    return { thinned: false, curves, version: 0 };
  });
}

export function CurvesChart({ query, change }: ChartProps) {
  const store = useStore();
  const metric = metricOf(store, query.metric);
  const set = useCurves(store, metric);
  const log = query.log === "1";
  const colors = usePalette();
  const all = useMemo(() => shownCurves(store, set), [set, set?.version, store.table.version]);
  const only = query.show === "finished";
  const shown = useMemo(() => (only ? all.filter((s) => s.end === "none") : all), [all, only]);
  const spec = useMemo(() => curvesSpec(store, shown, metric, log), [shown, metric, log]);
  const stopped = all.filter((s) => s.end === "stopped").length;
  const failed = all.filter((s) => s.end === "error").length;
  const note = [
    `${counted(all.length)} trials; ${counted(stopped)} stopped early (○), ${counted(failed)} failed (×).`,
    set?.thinned ? "Curves are thinned for display; a trial's own page shows all its rows." : "",
    shown.length > FEW ? `${colors.isDark ? "Brighter" : "Darker"} is better; the best is orange.` : "",
  ];
  return (
    <ChartFrame
      title="Learning curves"
      about="Each line is a trial; steps that a retry took back are not shown."
      controls={
        <>
          <MetricSelect value={metric} onChange={(m) => change({ metric: m })} />
          <Check label="hide early-stopped and failed" checked={only} onChange={(on) => change({ show: on ? "finished" : undefined })} />
          <Check label="log scale" checked={log} onChange={(on) => change({ log: on ? "1" : undefined })} />
        </>
      }
      note={all.length ? note.filter(Boolean).join(" ") : null}
      table={{
        columns: [{ title: "trial" }, { title: "rows", right: true }, { title: `last ${metric}`, right: true }, { title: "end" }],
        count: shown.length,
        cell: (i, c) => {
          const s = shown[shown.length - 1 - i]!;
          return [s.id, String(s.curve.steps.length), number(s.last, 7), s.end === "none" ? "" : s.end === "stopped" ? "stopped early" : "error"][c]!;
        },
      }}
    >
      {shown.length ? (
        <Plot spec={spec} height={460} summary={`Learning curves of ${metric} for ${shown.length} trials, ${stopped} stopped early`} />
      ) : set || !metric ? (
        <Empty title="Nothing to draw yet"><p>Curves appear as soon as trials report.</p></Empty>
      ) : (
        <Loading what="Loading curves ..." />
      )}
    </ChartFrame>
  );
}
