// Values, times and sizes as short text. What comes from users stays text and never runs or reorders the page.
import type { Json } from "./types";

const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
const DIRECTION_MARKS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const MAX_SHOWN = 20000;

/** Text of others, made visible: control characters and marks that change the direction of writing become symbols. */
export function safe(text: unknown, limit = MAX_SHOWN): string {
  let shown = typeof text === "string" ? text : String(text);
  const length = shown.length;
  if (length > limit) shown = `${shown.slice(0, limit)} ... (${count(length - limit)} more characters)`;
  return shown
    .replace(CONTROLS, (c) => String.fromCharCode(0x2400 + (c.charCodeAt(0) < 0x21 ? c.charCodeAt(0) : 0x21)))
    .replace(DIRECTION_MARKS, (c) => `<U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

/** At most `limit` characters in one line; what is cut ends with an ellipsis. */
export function oneLine(text: unknown, limit = 120): string {
  const line = String(text).slice(0, limit * 4).replace(/\s+/g, " ").trim();
  return safe(line.length > limit ? `${line.slice(0, limit - 1)}…` : line);
}

export function number(value: number | null | undefined, digits = 5): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.max(0, digits - 2));
  return String(Number(value.toPrecision(digits)));
}

export const count = (value: number): string => value.toLocaleString("en-US");

export function value(given: Json | undefined, limit = 80): string {
  if (given === null || given === undefined) return "–";
  if (typeof given === "number") return number(given);
  if (typeof given === "string") return oneLine(given, limit);
  return oneLine(JSON.stringify(given), limit);
}

/** A value of a configuration; null is Python's None, and a value as any other. */
export function configValue(given: Json | undefined, limit = 80): string {
  return given === null ? "None" : value(given, limit);
}

/** With a capital, as a title. */
export const sentenceCase = (words: string): string => oneLine(words.charAt(0).toUpperCase() + words.slice(1), 60);

export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const two = (n: number): string => String(n).padStart(2, "0");

export function clock(seconds: number | null | undefined, withDate = true): string {
  if (!seconds) return "–";
  const d = new Date(seconds * 1000);
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return withDate ? `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time}` : time;
}

export function ago(seconds: number | null | undefined, now = Date.now() / 1000): string {
  if (!seconds) return "–";
  const passed = now - seconds;
  return passed < 2 ? "just now" : `${duration(passed < 60 ? Math.round(passed) : passed)} ago`;
}

export function bytes(n: number | null | undefined): string {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = n;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  return `${unit === 0 ? size : size.toFixed(size < 10 ? 1 : 0)} ${units[unit]}`;
}
