// All charts, one at a time; the last word of the address names it, the query holds what was chosen.
import { useEffect, useRef } from "preact/hooks";
import { CHARTS } from "../charts/registry";
import { Boundary } from "../parts/boundary";
import { Empty } from "../parts/small";
import { type Route, link, useQuery } from "../route";
import { useStore } from "../store";

export function ChartsPage({ route }: { route: Route }) {
  const store = useStore();
  const name = route.rest[0] ?? "history";
  const change = useQuery(route, store.id, ["charts", name]);
  const found = CHARTS.find(([known]) => known === name);
  const Chart = found?.[2];
  const chips = useRef<HTMLElement>(null);
  useEffect(() => {
    const row = chips.current!;
    const chosen = row.querySelector<HTMLElement>("[aria-current]");
    if (chosen) row.scrollLeft = chosen.offsetLeft - row.offsetLeft - (row.clientWidth - chosen.offsetWidth) / 2;
  }, [name]);
  return (
    <>
      <h1 class="hidden-visually">Charts</h1>
      <nav class="chips" aria-label="Charts" ref={chips}>
        {CHARTS.map(([key, title]) => <a key={key} href={link(store.id, ["charts", key])} aria-current={key === name ? "page" : undefined}>{title}</a>)}
      </nav>
      {Chart ? <Boundary place={window.location.hash}><Chart key={name} query={route.query} change={change} /></Boundary> : <div class="card"><Empty title="No such chart" /></div>}
    </>
  );
}
