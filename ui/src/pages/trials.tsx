// The table of trials: any number of rows, sorted and filtered in the browser, columns to choose, trials to compare.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type TrialTable, hasValue, sortRows, valueAt } from "../columns";
import { FilterError, compile, namesIn, resolve } from "../filter";
import { clock, count, duration, number, oneLine, plural, value as valueText } from "../format";
import { onKey } from "../keyboard";
import { useColumns } from "../charts/history";
import { Dialog, Empty, Loading, Pill } from "../parts/small";
import { type VColumn, VTable } from "../parts/vtable";
import { type Route, go, link, parse, replace, useQuery } from "../route";
import { type ExperimentStore, useStore } from "../store";
import { type Json, entryOf } from "../types";

const MAX_DEFAULT_PARAMS = 6;
const MAX_COMPARED = 12;
const PREFIXES = ["metric/", "best/", "min/", "max/", "config/"];
const FIXED: Record<string, { title: string; width: number; right?: boolean }> = {
  trial_id: { title: "trial", width: 140 },
  status: { title: "status", width: 112 },
  iteration: { title: "iteration", width: 92, right: true },
  time_total_s: { title: "time", width: 96, right: true },
  started_at: { title: "started", width: 166 },
  ended_at: { title: "ended", width: 166 },
  attempts: { title: "attempts", width: 92, right: true },
  ended: { title: "why it ended", width: 220 },
  reason: { title: "reason", width: 220 },
  cause: { title: "cause", width: 140 },
  worker: { title: "worker", width: 160 },
  early_stopped: { title: "stopped early", width: 124, right: true },
  interrupted: { title: "interrupted", width: 112, right: true },
  failures: { title: "failures", width: 92, right: true },
  checkpoints: { title: "checkpoints", width: 112, right: true },
  created_at: { title: "created", width: 166 },
};

function defaultColumns(store: ExperimentStore): string[] {
  const { metric, params } = store.experiment!;
  return [
    "trial_id",
    "status",
    ...(metric ? [`metric/${metric}`] : []),
    "iteration",
    "time_total_s",
    ...params.slice(0, MAX_DEFAULT_PARAMS).map((name) => `config/${name}`),
  ];
}

function allColumns(store: ExperimentStore): string[] {
  const { metrics, params } = store.experiment!;
  return [
    ...Object.keys(FIXED),
    ...metrics.flatMap((name) => [`metric/${name}`, `best/${name}`]),
    ...params.map((name) => `config/${name}`),
  ];
}

/** Whether the server may have such a column: others would make it refuse the whole question. */
const mayBe = (key: string): boolean => entryOf(FIXED, key) !== undefined || PREFIXES.some((prefix) => key.startsWith(prefix));

/** The column that an address names, with or without its kind; undefined if there is none. */
function sortColumn(store: ExperimentStore, name: string): string | undefined {
  const extremes = store.experiment!.metrics.flatMap((metric) => [`min/${metric}`, `max/${metric}`]);
  const known = new Set([...allColumns(store), ...extremes]);
  return resolve(name, (column) => known.has(column));
}

export function columnTitle(key: string): string {
  const fixed = entryOf(FIXED, key);
  if (fixed) return fixed.title;
  if (key.startsWith("best/")) return `best ${key.slice(5)}`;
  return key.slice(key.indexOf("/") + 1);
}

function vcolumn(key: string, table: TrialTable): VColumn {
  const fixed = entryOf(FIXED, key);
  if (fixed) return { key, sortable: true, mono: key === "trial_id", ...fixed };
  const title = columnTitle(key);
  const right = table.get(key)?.type !== "category";
  return { key, title: oneLine(title, 60), width: Math.min(220, Math.max(96, 34 + 7.5 * title.length)), right, sortable: true };
}

/** A value as text; null is Python's None where a trial has it, and nothing otherwise. */
export function shownValue(key: string, given: Json, isThere = given !== null): string {
  if (given === null) return isThere ? "None" : "–";
  if (key === "time_total_s") return duration(given as number);
  if (key === "started_at" || key === "ended_at" || key === "created_at") return clock(given as number);
  return typeof given === "number" ? number(given) : valueText(given, 60);
}

interface Selected {
  rows: Uint32Array;
  problem: string | null;
}

