// Population based training: who copied whom from which checkpoint, and how a parameter changed over time.
import { useMemo } from "preact/hooks";
import { numberAt, valueAt } from "../columns";
import { clock, configValue, number, oneLine } from "../format";
import { Select } from "../parts/small";
import { link } from "../route";
import { type ExperimentStore, useStore } from "../store";
import { type Config, entryOf } from "../types";
import { ChartFrame, placeholder, useChart } from "./frame";
import { useColumns } from "./history";
import { begin, circle, finish } from "./paint";
import { type Area, Plot, type PlotSpec, around, extent, widened } from "./plot";
import type { ChartProps } from "./registry";

type Segment = [start: number, end: number | null, from: number, to: number, config: Config];
interface Node {
  trial_id: string;
  segments: Segment[];
}
interface Edge {
  time: number;
  to: string;
  from: string;
  iteration: number;
  checkpoint: string | number | null;
}
interface Lane extends Node {
  /** From which trial each segment descends. */
  origins: string[];
}
interface Lineage {
  note?: string;
  nodes?: Node[];
  edges?: Edge[];
  params?: string[];
}

const MAX_LANES = 200;
const LEGEND_MAX = 8;

const originAt = (lane: Lane, segment: number): string => lane.origins[Math.min(segment, lane.origins.length - 1)]!;

/** The first trial on top; no segment begins before the experiment. */
function lanesOf(nodes: Node[], begin: number): Lane[] {
  const since = (start: number) => Math.max(start, begin);
  return nodes
    .map((node) => ({ ...node, origins: [], segments: node.segments.map(([start, ...rest]): Segment => [since(start), ...rest]) }))
    .reverse();
}

/** A trial descends from itself, and from the origin of each trial that it copies from then on. */
function withOrigins(lanes: Lane[], edges: Edge[]): Lane[] {
  const origin = new Map(lanes.map(({ trial_id: id }) => [id, id]));
  const found = new Map(lanes.map(({ trial_id: id }) => [id, [id]]));
  for (const { to, from } of [...edges].sort((a, b) => a.time - b.time)) {
    origin.set(to, origin.get(from) ?? from);
    found.get(to)?.push(origin.get(to)!);
  }
  return lanes.map((lane) => ({ ...lane, origins: found.get(lane.trial_id)! }));
}

/** Trials that neither copied nor were copied, of which the table knows what there is to draw. */
function alone(store: ExperimentStore, known: Node[], param: string): Node[] {
  const { table } = store;
  const have = new Set(known.map((node) => node.trial_id));
  const made: Node[] = [];
  for (let row = 0; row < table.rows && made.length < MAX_LANES; row++) {
    const [id, start, end] = [table.id(row), numberAt(table.get("started_at"), row), numberAt(table.get("ended_at"), row)];
    if (have.has(id) || Number.isNaN(start)) continue;
    const config = { [param]: valueAt(table.get(`config/${param}`), row) };
    made.push({ trial_id: id, segments: [[start, Number.isNaN(end) ? null : end, 0, numberAt(table.get("iteration"), row), config]] });
  }
  return made;
}

/** The colour of each origin, the first trial's first; there are fewer colours than trials may be. */
const colorAt = (series: string[], place: number): string => series[place % series.length]!;
const placesOf = (lanes: Lane[]): Map<string, number> => new Map(lanes.map(({ trial_id: id }, i) => [id, lanes.length - 1 - i]));

function drawTree(area: Area, nodes: Lane[], edges: Edge[], laneOf: Map<string, number>, now: number): void {
  const { series, best } = area.colors;
  const places = placesOf(nodes);
  nodes.forEach((node, lane) => {
    node.segments.forEach(([start, end], i) => {
      begin(area, { color: colorAt(series, places.get(originAt(node, i)) ?? 0), width: 5, alpha: 0.8 });
      area.context.moveTo(area.x(start), area.y(lane));
      area.context.lineTo(Math.max(area.x(end ?? now), area.x(start) + 2), area.y(lane));
      finish(area);
    });
  });
  for (const edge of edges) {
    const [from, to] = [laneOf.get(edge.from), laneOf.get(edge.to)];
    if (from === undefined || to === undefined) continue;
    begin(area, { color: best, width: 1.5, dash: [4, 3] });
    area.context.moveTo(area.x(edge.time), area.y(from));
    area.context.lineTo(area.x(edge.time), area.y(to));
    finish(area);
    circle(area, edge.time, to, 3.5, best, true);
  }
}

