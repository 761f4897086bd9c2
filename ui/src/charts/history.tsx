// History: one point per trial, and the best value so far.
import { useEffect, useMemo } from "preact/hooks";
import { type TrialTable, numberAt, valueAt } from "../columns";
import { clock, number } from "../format";
import type { ChartTable } from "../parts/behind";
import { Check, Select, statusWord } from "../parts/small";
import { link } from "../route";
import { type ExperimentStore, useStore } from "../store";
import { ChartFrame, NothingYet } from "./frame";
import { type Points, nearest, points, polyline } from "./paint";
import { Plot, type PlotSpec, around, extent, limits } from "./plot";
import type { ChartProps } from "./registry";
import { MetricSelect, metricOf } from "./select";

export interface Series {
  count: number;
  rows: Uint32Array;
  xs: Float64Array;
  ys: Float64Array;
  best: Float64Array;
}

/** Trials with a value, in the order of `by`; `best` is the best value up to each. */
export function seriesOf(table: TrialTable, column: string, by: "number" | "time", mode: string | null): Series {
  const values = table.get(column);
  const ended = table.get("ended_at");
  const started = table.get("started_at");
  const rows = new Uint32Array(table.rows);
  const time = new Float64Array(by === "time" ? table.rows : 0);
  let count = 0;
  for (let row = 0; row < table.rows; row++) {
    if (!Number.isFinite(numberAt(values, row))) continue;
    if (by === "time") time[row] = numberAt(ended, row) || numberAt(started, row);
    rows[count++] = row;
  }
  const order = rows.subarray(0, count);
  if (by === "time") order.sort((a, b) => time[a]! - time[b]!);
  const [xs, ys, best] = [new Float64Array(count), new Float64Array(count), new Float64Array(count)];
  const better = mode === "max" ? Math.max : Math.min;
  for (let i = 0; i < count; i++) {
    const row = order[i]!;
    xs[i] = by === "time" ? time[row]! : row;
    ys[i] = numberAt(values, row);
    best[i] = i ? better(best[i - 1]!, ys[i]!) : ys[i]!;
  }
  return { count, rows: order, xs, ys, best };
}

/** Only the points at which the best value changes, and the last: a line of few corners is drawn at once. */
function corners({ xs, best, count }: Series): Points {
  const kept = new Uint32Array(count);
  let n = 0;
  for (let i = 0; i < count; i++) if (i === 0 || i === count - 1 || best[i] !== best[i - 1]) kept[n++] = i;
  const chosen = kept.subarray(0, n);
  return { xs: Float64Array.from(chosen, (i) => xs[i]!), ys: Float64Array.from(chosen, (i) => best[i]!), count: n };
}

interface HistoryOptions {
  metric: string;
  column: string;
  by: "number" | "time";
  log: boolean;
}

export function historySpec(store: ExperimentStore, series: Series, { metric, column, by, log }: HistoryOptions): PlotSpec {
  const { table } = store;
  const isObjective = metric === store.experiment!.metric;
  const line = corners(series);
  const across = by === "time" ? around(...extent(series.xs)) : limits(series.xs);
  return {
    x: { label: by === "time" ? "time at which the trial ended" : "trial", time: by === "time", whole: by === "number", ...across },
    y: { label: metric, log, ...limits(series.ys, log) },
    draw: (area) => {
      points(area, series, area.colors.series[0]!);
      if (isObjective) polyline(area, line, { color: area.colors.best, width: 2 }, true);
    },
    hit: (area, left, top) => {
      const i = nearest(area, series, left, top);
      if (i < 0) return null;
      const row = series.rows[i]!;
      const status = String(valueAt(table.get("status"), row) ?? "");
      return {
        x: area.x(series.xs[i]!),
        y: area.y(series.ys[i]!),
        href: link(store.id, ["trials", table.id(row)]),
        lines: [`${column.startsWith("best/") ? "best " : ""}${metric} ${number(series.ys[i])}`, table.id(row), statusWord(status)],
      };
    },
  };
}

export function historyTable({ table }: ExperimentStore, series: Series, metric: string): ChartTable {
  return {
    columns: [{ title: "trial" }, { title: metric, right: true }, { title: "best so far", right: true }, { title: "ended", width: 170 }],
    count: series.count,
    cell: (i, c) =>
      [
        () => table.id(series.rows[i]!),
        () => number(series.ys[i], 7),
        () => number(series.best[i], 7),
        () => clock(numberAt(table.get("ended_at"), series.rows[i]!)),
      ][c]!(),
  };
}

export function useColumns(store: ExperimentStore, names: string[]): void {
  const key = names.join("\n");
  useEffect(() => void store.ensure(names).catch((error) => store.refused(error)), [store, key, store.ready]);
}

export function HistoryChart({ query, change }: ChartProps) {
  const store = useStore();
  const { table } = store;
  const metric = metricOf(store, query.metric);
  const column = `${query.value === "best" ? "best" : "metric"}/${metric}`;
  useColumns(store, [column]);
  const by = query.x === "time" ? "time" : "number";
  const log = query.log === "1";
  const mode = store.experiment!.mode;
  const series = useMemo(() => seriesOf(table, column, by, mode), [table.version, column, by, mode]);
  const spec = useMemo(() => historySpec(store, series, { metric, column, by, log }), [series, metric, log]);
  const last = series.count ? series.best[series.count - 1] : NaN;
  return (
    <ChartFrame
      title="History"
      about="One point per trial; the line is the best value so far. Drag to zoom, double-click to go back, click a point to open its trial."
      controls={
        <>
          <MetricSelect value={metric} onChange={(m) => change({ metric: m })} />
          <Select label="value" value={query.value ?? "last"} options={["last", "best"]} onChange={(value) => change({ value })} />
          <Select label="order" value={by} options={[["number", "by trial"], ["time", "by time"]]} onChange={(x) => change({ x })} />
          <Check label="log scale" checked={log} onChange={(on) => change({ log: on ? "1" : undefined })} />
        </>
      }
      table={historyTable(store, series, metric)}
    >
      {series.count ? (
        <Plot spec={spec} height={430} summary={`History of ${metric}: ${series.count} trials, best ${number(last)}`} />
      ) : (
        <NothingYet>
          <p>{`No trial has reported ${metric || "a metric"}. Points appear as soon as trials report.`}</p>
        </NothingYet>
      )}
    </ChartFrame>
  );
}
