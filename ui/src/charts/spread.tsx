// Charts about values: importance of parameters, slices, the distribution of results, the Pareto front.
import { useMemo } from "preact/hooks";
import { type TrialTable, numberAt } from "../columns";
import { count as counted, number, oneLine, plural } from "../format";
import { isReport } from "../api";
import { Check, Empty, Select } from "../parts/small";
import { link } from "../route";
import { useStore } from "../store";
import { entryOf } from "../types";
import { ChartFrame, NothingYet, placeholder, useChart } from "./frame";
import { useColumns } from "./history";
import { circle, nearest, points, polyline } from "./paint";
import { MAX_READ, axisOf, ordered, useVarying } from "./params";
import { Plot, type PlotSpec, extent, limits, widened } from "./plot";
import type { ChartProps } from "./registry";
import { MetricSelect, ParamSelect, metricOf, metricsOf } from "./select";

interface Importance {
  note?: string;
  trials?: number;
  params?: { name: string; importance: number; trials?: number }[];
}

const LEAST_TRIALS = 10;
const SAMPLE = 20_000; // Of more trials the server takes so many, evenly.

export function ImportanceChart({ query, change }: ChartProps) {
  const store = useStore();
  const metric = metricOf(store, query.metric);
  const answer = useChart<Importance>("importance", { metric });
  const varying = useVarying();
  useColumns(store, metric ? [`metric/${metric}`] : []);
  const { table } = store;
  const known = useMemo(() => countOf(table, `metric/${metric}`), [table.version, metric]);
  const judged = store.experiment!.params.slice(0, MAX_READ);
  const listed = answer.data?.params ?? [];
  const params = listed.filter(({ name }) => !varying || varying.includes(name) || !judged.includes(name));
  const constant = listed.length - params.length;
  const trials = answer.data?.trials ?? 0;
  const isFew = trials < LEAST_TRIALS;
  const hint = listed.length && isFew ? `${plural(trials, "trial")} with a result ${trials === 1 ? "is" : "are"} too few to say anything: ${LEAST_TRIALS} are needed.` : listed.length && !params.length ? "No parameter varies." : "Importance needs some trials that ended with different parameters.";
  const most = Math.max(1e-12, ...params.map((p) => p.importance));
  return (
    <ChartFrame
      title="Importance"
      about="How much of the difference between results each parameter explains."
      controls={<MetricSelect value={metric} onChange={(m) => change({ metric: m })} />}
      note={isFew ? null : [answer.data?.note, trials >= SAMPLE && known > trials ? `They are an even sample of ${counted(known)}.` : "", constant ? `${plural(constant, "parameter")} that ${constant === 1 ? "does" : "do"} not vary ${constant === 1 ? "is" : "are"} left out.` : ""].filter(Boolean).join(" ")}
      table={{
        columns: [{ title: "parameter", width: 200 }, { title: "importance", right: true }],
        count: isFew ? 0 : params.length,
        cell: (i, c) => (c ? number(params[i]!.importance, 4) : oneLine(params[i]!.name)),
      }}
    >
      {placeholder(answer, isFew || !params.length, hint) ?? (
        <div class="bars" role="img" aria-label={`Importance: ${params.map((p) => `${oneLine(p.name, 40)} ${number(p.importance, 2)}`).join(", ")}`}>
          {params.map((p) => (
            <>
              <span class="name" title={oneLine(p.name)}>{oneLine(p.name)}</span>
              <span class="track"><span style={{ width: `${(100 * p.importance) / most}%` }} /></span>
              <span class="number muted">{number(p.importance, 3)}</span>
            </>
          ))}
        </div>
      )}
    </ChartFrame>
  );
}

/** How many trials have a value. */
function countOf(table: TrialTable, name: string): number {
  const column = table.get(name);
  let found = 0;
  for (let row = 0; row < table.rows; row++) if (Number.isFinite(numberAt(column, row))) found++;
  return found;
}

