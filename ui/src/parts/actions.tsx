// Buttons that change something: each asks first, and says what the server answered.
import { useState } from "preact/hooks";
import { experimentPath, isReport, post } from "../api";
import { oneLine, safe } from "../format";
import { useStore } from "../store";
import { Dialog } from "./small";

interface Action {
  name: string;
  title: string;
  explain: string;
  path: string;
  field?: "text" | "number" | "tags";
  label?: string;
  initial?: string;
  confirm: string;
  danger?: boolean;
  body: (value: string) => unknown;
}

const STOP_ALL: Action = {
  name: "Stop",
  title: "Stop the experiment?",
  explain: "Running trials save first, as after Ctrl+C. Everything stays resumable with `holdfast resume`.",
  path: "/stop",
  confirm: "Stop all trials",
  danger: true,
  body: () => ({}),
};

const ADD_SAMPLES: Action = {
  name: "Add samples",
  title: "Add samples",
  explain: "The search creates this many trials more.",
  path: "/samples",
  field: "number",
  label: "Number of new trials",
  initial: "10",
  confirm: "Add",
  body: (value) => ({ num_samples: Number(value) }),
};

const note = (trial?: string): Action => ({
  name: "Note",
  title: trial ? `Note about ${trial}` : "Note about the experiment",
  explain: "A note is kept in the journal, with the time.",
  path: "/note",
  field: "text",
  label: "Text",
  confirm: "Save the note",
  body: (text) => ({ trial, text }),
});

const tag = (trial: string, tags: string[]): Action => ({
  name: "Tags",
  title: `Tags of ${trial}`,
  explain: "Words separated by commas.",
  path: "/tag",
  field: "tags",
  label: "Tags",
  initial: tags.join(", "),
  confirm: "Save the tags",
  body: (text) => ({ trial, tags: text.split(",").map((word) => word.trim()).filter(Boolean) }),
});

const stopTrial = (trial: string): Action => ({
  name: "Stop this trial",
  title: `Stop trial ${trial}?`,
  explain: "The trial ends with its last report; it is not run again. Other trials go on.",
  path: "/stop",
  confirm: "Stop the trial",
  danger: true,
  body: () => ({ trial }),
});

export function ExperimentActions() {
  const { experiment } = useStore();
  if (!experiment || experiment.read_only || isReport()) return null;
  return <Actions list={experiment.live ? [note(), ADD_SAMPLES, STOP_ALL] : [note()]} />;
}

export function TrialActions({ trial, tags, ended }: { trial: string; tags: string[]; ended: boolean }) {
  const { experiment } = useStore();
  if (!experiment || experiment.read_only || isReport()) return null;
  const list = [note(trial), tag(trial, tags)];
  return <Actions list={experiment.live && !ended ? [...list, stopTrial(trial)] : list} />;
}

function Actions({ list }: { list: Action[] }) {
  const [open, setOpen] = useState<Action | null>(null);
  const [said, setSaid] = useState<string | null>(null);
  const done = (text: string) => {
    setOpen(null);
    setSaid(text);
    window.setTimeout(() => setSaid(null), 5000);
  };
  return (
    <div class="actions">
      {list.map((action) => (
        <button type="button" class={action.danger ? "danger" : ""} onClick={() => setOpen(action)}>
          {action.name}
        </button>
      ))}
      {open && <ActionDialog action={open} onClose={() => setOpen(null)} onDone={done} />}
      <div role="status">{said && <p class="toast">{safe(said, 400)}</p>}</div>
    </div>
  );
}

interface ActionDialogProps {
  action: Action;
  onClose: () => void;
  onDone: (text: string) => void;
}

function ActionDialog({ action, onClose, onDone }: ActionDialogProps) {
  const store = useStore();
  const [value, setValue] = useState(action.initial ?? "");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const isValid = !action.field || action.field === "tags" || (action.field === "number" ? Number(value) >= 1 && Number.isInteger(Number(value)) : value.trim() !== "");
  const send = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      onDone(await post(experimentPath(store.id, action.path), action.body(value)));
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  const change = (e: Event) => setValue((e.target as HTMLInputElement).value);
  return (
    <Dialog title={oneLine(action.title)} onClose={onClose}>
      <p class="muted">{action.explain}</p>
      <form style={{ padding: 0 }} onSubmit={(e) => void send(e)}>
        {action.field && (
          <label>
            <span class="small muted">{action.label}</span>
            {action.field === "text" ? (
              <textarea value={value} onInput={change} maxLength={10000} />
            ) : (
              <input style={{ width: "100%" }} type={action.field === "number" ? "number" : "text"} min={1} value={value} onInput={change} />
            )}
          </label>
        )}
        {problem && <p class="problem" role="alert">{safe(problem, 1000)}</p>}
        <div class="actions">
          <button type="button" onClick={onClose}>Cancel</button>
          <button type="submit" class={`primary${action.danger ? " danger" : ""}`} disabled={!isValid || busy}>{action.confirm}</button>
        </div>
      </form>
    </Dialog>
  );
}
