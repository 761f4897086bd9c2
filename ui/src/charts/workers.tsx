// Timeline of workers: which trial ran where and when; gaps are idle time.
import { useMemo } from "preact/hooks";
import { clock, duration, oneLine } from "../format";
import { link } from "../route";
import { useStore } from "../store";
import type { Palette } from "../theme";
import { ChartFrame, placeholder, useChart } from "./frame";
import { type Area, Plot, type PlotSpec, extent } from "./plot";
import type { ChartProps } from "./registry";

type Span = [start: number, end: number | null, trial: string, attempt: number, outcome: string];

interface Workers {
  note?: string;
  workers?: Worker[];
}

interface Worker {
  name: string;
  host?: string | null;
  /** The slot that the worker had: the processes that followed one another in it are one line. */
  lane?: number | string | null;
  spans: Span[];
  busy_s?: number;
  idle_s?: number;
}

/** One line for each slot, in the order of their numbers; one for each process where slots are not known. */
export function lanesOf(workers: Worker[]): Worker[] {
  const hosts = new Set(workers.map((worker) => worker.host ?? ""));
  const lanes = new Map<string, Worker>();
  for (const worker of workers) {
    const { lane, host } = worker;
    const isKnown = lane !== null && lane !== undefined;
    const key = isKnown ? JSON.stringify([host ?? "", lane]) : worker.name;
    const slot = typeof lane === "number" ? `slot ${lane}` : String(lane);
    const name = isKnown ? (hosts.size > 1 && host ? `${host} ${slot}` : slot) : worker.name;
    const before = lanes.get(key);
    if (!before) lanes.set(key, { ...worker, name });
    else {
      before.spans = [...before.spans, ...worker.spans].sort((a, b) => a[0] - b[0]);
      before.busy_s = (before.busy_s ?? 0) + (worker.busy_s ?? 0);
      before.idle_s = (before.idle_s ?? 0) + (worker.idle_s ?? 0);
    }
  }
  const found = [...lanes.values()];
  if (!found.every(({ lane }) => typeof lane === "number")) return found;
  return found.sort((a, b) => (a.host ?? "").localeCompare(b.host ?? "") || Number(a.lane) - Number(b.lane));
}

const OUTCOMES = ["done", "running", "failed", "interrupted", "stopped", "paused"];

function colorOf(outcome: string, colors: Palette): string {
  const { status, series, faint } = colors;
  const known: Record<string, string> = {
    done: status.TERMINATED!,
    running: status.RUNNING!,
    failed: status.ERROR!,
    interrupted: series[4]!,
    stopped: series[6]!,
    paused: faint,
  };
  return known[outcome] ?? faint;
}

function drawSpans(area: Area, workers: { spans: Span[] }[], now: number): void {
  const c = area.context;
  const height = Math.min(22 * area.ratio, Math.abs(area.y(0) - area.y(1)) * 0.7);
  workers.forEach(({ spans }, lane) => {
    const middle = area.y(lane);
    for (const [start, end, , , outcome] of spans) {
      const [left, right] = [area.x(start), area.x(end ?? now)];
      if (right < area.left || left > area.left + area.width) continue;
      c.fillStyle = colorOf(outcome, area.colors);
      c.globalAlpha = 0.85;
      c.fillRect(left, middle - height / 2, Math.max(area.ratio, right - left - area.ratio), height);
    }
  });
  c.globalAlpha = 1;
}

export function WorkersChart(_: ChartProps) {
  const store = useStore();
  const answer = useChart<Workers>("workers", {});
  const workers = useMemo(() => lanesOf(answer.data?.workers ?? []).reverse(), [answer.data]);
  const spans = useMemo(() => workers.flatMap((w) => w.spans.map((span) => ({ worker: w.name, span }))), [answer.data]);
  const now = store.experiment!.state === "running" ? Date.now() / 1000 : (store.experiment!.last_event_at ?? 0);
  const { spec, idle } = useMemo(() => {
    const [start, last] = extent(spans.flatMap(({ span }) => [span[0], span[1] ?? now]));
    const end = Math.max(last, start + 1);
    const [busy, idleS] = [total(workers, "busy_s"), total(workers, "idle_s")];
    const made: PlotSpec = {
      x: { label: "", time: true, min: start, max: end },
      y: { label: "", categories: workers.map((w) => w.name), min: -0.7, max: workers.length - 0.3 },
      draw: (area) => drawSpans(area, workers, now),
      hit: (area, left, top) => {
        const lane = workers.findIndex((_w, i) => Math.abs(area.y(i) - top) < 14);
        const span = workers[lane]?.spans.find(([a, b]) => left >= area.x(a) - 2 && left <= area.x(b ?? now) + 2);
        if (!span) return null;
        const [a, b, trial, attempt, outcome] = span;
        const lines = [trial, `attempt ${attempt}: ${outcome}`, `${clock(a, false)}, ${duration((b ?? now) - a)}`];
        return { x: left, y: area.y(lane), lines, href: link(store.id, ["trials", trial]) };
      },
    };
    return { spec: made, idle: idleS / (busy + idleS || 1) };
  }, [answer.data, now > 0]);
  return (
    <ChartFrame
      title="Workers"
      about="Which trial ran on which worker, and when. Each line is a place for one worker; gaps are idle time."
      note={answer.data?.note ?? (workers.length ? `Workers were idle for ${Math.round(100 * idle)} % of the time.` : null)}
      table={{
        columns: [{ title: "worker" }, { title: "trial" }, { title: "attempt", right: true, width: 80 }, { title: "outcome" }, { title: "start", width: 170 }, { title: "duration" }],
        count: spans.length,
        cell: (i, c) => {
          const { worker, span } = spans[i]!;
          return [oneLine(worker), span[2], String(span[3]), span[4], clock(span[0]), duration((span[1] ?? now) - span[0])][c]!;
        },
      }}
    >
      {placeholder(answer, !spans.length, "Bars appear as soon as a trial runs.") ?? (
        <>
          <Plot spec={spec} height={Math.min(640, 90 + Math.max(2, workers.length) * 34)} summary={`Timeline of ${workers.length} workers with ${spans.length} attempts`} />
          <Legend names={OUTCOMES.filter((name) => spans.some(({ span }) => span[4] === name))} />
        </>
      )}
    </ChartFrame>
  );
}

const total = (workers: { busy_s?: number; idle_s?: number }[], key: "busy_s" | "idle_s"): number =>
  workers.reduce((sum, worker) => sum + (worker[key] ?? 0), 0);

const LEGEND_COLORS: Record<string, string> = {
  done: "var(--done)", running: "var(--running)", failed: "var(--error)",
  interrupted: "var(--series-5)", stopped: "var(--series-7)", paused: "var(--faint)",
};

function Legend({ names }: { names: string[] }) {
  return (
    <div class="legend">
      {names.map((name) => (
        <span><i class="dot" style={{ "--c": LEGEND_COLORS[name] }} />{name}</span>
      ))}
    </div>
  );
}
