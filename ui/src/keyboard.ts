// Keys that work everywhere; keys typed into a field or a dialog belong to it.
import { go, link } from "./route";

type Handler = (event: KeyboardEvent) => void;
const handlers = new Map<string, Handler[]>();

/** Handle a key while a component is shown; the newest handler wins. Returns a function that ends it. */
export function onKey(key: string, handler: Handler): () => void {
  const list = handlers.get(key) ?? [];
  handlers.set(key, [...list, handler]);
  return () => handlers.set(key, (handlers.get(key) ?? []).filter((known) => known !== handler));
}

function belongsElsewhere(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return true;
  if (event.key === "Escape") return false;
  if (["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName)) return (target as HTMLInputElement).type !== "checkbox";
  return event.key === "Enter" && ["A", "BUTTON", "SUMMARY"].includes(target.tagName);
}

export function listenToKeys(experiment: () => string | null): void {
  const views: Record<string, string[]> = { o: [], t: ["trials"], c: ["charts"] };
  window.addEventListener("keydown", (event) => {
    if (belongsElsewhere(event)) return;
    const own = handlers.get(event.key)?.at(-1);
    const id = experiment();
    if (own) {
      event.preventDefault();
      own(event);
    } else if (event.key === "?") {
      window.dispatchEvent(new Event("holdfast-help"));
    } else if (event.key in views && id) {
      go(link(id, views[event.key]));
    }
  });
}