export function SliceChart({ query, change }: ChartProps) {
  const store = useStore();
  const { table, experiment } = store;
  const metric = metricOf(store, query.metric);
  const varying = useVarying();
  const param = query.x ?? ordered(experiment!.params, varying)[0] ?? "";
  const log = query.log === "1";
  useColumns(store, [`config/${param}`, `metric/${metric}`]);
  const { spec, kept } = useMemo(() => {
    const axis = axisOf(store, param, table.get(`config/${param}`));
    const column = table.get(`metric/${metric}`);
    const rows = [...axis.values.keys()].filter((row) => Number.isFinite(axis.values[row]!) && Number.isFinite(numberAt(column, row)));
    const xs = Float64Array.from(rows, (row) => axis.values[row]! + (axis.categories ? jitter(row) : 0));
    const ys = Float64Array.from(rows, (row) => numberAt(column, row));
    const shown = { xs, ys, count: rows.length };
    const range = axis.categories ? { min: -0.6, max: axis.categories.length - 0.4 } : limits(xs, axis.log);
    const made: PlotSpec = {
      x: { label: param, log: axis.log, whole: axis.whole && !axis.log, categories: axis.categories ?? undefined, ...range },
      y: { label: metric, log, ...limits(ys, log) },
      draw: (area) => points(area, shown, area.colors.series[0]!),
      hit: (area, left, top) => {
        const i = nearest(area, shown, left, top);
        if (i < 0) return null;
        const id = table.id(rows[i]!);
        const value = axis.values[rows[i]!]!;
        const text = axis.categories ? axis.categories[value] : number(value);
        return { x: area.x(xs[i]!), y: area.y(ys[i]!), lines: [`${metric} ${number(ys[i])}`, `${oneLine(param, 40)} ${text}`, id], href: link(store.id, ["trials", id]) };
      },
    };
    return { spec: made, kept: { rows, axis, ys } };
  }, [table.version, param, metric, log]);
  return (
    <ChartFrame
      title="Slice"
      about="Results over one parameter."
      controls={
        <>
          <ParamSelect label="parameter" value={param} onChange={(x) => change({ x })} />
          <MetricSelect value={metric} onChange={(m) => change({ metric: m })} />
          <Check label="log scale" checked={log} onChange={(on) => change({ log: on ? "1" : undefined })} />
        </>
      }
      table={{
        columns: [{ title: "trial" }, { title: param }, { title: metric, right: true }],
        count: kept.rows.length,
        cell: (i, c) => {
          const v = kept.axis.values[kept.rows[i]!]!;
          const shown = kept.axis.categories ? (kept.axis.categories[v] ?? "") : number(v);
          return [table.id(kept.rows[i]!), shown, number(kept.ys[i], 7)][c]!;
        },
      }}
    >
      {kept.rows.length ? (
        <Plot spec={spec} height={420} summary={`${metric} over ${oneLine(param, 60)} for ${kept.rows.length} trials`} />
      ) : (
        <NothingYet><p>Points appear as soon as trials report.</p></NothingYet>
      )}
    </ChartFrame>
  );
}

/** The same small shift for the same trial, so that points of one category do not cover each other. */
const jitter = (row: number): number => (((row * 2654435761) >>> 0) / 4294967296 - 0.5) * 0.5;

interface Edf {
  note?: string;
  points?: [number, number][];
}

export function EdfChart({ query, change }: ChartProps) {
  const store = useStore();
  const metric = metricOf(store, query.metric);
  const answer = useChart<Edf>("edf", { metric });
  const log = query.log === "1";
  const list = answer.data?.points ?? [];
  const spec = useMemo((): PlotSpec => {
    const xs = Float64Array.from(list, (p) => p[0]);
    const ys = Float64Array.from(list, (p) => p[1]);
    const shown = { xs, ys, count: list.length };
    return {
      x: { label: metric, log, ...limits(xs, log) },
      y: { label: "fraction of trials", min: 0, max: 1.03 },
      draw: (area) => polyline(area, shown, { color: area.colors.series[0]!, width: 2 }, true),
      hit: (area, left, top) => {
        const i = nearest(area, shown, left, top);
        if (i < 0) return null;
        return { x: area.x(xs[i]!), y: area.y(ys[i]!), lines: [`${number(100 * ys[i]!, 3)} % of trials`, `${metric} up to ${number(xs[i])}`] };
      },
    };
  }, [answer.data, metric, log]);
  return (
    <ChartFrame
      title="Distribution (EDF)"
      about="The fraction of trials whose result is at most the value below."
      controls={
        <>
          <MetricSelect value={metric} onChange={(m) => change({ metric: m })} />
          <Check label="log scale" checked={log} onChange={(on) => change({ log: on ? "1" : undefined })} />
        </>
      }
      note={answer.data?.note}
      table={{ columns: [{ title: metric, right: true }, { title: "fraction", right: true }], count: list.length, cell: (i, c) => number(list[i]![c], 6) }}
    >
      {placeholder(answer, !list.length, "The curve appears as soon as trials report.") ?? (
        <Plot spec={spec} height={400} summary={`Distribution of ${metric} over ${list.length} values`} />
      )}
    </ChartFrame>
  );
}

