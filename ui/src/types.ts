// What the server answers: the keys of the command line's --json output, and a few more.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
/** The statuses of trials as the page calls them. */
export const STATUS_WORDS: Record<string, string> = {
  TERMINATED: "done",
  ERROR: "error",
  RUNNING: "running",
  PAUSED: "paused",
  PENDING: "pending",
};
/** States of an experiment that says itself what is wrong; what is wrong with others is damage. */
export const UNREADABLE: readonly string[] = ["newer format", "not found", "unreadable"];
export type Config = { [key: string]: Json };

/** A configuration or a result without levels: `a/b` for nested names, as in columns. */
export function flat(given: Config): [string, Json][] {
  return Object.entries(given).flatMap(([name, value]): [string, Json][] =>
    value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value).map(([below, v]) => [`${name}/${below}`, v]) : [[name, value]],
  );
}

/** What stands under a name that users chose: `toString` and `constructor` are in every object without being an entry. */
export function entryOf<T>(given: { [key: string]: T } | null | undefined, name: string): T | undefined {
  return given && Object.hasOwn(given, name) ? given[name] : undefined;
}

export interface ExperimentEntry {
  id: string;
  name: string;
  path: string;
  state: string;
  error?: string | null;
  damage?: string | null;
  journal_damage?: { message: string } | null;
  unreachable?: string | null;
  counts?: Record<string, number> | null;
  metric?: string | null;
  mode?: string | null;
  best?: Best | TrialRow | number | null;
  trials?: number | null;
  started?: number | null;
  updated?: number | null;
}

/** An experiment that could not be opened, and what is wrong with it. */
export interface Unopened {
  state: string;
  name: string;
  path: string;
}

export interface Best {
  trial: string;
  metric: string;
  value: number;
}

export interface Failure {
  /** What failed, in a few words; `type` is empty where no exception was raised. */
  title: string;
  cause: string;
  type: string;
  message?: string;
  location?: string;
  /** How many trials ended by it, and the ids of the first ones. */
  count: number;
  trials: string[];
}

export interface Note {
  time: number;
  trial_id?: string | null;
  text: string;
}

export interface Experiment {
  id: string;
  name: string;
  path: string;
  /** How it stands; one of UNREADABLE if it cannot be followed any more, for which `why` is the reason. */
  state: string;
  why?: string;
  counts: Record<string, number>;
  total: number | null;
  metric: string | null;
  mode: "min" | "max" | null;
  /** Which direction is better, of the metrics for which that is known. */
  modes?: Record<string, "min" | "max"> | null;
  best: TrialRow | Best | null;
  failures: Failure[];
  reports: number;
  lived_s: number;
  started_at: number | null;
  last_event_at: number | null;
  durable_lag_s: number | null;
  backlog?: { checkpoints: number; bytes: number; oldest_s: number | null; waiting_since?: number | null; text: string } | null;
  holder?: { host: string | null; pid: number | null; since?: number | null; age_s?: number; certain?: boolean } | null;
  journal_damage?: { message: string } | null;
  damage: string | null;
  resume?: string | null;
  resume_command?: string | null;
  /** What to type before a resume, if records are damaged. */
  repair_command?: string | null;
  /** That its store does not answer, and from when the facts are. */
  unreachable?: string | null;
  restore?: string | null;
  loading: { read: number; total: number } | null;
  record: number;
  space?: { [name: string]: Json } | null;
  metrics: string[];
  params: string[];
  notes?: (Note | string)[];
  live: boolean;
  read_only: boolean;
}

export interface ErrorFacts {
  title: string;
  message?: string;
  location?: string;
  traceback?: string | null;
}

export interface Checkpoint {
  index?: number;
  path: string;
  bytes: number | null;
  state: string;
  iteration?: number;
  step?: number;
  reason?: string;
}

export interface Attempt {
  attempt: number;
  started?: number | null;
  ended?: number | null;
  outcome?: string;
  /** Why it ended other than by finishing; empty if it did not. */
  cause?: string;
  worker?: string | null;
}

export interface Copy {
  time?: number;
  from: string;
  checkpoint?: string | null;
  /** The trial that made the checkpoint: `from` may itself have been a copy. */
  checkpoint_of?: string | null;
  iteration?: number | null;
}

export interface TrialRow {
  trial_id: string;
  name?: string;
  status: string;
  interrupted?: boolean;
  iteration: number;
  config: Config;
  last_result?: Config | null;
  metrics?: Config | null;
  attempts: number;
  failures?: number;
  error?: ErrorFacts | null;
  last_failure?: ErrorFacts | null;
  reason?: string;
  on_resume?: string | null;
  started_at?: number | null;
  ended_at?: number | null;
  tags?: string[];
  notes?: (Note | string)[];
}

export interface TrialDetail extends TrialRow {
  attempt_list?: Attempt[];
  checkpoints?: Checkpoint[];
  lineage?: Copy[] | null;
  path?: string;
}

export interface StoryLine {
  time: number;
  kind?: string;
  text: string;
}

export interface Change {
  record: number;
  trials?: string[];
  more?: boolean;
  sentences?: (string | StoryLine)[];
}

declare global {
  interface Window {
    HOLDFAST_REPORT?: {
      experiment: string;
      note?: string;
      /** Or why there is none. */
      responses: Record<string, { json?: Json; base64?: string; error?: string }>;
    };
  }
}
