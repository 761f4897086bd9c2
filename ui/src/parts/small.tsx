// Small pieces that every page uses.
import type { ComponentChildren } from "preact";
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { ago, oneLine, safe } from "../format";
import { STATUS_WORDS, entryOf } from "../types";

const WORDS: Record<string, string> = { ...STATUS_WORDS, NOT_STARTED: "not started" };

export const statusWord = (status: string): string => entryOf(WORDS, status) ?? oneLine(status, 30);

export function Pill({ state }: { state: string }) {
  return (
    <span class="pill" data-state={state}>
      {statusWord(state)}
    </span>
  );
}

const TICK_MS = 1000;

/** How long ago something was, by the clock of the page: it grows also while nothing is heard. */
export function Ago({ at }: { at: number | null | undefined }) {
  useTick(Boolean(at));
  return <>{ago(at)}</>;
}

/** Draw the component again each second. */
export function useTick(isOn: boolean): void {
  const [, tick] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    if (!isOn) return;
    const timer = setInterval(() => tick(null as never), TICK_MS);
    return () => clearInterval(timer);
  }, [isOn]);
}

export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      setCopied(false);
    }
  };
  return (
    <div class="command">
      <code tabIndex={0}>{safe(text)}</code>
      <button type="button" class="plain" onClick={() => void copy()} aria-label={`Copy: ${oneLine(text, 60)}`}>
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Loading({ what, read, total }: { what: string; read?: number; total?: number }) {
  const known = read !== undefined && total !== undefined && total > 0;
  const percent = known ? Math.min(100, Math.round((100 * read) / total)) : 0;
  return (
    <div class="empty" role="status">
      <h2>{what}</h2>
      {known && (
        <>
          <div class="progress" role="progressbar" aria-label={what} aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100}>
            <span style={{ width: `${percent}%`, background: "var(--accent)" }} />
          </div>
          <p class="small" style={{ marginTop: "8px" }}>{`${percent} %`}</p>
        </>
      )}
    </div>
  );
}

interface SelectProps {
  label: string;
  value: string;
  options: (string | [string, string])[];
  onChange: (value: string) => void;
}

export function Select({ label, value, options, onChange }: SelectProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <select value={value} onChange={(e) => onChange((e.target as HTMLSelectElement).value)}>
        {options.map((option) => {
          const [key, text] = typeof option === "string" ? [option, oneLine(option, 60)] : option;
          return (
            <option key={key} value={key} selected={key === value}>
              {text}
            </option>
          );
        })}
      </select>
    </label>
  );
}

export function Check({ label, checked, onChange }: { label: string; checked: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="field">
      <input type="checkbox" checked={checked} onChange={(e) => onChange((e.target as HTMLInputElement).checked)} />
      <span>{label}</span>
    </label>
  );
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

/** A modal dialog; the browser keeps the focus inside it and closes it with Escape. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current!;
    const before = document.activeElement as HTMLElement | null;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-label={title}
      onCancel={(e) => {
        e.preventDefault();
        onClose();
      }}
      onClick={(e) => e.target === element.current && onClose()}
    >
      <div class="inside">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

/** The width of an element, followed as it changes. */
export function useSize<T extends HTMLElement>(): [{ current: T | null }, { width: number; height: number }] {
  const ref = useRef<T>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    const element = ref.current!;
    const update = () =>
      setSize((old) =>
        old.width === element.clientWidth && old.height === element.clientHeight
          ? old
          : { width: element.clientWidth, height: element.clientHeight },
      );
    const observer = new ResizeObserver(update);
    observer.observe(element);
    update();
    return () => observer.disconnect();
  }, []);
  return [ref, size];
}
