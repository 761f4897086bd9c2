// Columns as typed arrays: decoding, one table that grows, sorting. Knows nothing of the page.
import type { Json } from "./types";

export type ColumnType = "f32" | "f64" | "i32" | "category";
export const MISSING = 0xffffffff;

export interface Column {
  name: string;
  type: ColumnType;
  data: Float32Array | Float64Array | Int32Array | Uint32Array;
  values: Json[];
}

export interface Columns {
  rows: number;
  record: number;
  thinned: boolean;
  columns: Map<string, Column>;
}

const ARRAYS = { f32: Float32Array, f64: Float64Array, i32: Int32Array, category: Uint32Array };
const ALIGNMENT = 8;

const aligned = (n: number): number => Math.ceil(n / ALIGNMENT) * ALIGNMENT;

export function decode(buffer: ArrayBuffer): Columns {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = new Map<string, Column>();
  let offset = aligned(4 + length);
  for (const { name, type, values } of head.columns as { name: string; type: ColumnType; values?: Json[] }[]) {
    const data = new ARRAYS[type](buffer, offset, head.rows);
    offset = aligned(offset + data.byteLength);
    columns.set(name, { name, type, data, values: values ?? [] });
  }
  return { rows: head.rows, record: head.record ?? 0, thinned: Boolean(head.thinned), columns };
}

/** The value in a row: a number or a JSON value of a category; null if it is missing, or is Python's None. */
export function valueAt(column: Column | undefined, row: number): Json {
  if (!column) return null;
  const raw = column.data[row];
  if (column.type === "category") return raw === MISSING || raw === undefined ? null : (column.values[raw] ?? null);
  return raw === undefined || Number.isNaN(raw) ? null : raw;
}

/** Whether a row has a value at all: null may be one, as Python's None is. */
export function hasValue(column: Column | undefined, row: number): boolean {
  const raw = column?.data[row];
  return raw !== undefined && !(column!.type === "category" ? raw === MISSING : Number.isNaN(raw));
}

/** The number in a row, NaN if there is none. */
export function numberAt(column: Column | undefined, row: number): number {
  if (!column) return NaN;
  if (column.type !== "category") return column.data[row] ?? NaN;
  const value = valueAt(column, row);
  return typeof value === "number" ? value : NaN;
}

export const isNumeric = (column: Column): boolean =>
  column.type !== "category" || (column.values.length > 0 && column.values.every((v) => typeof v === "number"));

/** The trials of an experiment, one array per column; rows are only added or replaced. */
export class TrialTable {
  rows = 0;
  record = 0;
  version = 0;
  readonly columns = new Map<string, Column>();
  private known: Map<string, number> | null = null;

  get(name: string): Column | undefined {
    return this.columns.get(name);
  }

  row(trial: string): number | undefined {
    return this.rowOf().get(trial);
  }

  /** Rows by id; made when first asked for, because many pages never do. */
  private rowOf(): Map<string, number> {
    if (!this.known) {
      this.known = new Map();
      for (let row = 0; row < this.rows; row++) this.known.set(this.id(row), row);
    }
    return this.known;
  }

  id(row: number): string {
    return String(valueAt(this.columns.get("trial_id"), row) ?? row);
  }

  /** Take a full answer: all rows of these columns. */
  replace(given: Columns): void {
    for (const column of given.columns.values()) this.columns.set(column.name, column);
    this.rows = given.rows;
    this.record = given.record;
    this.version++;
    if (given.columns.has("trial_id")) this.known = null;
  }

  /** Take some rows; returns false if a column is not among them, so that only a full answer helps. */
  merge(given: Columns): boolean {
    const ids = given.columns.get("trial_id");
    if (!ids || [...this.columns.keys()].some((name) => !given.columns.has(name))) return false;
    const rowOf = this.rowOf();
    for (let from = 0; from < given.rows; from++) {
      const id = String(valueAt(ids, from));
      let row = rowOf.get(id);
      if (row === undefined) {
        row = this.rows++;
        rowOf.set(id, row);
      }
      for (const [name, column] of this.columns) {
        this.columns.set(name, put(column, row, given.columns.get(name)!, from));
      }
    }
    this.record = given.record;
    this.version++;
    return true;
  }
}

function put(column: Column, row: number, source: Column, from: number): Column {
  if (source.type !== column.type) column = asCategory(column);
  if (row >= column.data.length) {
    const data = new ARRAYS[column.type](Math.max(16, row * 2));
    data.fill(column.type === "category" ? MISSING : NaN);
    data.set(column.data);
    column = { ...column, data };
  }
  if (column.type === "category") column.data[row] = hasValue(source, from) ? codeOf(column, valueAt(source, from)) : MISSING;
  else column.data[row] = source.data[from]!;
  return column;
}

function asCategory(column: Column): Column {
  if (column.type === "category") return column;
  const made: Column = { name: column.name, type: "category", data: new Uint32Array(column.data.length), values: [] };
  for (let row = 0; row < column.data.length; row++) made.data[row] = hasValue(column, row) ? codeOf(made, valueAt(column, row)) : MISSING;
  return made;
}

const CODES = new WeakMap<Json[], Map<string, number>>();

function codeOf(column: Column, value: Json): number {
  let codes = CODES.get(column.values);
  if (!codes) {
    codes = new Map(column.values.map((known, code) => [JSON.stringify(known), code]));
    CODES.set(column.values, codes);
  }
  const key = JSON.stringify(value);
  let code = codes.get(key);
  if (code === undefined) {
    code = column.values.push(value) - 1;
    codes.set(key, code);
  }
  return code;
}

/** A number per row that sorts as the column does; missing rows are NaN. */
export function sortKeys(column: Column, rows: number): Float64Array {
  const keys = new Float64Array(rows);
  if (column.type !== "category") {
    for (let row = 0; row < rows; row++) keys[row] = column.data[row]!;
    return keys;
  }
  const order = column.values.map((_, code) => code).sort((a, b) => compareValues(column.values[a]!, column.values[b]!));
  const rank = new Float64Array(order.length);
  order.forEach((code, place) => (rank[code] = place));
  for (let row = 0; row < rows; row++) {
    const code = column.data[row]!;
    keys[row] = code === MISSING ? NaN : rank[code]!;
  }
  return keys;
}

/** Numbers, then texts, then None. */
function compareValues(a: Json, b: Json): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
  const [left, right] = [textKey(a), textKey(b)];
  return left < right ? -1 : left > right ? 1 : 0;
}

const textKey = (value: Json): string => (typeof value === "string" ? value : JSON.stringify(value));

/** Sort row numbers by a column; missing values last in both directions; equal values keep their order. */
export function sortRows(rows: Uint32Array, column: Column, total: number, descending: boolean): Uint32Array {
  const keys = sortKeys(column, total);
  const sign = descending ? -1 : 1;
  return rows.sort((a, b) => {
    const [x, y] = [keys[a]!, keys[b]!];
    if (x < y) return -sign;
    if (x > y) return sign;
    if (x === y) return a - b;
    const [left, right] = [Number.isNaN(x), Number.isNaN(y)];
    return left === right ? a - b : left ? 1 : -1;
  });
}
