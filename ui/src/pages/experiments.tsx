// The list of experiments below the path that was opened.
import { clock, count, number, oneLine, plural, safe } from "../format";
import { Ago, Empty, Pill } from "../parts/small";
import { link } from "../route";
import { type ExperimentEntry, UNREADABLE, entryOf } from "../types";

export function bestValue(entry: ExperimentEntry): number | null {
  const { best, metric } = entry;
  if (typeof best === "number") return best;
  if (!best) return null;
  if ("value" in best) return best.value;
  const value = metric ? entryOf(best.last_result ?? best.metrics, metric) : null;
  return typeof value === "number" ? value : null;
}

export function ExperimentsPage({ entries }: { entries: ExperimentEntry[] }) {
  const sorted = [...entries].sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
  if (!entries.length) {
    return (
      <div class="card">
        <Empty title="No experiment yet"><p>Experiments appear as soon as a Tuner with this storage_path runs.</p></Empty>
      </div>
    );
  }
  return (
    <>
      <div class="page-head"><div><h1>Experiments</h1><p>{plural(entries.length, "experiment")}</p></div></div>
      <div class="card scroll-x" tabIndex={0} role="region" aria-label="Experiments">
        <table class="plain-table whole-words">
          <thead>
            <tr><th>name</th><th>state</th><th class="right">trials</th><th class="right">errors</th><th>best</th><th>started</th><th>last event</th></tr>
          </thead>
          <tbody>{sorted.map((entry) => <Row key={entry.id} entry={entry} />)}</tbody>
        </table>
      </div>
    </>
  );
}

function Row({ entry }: { entry: ExperimentEntry }) {
  const best = bestValue(entry);
  const ended = (entry.counts?.TERMINATED ?? 0) + (entry.counts?.ERROR ?? 0);
  const errors = entry.counts?.ERROR ?? 0;
  const damage = entry.damage || entry.journal_damage?.message || entry.error;
  return (
    <tr>
      <td class="name-cell">
        <a href={link(entry.id)} class="wrap"><bdi>{oneLine(entry.name, 100)}</bdi></a>
        {damage || entry.unreachable ? <p class="problem" style={{ margin: 0 }}>{safe(damage || entry.unreachable, 300)}</p> : <p class="small muted clip" title={oneLine(entry.path, 300)}>{oneLine(entry.path, 200)}</p>}
      </td>
      <td><Pill state={damage && !UNREADABLE.includes(entry.state) ? "damaged" : entry.state} /></td>
      <td class="right">{`${count(ended)} / ${count(entry.trials ?? 0)}`}</td>
      <td class="right">{errors ? count(errors) : "–"}</td>
      <td>{best === null ? "–" : `${oneLine(entry.metric ?? "", 30)} ${number(best)}`}</td>
      <td style={{ whiteSpace: "nowrap" }}>{clock(entry.started)}</td>
      <td style={{ whiteSpace: "nowrap" }}><Ago at={entry.updated} /></td>
    </tr>
  );
}