function treeSpec(nodes: Lane[], edges: Edge[], now: number, experiment: string): PlotSpec {
  const laneOf = new Map(nodes.map((node, lane) => [node.trial_id, lane]));
  const times = nodes.flatMap((node) => node.segments.flatMap(([a, b]) => [a, b ?? now]));
  return {
    x: { label: "", time: true, ...around(...extent(times)) },
    y: { label: "", categories: nodes.map((node) => node.trial_id), min: -0.7, max: nodes.length - 0.3 },
    draw: (area) => drawTree(area, nodes, edges, laneOf, now),
    hit: (area, left, top) => {
      const near = edges.find((e) => Math.abs(area.x(e.time) - left) < 7 && Math.abs(area.y(laneOf.get(e.to) ?? -9) - top) < 9);
      if (near) {
        const lines = [`${near.to} copied ${near.from}`, `checkpoint ${near.checkpoint ?? "?"}, iteration ${near.iteration}`, clock(near.time)];
        return { x: area.x(near.time), y: top, lines, href: link(experiment, ["trials", near.to]) };
      }
      const lane = nodes.findIndex((_n, i) => Math.abs(area.y(i) - top) < 9);
      const segment = nodes[lane]?.segments.find(([a, b]) => left >= area.x(a) && left <= area.x(b ?? now));
      if (!segment) return null;
      const config = Object.entries(segment[4] ?? {}).slice(0, 6).map(([k, v]) => `${oneLine(k, 24)} ${configValue(v, 24)}`);
      const id = nodes[lane]!.trial_id;
      const origin = originAt(nodes[lane]!, nodes[lane]!.segments.indexOf(segment));
      if (origin !== id) config.unshift(`descends from ${origin}`);
      return { x: left, y: area.y(lane), lines: [id, `iterations ${segment[2]} to ${segment[3]}`, ...config], href: link(experiment, ["trials", id]) };
    },
  };
}

function scheduleSpec(nodes: Lane[], param: string, experiment: string): PlotSpec | null {
  const steps = nodes.flatMap((node, lane) =>
    node.segments.map(([, , from, to, config], i) => ({ lane, from, to: Math.max(to, from), v: Number(entryOf(config, param)), origin: originAt(node, i) })),
  );
  const known = steps.filter((s) => Number.isFinite(s.v));
  if (!known.length) return null;
  const [min, max] = extent(known.map((s) => s.v));
  const log = min > 0 && max / min > 30;
  return {
    x: { label: "iteration", whole: true, ...widened(...extent(known.flatMap((s) => [s.from, s.to]))) },
    y: { label: param, log, ...widened(min, max, log) },
    draw: (area) => {
      const places = placesOf(nodes);
      known.forEach((s, i) => {
        begin(area, { color: colorAt(area.colors.series, places.get(s.origin) ?? 0), width: 2, alpha: 0.85 });
        const before = known[i - 1];
        if (before?.lane === s.lane) area.context.moveTo(area.x(before.to), area.y(before.v));
        else area.context.moveTo(area.x(s.from), area.y(s.v));
        area.context.lineTo(area.x(s.from), area.y(s.v));
        area.context.lineTo(area.x(s.to), area.y(s.v));
        finish(area);
      });
    },
    hit: (area, left, top) => {
      const s = known.find((k) => left >= area.x(k.from) - 3 && left <= area.x(k.to) + 3 && Math.abs(area.y(k.v) - top) < 9);
      if (!s) return null;
      const id = nodes[s.lane]!.trial_id;
      return { x: left, y: area.y(s.v), lines: [id, `${oneLine(param, 30)} ${number(s.v)}`, `iterations ${s.from} to ${s.to}`], href: link(experiment, ["trials", id]) };
    },
  };
}

