// Light, dark, or as the system says; colours for canvases come from the style sheet, so that both agree.
import { useEffect, useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";
const KEY = "holdfast-theme";
const ORDER: Theme[] = ["system", "light", "dark"];
const listeners = new Set<() => void>();
let cached: Palette | null = null;

export interface Palette {
  text: string;
  muted: string;
  faint: string;
  line: string;
  surface: string;
  accent: string;
  best: string;
  error: string;
  series: string[];
  ramp: string[];
  status: Record<string, string>;
  isDark: boolean;
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");

export function storedTheme(): Theme {
  try {
    const stored = localStorage.getItem(KEY) as Theme | null;
    return stored && ORDER.includes(stored) ? stored : "system";
  } catch {
    return "system";
  }
}

export function applyTheme(theme: Theme): void {
  const isDark = theme === "dark" || (theme === "system" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  cached = null;
  for (const listener of listeners) listener();
}

export function chooseTheme(theme: Theme): void {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Not remembered then.
  }
  applyTheme(theme);
}

export const nextTheme = (theme: Theme): Theme => ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]!;

dark.addEventListener("change", () => applyTheme(storedTheme()));

export function palette(): Palette {
  if (cached) return cached;
  const style = getComputedStyle(document.documentElement);
  const get = (name: string) => style.getPropertyValue(`--${name}`).trim();
  cached = {
    text: get("text"),
    muted: get("muted"),
    faint: get("faint"),
    line: get("line"),
    surface: get("surface"),
    accent: get("accent"),
    best: get("best"),
    error: get("error"),
    series: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => get(`series-${n}`)),
    ramp: [1, 2, 3, 4, 5, 6, 7].map((n) => get(`ramp-${n}`)),
    status: {
      RUNNING: get("running"),
      TERMINATED: get("done"),
      ERROR: get("error"),
      PAUSED: get("paused"),
      PENDING: get("pending"),
      NOT_STARTED: get("pending"),
    },
    isDark: document.documentElement.dataset.theme === "dark",
  };
  return cached;
}

export function usePalette(): Palette {
  const [, bump] = useState(0);
  useEffect(() => {
    const listener = () => bump((n) => n + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return palette();
}

/** A colour between the ends of the ramp; 0 is the best, 1 the worst. */
export function rampAt(ramp: string[], fraction: number): string {
  const at = Math.min(1, Math.max(0, fraction)) * (ramp.length - 1);
  return ramp[Math.round(at)]!;
}

export function rgb(hex: string): [number, number, number] {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** The ramp as 256 colours, mixed linearly: for heat maps. */
export function rampTable(ramp: string[]): [number, number, number][] {
  const ends = ramp.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (ends.length - 1);
    const low = Math.min(ends.length - 2, Math.floor(at));
    const mix = at - low;
    return [0, 1, 2].map((c) => Math.round(ends[low]![c]! * (1 - mix) + ends[low + 1]![c]! * mix)) as [number, number, number];
  });
}
