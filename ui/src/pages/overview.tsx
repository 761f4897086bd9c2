// How the experiment stands: state, progress, the best trial, failures by cause, what to type to resume.
import { useMemo } from "preact/hooks";
import { NoCurves, curvesSpec, curvesTable, sampleNote, shownCurves, useCurves } from "../charts/curves";
import { historySpec, historyTable, seriesOf, useColumns } from "../charts/history";
import { NothingYet } from "../charts/frame";
import { Plot } from "../charts/plot";
import { bytes, clock, configValue, count, duration, number, oneLine, plural, safe, value } from "../format";
import { ExperimentActions } from "../parts/actions";
import { Behind } from "../parts/behind";
import { Ago, Command, statusWord } from "../parts/small";
import { link } from "../route";
import { useStore } from "../store";
import { type Best, type Experiment, type Failure, type Json, type Note, type TrialRow, UNREADABLE, entryOf, flat } from "../types";

const ORDER = ["TERMINATED", "ERROR", "RUNNING", "PAUSED", "PENDING", "NOT_STARTED"];
const COLORS: Record<string, string> = {
  TERMINATED: "var(--done)", ERROR: "var(--error)", RUNNING: "var(--running)",
  PAUSED: "var(--paused)", PENDING: "var(--strong-line)", NOT_STARTED: "var(--line)",
};

export function bestOf(experiment: Experiment): { id: string; value: number | null; config: TrialRow["config"] | null } | null {
  const best = experiment.best as (Partial<TrialRow> & Partial<Best>) | null;
  if (!best) return null;
  const metrics = best.last_result ?? best.metrics;
  const found = best.value ?? (experiment.metric ? entryOf(metrics, experiment.metric) : null);
  return { id: best.trial_id ?? best.trial ?? "", value: typeof found === "number" ? found : null, config: best.config ?? null };
}

export function OverviewPage() {
  const store = useStore();
  const experiment = store.experiment!;
  const { path, state, started_at: started, holder } = experiment;
  const where = holder?.host ? ` by process ${holder.pid} on ${oneLine(holder.host, 60)}` : "";
  return (
    <>
      <div class="page-head">
        <div>
          <h1 class="wrap"><bdi>{oneLine(experiment.name, 200)}</bdi></h1>
          <p class="wrap small">{`${statusWord(state)}${where}, started ${clock(started)} · `}<span class="mono">{safe(path, 400)}</span></p>
        </div>
        <ExperimentActions />
      </div>
      <div class="grid">
        <Tiles experiment={experiment} />
        <Progress experiment={experiment} />
        <ResumeCard experiment={experiment} />
        <HistoryCard />
        <CurvesCard />
        <BestCard experiment={experiment} />
        <FailuresCard experiment={experiment} />
        <SpaceCard experiment={experiment} />
        <RecentCard />
        <NotesCard notes={experiment.notes ?? []} />
      </div>
    </>
  );
}

function Tiles({ experiment }: { experiment: Experiment }) {
  const { hasLostRecords } = useStore();
  const best = bestOf(experiment);
  const { backlog, durable_lag_s: lag, counts, total } = experiment;
  const ended = (counts.TERMINATED ?? 0) + (counts.ERROR ?? 0);
  return (
    <dl class="tiles">
      <div class="tile">
        <dt>{experiment.metric ? `best ${oneLine(experiment.metric, 30)} (${experiment.mode})` : "best"}</dt>
        <dd>{best ? number(best.value) : "–"}</dd>
        <dd>{best ? <a href={link(experiment.id, ["trials", best.id])}>{oneLine(best.id, 40)}</a> : "no result yet"}</dd>
      </div>
      <div class="tile"><dt>trials ended</dt><dd>{count(ended)}</dd><dd>{total ? `of ${count(total)}` : "no limit known"}</dd></div>
      <div class="tile"><dt>reports</dt><dd>{count(experiment.reports ?? 0)}</dd><dd>{"last event "}<Ago at={experiment.last_event_at} /></dd></div>
      <div class="tile"><dt>time of work</dt><dd>{duration(experiment.lived_s)}</dd><dd>drivers alive</dd></div>
      <div class="tile"><dt>durable</dt>{durability(lag, experiment.state === "running", hasLostRecords).map((text) => <dd>{text}</dd>)}</div>
      <div class="tile"><dt>upload queue</dt>{uploads(backlog).map((text) => <dd>{text}</dd>)}</div>
    </dl>
  );
}

/** What a power cut would take, in words. */
function durability(lag: number | null | undefined, isRunning: boolean, hasLostRecords: boolean): [string, string] {
  if (hasLostRecords) return ["–", "not known: the journal is damaged"];
  if (lag === null || lag === undefined) return ["–", isRunning ? "known only to its driver" : "not known: its driver did not shut down"];
  return lag < 0.5 ? ["everything", "a power cut would lose nothing"] : [`all but ${duration(lag)}`, `a power cut would lose the last ${duration(lag)}`];
}