export function LineageChart({ query, change }: ChartProps) {
  const store = useStore();
  const answer = useChart<Lineage>("lineage", {});
  const { edges = [], params = [] } = answer.data ?? {};
  const begin = store.experiment!.started_at ?? 0;
  const now = store.experiment!.state === "running" ? Date.now() / 1000 : (store.experiment!.last_event_at ?? 0);
  const param = query.param ?? params[0] ?? "";
  useColumns(store, param ? [`config/${param}`] : []);
  const { table } = store;
  const nodes = useMemo(() => {
    const involved = answer.data?.nodes ?? [];
    const all = [...involved, ...alone(store, involved, param)].sort((a, b) => (table.row(a.trial_id) ?? 0) - (table.row(b.trial_id) ?? 0));
    return withOrigins(lanesOf(involved.length ? all : [], begin), edges);
  }, [answer.data, begin, param, table.version]);
  const tree = useMemo(() => (nodes.length ? treeSpec(nodes, edges, now, store.id) : null), [nodes]);
  const schedule = useMemo(() => scheduleSpec(nodes, param, store.id), [nodes, param]);
  const copies = `${edges.length} ${edges.length === 1 ? "copy" : "copies"}`;
  const legend = <Legend lanes={nodes} />;
  const steps = useMemo(() => [...nodes].reverse().flatMap((node) => node.segments.map((segment) => ({ id: node.trial_id, segment }))), [nodes]);
  return (
    <>
      <ChartFrame
        title="PBT lineage"
        about="Each lane is a trial; a dashed line shows which trial it copied, from which checkpoint. From then on it has that trial's colour."
        note={edges.length ? [`${copies}.`, answer.data?.note ?? ""].filter(Boolean).join(" ") : null}
        table={{
          columns: [{ title: "time", width: 170 }, { title: "trial" }, { title: "copied" }, { title: "checkpoint", width: 170 }, { title: "iteration", right: true }],
          count: edges.length,
          cell: (i, c) => {
            const e = edges[i]!;
            return [clock(e.time), e.to, e.from, String(e.checkpoint ?? ""), String(e.iteration ?? "")][c]!;
          },
        }}
      >
        {placeholder(answer, !nodes.length || !edges.length, answer.data?.note ?? "No trial copied another. Population based training fills this view.") ?? (
          <>
            <Plot spec={tree!} height={Math.min(900, 90 + Math.max(2, nodes.length) * 26)} summary={`Lineage of ${nodes.length} trials with ${copies}`} />
            {legend}
          </>
        )}
      </ChartFrame>
      {schedule && edges.length > 0 && (
        <div style={{ marginTop: "16px" }}>
          <ChartFrame
            title="Schedule"
            about="The value of a parameter over the iterations of each trial, in the colour of the trial that it descends from."
            controls={<Select label="parameter" value={param} options={params} onChange={(v) => change({ param: v })} />}
            table={{
              columns: [{ title: "trial" }, { title: "from iteration", right: true }, { title: "to iteration", right: true }, { title: param, right: true }],
              count: steps.length,
              cell: (i, c) => {
                const { id, segment } = steps[i]!;
                return [id, String(segment[2]), String(Math.max(segment[3], segment[2])), configValue(entryOf(segment[4], param))][c]!;
              },
            }}
          >
            <Plot spec={schedule} height={340} summary={`Schedule of ${oneLine(param, 60)} in ${nodes.length} trials`} />
            {legend}
          </ChartFrame>
        </div>
      )}
    </>
  );
}

/** What the colours mean; where they repeat, the names at the lanes and the tooltips have to do. */
function Legend({ lanes }: { lanes: Lane[] }) {
  const names = [...lanes].reverse().map((lane) => lane.trial_id);
  if (names.length > LEGEND_MAX) return null;
  return (
    <div class="legend">
      {names.map((id, i) => <span key={id}><i class="dot" style={{ "--c": `var(--series-${i + 1})` }} />{oneLine(id, 40)}</span>)}
    </div>
  );
}
