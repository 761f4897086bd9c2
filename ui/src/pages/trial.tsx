// One trial: configuration, curves, story, error, log, checkpoints, lineage.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { getJson, isReport, trialPath } from "../api";
import { NoCurves, curvesSpec, shownCurves, useCurvesOf } from "../charts/curves";
import { Plot } from "../charts/plot";
import { MetricSelect, metricOf } from "../charts/select";
import { bytes, clock, configValue, duration, number, oneLine, plural, safe, value } from "../format";
import { onKey } from "../keyboard";
import { TrialActions } from "../parts/actions";
import { Behind } from "../parts/behind";
import { Empty, Loading, Pill } from "../parts/small";
import { useResource } from "../resource";
import { type Route, go, link, useQuery } from "../route";
import { useStore } from "../store";
import { type Attempt, type Checkpoint, type Config, type Copy, type ErrorFacts, type StoryLine, type TrialDetail, entryOf, flat } from "../types";
import { NotesCard } from "./overview";

const ANSI_COLORS = /\u001b\[[0-9;]*m/g;
const ENDED = ["TERMINATED", "ERROR"];

export function TrialPage({ route, trial }: { route: Route; trial: string }) {
  const store = useStore();
  const key = `${store.id}/${trial}`;
  const version = store.versionOf(trial);
  const answer = useResource<TrialDetail>(key, version, (signal) => getJson(trialPath(store.id, trial), {}, signal));
  useEffect(() => onKey("Escape", () => go(link(store.id, ["trials"]))), [store.id]);
  const detail = answer.data;
  if (!detail) {
    return <div class="card">{answer.error ? <Empty title={store.table.row(trial) === undefined ? "No such trial" : isReport() ? "Not in this report" : "Not available"}><p>{safe(answer.error, 400)}</p></Empty> : <Loading what="Loading the trial ..." />}</div>;
  }
  return (
    <>
      <div class="page-head">
        <div>
          <h1 class="wrap" style={{ display: "flex", gap: "12px", alignItems: "center", flexWrap: "wrap" }}>{oneLine(detail.name ?? detail.trial_id, 200)}<Pill state={detail.status} /></h1>
          <p class="wrap">{[oneLine(detail.reason ?? "", 200), detail.interrupted ? "was running when its driver died" : "", detail.on_resume ? `on resume: ${oneLine(detail.on_resume, 200)}` : ""].filter(Boolean).join(" · ")}</p>
          <p>{(detail.tags ?? []).map((tag) => <span class="tag">{oneLine(tag, 60)}</span>)}</p>
        </div>
        <TrialActions trial={detail.trial_id} tags={detail.tags ?? []} ended={ENDED.includes(detail.status)} />
      </div>
      <div class="grid">
        <Summary detail={detail} />
        <ErrorCard error={detail.error ?? detail.last_failure} final={Boolean(detail.error)} />
        <CurveCard route={route} trial={detail.trial_id} />
        <div class="half stack">
          <FactsCard title="Configuration" facts={detail.config} show={configValue} />
          <StoryCard trial={trial} version={version} />
          <CheckpointsCard checkpoints={detail.checkpoints ?? []} />
          <AttemptsCard attempts={detail.attempt_list ?? []} />
        </div>
        <div class="half stack">
          <FactsCard title="Last report" facts={detail.last_result ?? detail.metrics ?? {}} />
          <LogCard trial={trial} version={version} />
          <LineageCard copies={Array.isArray(detail.lineage) ? detail.lineage : []} />
          <NotesCard notes={detail.notes ?? []} />
        </div>
      </div>
    </>
  );
}

function Summary({ detail }: { detail: TrialDetail }) {
  const { started_at: start, ended_at: end } = detail;
  const metric = useStore().experiment!.metric;
  const last = metric ? entryOf(detail.last_result ?? detail.metrics, metric) : undefined;
  return (
    <dl class="tiles">
      <div class="tile"><dt>{metric ? `last ${oneLine(metric, 30)}` : "metric"}</dt><dd>{value(last)}</dd></div>
      <div class="tile"><dt>iteration</dt><dd>{number(detail.iteration)}</dd></div>
      <div class="tile"><dt>attempts</dt><dd>{number(detail.attempts)}</dd><dd>{detail.failures ? plural(detail.failures, "failure") : "no failure"}</dd></div>
      <div class="tile"><dt>started</dt><dd>{clock(start, false)}</dd><dd>{start ? clock(start).slice(0, 10) : "not yet"}</dd></div>
      <div class="tile"><dt>{end ? "ended" : "running for"}</dt><dd>{end ? clock(end, false) : duration(start ? Date.now() / 1000 - start : null)}</dd><dd>{start && end ? `after ${duration(end - start)}` : ""}</dd></div>
    </dl>
  );
}

function ErrorCard({ error, final }: { error: ErrorFacts | null | undefined; final: boolean }) {
  if (!error) return null;
  return (
    <section class="card">
      <h2>{final ? "Error" : "Last failure"}</h2>
      <p class="wrap"><strong>{oneLine(error.title, 200)}</strong>{error.message ? `: ${safe(error.message, 2000)}` : ""}</p>
      {error.location && <p class="small muted mono wrap">{oneLine(error.location, 300)}</p>}
      {error.traceback && <pre class="text-block" tabIndex={0} style={{ marginTop: "10px" }} aria-label="Traceback">{safe(error.traceback, 100000)}</pre>}
    </section>
  );
}

function CurveCard({ route, trial }: { route: Route; trial: string }) {
  const store = useStore();
  const change = useQuery(route, store.id, ["trials", trial]);
  const metric = metricOf(store, route.query.metric);
  const answer = useCurvesOf(store, metric, [trial]);
  const set = answer.data ?? undefined;
  const { drawn: shown } = useMemo(() => shownCurves(store, set, [trial]), [set, store.table.version, trial]);
  const spec = useMemo(() => curvesSpec(store, shown, metric, false), [shown, metric]);
  const curve = shown[0]?.curve;
  return (
    <section class="card">
      <div class="card-head"><h2>Curve</h2><MetricSelect value={metric} onChange={(m) => change({ metric: m })} /></div>
      {curve ? (
        <>
          <Plot spec={spec} height={280} summary={`${metric} of trial ${trial}: ${curve.steps.length} reports`} />
          <Behind title={`Reports of ${trial}`} table={{ columns: [{ title: "step", right: true }, { title: metric, right: true }], count: curve.steps.length, cell: (i, c) => number((c ? curve.values : curve.steps)[i], 7) }} />
        </>
      ) : (
        <NoCurves problem={answer.error} loading={answer.loading} title="No report yet"><p>{metric ? `This trial has not reported ${oneLine(metric, 60)}.` : ""}</p></NoCurves>
      )}
    </section>
  );
}

function FactsCard({ title, facts, show = value }: { title: string; facts: Config; show?: typeof value }) {
  const entries = flat(facts);
  return (
    <section class="card half">
      <h2>{title}</h2>
      {entries.length ? (
        <dl class="facts">
          {entries.slice(0, 500).map(([name, v]) => <><dt>{oneLine(name, 100)}</dt><dd class="number">{show(v, 400)}</dd></>)}
        </dl>
      ) : (
        <p class="muted small">Nothing yet.</p>
      )}
    </section>
  );
}

function StoryCard({ trial, version }: { trial: string; version: string }) {
  const store = useStore();
  const answer = useResource<StoryLine[]>(`${store.id}/${trial}/story`, version, (signal) => getJson(trialPath(store.id, trial, "/story"), {}, signal));
  const lines = answer.data ?? [];
  return (
    <section class="card half">
      <h2>Story</h2>
      {answer.error && !lines.length ? <p class="muted small">{safe(answer.error, 300)}</p> : (
        <ol class="story">
          {lines.map((line) => <li><time title={clock(line.time)}>{clock(line.time, false)}</time><p>{safe(line.text, 2000)}</p></li>)}
        </ol>
      )}
    </section>
  );
}

interface Log {
  lines: string[];
  truncated: boolean;
}

function LogCard({ trial, version }: { trial: string; version: string }) {
  const store = useStore();
  const [tail, setTail] = useState(200);
  const [folded, setFolded] = useState(false);
  const answer = useResource<Log>(`${store.id}/${trial}/log`, `${version}/${tail}`, (signal) => getJson(trialPath(store.id, trial, "/log"), { tail }, signal));
  const lines = answer.data?.lines ?? [];
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  const follow = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 24;
  };
  // What was printed last tells most; whoever has scrolled up stays there.
  useLayoutEffect(() => {
    if (box.current && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [answer.data, folded]);
  return (
    <section class="card half">
      <div class="card-head">
        <h2>Output</h2>
        <div class="actions">
          {answer.data?.truncated && <button type="button" class="plain" onClick={() => setTail(tail * 5)}>Earlier lines</button>}
          {lines.length > 0 && <button type="button" class="plain" aria-pressed={folded} onClick={() => setFolded(!folded)}>Wrap</button>}
        </div>
      </div>
      {lines.length ? (
        <pre ref={box} onScroll={follow} class={`text-block${folded ? " folded" : ""}`} tabIndex={0} aria-label="Output of the trial">{safe(lines.join("\n").replace(ANSI_COLORS, ""), 400000)}</pre>
      ) : (
        <p class="muted small">{answer.error ? safe(answer.error, 300) : answer.loading ? "Loading ..." : "The trial printed nothing."}</p>
      )}
    </section>
  );
}

function CheckpointsCard({ checkpoints }: { checkpoints: Checkpoint[] }) {
  return (
    <section class="card half">
      <h2>Checkpoints</h2>
      {checkpoints.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Checkpoints">
          <table class="plain-table whole-words">
            <thead><tr><th>path</th><th class="right">iteration</th><th class="right">size</th><th>state</th></tr></thead>
            <tbody>
              {[...checkpoints].reverse().slice(0, 500).map((c) => (
                <tr><td class="mono wrap" title={oneLine(c.path, 400)}>{oneLine(c.path.split("/").pop() ?? c.path, 60)}</td><td class="right">{number(c.iteration ?? c.step)}</td><td class="right">{bytes(c.bytes)}</td><td class="wrap">{`${oneLine(c.state, 40)}${c.reason ? `: ${oneLine(c.reason, 200)}` : ""}`}</td></tr>
              ))}
            </tbody>
          </table>
          <p class="small muted mono wrap" style={{ marginTop: "8px" }}>{safe(checkpoints[0]!.path.split("/").slice(0, -1).join("/"), 400)}</p>
        </div>
      ) : (
        <p class="muted small">No checkpoint. A retry starts from the beginning.</p>
      )}
    </section>
  );
}

function LineageCard({ copies }: { copies: Copy[] }) {
  const store = useStore();
  if (!copies.length) return null;
  return (
    <section class="card half">
      <h2>Lineage</h2>
      <ol class="story">
        {copies.map((copy) => (
          <li><time title={clock(copy.time)}>{clock(copy.time, false)}</time><p>{"copied "}<a href={link(store.id, ["trials", copy.from])}>{oneLine(copy.from, 60)}</a>{copyWords(copy)}</p></li>
        ))}
      </ol>
    </section>
  );
}

function copyWords({ checkpoint, checkpoint_of: maker, from, iteration }: Copy): string {
  const which = checkpoint ? ` from ${oneLine(checkpoint, 60)}${maker && maker !== from ? ` of ${oneLine(maker, 60)}` : ""}` : "";
  return `${which}${iteration ? ` at iteration ${iteration}` : ""}`;
}

function outcomeWords({ outcome, cause }: Attempt): string {
  return oneLine(`${outcome ?? "–"}${cause ? ` (${cause.replace(/_/g, " ")})` : ""}`, 80);
}

function AttemptsCard({ attempts }: { attempts: Attempt[] }) {
  if (!attempts.length) return null;
  return (
    <section class="card half">
      <h2>Attempts</h2>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Attempts">
        <table class="plain-table whole-words">
          <thead><tr><th class="right">attempt</th><th>started</th><th>took</th><th>outcome</th><th>worker</th></tr></thead>
          <tbody>
            {attempts.map((a) => (
              <tr><td class="right">{a.attempt}</td><td>{clock(a.started)}</td><td>{a.started && a.ended ? duration(a.ended - a.started) : "–"}</td><td>{outcomeWords(a)}</td><td class="wrap">{oneLine(a.worker ?? "–", 60)}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
