// The filter language of the trial table: `loss < 0.3 and status == ERROR`. The server has the same in Python;
// tests/ui/filter_cases.json holds both to the same answers.
import { type Column, MISSING, valueAt } from "./columns";
import { STATUS_WORDS, type Json } from "./types";

export class FilterError extends Error {
  constructor(
    readonly place: number,
    message: string,
  ) {
    super(`${message} (at character ${place + 1})`);
  }
}

export type Test = (row: number) => boolean;
type Token = { kind: "name" | "word" | "number" | "text" | "op" | "end"; text: string; place: number; value?: Json };

const OPERATORS = ["==", "!=", "<=", ">=", "<", ">", "(", ")"];
const WORD = /[A-Za-z_\u0080-\uffff][\w./\-\u0080-\uffff]*/y;
const NUMBER = /[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?/y;
const CONSTANTS = new Map<string, Json>([["true", true], ["false", false], ["null", null], ["True", true], ["False", false], ["None", null]]);
const PREFIXES = ["", "metric/", "config/"];

function tokens(text: string): Token[] {
  const found: Token[] = [];
  let place = 0;
  while (place < text.length) {
    if (/\s/.test(text[place]!)) {
      place++;
      continue;
    }
    const token = tokenAt(text, place);
    found.push(token);
    place += token.text.length;
  }
  return [...found, { kind: "end", text: "", place: text.length }];
}

function tokenAt(text: string, place: number): Token {
  const c = text[place]!;
  if (c === "'" || c === '"' || c === "`") {
    const end = text.indexOf(c, place + 1);
    if (end < 0) throw new FilterError(place, "A quote is not closed");
    const kind = c === "`" ? "name" : "text";
    return { kind, text: text.slice(place, end + 1), place, value: text.slice(place + 1, end) };
  }
  const operator = OPERATORS.find((op) => text.startsWith(op, place));
  if (operator) return { kind: "op", text: operator, place };
  if (c === "=") throw new FilterError(place, "Write == to compare, not =");
  for (const [kind, pattern] of [["number", NUMBER], ["word", WORD]] as const) {
    pattern.lastIndex = place;
    const match = pattern.exec(text)?.[0];
    if (match) return { kind, text: match, place, value: kind === "number" ? Number(match) : match };
  }
  throw new FilterError(place, `${c} means nothing here`);
}

/** The names that a filter mentions, as far as it can be read; the page loads these columns before it filters. */
export function namesIn(text: string): string[] {
  try {
    const all = tokens(text);
    return all.filter((t, i) => (t.kind === "word" || t.kind === "name") && isComparison(all[i + 1])).map((t) => String(t.value));
  } catch {
    return [];
  }
}

const EQUALITIES = ["==", "!="];
const COMPARISONS = ["==", "!=", "<", "<=", ">", ">="];
const isComparison = (token: Token | undefined): boolean =>
  token !== undefined &&
  ((token.kind === "op" && COMPARISONS.includes(token.text)) || (token.kind === "word" && token.text === "contains"));

/** Which of the known columns a name means, or undefined. */
export function resolve(name: string, known: (column: string) => boolean): string | undefined {
  return PREFIXES.map((prefix) => prefix + name).find(known);
}

class Parser {
  private at = 0;
  private readonly all: Token[];

  constructor(
    text: string,
    private readonly column: (name: string) => Column | undefined,
  ) {
    this.all = tokens(text);
  }

  parse(): Test {
    const test = this.either();
    const token = this.peek();
    if (token.kind !== "end") throw new FilterError(token.place, `Expected and, or, or the end, not ${token.text}`);
    return test;
  }

  private peek(): Token {
    return this.all[this.at]!;
  }

  private takeWord(word: string): boolean {
    const token = this.peek();
    const found = (token.kind === "word" || token.kind === "op") && token.text === word;
    if (found) this.at++;
    return found;
  }

  private either(): Test {
    let left = this.both();
    while (this.takeWord("or")) {
      const [a, b] = [left, this.both()];
      left = (row) => a(row) || b(row);
    }
    return left;
  }

  private both(): Test {
    let left = this.single();
    while (this.takeWord("and")) {
      const [a, b] = [left, this.single()];
      left = (row) => a(row) && b(row);
    }
    return left;
  }

  private single(): Test {
    if (this.takeWord("not")) {
      const test = this.single();
      return (row) => !test(row);
    }
    if (this.takeWord("(")) {
      const test = this.either();
      if (!this.takeWord(")")) throw new FilterError(this.peek().place, "Expected )");
      return test;
    }
    return this.comparison();
  }

  private comparison(): Test {
    const name = this.peek();
    if (name.kind !== "word" && name.kind !== "name") throw new FilterError(name.place, "Expected a name");
    this.at++;
    const column = this.column(String(name.value));
    if (!column) throw new FilterError(name.place, `No trial has ${String(name.value)}`);
    const operator = this.peek();
    if (!isComparison(operator)) {
      throw new FilterError(operator.place, "Expected one of == != < <= > >= contains after the name");
    }
    this.at++;
    return compare(column, operator.text, this.literal(column.name === "status" && EQUALITIES.includes(operator.text)));
  }

  private literal(isStatus: boolean): Json {
    const token = this.peek();
    if (token.kind === "end" || token.kind === "op") throw new FilterError(token.place, "Expected a value");
    this.at++;
    const given = token.kind === "word" && CONSTANTS.has(token.text) ? CONSTANTS.get(token.text)! : token.value!;
    return isStatus && given !== null ? statusOf(token) : given;
  }
}

/** A status by its name or by the word that the page shows, in any case. */
function statusOf({ text, place, value }: Token): Json {
  const given = String(value).toLowerCase();
  if (given === "failed") return "ERROR"; // As counts of trials call it.
  const found = Object.entries(STATUS_WORDS).find(([name, word]) => [name.toLowerCase(), word].includes(given));
  if (found) return found[0];
  throw new FilterError(place, `No status is called ${text}. There are: ${Object.values(STATUS_WORDS).join(", ")}`);
}

function compare(column: Column, operator: string, literal: Json): Test {
  if (column.type === "category") {
    const passes = column.values.map((value) => holds(value, operator, literal));
    const missing = holds(null, operator, literal);
    return (row) => {
      const code = column.data[row]!;
      return code === MISSING ? missing : passes[code]!;
    };
  }
  return (row) => holds(valueAt(column, row), operator, literal);
}

function holds(value: Json, operator: string, literal: Json): boolean {
  if (operator === "==") return value === literal;
  if (operator === "!=") return value !== literal;
  if (value === null || literal === null) return false;
  if (operator === "contains") return asText(value).toLowerCase().includes(asText(literal).toLowerCase());
  const comparable = typeof value === typeof literal && (typeof value === "number" || typeof value === "string");
  if (!comparable) return false;
  if (operator === "<") return value < literal;
  if (operator === "<=") return value <= literal;
  if (operator === ">") return value > literal;
  return value >= literal;
}

const asText = (value: Json): string => (typeof value === "string" ? value : JSON.stringify(value));

/** Make a test of rows; an empty filter passes all. Throws a FilterError that names the place. */
export function compile(text: string, columns: Map<string, Column>): Test {
  if (!text.trim()) return () => true;
  const lookup = (name: string) => {
    const found = resolve(name, (column) => columns.has(column));
    return found === undefined ? undefined : columns.get(found);
  };
  return new Parser(text, lookup).parse();
}
