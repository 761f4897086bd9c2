// What is around every chart: title, explanation, controls, a note, and the table behind it.
import type { ComponentChildren } from "preact";
import { experimentPath, getJson } from "../api";
import { number, oneLine, safe } from "../format";
import { Behind, type ChartTable } from "../parts/behind";
import { Empty, Loading } from "../parts/small";
import { type Resource, useResource } from "../resource";
import { useStore } from "../store";

export interface FrameProps {
  title: string;
  about: string;
  controls?: ComponentChildren;
  note?: string | null;
  table?: ChartTable | null;
  children: ComponentChildren;
}

export function ChartFrame({ title, about, controls, note, table, children }: FrameProps) {
  return (
    <section class="card" data-chart={title}>
      <div class="card-head">
        <div>
          <h2>{title}</h2>
          <p class="small muted">{about}</p>
        </div>
        {controls && <div class="chart-controls">{controls}</div>}
      </div>
      {children}
      {note && <p class="chart-note wrap">{safe(note, 1000)}</p>}
      {table && table.count > 0 && <Behind title={title} table={table} />}
    </section>
  );
}

/** What the colours between best and worst mean. */
export function ColourBar({ metric, mode, low, high }: { metric: string; mode: string | null; low: number; high: number }) {
  const isMax = mode === "max";
  const known = Number.isFinite(low) && Number.isFinite(high);
  return (
    <div class="colour-bar">
      <span>{`best ${oneLine(metric, 40)}${known ? ` ${number(isMax ? high : low, 4)}` : ""}`}</span>
      <span class="ramp" aria-hidden="true" />
      <span>{`worst${known ? ` ${number(isMax ? low : high, 4)}` : ""}`}</span>
      <span class="muted">{`(${isMax ? "higher" : "lower"} is better)`}</span>
    </div>
  );
}

/** Instead of a chart without points: the table is still on its way, or there is nothing in it. */
export function NothingYet({ title = "Nothing to draw yet", children }: { title?: string; children?: ComponentChildren }) {
  const { table, damage } = useStore();
  if (table.version && damage) return <Empty title={title}><p class="wrap">{safe(damage, 1000)}</p></Empty>;
  return table.version ? <Empty title={title}>{children}</Empty> : <Loading what="Loading trials ..." />;
}

interface ChartAnswer {
  note?: string | null;
}

/** Data of a chart that the server computes, asked for again now and then while the experiment changes. */
export function useChart<T extends ChartAnswer>(name: string, query: Record<string, string | undefined>): Resource<T> {
  const store = useStore();
  const key = `${store.id}/${name}?${JSON.stringify(query)}`;
  return useResource<T>(key, store.slowVersion, (signal) =>
    getJson<T>(experimentPath(store.id, `/charts/${name}`), query, signal),
  );
}

/** What to show instead of a chart that has no data (yet); null if it has. */
export function placeholder(resource: Resource<unknown>, isEmpty: boolean, hint: string): ComponentChildren | null {
  if (resource.error && !resource.data) return <Empty title="Not available"><p>{safe(resource.error, 1000)}</p></Empty>;
  if (!resource.data) return <Loading what="Loading ..." />;
  return isEmpty ? <Empty title="Nothing to draw yet"><p class="wrap">{safe(hint, 1000)}</p></Empty> : null;
}