/** The rows that pass the filter, sorted. A bad filter hides nothing: it is named instead. */
function useRows(store: ExperimentStore, filter: string, sort: string, descending: boolean): Selected {
  const { table } = store;
  const known = useMemo(() => new Set(allColumns(store)), [store.experiment]);
  const needed = useMemo(() => {
    const named = namesIn(filter).map((name) => resolve(name, (column) => known.has(column)));
    return [sort, ...named].filter((name): name is string => Boolean(name) && (name === sort || known.has(name!)));
  }, [filter, sort, known]);
  useColumns(store, needed);
  return useMemo(() => {
    const rows = new Uint32Array(table.rows);
    let [kept, problem] = [0, null as string | null];
    try {
      if (needed.every((name) => table.columns.has(name)) || !filter) {
        const passes = compile(filter, table.columns);
        for (let row = 0; row < table.rows; row++) if (passes(row)) rows[kept++] = row;
      }
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      problem = error.message;
      kept = table.rows;
      for (let row = 0; row < kept; row++) rows[row] = row;
    }
    const column = table.get(sort);
    const chosen = rows.subarray(0, kept);
    return { rows: column ? sortRows(chosen, column, table.rows, descending) : chosen, problem };
  }, [table.version, filter, sort, descending, needed]);
}

export function TrialsPage({ route }: { route: Route }) {
  const store = useStore();
  const { table, experiment } = store;
  const { query } = route;
  const change = useQuery(route, store.id, ["trials"]);
  const shown = query.columns ? query.columns.split("|").filter(mayBe) : defaultColumns(store);
  useColumns(store, shown);
  const sort = query.sort ? sortColumn(store, query.sort) : "";
  const { rows, problem } = useRows(store, query.filter ?? "", sort ?? "", query.desc === "1");
  const [active, setActive] = useState(-1);
  const selected = (query.select ?? "").split(",").filter(Boolean);
  const [choosing, setChoosing] = useState(false);
  const toggle = (id: string) => {
    const now = parse(window.location.hash).query; // Keys may come faster than the page is drawn.
    const known = (now.select ?? "").split(",").filter(Boolean);
    const next = known.includes(id) ? known.filter((each) => each !== id) : [...known, id].slice(-MAX_COMPARED);
    replace(link(store.id, ["trials"], { ...now, select: next.join(",") }));
  };
  useTableKeys(rows.length, setActive, (at) => table.id(rows[at]!), store.id, toggle);
  const columns: VColumn[] = [
    { key: "select", title: "compare", width: 42, head: <span class="hidden-visually">compare</span> },
    ...shown.map((key) => vcolumn(key, table)),
  ];
  const onSort = (key: string) => {
    if (sort !== key) change({ sort: key, desc: undefined });
    else if (query.desc !== "1") change({ desc: "1" });
    else change({ sort: undefined, desc: undefined });
  };
  const cell = (at: number, column: VColumn) => {
    const row = rows[at]!;
    const id = table.id(row);
    if (column.key === "select") return <input type="checkbox" aria-label={`Compare ${id}`} checked={selected.includes(id)} onChange={() => toggle(id)} />;
    if (column.key === "trial_id") return <a href={link(store.id, ["trials", id])}>{oneLine(id, 60)}</a>;
    const given = valueAt(table.get(column.key), row);
    return column.key === "status" && given !== null ? <Pill state={String(given)} /> : shownValue(column.key, given, hasValue(table.get(column.key), row));
  };
  return (
    <>
      <h1 class="hidden-visually">Trials</h1>
      <div class="toolbar">
        <FilterField value={query.filter ?? ""} isBad={problem !== null} onChange={(filter) => change({ filter })} />
        <span class="muted small number" role="status">{rows.length === table.rows ? plural(table.rows, "trial") : `${count(rows.length)} of ${plural(table.rows, "trial")}`}</span>
        <button type="button" onClick={() => setChoosing(true)}>Columns</button>
        <a class="button" aria-disabled={selected.length < 2} href={selected.length > 1 ? link(store.id, ["compare"], { trials: selected.join(",") }) : undefined}>{`Compare${selected.length ? ` (${selected.length})` : ""}`}</a>
      </div>
      {problem && <p class="problem" role="alert">{oneLine(problem, 400)}</p>}
      {sort === undefined && <p class="problem" role="alert">{`There is no column ${oneLine(query.sort, 100)} to sort by.`}</p>}
      {table.rows ? (
        <VTable label="Trials" columns={columns} count={rows.length} cell={cell} height={`min(${44 + rows.length * 34}px, max(320px, calc(100vh - 210px)))`} active={active}
          sort={sort ? { key: sort, descending: query.desc === "1" } : undefined} onSort={onSort} onOpen={(at) => go(link(store.id, ["trials", table.id(rows[at]!)]))} />
      ) : (
        <div class="card">{table.version ? <Empty title="No trial yet"><p>{experiment!.state === "running" ? "The search has not created one yet." : "Start the experiment with Tuner(...).fit()."}</p></Empty> : <Loading what="Loading trials ..." />}</div>
      )}
      {table.rows > 0 && !rows.length && !problem && <p class="muted small" style={{ marginTop: "10px" }}>No trial passes the filter. Clear it to see all.</p>}
      {choosing && <Chooser all={allColumns(store)} shown={shown} onClose={() => setChoosing(false)} onChange={(list) => change({ columns: list?.join("|") })} />}
    </>
  );
}

