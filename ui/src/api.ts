// The only place that asks questions: of the report in the page if there is one, else of the server.
import type { Experiment, Unopened } from "./types";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** Which experiment could not be opened, and what state that is. */
    readonly unopened: Unopened | null = null,
  ) {
    super(message);
  }
}

export type Query = Record<string, string | number | null | undefined>;

type Responses = NonNullable<Window["HOLDFAST_REPORT"]>["responses"];

const KEPT_IN_REPORTS = ["metric", "x", "y"];
export const CONFLICT = 409; // The answer to questions that damage or a store that is away stands against.
const NOT_FOUND = 404;
const NOT_IN_REPORT = "This view is not in this report. Open the experiment with: holdfast ui PATH";

export const isReport = (): boolean => window.HOLDFAST_REPORT !== undefined;

/** The path below the page, and the query, as sent. */
export function address(path: string, query: Query = {}): string {
  const words = Object.entries(query)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => `${name}=${encode(String(value))}`);
  return words.length ? `${path}?${words.join("&")}` : path;
}

/** As Python's quote(value, safe=""): encodeURIComponent leaves five characters that quote does not. */
export function encode(value: string): string {
  return encodeURIComponent(value).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

function fromReport(path: string, query: Query) {
  const responses: Responses = window.HOLDFAST_REPORT?.responses ?? {};
  const kept: Query = {};
  for (const name of KEPT_IN_REPORTS) kept[name] = query[name];
  const found = responses[`/${address(path, kept)}`] ?? responses[`/${path}`];
  if (!found) throw new ApiError(NOT_FOUND, whyMissing(responses, path));
  if (found.error) throw new ApiError(CONFLICT, found.error);
  return found;
}

/** A damaged experiment cannot be opened either: to send somebody there would be no help. */
function whyMissing(responses: Responses, path: string): string {
  const facts = responses[`/${path.split("/").slice(0, 3).join("/")}`]?.json as Partial<Experiment> | undefined;
  return facts?.journal_damage ? "This view is not in this report, because the journal is damaged." : NOT_IN_REPORT;
}

function bytesOf(base64: string): ArrayBuffer {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

async function ask(url: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "The server does not answer. Is `holdfast ui` still running?");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response: Response): Promise<ApiError> {
  const { status } = response;
  if (status === 401) {
    return new ApiError(status, "The token is missing or wrong. Open the address that `holdfast ui` printed, with its ?token=.");
  }
  try {
    const { error, state, name, path } = await response.json();
    if (typeof error === "string") return new ApiError(status, error, typeof state === "string" ? { state, name, path } : null);
  } catch {
    // No JSON: the status has to do.
  }
  return new ApiError(status, `The server answered ${status} ${response.statusText}`);
}

export async function getJson<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  if (isReport()) {
    const found = fromReport(path, query);
    return (found.json ?? null) as T;
  }
  return (await ask(address(path, query), { signal })).json();
}

export async function getBinary(path: string, query: Query = {}, signal?: AbortSignal): Promise<ArrayBuffer> {
  if (isReport()) return bytesOf(fromReport(path, query).base64 ?? "");
  return (await ask(address(path, query), { signal })).arrayBuffer();
}

export async function post(path: string, body: unknown): Promise<string> {
  const headers = { "Content-Type": "application/json" };
  const response = await ask(path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  return typeof answer?.text === "string" ? answer.text : "Accepted.";
}

export const experimentPath = (id: string, rest = ""): string => `api/experiments/${encodeURIComponent(id)}${rest}`;
export const trialPath = (id: string, trial: string, rest = ""): string =>
  experimentPath(id, `/trials/${encodeURIComponent(trial)}${rest}`);