/** How many checkpoints are not where the experiment lives, and what becomes of them. */
function uploads(backlog: Experiment["backlog"]): string[] {
  if (!backlog?.checkpoints) return ["empty", "no checkpoint waits"];
  const full = backlog.waiting_since ? `, full since ${clock(backlog.waiting_since, false)}` : "";
  return [plural(backlog.checkpoints, "checkpoint"), `${bytes(backlog.bytes)}${full}`, oneLine(backlog.text, 200)];
}

function Progress({ experiment }: { experiment: Experiment }) {
  const { counts, total } = experiment;
  const shown = ORDER.filter((status) => (counts[status] ?? 0) > 0);
  const sum = Math.max(total ?? 0, shown.reduce((all, status) => all + counts[status]!, 0), 1);
  const summary = shown.map((status) => `${counts[status]} ${statusWord(status)}`).join(", ");
  return (
    <section class="card">
      <h2>Progress</h2>
      <div class="progress" role="img" aria-label={`Trials: ${summary || "none yet"}`} style={{ height: "12px" }}>
        {shown.map((status) => <span key={status} style={{ width: `${(100 * counts[status]!) / sum}%`, background: COLORS[status] }} />)}
      </div>
      <div class="legend">
        {shown.map((status) => (
          <a key={status} href={link(experiment.id, ["trials"], status === "NOT_STARTED" ? {} : { filter: `status == ${status}` })}>
            <i class="dot" style={{ "--c": COLORS[status] }} /><b>{count(counts[status]!)}</b>{` ${statusWord(status)}`}
          </a>
        ))}
        {!shown.length && <span>No trial was created yet.</span>}
      </div>
    </section>
  );
}

function ResumeCard({ experiment }: { experiment: Experiment }) {
  const { hasLostRecords } = useStore();
  if (hasLostRecords) return <RepairCard command={experiment.repair_command} />;
  const command = experiment.resume_command ?? experiment.resume;
  if (!command || experiment.state === "running" || UNREADABLE.includes(experiment.state)) return null;
  return (
    <section class="card">
      <h2>{experiment.state === "finished" ? "Run the failed trials again" : "Resume"}</h2>
      <Command text={command} />
      {experiment.restore && <p class="small muted wrap" style={{ marginTop: "8px" }}>{"or in Python: "}<code>{safe(experiment.restore, 400)}</code></p>}
    </section>
  );
}

/** A resume would refuse. */
function RepairCard({ command }: { command: string | null | undefined }) {
  if (!command) return null;
  return (
    <section class="card">
      <h2>Repair</h2>
      <Command text={command} />
      <p class="small muted" style={{ marginTop: "8px" }}>Records of the journal are damaged. The experiment can be resumed after a repair.</p>
    </section>
  );
}

function HistoryCard() {
  const store = useStore();
  const { metric, mode, id } = store.experiment!;
  const column = `metric/${metric ?? ""}`;
  useColumns(store, metric ? [column] : []);
  const series = useMemo(() => seriesOf(store.table, column, "number", mode), [store.table.version, column, mode]);
  const options = { metric: metric ?? "", column, by: "number" as const, log: false };
  const spec = useMemo(() => historySpec(store, series, options), [series]);
  return (
    <section class="card half">
      <div class="card-head"><h2>History</h2><a class="small" href={link(id, ["charts", "history"])}>open</a></div>
      {series.count ? (
        <>
          <Plot spec={spec} height={260} summary={`History of ${metric}: ${series.count} trials`} />
          <Behind title="History" table={historyTable(store, series, metric ?? "")} />
        </>
      ) : (
        <NothingYet title="No result yet"><p>{metric ? `Trials that report ${oneLine(metric, 60)} appear here.` : "Set metric and mode in TuneConfig to see the best trial."}</p></NothingYet>
      )}
    </section>
  );
}

function CurvesCard() {
  const store = useStore();
  const { metric, metrics, id } = store.experiment!;
  const name = metric ?? metrics[0] ?? "";
  const set = useCurves(store, name);
  const chosen = useMemo(() => shownCurves(store, set), [set, set?.version, store.table.version]);
  const spec = useMemo(() => curvesSpec(store, chosen.drawn, name, false), [chosen, name]);
  const note = sampleNote(chosen);
  return (
    <section class="card half">
      <div class="card-head"><h2>Learning curves</h2><a class="small" href={link(id, ["charts", "curves"])}>open</a></div>
      {chosen.drawn.length ? (
        <>
          <Plot spec={spec} height={260} summary={`Learning curves of ${name}: ${chosen.order.length} trials`} />
          {note && <p class="chart-note">{note}</p>}
          <Behind title="Learning curves" table={curvesTable(store, set, chosen, name)} />
        </>
      ) : (
        <NoCurves problem={store.curveProblems.get(name)} loading={!set && Boolean(name)} title="No report yet" />
      )}
    </section>
  );
}