function useTableKeys(total: number, setActive: (n: number) => void, idOf: (row: number) => string, experiment: string, toggle: (id: string) => void): void {
  const held = useRef({ at: -1, total, idOf, toggle });
  Object.assign(held.current, { total, idOf, toggle });
  useEffect(() => {
    const now = held.current;
    const move = (step: number) => {
      now.at = Math.max(0, Math.min(now.total - 1, now.at + step));
      setActive(now.at);
    };
    const withRow = (act: (id: string) => void) => () => {
      if (now.at >= 0 && now.at < now.total) act(now.idOf(now.at));
    };
    const ends = [
      onKey("j", () => move(1)),
      onKey("k", () => move(-1)),
      onKey("Enter", withRow((id) => go(link(experiment, ["trials", id])))),
      onKey("x", withRow((id) => now.toggle(id))),
    ];
    return () => ends.forEach((end) => end());
  }, [experiment]);
}

function FilterField({ value, isBad, onChange }: { value: string; isBad: boolean; onChange: (filter: string) => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const ends = [
      onKey("/", () => field.current?.focus()),
      onKey("Escape", () => (document.activeElement === field.current ? field.current?.blur() : onChange(""))),
    ];
    return () => ends.forEach((end) => end());
  });
  return (
    <div class="filter">
      <input ref={field} type="search" value={value} aria-label="Filter" aria-invalid={isBad} spellcheck={false} autocomplete="off"
        placeholder="filter: loss < 0.3 and status == ERROR" onInput={(e) => onChange((e.target as HTMLInputElement).value)} />
    </div>
  );
}

interface ChooserProps {
  all: string[];
  shown: string[];
  onChange: (columns: string[] | undefined) => void;
  onClose: () => void;
}

function Chooser({ all, shown, onChange, onClose }: ChooserProps) {
  const [find, setFind] = useState("");
  const listed = all.filter((key) => columnTitle(key).toLowerCase().includes(find.toLowerCase())).slice(0, 300);
  const flip = (key: string, on: boolean) => onChange(on ? [...shown, key] : shown.filter((known) => known !== key));
  return (
    <Dialog title="Columns" onClose={onClose}>
      <input type="search" aria-label="Find a column" placeholder="find a column" value={find} onInput={(e) => setFind((e.target as HTMLInputElement).value)} />
      <div class="columns" tabIndex={0} role="group" aria-label="Columns">
        {listed.map((key) => (
          <label class="check" key={key}>
            <input type="checkbox" checked={shown.includes(key)} onChange={(e) => flip(key, (e.target as HTMLInputElement).checked)} />
            <span>{oneLine(columnTitle(key), 80)}</span>
            <span class="muted small">{key.startsWith("config/") ? "parameter" : key.startsWith("metric/") ? "last value" : key.startsWith("best/") ? "best value" : ""}</span>
          </label>
        ))}
      </div>
      <div class="actions">
        <button type="button" onClick={() => onChange(undefined)}>Reset</button>
        <button type="button" class="primary" onClick={onClose}>Done</button>
      </div>
    </Dialog>
  );
}
