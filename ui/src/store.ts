// One experiment as the page knows it: facts, columns and curves, kept up to date by the server's changes.
// Only what changed is fetched again; everything only if the server says that too much changed.
import { createContext } from "preact";
import { useContext, useEffect, useReducer } from "preact/hooks";
import { ApiError, CONFLICT, experimentPath, getBinary, getJson, isReport } from "./api";
import { type Column, type Columns, TrialTable, decode } from "./columns";
import { type Subscription, follow } from "./follow";
import { type Change, type Experiment, type StoryLine, UNREADABLE, type Unopened } from "./types";

const BASE_COLUMNS = ["trial_id", "status", "iteration", "time_total_s", "started_at", "ended_at", "attempts", "early_stopped"];
const POLL_MS = 5000;
const LOADING_POLL_MS = 50; // The server itself waits for a moment before it answers.
const MIN_REFRESH_MS = 200;
const EXPERIMENT_MS = 500;
const FIRST_PAINT_MS = 30;
const SLOW_MS = 4000;
const MAX_SENTENCES = 50;
const MAX_CURVE_POINTS = 200000;

export interface Curve {
  steps: ArrayLike<number>;
  values: ArrayLike<number>;
}

/** The curves of one metric by row. Views into the answer are made for those that are asked for: there may be 100,000. */
export class CurveSet {
  thinned = false;
  version = 0;
  private readonly changed = new Map<number, Curve>();
  private trial: ArrayLike<number> = [];
  private step: Column["data"] = new Int32Array(0);
  private value: Column["data"] = new Float64Array(0);
  private readonly starts = new Map<number, number>();

  /** Take a full answer. */
  replace(answer: Columns): void {
    this.changed.clear();
    this.starts.clear();
    this.trial = answer.columns.get("trial")!.data;
    this.step = answer.columns.get("step")!.data;
    this.value = answer.columns.get("value")!.data;
    for (let i = 0; i < answer.rows; i++) if (i === 0 || this.trial[i] !== this.trial[i - 1]) this.starts.set(this.trial[i]!, i);
    this.thinned = answer.thinned;
    this.version++;
  }

  /** Take all points of some trials. */
  merge(answer: Columns): void {
    const part = new CurveSet();
    part.replace(answer);
    for (const row of part.rows()) this.changed.set(row, part.get(row)!);
    this.thinned ||= answer.thinned;
    this.version++;
  }

  /** The rows that have a curve. */
  rows(): Uint32Array {
    const rows = [...this.changed.keys()].filter((row) => !this.starts.has(row));
    return Uint32Array.from(rows.length ? [...this.starts.keys(), ...rows] : this.starts.keys());
  }

  get(row: number): Curve | undefined {
    const start = this.starts.get(row);
    const changed = this.changed.get(row);
    if (changed || start === undefined) return changed;
    const end = this.endOf(start);
    return { steps: this.step.subarray(start, end), values: this.value.subarray(start, end) };
  }

  /** The last value of a row's curve. */
  last(row: number): number {
    const changed = this.changed.get(row);
    if (changed) return changed.values[changed.values.length - 1] ?? NaN;
    const start = this.starts.get(row);
    return start === undefined ? NaN : this.value[this.endOf(start) - 1]!;
  }

  private endOf(start: number): number {
    let end = start + 1;
    while (end < this.trial.length && this.trial[end] === this.trial[start]) end++;
    return end;
  }
}

export type Link = "connecting" | "open" | "lost" | "none";

