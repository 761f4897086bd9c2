// Recovery timeline: every kill, retry, rewind, take-over, rejected checkpoint and storage delay, with the time lost.
import { useMemo } from "preact/hooks";
import { clock, duration, oneLine, plural } from "../format";
import { link } from "../route";
import { useStore } from "../store";
import type { Palette } from "../theme";
import { ChartFrame, placeholder, useChart } from "./frame";
import { type Area, Plot, type PlotSpec, around, extent } from "./plot";
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

type Mark = "dot" | "cross" | "back" | "diamond" | "square" | "forward";

interface Kind {
  word: string;
  mark: Mark;
  /** What is said where no time was lost. */
  free: string;
}

const NOTHING = "no time lost";
const KINDS: Record<string, Kind> = {
  driver_lost: { word: "driver lost", mark: "cross", free: "not resumed yet" },
  driver_stopped: { word: "driver stopped", mark: "dot", free: NOTHING },
  takeover: { word: "take-over", mark: "diamond", free: NOTHING },
  resume: { word: "resumed", mark: "forward", free: NOTHING },
  crash: { word: "failed for good", mark: "cross", free: "not run again" },
  retry: { word: "retry", mark: "forward", free: NOTHING },
  rewind: { word: "rewind", mark: "back", free: "iterations thrown away" },
  rejected_checkpoint: { word: "rejected checkpoint", mark: "cross", free: NOTHING },
  storage_outage: { word: "storage outage", mark: "square", free: NOTHING },
  lag: { word: "storage lag", mark: "square", free: NOTHING },
  preempted: { word: "preempted", mark: "dot", free: NOTHING },
  user: { word: "by the user", mark: "dot", free: NOTHING },
};
const SIGNS: Record<Mark, string> = { dot: "●", cross: "✕", back: "◀", diamond: "◆", square: "■", forward: "▶" };

const kindOf = (kind: string): Kind => KINDS[kind] ?? { word: oneLine(kind.replace(/_/g, " "), 30), mark: "dot", free: NOTHING };
const wordOf = (kind: string): string => kindOf(kind).word;
const keyOf = (kind: string): string => kind.replace(/[\s-]+/g, "_");

function colorOf(kind: string, { status, series, muted }: Palette): string {
  if (kind === "driver_lost" || kind === "crash" || kind === "rejected_checkpoint") return status.ERROR!;
  if (kind === "resume") return status.TERMINATED!;
  if (kind === "storage_outage" || kind === "lag") return series[4]!;
  if (kind === "rewind") return series[1]!;
  if (kind === "retry" || kind === "takeover") return series[0]!;
  return muted;
}

function shape(c: CanvasRenderingContext2D, mark: Mark, x: number, y: number, r: number): void {
  c.beginPath();
  if (mark === "dot") c.arc(x, y, r, 0, 2 * Math.PI);
  else if (mark === "square") c.rect(x - r, y - r, 2 * r, 2 * r);
  else {
    const corners: Record<string, [number, number][]> = {
      diamond: [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
      back: [[-1.1, 0], [0.8, -1], [0.8, 1]],
      forward: [[1.1, 0], [-0.8, -1], [-0.8, 1]],
      cross: [[-1, -0.6], [-0.6, -1], [0, -0.4], [0.6, -1], [1, -0.6], [0.4, 0], [1, 0.6], [0.6, 1], [0, 0.4], [-0.6, 1], [-1, 0.6], [-0.4, 0]],
    };
    corners[mark]!.forEach(([dx, dy], i) => (i ? c.lineTo(x + dx * r, y + dy * r) : c.moveTo(x + dx * r, y + dy * r)));
    c.closePath();
  }
  c.fill();
}

/** A driver that nobody has resumed is gone until the end of the axis. */
function drawEvents(area: Area, events: RecoveryEvent[], lanes: string[]): void {
  const c = area.context;
  for (const event of events) {
    const [x, y] = [area.x(event.time), area.y(lanes.indexOf(event.kind))];
    const until = isOpen(event) ? area.left + area.width : event.end ? area.x(event.end) : x;
    c.fillStyle = colorOf(event.kind, area.colors);
    c.globalAlpha = 0.35;
    c.fillRect(x, y - 5 * area.ratio, Math.max(0, until - x), 10 * area.ratio);
    c.globalAlpha = 0.9;
    shape(c, kindOf(event.kind).mark, x, y, (4.5 + Math.min(5, Math.log10(1 + (event.lost_s ?? 0)) * 2)) * area.ratio);
  }
  c.globalAlpha = 1;
}

const isOpen = (event: RecoveryEvent): boolean => event.kind === "driver_lost" && !event.end;

function specOf(events: RecoveryEvent[], lanes: string[], experiment: string): PlotSpec {
  const times = events.flatMap((event) => [event.time, event.end ?? event.time]);
  return {
    x: { label: "", time: true, ...around(...extent(times)) },
    y: { label: "", categories: lanes.map((kind) => `${SIGNS[kindOf(kind).mark]} ${wordOf(kind)}`), min: -0.7, max: lanes.length - 0.3 },
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
  const events = useMemo(() => (answer.data?.events ?? []).map((event) => ({ ...event, kind: keyOf(event.kind) })), [answer.data]);
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
          <div class="tile"><dt>time lost</dt><dd>{lost > 0 ? duration(lost) : "none"}</dd><dd>repeated or waited for</dd></div>
          {kinds.map(([kind, facts]) => (
            <div class="tile"><dt>{`${SIGNS[kindOf(keyOf(kind)).mark]} ${wordOf(keyOf(kind))}`}</dt><dd>{facts.count}</dd><dd>{facts.lost_s ? `${duration(facts.lost_s)} lost` : kindOf(keyOf(kind)).free}</dd></div>
          ))}
        </dl>
      )}
      <ChartFrame
        title="Recovery"
        about="What went wrong and how the experiment came back. Larger marks lost more time."
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
