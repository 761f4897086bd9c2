// Learning curves: the surviving rows of every trial, with early-stopped and failed trials marked at their ends.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { experimentPath, getBinary } from "../api";
import { type TrialTable, decode, valueAt } from "../columns";
import { count as counted, number, plural, safe } from "../format";
import type { ChartTable } from "../parts/behind";
import { Check, Empty, Loading, statusWord } from "../parts/small";
import { link } from "../route";
import { type Resource, useResource } from "../resource";
import { type Curve, CurveSet, type ExperimentStore, joined, useStore } from "../store";
import { rampAt, usePalette } from "../theme";
import { ChartFrame } from "./frame";
import { begin, circle, cross, finish, trace } from "./paint";
import { type Area, Plot, type PlotSpec, widened } from "./plot";
import type { ChartProps } from "./registry";
import { MetricSelect, metricOf } from "./select";

const FEW = 8;
const MAX_DRAWN = 1000;
const BEST_DRAWN = 200;
const RUNNING_DRAWN = 200;
const MAX_MARKS = 400;
const REACH = 20;

export type End = "stopped" | "error" | "none";

export interface Shown {
  row: number;
  id: string;
  curve: Curve;
  last: number;
  rank: number;
  end: End;
}

/** The curves that were asked for: all in order, and those of them that are drawn. */
export interface Chosen {
  /** Rows of the table, the worst first, so that the best are painted last. */
  order: Uint32Array;
  drawn: Shown[];
  stopped: number;
  failed: number;
  endOf: (row: number) => End;
}

/** How a trial of a row ended; the server judges which ends were early. */
export function ends(table: TrialTable): (row: number) => End {
  const [status, early] = [table.get("status"), table.get("early_stopped")];
  return (row) => {
    if (valueAt(status, row) === "ERROR") return "error";
    return valueAt(early, row) === 1 ? "stopped" : "none";
  };
}

/** Of many curves those that tell most: the best, those that grow, and the others evenly by their last value. */
function sample(order: Uint32Array, isRunning: (row: number) => boolean): Uint32Array {
  const total = order.length;
  if (total <= MAX_DRAWN) return order;
  const taken = new Uint8Array(total);
  taken.fill(1, total - BEST_DRAWN);
  let running = 0;
  for (let i = total - 1; i >= 0 && running < RUNNING_DRAWN; i--) if (!taken[i] && isRunning(order[i]!)) running += taken[i] = 1;
  const rest = MAX_DRAWN - BEST_DRAWN - running;
  for (let k = 0; k < rest; k++) taken[Math.floor((k * (total - BEST_DRAWN)) / rest)] = 1;
  return order.filter((_row, i) => taken[i]);
}

/** The curves of these trials; of all that pass, if none are named. */
export function shownCurves(store: ExperimentStore, set: CurveSet | undefined, trials?: string[], only?: (end: End) => boolean): Chosen {
  const { table } = store;
  const endOf = ends(table);
  const named = trials?.map((id) => table.row(id)).filter((row): row is number => row !== undefined);
  const all = !set ? new Uint32Array(0) : named ? Uint32Array.from(named).filter((row) => set.get(row)) : set.rows();
  let [stopped, failed] = [0, 0];
  const sign = store.experiment!.mode === "max" ? -1 : 1;
  const badness = new Float64Array(Math.max(table.rows, all.reduce((most, row) => Math.max(most, row + 1), 0)));
  const order = all.filter((row) => {
    const end = endOf(row);
    if (end === "stopped") stopped++;
    else if (end === "error") failed++;
    const last = sign * set!.last(row);
    badness[row] = Number.isNaN(last) ? Infinity : last;
    return !only || only(end);
  });
  order.sort((a, b) => badness[b]! - badness[a]! || a - b);
  const place = new Map<number, number>();
  const status = table.get("status");
  const some = sample(order, (row) => valueAt(status, row) === "RUNNING");
  if (some.length < order.length) order.forEach((row, i) => place.set(row, i));
  const drawn = [...some].map((row, i): Shown => {
    const rank = order.length > 1 ? 1 - (place.get(row) ?? i) / (order.length - 1) : 0;
    return { row, id: table.id(row), curve: set!.get(row)!, last: set!.last(row), rank, end: endOf(row) };
  });
  return { order, drawn, stopped, failed, endOf };
}

