// Recovery timeline: every kill, retry, rewind, take-over, rejected checkpoint and storage delay, with the time lost.
import { useMemo } from "preact/hooks";
import { clock, duration, oneLine, plural } from "../format";
import { link } from "../route";
import { useStore } from "../store";
import type { Palette } from "../theme";
import { ChartFrame, placeholder, useChart } from "./frame";
import { type Area, Plot, type PlotSpec, extent, widened } from "./plot";
import type { ChartProps } from "./registry";

interface RecoveryEvent {
  time: number;
  end?: number | null;
  kind: string;
  trial_id?: string | null;
  text: string;
  lost_s?: number | null;
}
interface Recovery {
  note?: string;
  events?: RecoveryEvent[];
  lost_s?: number;
  by_kind?: Record<string, { count: number; lost_s: number }>;
}

const KINDS: Record<string, string> = {
  driver_lost: "driver lost",
  driver_stopped: "driver stopped",
  takeover: "take-over",
  resume: "resumed",
  crash: "crash",
  retry: "retry",
  rewind: "rewind",
  rejected_checkpoint: "rejected checkpoint",
  storage_outage: "storage outage",
  lag: "storage lag",
  preempted: "preempted",
  user: "by the user",
};

const wordOf = (kind: string): string => KINDS[kind] ?? oneLine(kind.replace(/_/g, " "), 30);

function colorOf(kind: string, { status, series, muted }: Palette): string {
  if (kind === "driver_lost" || kind === "crash" || kind === "rejected_checkpoint") return status.ERROR!;
  if (kind === "resume") return status.TERMINATED!;
  if (kind === "storage_outage" || kind === "lag") return series[4]!;
  if (kind === "retry" || kind === "rewind" || kind === "takeover") return series[0]!;
  return muted;
}

function drawEvents(area: Area, events: RecoveryEvent[], lanes: string[]): void {
  const c = area.context;
  for (const event of events) {
    const [x, y] = [area.x(event.time), area.y(lanes.indexOf(event.kind))];
    const until = event.end ? area.x(event.end) : x;
    c.fillStyle = colorOf(event.kind, area.colors);
    c.globalAlpha = 0.35;
    c.fillRect(x, y - 5 * area.ratio, Math.max(0, until - x), 10 * area.ratio);
    c.globalAlpha = 0.9;
    const r = (4 + Math.min(5, Math.log10(1 + (event.lost_s ?? 0)) * 2)) * area.ratio;
    c.beginPath();
    c.arc(x, y, r, 0, 2 * Math.PI);
    c.fill();
  }
  c.globalAlpha = 1;
}

function specOf(events: RecoveryEvent[], lanes: string[], experiment: string): PlotSpec {
  const times = events.flatMap((event) => [event.time, event.end ?? event.time]);
  return {
    x: { label: "", time: true, ...widened(...extent(times)) },
    y: { label: "", categories: lanes.map(wordOf), min: -0.7, max: lanes.length - 0.3 },
    draw: (area) => drawEvents(area, events, lanes),
    hit: (area, left, top) => {
      let [found, best] = [null as RecoveryEvent | null, 18];
      for (const event of events) {
        const dy = Math.abs(area.y(lanes.indexOf(event.kind)) - top);
        const dx = Math.max(0, area.x(event.time) - left, left - area.x(event.end ?? event.time));
        if (dy < 12 && dx < best) [found, best] = [event, dx];
      }
      if (!found) return null;
      const lines = [wordOf(found.kind), oneLine(found.text, 160), clock(found.time)];
      if (found.lost_s) lines.push(`${duration(found.lost_s)} lost`);
      const href = found.trial_id ? link(experiment, ["trials", found.trial_id]) : undefined;
      return { x: left, y: area.y(lanes.indexOf(found.kind)), lines, href };
    },
  };
}

export function RecoveryChart(_: ChartProps) {
  const store = useStore();
  const answer = useChart<Recovery>("recovery", {});
  const events = answer.data?.events ?? [];
  const lanes = useMemo(() => {
    const present = new Set(events.map((e) => e.kind));
    return [...new Set([...Object.keys(KINDS), ...present])].filter((kind) => present.has(kind)).reverse();
  }, [answer.data]);
  const spec = useMemo(() => (events.length ? specOf(events, lanes, store.id) : null), [answer.data]);
  const lost = answer.data?.lost_s ?? events.reduce((sum, event) => sum + (event.lost_s ?? 0), 0);
  const kinds = Object.entries(answer.data?.by_kind ?? {});
  return (
    <>
      {events.length > 0 && (
        <dl class="tiles" style={{ marginBottom: "16px" }}>
          <div class="tile"><dt>time lost</dt><dd>{lost > 0 ? duration(lost) : "nothing"}</dd><dd>repeated or waited for</dd></div>
          {kinds.map(([kind, facts]) => (
            <div class="tile"><dt>{wordOf(kind)}</dt><dd>{facts.count}</dd><dd>{facts.lost_s ? `${duration(facts.lost_s)} lost` : "nothing lost"}</dd></div>
          ))}
        </dl>
      )}
      <ChartFrame
        title="Recovery"
        about="What went wrong and how the experiment came back. Larger dots lost more time."
        note={answer.data?.note ?? (events.length ? plural(events.length, "event") + "." : null)}
        table={{
          columns: [{ title: "time", width: 170 }, { title: "what", width: 150 }, { title: "trial" }, { title: "lost", right: true, width: 90 }, { title: "text", width: 420 }],
          count: events.length,
          cell: (i, c) => {
            const e = events[i]!;
            return [clock(e.time), wordOf(e.kind), e.trial_id ?? "", e.lost_s ? duration(e.lost_s) : "", oneLine(e.text, 300)][c]!;
          },
        }}
      >
        {placeholder(answer, !events.length, "Nothing went wrong so far: no kill, retry, rewind, take-over or storage delay.") ?? (
          <Plot spec={spec!} height={110 + Math.max(2, lanes.length) * 34} summary={`Recovery timeline: ${events.length} events, ${duration(lost)} lost`} />
        )}
      </ChartFrame>
    </>
  );
}
