// Timeline of workers: which trial ran where and when; gaps are idle time.
import { useMemo } from "preact/hooks";
import { clock, duration, oneLine, plural } from "../format";
import { link } from "../route";
import { useStore } from "../store";
import type { Palette } from "../theme";
import { ChartFrame, placeholder, useChart } from "./frame";
import { type Area, Plot, type PlotSpec, extent } from "./plot";
import type { ChartProps } from "./registry";

/** The trial of attempts that were merged is empty. */
type Span = [start: number, end: number, trial: string, attempt: number, outcome: string, lane: number];

interface Workers {
  note?: string | null;
  /** How many attempts ran at the same time at most. */
  lanes?: number;
  busy_s?: number;
  idle_s?: number;
  workers?: Worker[];
}

interface Worker {
  name: string;
  host: string;
  spans: Span[];
}

interface Ran {
  span: Span;
  worker: string;
}

interface Lane {
  name: string;
  /** What ran there, by its start. */
  ran: Ran[];
}

/** One line for each place that a worker had: the processes that followed one another there share it. */
export function lanesOf(workers: Worker[], count: number): Lane[] {
  const lanes = Array.from({ length: count }, () => ({ ran: [] as Ran[], hosts: new Set<string>() }));
  for (const { name, host, spans } of workers) {
    for (const span of spans) {
      const lane = lanes[span[5]]!;
      lane.ran.push({ span, worker: name });
      lane.hosts.add(host);
    }
  }
  const hosts = new Set(workers.map((worker) => worker.host));
  return lanes.map(({ ran, hosts: own }, i) => {
    const [host] = own;
    const slot = `slot ${i + 1}`;
    ran.sort((a, b) => a.span[0] - b.span[0]);
    return { name: hosts.size > 1 && own.size === 1 && host ? `${oneLine(host, 40)} ${slot}` : slot, ran };
  });
}

const LEAST_S = 0.01; // A run this short has no length on an axis of time.
const OUTCOMES = ["done", "running", "failed", "interrupted", "paused", "several"];

function colorOf(outcome: string, colors: Palette): string {
  const { status, series, faint } = colors;
  const known: Record<string, string> = {
    done: status.TERMINATED!,
    running: status.RUNNING!,
    failed: status.ERROR!,
    interrupted: series[4]!,
    paused: faint,
    several: series[6]!,
  };
  return known[outcome] ?? faint;
}

function drawSpans(area: Area, lanes: Lane[]): void {
  const c = area.context;
  const height = Math.min(22 * area.ratio, Math.abs(area.y(0) - area.y(1)) * 0.7);
  lanes.forEach(({ ran }, lane) => {
    const middle = area.y(lane);
    for (const { span: [start, end, , , outcome] } of ran) {
      const [left, right] = [area.x(start), area.x(end)];
      if (right < area.left || left > area.left + area.width) continue;
      c.fillStyle = colorOf(outcome, area.colors);
      c.globalAlpha = 0.85;
      c.fillRect(left, middle - height / 2, Math.max(area.ratio, right - left - area.ratio), height);
    }
  });
  c.globalAlpha = 1;
}

function specOf(lanes: Lane[], experiment: string): PlotSpec {
  const [start, last] = extent(lanes.flatMap(({ ran }) => ran.flatMap(({ span }) => [span[0], span[1]])));
  return {
    x: { label: "", time: true, min: start, max: last - start > LEAST_S ? last : start + 1 },
    y: { label: "", categories: lanes.map(({ name }) => name), min: -0.7, max: lanes.length - 0.3 },
    draw: (area) => drawSpans(area, lanes),
    hit: (area, left, top) => {
      const lane = lanes.findIndex((_lane, i) => Math.abs(area.y(i) - top) < 14);
      const found = lanes[lane]?.ran.find(({ span: [a, b] }) => left >= area.x(a) - 2 && left <= area.x(b) + 2);
      if (!found) return null;
      const [a, b, trial, attempt, outcome] = found.span;
      const what = trial ? [trial, `attempt ${attempt}: ${outcome}`] : ["several attempts", outcome];
      const lines = [...what, `${clock(a, false)}, ${duration(b - a)}`, oneLine(found.worker, 60)];
      return { x: left, y: area.y(lane), lines, href: trial ? link(experiment, ["trials", trial]) : undefined };
    },
  };
}

function idleNote({ busy_s: busy = 0, idle_s: idle = 0 }: Workers): string {
  return busy + idle > 0 ? `Workers were idle for ${Math.round((100 * idle) / (busy + idle))} % of the time (${duration(idle)} in sum).` : "";
}

export function WorkersChart(_: ChartProps) {
  const store = useStore();
  const answer = useChart<Workers>("workers", {});
  const { data } = answer;
  const lanes = useMemo(() => lanesOf(data?.workers ?? [], data?.lanes ?? 0).reverse(), [data]);
  const spans = useMemo(() => [...lanes].reverse().flatMap(({ name, ran }) => ran.map((each) => ({ ...each, name }))), [lanes]);
  const spec = useMemo(() => specOf(lanes, store.id), [lanes]);
  return (
    <ChartFrame
      title="Workers"
      about="Which trial ran on which worker, and when. Each line is a place for one worker. Gaps are idle time, unless no driver lived."
      note={spans.length ? [idleNote(data!), data!.note ?? ""].filter(Boolean).join(" ") : null}
      table={{
        columns: [{ title: "slot" }, { title: "worker" }, { title: "trial" }, { title: "attempt", right: true, width: 80 }, { title: "outcome" }, { title: "start", width: 170 }, { title: "duration" }],
        count: spans.length,
        cell: (i, c) => {
          const { name, worker, span } = spans[i]!;
          const [a, b, trial, attempt, outcome] = span;
          return [name, oneLine(worker), trial || "several", trial ? String(attempt) : "", outcome, clock(a), duration(b - a)][c]!;
        },
      }}
    >
      {placeholder(answer, !spans.length, data?.note ?? "Bars appear as soon as a trial runs.") ?? (
        <>
          <Plot spec={spec} height={Math.min(640, 90 + Math.max(2, lanes.length) * 34)} summary={`Timeline of ${plural(lanes.length, "slot")} with ${plural(spans.length, "attempt")}`} />
          <Legend names={OUTCOMES.filter((name) => spans.some(({ span }) => span[4] === name))} />
        </>
      )}
    </ChartFrame>
  );
}

const LEGEND_COLORS: Record<string, string> = {
  done: "var(--done)", running: "var(--running)", failed: "var(--error)",
  interrupted: "var(--series-5)", paused: "var(--faint)", several: "var(--series-7)",
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