type Mode = "min" | "max";

interface Pareto {
  note?: string;
  x_mode?: string;
  y_mode?: string;
  points?: [string, number, number, number | boolean][];
}

export function ParetoChart({ query, change }: ChartProps) {
  const store = useStore();
  const known = metricsOf(store);
  const x = query.x ?? known[0] ?? "";
  const y = query.y ?? known.find((name) => name !== x && name !== "training_iteration") ?? known[1] ?? x;
  const { metric, mode, modes: given } = store.experiment!;
  const modeOf = (name: string): Mode | undefined => entryOf(given, name) ?? (name === metric ? (mode ?? undefined) : undefined);
  const modes = { x_mode: query.x_mode ?? modeOf(x), y_mode: query.y_mode ?? modeOf(y) };
  const unknown = isReport() ? [] : [...new Set([modes.x_mode ? "" : x, modes.y_mode ? "" : y])].filter(Boolean);
  const answer = useChart<Pareto>("pareto", { x, y, x_mode: modes.x_mode ?? "min", y_mode: modes.y_mode ?? "min" });
  if (isReport()) Object.assign(modes, { x_mode: answer.data?.x_mode, y_mode: answer.data?.y_mode });
  const list = answer.data?.points ?? [];
  const spec = useMemo(() => paretoSpec(list, x, y, store.id), [answer.data, x, y]);
  const front = unknown.length ? [] : list.filter((p) => p[3]);
  const modeOptions = (chosen: string | undefined): [string, string][] => [...(chosen ? [] : [["", "choose"] as [string, string]]), ["min", "minimize"], ["max", "maximize"]];
  return (
    <ChartFrame
      title="Pareto front"
      about="Trials for which no other trial is better in both metrics."
      controls={
        <>
          <MetricSelect label="x" value={x} onChange={(v) => change({ x: v, x_mode: undefined })} />
          <Select label="mode" value={modes.x_mode ?? ""} options={modeOptions(modes.x_mode)} onChange={(v) => change({ x_mode: v })} />
          <MetricSelect label="y" value={y} onChange={(v) => change({ y: v, y_mode: undefined })} />
          <Select label="mode" value={modes.y_mode ?? ""} options={modeOptions(modes.y_mode)} onChange={(v) => change({ y_mode: v })} />
        </>
      }
      note={unknown.length ? null : answer.data?.note ?? (list.length ? `${front.length} of ${list.length} trials are on the front.` : null)}
      table={{
        columns: [{ title: "trial on the front" }, { title: x, right: true }, { title: y, right: true }],
        count: front.length,
        cell: (i, c) => (c ? number(front[i]![c] as number, 7) : front[i]![0]),
      }}
    >
      {unknown.length ? (
        <Empty title="Which is better?"><p>{`Choose minimize or maximize for ${unknown.map((name) => oneLine(name, 60)).join(" and ")}.`}</p></Empty>
      ) : placeholder(answer, !list.length, "The front needs trials that report two metrics.") ?? (
        <Plot spec={spec} height={420} summary={`Pareto front of ${x} and ${y}: ${front.length} trials`} />
      )}
    </ChartFrame>
  );
}

function paretoSpec(list: [string, number, number, number | boolean][], x: string, y: string, experiment: string): PlotSpec {
  const xs = Float64Array.from(list, (p) => p[1]);
  const ys = Float64Array.from(list, (p) => p[2]);
  const all = { xs, ys, count: list.length };
  const front = list.filter((p) => p[3]).sort((a, b) => a[1] - b[1]);
  return {
    x: { label: x, ...limits(xs) },
    y: { label: y, ...widened(...extent(ys)) },
    draw: (area) => {
      points(area, all, area.colors.faint, 3);
      const line = { xs: front.map((p) => p[1]), ys: front.map((p) => p[2]), count: front.length };
      polyline(area, line, { color: area.colors.best, width: 1.5, alpha: 0.8 });
      for (const p of front) circle(area, p[1], p[2], 4, area.colors.best, true);
    },
    hit: (area, left, top) => {
      const i = nearest(area, all, left, top);
      if (i < 0) return null;
      const [id] = list[i]!;
      return { x: area.x(xs[i]!), y: area.y(ys[i]!), lines: [id, `${x} ${number(xs[i])}`, `${y} ${number(ys[i])}`], href: link(experiment, ["trials", id]) };
    },
  };
}