/** What is said where not all curves are drawn. */
export function sampleNote({ order, drawn }: Chosen): string {
  if (drawn.length === order.length) return "";
  return `${counted(drawn.length)} of ${counted(order.length)} curves are drawn: the ${BEST_DRAWN} best, running trials, and the others evenly by their last value.`;
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
    const found = new CurveSet();
    if (metric && trials.length) {
      const query = { metric, trials: joined(trials) };
      found.replace(decode(await getBinary(experimentPath(store.id, "/curves"), query, signal)));
    }
    return found;
  });
}

/** What stands instead of curves: they are on the way, or the reason why there are none. */
export function NoCurves({ problem, loading, title = "Nothing to draw yet", children }: { problem?: string | null; loading: boolean; title?: string; children?: ComponentChildren }) {
  if (problem) return <Empty title="Not available"><p class="wrap">{safe(problem, 1000)}</p></Empty>;
  return loading ? <Loading what="Loading curves ..." /> : <Empty title={title}>{children}</Empty>;
}

const END_WORDS: Record<End, string> = { none: "", stopped: "stopped early", error: "error" };

export function curvesTable(store: ExperimentStore, set: CurveSet | undefined, { order, endOf }: Chosen, metric: string): ChartTable {
  return {
    columns: [{ title: "trial" }, { title: "rows", right: true }, { title: `last ${metric}`, right: true }, { title: "end" }],
    count: set ? order.length : 0,
    cell: (i, c) => {
      const row = order[order.length - 1 - i]!;
      const curve = set!.get(row);
      return [() => store.table.id(row), () => String(curve?.steps.length ?? 0), () => number(set!.last(row), 7), () => END_WORDS[endOf(row)]][c]!();
    },
  };
}

export function CurvesChart({ query, change }: ChartProps) {
  const store = useStore();
  const metric = metricOf(store, query.metric);
  const set = useCurves(store, metric);
  const log = query.log === "1";
  const colors = usePalette();
  const only = query.show === "finished";
  const chosen = useMemo(
    () => shownCurves(store, set, undefined, only ? (end) => end === "none" : undefined),
    [set, set?.version, store.table.version, only],
  );
  const { order, drawn, stopped, failed } = chosen;
  const spec = useMemo(() => curvesSpec(store, drawn, metric, log), [drawn, metric, log]);
  const hidden = only ? stopped + failed : 0;
  const total = order.length + hidden;
  const note = [
    `${counted(total)} trials; ${counted(stopped)} stopped early (○), ${counted(failed)} failed (×).`,
    hidden ? `${counted(hidden)} are hidden.` : "",
    sampleNote(chosen),
    set?.thinned ? "Curves are thinned for display; a trial's own page shows all its rows." : "",
    order.length > FEW ? `${colors.isDark ? "Brighter" : "Darker"} is better; the best is orange.` : "",
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
      note={total ? note.filter(Boolean).join(" ") : null}
      table={curvesTable(store, set, chosen, metric)}
    >
      {drawn.length ? (
        <Plot spec={spec} height={460} summary={`Learning curves of ${metric} for ${order.length} trials, ${stopped} stopped early`} />
      ) : hidden ? (
        <Empty title="All trials are hidden"><p>{`The filter hides ${plural(hidden, "trial")}: ${counted(stopped)} stopped early, ${counted(failed)} failed.`}</p></Empty>
      ) : (
        <NoCurves problem={store.curveProblems.get(metric)} loading={!set && Boolean(metric)}><p>Curves appear as soon as trials report.</p></NoCurves>
      )}
    </ChartFrame>
  );
}