export class ExperimentStore {
  experiment: Experiment | null = null;
  error: string | null = null;
  unopened: Unopened | null = null;
  connection: Link = isReport() ? "none" : "connecting";
  lostSince = 0;
  /** Whether the last question had no answer at all: a stream alone may be refused by a server that answers. */
  isAway = false;
  sentences: StoryLine[] = [];
  slowVersion = 0;
  readonly table = new TrialTable();
  readonly curves = new Map<string, CurveSet>();
  /** Why the curves of a metric cannot be had. */
  readonly curveProblems = new Map<string, string>();
  private refusal: string | null = null;
  private readonly wanted = new Set(BASE_COLUMNS);
  private readonly absent = new Set<string>();
  private readonly curveUsers = new Map<string, number>();
  private readonly versions = new Map<string, number>();
  private generation = 0;
  private readonly pending = new Set<string>();
  private pendingAll = false;
  private refreshing = false;
  private slowDue = false;
  private askedAt = 0;
  private isLoaded = false;
  private loadedRecord: number | null = null;
  private finishLoading = (): void => undefined;
  private readonly loaded = new Promise<void>((done) => (this.finishLoading = done));
  private pollTimer = 0;
  private closed = false;
  private frame = 0;
  private subscription: Subscription | null = null;
  private readonly listeners = new Set<() => void>();

  constructor(readonly id: string) {}

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  start(): void {
    if (!isReport()) this.subscribe();
    void this.load();
  }

  close(): void {
    this.closed = true;
    this.subscription?.close();
    clearTimeout(this.pollTimer);
    cancelAnimationFrame(this.frame);
  }

  /** A word that changes whenever something about the trial did. */
  versionOf(trial: string): string {
    return `${this.generation}.${this.versions.get(trial) ?? 0}`;
  }

  /** What is damaged, in a sentence. */
  get damage(): string | null {
    const { damage, journal_damage: journal } = this.experiment ?? {};
    return damage || journal?.message || null;
  }

  /** Whether records of the journal are lost or cannot be read; other damage takes nothing from the results. */
  get hasLostRecords(): boolean {
    return Boolean(this.experiment?.journal_damage || this.experiment?.repair_command);
  }

  /** Why the experiment cannot be followed any more; what was read before is still shown. */
  get unreadable(): string | null {
    const { state = "", why } = this.experiment ?? {};
    return UNREADABLE.includes(state) ? (why ?? "") : null;
  }

  /** What is in the way, other than what is known of the experiment. */
  get problem(): string | null {
    const found = this.error ?? this.refusal;
    return found === this.damage || found === this.unreadable ? null : found;
  }

  get ready(): boolean {
    return this.experiment !== null && this.experiment.loading === null;
  }

  /** Have these columns loaded; those that no trial has are not asked for again until everything is reloaded. */
  async ensure(names: string[]): Promise<void> {
    if (!this.isLoaded) {
      for (const name of names) this.wanted.add(name);
      await this.loaded;
    }
    const missing = names.filter((name) => !this.table.columns.has(name) && !this.absent.has(name));
    if (!missing.length || !this.ready) return;
    for (const name of missing) this.wanted.add(name);
    // Trials that came meanwhile need their ids as well. Those of many trials are the largest part of an answer.
    const asked = this.experiment!.live ? ["trial_id", ...missing] : missing;
    const answer = await this.askColumns({ names: joined(asked) });
    for (const name of missing) {
      if (!answer.columns.has(name)) this.forget(name);
    }
    if (answer.rows < this.table.rows) return;
    if (answer.rows > this.table.rows && !answer.columns.has("trial_id")) return this.demand(true);
    this.table.replace(answer);
    this.notify();
  }

  /** Whether a column is here, or was asked for and no trial has it. */
  knows(name: string): boolean {
    return this.table.columns.has(name) || this.absent.has(name) || Boolean(this.error);
  }

  useCurves(metric: string): () => void {
    this.curveUsers.set(metric, (this.curveUsers.get(metric) ?? 0) + 1);
    if (!this.curves.has(metric)) void this.tryCurves(metric);
    return () => void this.curveUsers.set(metric, (this.curveUsers.get(metric) ?? 1) - 1);
  }

  async reload(): Promise<void> {
    this.error = null;
    await this.load();
  }

