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
  /** Null while it is not over. */
  end: number | null;
  kind: string;
  trial_id?: string | null;
  text: string;
  /** What it has cost; null if nobody knows. */
  lost_s: number | null;
}
interface Recovery {
  note?: string | null;
  end?: number;
  events?: RecoveryEvent[];
  /** Without the seconds that a rewind repeats: they are those of what caused it. */
  lost_s?: number;
  by_kind?: Record<string, { count: number; lost_s: number | null }>;
}

type Mark = "dot" | "cross" | "back" | "diamond" | "square" | "forward";

interface Kind {
  word: string;
  mark: Mark;
  /** What is said where no time was lost. */
  free: string;
}

const NOTHING = "no time lost";
const UNKNOWN = "time lost not known";
/** As the server spells them. */
const KINDS: Record<string, Kind> = {
  driver_lost: { word: "driver lost", mark: "cross", free: NOTHING },
  takeover: { word: "take-over", mark: "diamond", free: NOTHING },
  resume: { word: "resumed", mark: "forward", free: NOTHING },
  crash: { word: "failed for good", mark: "cross", free: NOTHING },
  retry: { word: "retry", mark: "forward", free: NOTHING },
  interrupted: { word: "interrupted", mark: "dot", free: NOTHING },
  rewind: { word: "rewind", mark: "back", free: "iterations thrown away" },
  rejected_checkpoint: { word: "rejected checkpoint", mark: "cross", free: NOTHING },
  storage_outage: { word: "storage outage", mark: "square", free: NOTHING },
  lag: { word: "storage lag", mark: "square", free: NOTHING },
};
const SIGNS: Record<Mark, string> = { dot: "●", cross: "✕", back: "◀", diamond: "◆", square: "■", forward: "▶" };

const kindOf = (kind: string): Kind => KINDS[kind] ?? { word: oneLine(kind.replace(/_/g, " "), 30), mark: "dot", free: NOTHING };
const wordOf = (kind: string): string => kindOf(kind).word;

/** What an incident, or all of a kind, has cost. A rewind repeats the seconds of its cause. */
function lostWords(kind: string, lost: number | null): string {
  if (lost === null) return UNKNOWN;
  if (!lost) return kindOf(kind).free;
  return `${duration(lost)} ${kind === "rewind" ? "repeated" : "lost"}`;
}

/** The total: more than is known if some incidents have cost nobody knows what. */
function totalWords(lost: number, isPartial: boolean): string {
  if (!lost) return isPartial ? "not known" : "none";
  return `${isPartial ? "at least " : ""}${duration(lost)}`;
}

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

/** What is not over reaches to the end of the axis. */
function drawEvents(area: Area, events: RecoveryEvent[], lanes: string[]): void {
  const c = area.context;
  for (const event of events) {
    const [x, y] = [area.x(event.time), area.y(lanes.indexOf(event.kind))];
    const until = event.end === null ? area.left + area.width : area.x(event.end);
    c.fillStyle = colorOf(event.kind, area.colors);
    c.globalAlpha = 0.35;
    c.fillRect(x, y - 5 * area.ratio, Math.max(0, until - x), 10 * area.ratio);
    c.globalAlpha = 0.9;
    shape(c, kindOf(event.kind).mark, x, y, (4.5 + Math.min(5, Math.log10(1 + (event.lost_s ?? 0)) * 2)) * area.ratio);
  }
  c.globalAlpha = 1;
}

function specOf(events: RecoveryEvent[], lanes: string[], until: number, experiment: string): PlotSpec {
  const times = events.flatMap((event) => [event.time, event.end ?? Math.max(until, event.time)]);
  return {
    x: { label: "", time: true, ...around(...extent(times)) },
    y: { label: "", categories: lanes.map((kind) => `${SIGNS[kindOf(kind).mark]} ${wordOf(kind)}`), min: -0.7, max: lanes.length - 0.3 },
    draw: (area) => drawEvents(area, events, lanes),
    hit: (area, left, top) => {
      let [found, best] = [null as RecoveryEvent | null, 18];
      for (const event of events) {
        const dy = Math.abs(area.y(lanes.indexOf(event.kind)) - top);
        const dx = Math.max(0, area.x(event.time) - left, event.end === null ? 0 : left - area.x(event.end));
        if (dy < 12 && dx < best) [found, best] = [event, dx];
      }
      if (!found) return null;
      const lines = [wordOf(found.kind), oneLine(found.text, 160), clock(found.time), lostWords(found.kind, found.lost_s)];
      if (found.end === null) lines.push("not over");
      const href = found.trial_id ? link(experiment, ["trials", found.trial_id]) : undefined;
      return { x: left, y: area.y(lanes.indexOf(found.kind)), lines, href };
    },
  };
}

export function RecoveryChart(_: ChartProps) {
  const store = useStore();
  const answer = useChart<Recovery>("recovery", {});
  const { events = [], by_kind: sums = {}, lost_s: lost = 0, end = 0, note } = answer.data ?? {};
  const lanes = useMemo(() => {
    const present = new Set(events.map((e) => e.kind));
    return [...new Set([...Object.keys(KINDS), ...present])].filter((kind) => present.has(kind)).reverse();
  }, [answer.data]);
  const spec = useMemo(() => (events.length ? specOf(events, lanes, end, store.id) : null), [answer.data]);
  const total = totalWords(lost, events.some((event) => event.lost_s === null));
  // What a driver that is gone has cost is known when the next one starts.
  const gone = store.experiment!.state === "interrupted" ? " before the driver was interrupted" : " so far";
  const nothing = `Nothing went wrong${gone}: no kill, retry, rewind, take-over or storage delay.`;
  const hint = note ?? (store.hasLostRecords ? `What happened is not known. ${store.damage}` : nothing);
  const rewinds = events.some((event) => event.kind === "rewind" && event.lost_s) ? "What a rewind repeats is a part of what caused it, and counts once in the total." : "";
  return (
    <>
      {events.length > 0 && (
        <dl class="tiles" style={{ marginBottom: "16px" }}>
          <div class="tile"><dt>time lost</dt><dd>{total}</dd><dd>repeated or waited for</dd></div>
          {Object.entries(sums).map(([kind, facts]) => (
            <div class="tile"><dt>{`${SIGNS[kindOf(kind).mark]} ${wordOf(kind)}`}</dt><dd>{facts.count}</dd><dd>{lostWords(kind, facts.lost_s)}</dd></div>
          ))}
        </dl>
      )}
      <ChartFrame
        title="Recovery"
        about="What went wrong and how the experiment came back. Larger marks lost more time."
        note={events.length ? [`${plural(events.length, "event")}.`, rewinds, note ?? ""].filter(Boolean).join(" ") : null}
        table={{
          columns: [{ title: "time", width: 170 }, { title: "what", width: 150 }, { title: "trial" }, { title: "lost", width: 150 }, { title: "text", width: 420 }],
          count: events.length,
          cell: (i, c) => {
            const e = events[i]!;
            return [clock(e.time), wordOf(e.kind), e.trial_id ?? "", lostWords(e.kind, e.lost_s), oneLine(e.text, 300)][c]!;
          },
        }}
      >
        {placeholder(answer, !events.length, hint) ?? (
          <Plot spec={spec!} height={110 + Math.max(2, lanes.length) * 34} summary={`Recovery timeline: ${plural(events.length, "event")}, time lost: ${total}`} />
        )}
      </ChartFrame>
    </>
  );
}
