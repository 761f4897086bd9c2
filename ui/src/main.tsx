// Starts the page: finds the experiments, shows the view that the address names.
import "./locale";
import { render } from "preact";
import { useEffect, useMemo, useReducer, useState } from "preact/hooks";
import "./app.css";
import { getJson, isReport } from "./api";
import { oneLine, safe, sentenceCase } from "./format";
import { listenToKeys } from "./keyboard";
import { ChartsPage } from "./pages/charts";
import { ComparePage } from "./pages/compare";
import { ExperimentsPage } from "./pages/experiments";
import { OverviewPage } from "./pages/overview";
import { TrialPage } from "./pages/trial";
import { TrialsPage } from "./pages/trials";
import { Boundary } from "./parts/boundary";
import { Banners, Header } from "./parts/shell";
import { Empty, Loading } from "./parts/small";
import { type Route, parse, useRoute } from "./route";
import { ExperimentStore, StoreContext } from "./store";
import { applyTheme, storedTheme } from "./theme";
import type { ExperimentEntry, Unopened } from "./types";

const LIST_POLL_MS = 5000;
const ASIDE_POLL_MS = 60000; // While one experiment is open, only to notice others.
let only: string | null = null;

function useExperiments(isList: boolean): { entries: ExperimentEntry[] | null; error: string | null } {
  const [known, setKnown] = useState<{ entries: ExperimentEntry[] | null; error: string | null }>({ entries: null, error: null });
  useEffect(() => {
    let timer = 0;
    const ask = async () => {
      try {
        setKnown({ entries: await getJson<ExperimentEntry[]>("api/experiments"), error: null });
      } catch (error) {
        const text = error instanceof Error ? error.message : String(error);
        setKnown((old) => ({ ...old, error: text }));
      }
      if (!isReport()) timer = window.setTimeout(() => void ask(), isList ? LIST_POLL_MS : ASIDE_POLL_MS);
    };
    if (isList || known.entries === null) void ask();
    else timer = window.setTimeout(() => void ask(), ASIDE_POLL_MS);
    return () => clearTimeout(timer);
  }, [isList]);
  return known;
}

function App() {
  const route = useRoute();
  const { entries, error } = useExperiments(route.experiment === null && only === null);
  only = entries?.length === 1 ? entries[0]!.id : null;
  const id = route.experiment ?? only;
  const store = useMemo(() => (id === null ? null : new ExperimentStore(id)), [id]);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    if (!store) return;
    const end = store.listen(() => redraw(null as never));
    store.start();
    return () => {
      end();
      store.close();
    };
  }, [store]);
  const view = store ? route.page || "overview" : "experiments";
  const isReady = store ? store.ready && store.table.version > 0 : entries !== null;
  useEffect(() => {
    const named = store?.experiment ?? store?.unopened;
    document.title = named ? `${oneLine(named.name, 100)} · holdfast` : "holdfast";
    if (isReady) requestAnimationFrame(() => (document.body.dataset.ready = "1"));
  });
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <Header store={store} page={route.page} several={(entries?.length ?? 0) > 1} />
      {store && <Banners store={store} />}
      <main id="main" tabIndex={-1} data-view={view}>
        {store ? (
          <StoreContext.Provider value={store}>
            <Boundary place={window.location.hash}><Inside store={store} route={route} /></Boundary>
          </StoreContext.Provider>
        ) : entries ? (
          <Boundary place={window.location.hash}><ExperimentsPage entries={entries} /></Boundary>
        ) : (
          <div class="card">{error ? <Empty title="No data"><p>{safe(error, 600)}</p></Empty> : <Loading what="Loading ..." />}</div>
        )}
      </main>
    </>
  );
}

function Inside({ store, route }: { store: ExperimentStore; route: Route }) {
  const { experiment, error } = store;
  if (!experiment) return <div class="card">{error ? <NotOpened error={error} unopened={store.unopened} /> : <Loading what="Loading the experiment ..." />}</div>;
  if (experiment.loading) return <div class="card"><Loading what="Reading the journal ..." read={experiment.loading.read} total={experiment.loading.total} /></div>;
  const trial = route.rest[0];
  switch (route.page) {
    case "":
      return <OverviewPage />;
    case "trials":
      return trial ? <TrialPage key={trial} route={route} trial={trial} /> : <TrialsPage route={route} />;
    case "compare":
      return <ComparePage route={route} />;
    case "charts":
      return <ChartsPage route={route} />;
    default:
      return <div class="card"><Empty title="No such view" /></div>;
  }
}

function NotOpened({ error, unopened }: { error: string; unopened: Unopened | null }) {
  return (
    <Empty title={unopened ? sentenceCase(unopened.state) : "Not available"}>
      <p class="wrap">{safe(error, 600)}</p>
      {unopened && <p class="small muted mono wrap">{safe(unopened.path, 400)}</p>}
    </Empty>
  );
}

function start(): void {
  applyTheme(storedTheme());
  const address = new URL(window.location.href);
  if (address.searchParams.has("token")) {
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
  listenToKeys(() => parse(window.location.hash).experiment ?? only);
  const root = document.getElementById("app")!;
  root.replaceChildren();
  render(<App />, root);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