  private forget(name: string): void {
    this.absent.add(name);
    this.wanted.delete(name);
  }

  private subscribe(): void {
    const onState = (open: boolean) => {
      if (open === (this.connection === "open")) return;
      if (open && this.connection === "lost") void this.poll();
      const isLost = !open && this.connection !== "lost";
      if (isLost) this.lostSince = Date.now() / 1000;
      this.connection = open ? "open" : "lost";
      if (isLost) void this.poll();
      this.notify();
    };
    const onChange = (change: Change) => this.take(change);
    this.subscription = follow(experimentPath(this.id, "/events"), { onChange, onState, loaded: () => this.loadedRecord });
  }

  private take(change: Change): void {
    for (const sentence of change.sentences ?? []) {
      this.sentences.unshift(typeof sentence === "string" ? { time: Date.now() / 1000, text: sentence } : sentence);
    }
    this.sentences.length = Math.min(this.sentences.length, MAX_SENTENCES);
    for (const trial of change.trials ?? []) {
      this.pending.add(trial);
      this.versions.set(trial, change.record);
    }
    this.demand(Boolean(change.more));
  }

  private demand(all: boolean): void {
    if (all) {
      this.pendingAll = true;
      this.generation++;
    }
    if (!this.refreshing) void this.refresh();
  }

  private async load(): Promise<void> {
    try {
      await this.askExperiment();
      while (!this.ready && !this.closed) {
        this.notify();
        await new Promise((done) => window.setTimeout(done, LOADING_POLL_MS));
        await this.askExperiment();
      }
      const experiment = this.experiment!;
      if (experiment.metric) this.wanted.add(`metric/${experiment.metric}`);
      this.notify();
      await new Promise((done) => window.setTimeout(done, FIRST_PAINT_MS)); // The page says which columns it shows.
      await this.loadColumns();
      this.loadedRecord = this.table.record;
      if (this.experiment!.record > this.table.record) this.demand(true);
    } catch (error) {
      this.fail(error);
    }
    this.isLoaded = true;
    this.finishLoading();
    this.notify();
    this.schedulePoll();
  }

  private schedulePoll(wait = POLL_MS): void {
    if (isReport() || this.closed) return;
    clearTimeout(this.pollTimer);
    this.pollTimer = window.setTimeout(() => void this.poll().finally(() => this.schedulePoll()), wait);
  }

  private pollSoon(): void {
    this.schedulePoll(EXPERIMENT_MS);
  }

  /** Ask how the experiment stands: a driver that dies leaves no record behind. */
  private async poll(): Promise<void> {
    if (document.visibilityState === "hidden") return;
    const before = this.experiment?.state;
    try {
      await this.askExperiment();
      const missed = this.ready && this.experiment!.record > this.table.record && this.connection !== "open";
      if (missed || this.experiment!.state !== before) this.demand(true);
      this.notify();
    } catch (error) {
      this.fail(error);
    }
  }

  private async refresh(): Promise<void> {
    if (!this.ready || this.closed) return;
    this.refreshing = true;
    const began = performance.now();
    const all = this.pendingAll;
    const trials = [...this.pending];
    this.pending.clear();
    this.pendingAll = false;
    try {
      const state = this.experiment!.state;
      if (performance.now() - this.askedAt > EXPERIMENT_MS) await this.askExperiment();
      else this.pollSoon();
      if (this.experiment!.state !== state) this.pendingAll = true;
      await (all ? this.loadColumns() : this.loadRows(trials));
      const used = [...this.curveUsers.keys()].filter((metric) => this.curveUsers.get(metric)! > 0);
      for (const metric of this.curves.keys()) if (!used.includes(metric)) this.curves.delete(metric);
      await Promise.all(used.map((metric) => this.tryCurves(metric, all || !this.curves.has(metric) ? undefined : trials)));
    } catch (error) {
      this.fail(error);
    }
    this.bumpSlowly();
    this.notify();
    const wait = Math.max(MIN_REFRESH_MS, (performance.now() - began) * (all ? 5 : 2));
    window.setTimeout(() => {
      this.refreshing = false;
      if (this.pending.size || this.pendingAll) void this.refresh();
    }, wait);
  }

