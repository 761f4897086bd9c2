// Some trials beside each other: curves in one chart, values in columns, differences marked.
import { useMemo } from "preact/hooks";
import { hasValue, valueAt } from "../columns";
import { NoCurves, type Shown, curvesSpec, shownCurves, useCurvesOf } from "../charts/curves";
import { useColumns } from "../charts/history";
import { Plot } from "../charts/plot";
import { MetricSelect, metricOf } from "../charts/select";
import { number, oneLine } from "../format";
import { Behind, type ChartTable } from "../parts/behind";
import { Check, Empty, Pill } from "../parts/small";
import { type Route, link, useQuery } from "../route";
import { useStore } from "../store";
import { columnTitle, shownValue } from "./trials";

const FACTS = ["iteration", "time_total_s", "attempts", "started_at", "ended_at", "reason"];

export function ComparePage({ route }: { route: Route }) {
  const store = useStore();
  const { table, experiment } = store;
  const change = useQuery(route, store.id, ["compare"]);
  const trials = (route.query.trials ?? "").split(",").filter((id) => table.row(id) !== undefined);
  const metric = metricOf(store, route.query.metric);
  const answer = useCurvesOf(store, metric, trials);
  const set = answer.data ?? undefined;
  const keys = useMemo(() => [...experiment!.params.map((p) => `config/${p}`), ...experiment!.metrics.map((m) => `metric/${m}`), ...FACTS], [experiment]);
  useColumns(store, keys);
  const chosen = useMemo(() => shownCurves(store, set, trials), [set, table.version, trials.join()]);
  const shown = chosen.drawn;
  const spec = useMemo(() => curvesSpec(store, shown, metric, false), [shown, metric]);
  const points = useMemo(() => pointsTable(shown, metric), [shown, metric]);
  const onlyDifferent = route.query.only === "1";
  const rows = keys
    .map((key) => {
      const column = table.get(key);
      const given = trials.map((id) => valueAt(column, table.row(id)!));
      const values = trials.map((id, i) => shownValue(key, given[i]!, hasValue(column, table.row(id)!)));
      return { key, values, differs: given.some((v, i) => JSON.stringify(v) !== JSON.stringify(given[0]) || values[i] !== values[0]) };
    })
    .filter((row) => row.values.some((v) => v !== "–") && (!onlyDifferent || row.differs));
  if (trials.length < 2) {
    return (
      <>
        <h1 class="hidden-visually">Compare</h1>
        <div class="card"><Empty title="Nothing to compare"><p>Select two or more trials in the <a href={link(store.id, ["trials"])}>table</a>, then press Compare.</p></Empty></div>
      </>
    );
  }
  const colorOf = (id: string) => {
    const at = shown.findIndex((s) => s.id === id);
    return at < 0 || shown.length > 8 ? "transparent" : `var(--series-${at + 1})`;
  };
  return (
    <>
      <div class="page-head"><div><h1>{`Compare ${trials.length} trials`}</h1></div><a class="button" href={link(store.id, ["trials"], { select: trials.join(",") })}>Change the selection</a></div>
      <div class="grid">
        <section class="card">
          <div class="card-head"><h2>Curves</h2><MetricSelect value={metric} onChange={(m) => change({ metric: m })} /></div>
          {shown.length ? (
            <>
              <Plot spec={spec} height={340} summary={`${metric} of ${trials.length} trials`} />
              <Behind title="Curves" table={points} />
            </>
          ) : (
            <NoCurves problem={answer.error} loading={answer.loading} title="No report yet" />
          )}
        </section>
        <section class="card">
          <div class="card-head"><h2>Values</h2><Check label="only differences" checked={onlyDifferent} onChange={(on) => change({ only: on ? "1" : undefined })} /></div>
          <div class="scroll-x" tabIndex={0} role="region" aria-label="Values of the trials">
            <table class="plain-table">
              <thead>
                <tr><th scope="col">name</th>{trials.map((id) => <th scope="col"><i class="dot" style={{ "--c": colorOf(id) }} /><a href={link(store.id, ["trials", id])}>{oneLine(id, 40)}</a></th>)}</tr>
              </thead>
              <tbody>
                <tr><th scope="row">status</th>{trials.map((id) => <td><Pill state={String(valueAt(table.get("status"), table.row(id)!) ?? "")} /></td>)}</tr>
                {rows.map((row) => (
                  <tr key={row.key}><th scope="row" title={oneLine(row.key)}>{oneLine(columnTitle(row.key), 60)}</th>{row.values.map((v) => <td class={row.differs && row.key.startsWith("config/") ? "differs" : ""}>{v}</td>)}</tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      </div>
    </>
  );
}

/** All points of some curves: a row for each step that any of them has. */
function pointsTable(shown: Shown[], metric: string): ChartTable {
  const values = shown.map(({ curve }) => new Map(Array.from(curve.steps, (step, i) => [step, curve.values[i]!])));
  const steps = [...new Set(values.flatMap((known) => [...known.keys()]))].sort((a, b) => a - b);
  return {
    columns: [{ title: "step", right: true, width: 90 }, ...shown.map(({ id }) => ({ title: `${id} ${metric}`, right: true, width: 170 }))],
    count: steps.length,
    cell: (i, c) => number(c ? values[c - 1]!.get(steps[i]!) : steps[i], 7),
  };
}
