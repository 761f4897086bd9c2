// Parameters as axes: numbers, on a logarithmic scale where the search space or the values say so, or categories.
import { useMemo } from "preact/hooks";
import { type Column, MISSING, type TrialTable, isNumeric, numberAt, sortKeys } from "../columns";
import { oneLine } from "../format";
import { type ExperimentStore, useStore } from "../store";
import { type Json, entryOf } from "../types";
import { useColumns } from "./history";

const MAX_CATEGORIES = 200;
const WIDE = 300;
export const MAX_READ = 30;

export interface ParamAxis {
  name: string;
  log: boolean;
  whole: boolean;
  min: number;
  max: number;
  categories: string[] | null;
  /** Numbers, or places of categories; NaN where a trial has no value. */
  values: Float64Array;
}

function saysLog(space: Json | undefined): boolean | undefined {
  if (space === null || typeof space !== "object" || Array.isArray(space)) return undefined;
  return typeof space.log === "boolean" ? space.log : undefined;
}

export function axisOf(store: ExperimentStore, name: string, column: Column | undefined): ParamAxis {
  const rows = store.table.rows;
  const values = new Float64Array(rows).fill(NaN);
  if (!column) return { name, log: false, whole: false, min: 0, max: 1, categories: null, values };
  if (!isNumeric(column)) return categoryAxis(name, column, rows);
  let [min, max, whole] = [Infinity, -Infinity, true];
  for (let row = 0; row < rows; row++) {
    const v = (values[row] = numberAt(column, row));
    if (!Number.isFinite(v)) continue;
    if (v < min) min = v;
    if (v > max) max = v;
    whole &&= Number.isInteger(v);
  }
  if (min > max) [min, max] = [0, 1];
  const log = min > 0 && (saysLog(entryOf(store.experiment!.space, name)) ?? (!whole && max / min > WIDE));
  return { name, log, whole, min, max, categories: null, values };
}

function categoryAxis(name: string, column: Column, rows: number): ParamAxis {
  const values = sortKeys(column, rows);
  const order = column.values.map((_, code) => code);
  const probe: Column = { ...column, type: "category", data: Uint32Array.from(order) };
  const rank = sortKeys(probe, order.length);
  const categories = new Array<string>(order.length);
  order.forEach((code) => {
    const given = column.values[code]!;
    categories[rank[code]!] = oneLine(typeof given === "string" ? given : given === null ? "None" : JSON.stringify(given), 40);
  });
  return { name, log: false, whole: false, min: 0, max: Math.max(0, categories.length - 1), categories: categories.slice(0, MAX_CATEGORIES), values };
}

/** The parameters that differ between trials, of the first that may be read; null while their columns are on the way. */
export function useVarying(): string[] | null {
  const store = useStore();
  const { table, experiment } = store;
  const names = experiment!.params.slice(0, MAX_READ);
  useColumns(store, names.map((name) => `config/${name}`));
  const isKnown = table.version > 0 && names.every((name) => store.knows(`config/${name}`));
  const key = JSON.stringify(names);
  return useMemo(() => (isKnown ? names.filter((name) => differs(table, table.get(`config/${name}`))) : null), [isKnown, table.version, key]);
}

/** Whether two trials have different values; not having one is no value. */
function differs({ rows }: TrialTable, column: Column | undefined): boolean {
  if (!column) return false;
  let first: number | null = null;
  for (let row = 0; row < rows; row++) {
    const v = column.data[row]!;
    if (Number.isNaN(v) || (column.type === "category" && v === MISSING)) continue;
    if (first === null) first = v;
    else if (v !== first) return true;
  }
  return false;
}

/** Parameters as a default view shows them: those that vary come first. */
export function ordered(params: string[], varying: string[] | null): string[] {
  return varying ? [...varying, ...params.filter((name) => !varying.includes(name))] : params;
}

/** Where a value is on its axis, 0 at the lower end and 1 at the upper. */
export function fractions(axis: ParamAxis): Float64Array {
  const f = axis.log ? Math.log : (v: number) => v;
  const [low, high] = [f(axis.min), f(axis.max)];
  const span = high - low;
  return axis.values.map((v) => (Number.isNaN(v) ? NaN : span ? (f(v) - low) / span : 0.5));
}

/** The place of a value, 0 to 1 for those between the ends. */
export function placeOf(axis: ParamAxis, v: number): number {
  const f = axis.log ? (n: number) => Math.log(Math.max(n, Number.MIN_VALUE)) : (n: number) => n;
  const [low, high] = [f(axis.min), f(axis.max)];
  return high > low ? (f(v) - low) / (high - low) : 0.5;
}

/** The value at a place of the axis: what a brush means in a filter. */
export function valueOf(axis: ParamAxis, fraction: number): number {
  if (!axis.log) return axis.min + fraction * (axis.max - axis.min);
  return Math.exp(Math.log(axis.min) + fraction * (Math.log(axis.max) - Math.log(axis.min)));
}