  /** Charts that the server computes are asked for again at most every few seconds. */
  private bumpSlowly(): void {
    if (this.slowDue) return;
    this.slowDue = true;
    window.setTimeout(() => {
      this.slowDue = false;
      this.slowVersion++;
      this.notify();
    }, SLOW_MS);
  }

  private async askExperiment(): Promise<void> {
    this.askedAt = performance.now();
    this.experiment = await getJson<Experiment>(experimentPath(this.id));
    this.error = this.unopened = null;
    this.isAway = false;
  }

  private async askColumns(query: Record<string, string>): Promise<Columns> {
    return decode(await getBinary(experimentPath(this.id, "/columns"), query));
  }

  private async loadColumns(): Promise<void> {
    this.absent.clear();
    const asked = [...this.wanted]; // More may be wanted by the time of the answer.
    const answer = await this.askColumns({ names: joined(asked) });
    for (const name of asked) if (!answer.columns.has(name)) this.forget(name);
    for (const name of asked) if (!answer.columns.has(name)) this.table.columns.delete(name);
    this.table.replace(answer);
  }

  private async loadRows(trials: string[]): Promise<void> {
    if (!trials.length) return;
    const names = [...this.table.columns.keys()];
    const answer = await this.askColumns({ names: joined(names), trials: joined(trials) });
    if (!this.table.merge(answer)) await this.loadColumns();
  }

  private async loadCurves(metric: string, trials?: string[]): Promise<void> {
    if (trials && !trials.length) return;
    const query = { metric, max_points: MAX_CURVE_POINTS, trials: trials && joined(trials) };
    const answer = decode(await getBinary(experimentPath(this.id, "/curves"), query));
    const known = this.curves.get(metric) ?? new CurveSet();
    if (trials) known.merge(answer);
    else known.replace(answer);
    this.curves.set(metric, known);
    this.curveProblems.delete(metric);
    this.refusal = null;
    this.notify();
  }

  /** Load curves; what is in the way is shown where they would be. */
  private async tryCurves(metric: string, trials?: string[]): Promise<void> {
    try {
      await this.loadCurves(metric, trials);
    } catch (error) {
      this.curveProblems.set(metric, error instanceof Error ? error.message : String(error));
      this.refused(error);
      this.notify();
    }
  }

  /** The server would not answer a question: damage may be the reason, and the experiment says so then. */
  refused(error: unknown): void {
    if (!(error instanceof ApiError) || error.status !== CONFLICT || this.refusal === error.message) return;
    this.refusal = error.message;
    void this.askExperiment().catch((failed) => this.fail(failed)).finally(() => this.notify());
  }

  private fail(error: unknown): void {
    if (this.closed) return;
    this.refused(error);
    this.isAway = error instanceof ApiError && error.status === 0;
    if (this.isAway) return this.notify(); // The banner about the connection says it.
    this.unopened = error instanceof ApiError ? error.unopened : null;
    this.error = error instanceof Error ? error.message : String(error);
    this.notify();
  }

  private notify(): void {
    if (this.frame || this.closed) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of this.listeners) listener();
    });
  }
}

/** A list in a query: what would end an item is encoded inside it. */
export const joined = (items: string[]): string =>
  [...new Set(items)].map((item) => item.replace(/[%,]/g, (c) => encodeURIComponent(c))).join(",");

export const StoreContext = createContext<ExperimentStore>(null!);

/** The store of the experiment that is shown; the component is drawn again whenever it changes. */
export function useStore(): ExperimentStore {
  const store = useContext(StoreContext);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => store.listen(() => redraw(null as never)), [store]);
  return store;
}