function BestCard({ experiment }: { experiment: Experiment }) {
  const best = bestOf(experiment);
  if (!best?.config) return null;
  return (
    <section class="card half">
      <div class="card-head"><h2>Best trial</h2><a class="small" href={link(experiment.id, ["trials", best.id])}>{oneLine(best.id, 40)}</a></div>
      <dl class="facts">
        {flat(best.config).slice(0, 40).map(([name, v]) => (
          <><dt>{oneLine(name, 60)}</dt><dd class="number">{configValue(v, 200)}</dd></>
        ))}
      </dl>
    </section>
  );
}

function FailuresCard({ experiment }: { experiment: Experiment }) {
  const { hasLostRecords } = useStore();
  const { failures } = experiment;
  return (
    <section class="card half">
      <h2>Failures by cause</h2>
      {failures?.length ? (
        <ul class="rows">{failures.map((failure) => <FailureRow failure={failure} id={experiment.id} />)}</ul>
      ) : (
        <p class="muted small">{hasLostRecords ? "No failure is known." : "No trial failed."}</p>
      )}
    </section>
  );
}

function FailureRow({ failure, id }: { failure: Failure; id: string }) {
  return (
    <li>
      <p class="wrap"><strong>{oneLine(failure.title, 200)}</strong>{` · ${plural(failure.count, "trial")}`}</p>
      {failure.message && <p class="small wrap">{oneLine(failure.message, 300)}</p>}
      {failure.location && <p class="small muted mono wrap">{oneLine(failure.location, 200)}</p>}
      <p class="small">{failure.trials.slice(0, 8).map((trial) => <><a href={link(id, ["trials", trial])}>{oneLine(trial, 40)}</a>{" "}</>)}</p>
    </li>
  );
}

/** A domain of the search space in words: `1e-5 to 0.1, log`. */
export function domainText(domain: Json): string {
  if (domain === null || typeof domain !== "object" || Array.isArray(domain)) return value(domain, 200);
  const { kind, lower, upper, log, step, options, more, mean, sd } = domain;
  if (Array.isArray(options)) {
    const rest = typeof more === "number" ? ` and ${plural(more, "other")}` : "";
    return `${kind === "grid" ? "each of " : ""}${options.map((option) => configValue(option, 40)).join(", ")}${rest}`;
  }
  const steps = typeof step === "number" ? `, in steps of ${number(step)}` : "";
  if (typeof mean === "number") return `normal, mean ${number(mean)}, deviation ${value(sd)}${steps}`;
  const isOpen = kind === "int" && typeof step !== "number" && typeof upper === "number"; // As Python's range.
  if (typeof lower === "number") return `${number(lower)} to ${isOpen ? number(upper - 1) : value(upper)}${kind === "int" ? ", whole" : ""}${log ? ", log" : ""}${steps}`;
  return value(kind, 60);
}

function SpaceCard({ experiment }: { experiment: Experiment }) {
  const entries = Object.entries(experiment.space ?? {});
  if (!entries.length) return null;
  return (
    <section class="card half">
      <h2>Search space</h2>
      <dl class="facts">
        {entries.slice(0, 60).map(([name, domain]) => <><dt>{oneLine(name, 60)}</dt><dd class="number">{domainText(domain)}</dd></>)}
      </dl>
    </section>
  );
}

function RecentCard() {
  const { sentences } = useStore();
  if (!sentences.length) return null;
  return (
    <section class="card half">
      <h2>Just now</h2>
      <ol class="story" aria-live="off">
        {sentences.slice(0, 12).map((line) => <li><time>{clock(line.time, false)}</time><p>{safe(line.text, 400)}</p></li>)}
      </ol>
    </section>
  );
}

export function NotesCard({ notes }: { notes: (Note | string)[] }) {
  if (!notes.length) return null;
  return (
    <section class="card half">
      <h2>Notes</h2>
      <ol class="story">
        {notes.map((note) =>
          typeof note === "string" ? <li><time /><p>{safe(note, 2000)}</p></li> : <li><time title={clock(note.time)}>{clock(note.time, false)}</time><p>{note.trial_id ? `${oneLine(note.trial_id, 40)}: ` : ""}{safe(note.text, 2000)}</p></li>,
        )}
      </ol>
    </section>
  );
}
