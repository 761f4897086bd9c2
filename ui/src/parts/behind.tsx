// The table behind a chart: the same data as text, made only when it is opened.
import { useState } from "preact/hooks";
import { plural } from "../format";
import { type VColumn, VTable } from "./vtable";

export interface ChartTable {
  columns: { title: string; width?: number; right?: boolean }[];
  count: number;
  cell: (row: number, column: number) => string;
}

export function Behind({ title, table }: { title: string; table: ChartTable }) {
  const [open, setOpen] = useState(false);
  const columns: VColumn[] = table.columns.map(({ title: name, width, right }, i) => ({
    key: String(i),
    title: name,
    width: width ?? 130,
    right,
  }));
  const height = `${Math.min(380, 42 + table.count * 34)}px`;
  return (
    <details class="behind" onToggle={(e) => setOpen((e.currentTarget as HTMLDetailsElement).open)}>
      <summary>{`Data as a table (${plural(table.count, "row")})`}</summary>
      {open && (
        <VTable
          label={`${title}: data`}
          columns={columns}
          count={table.count}
          height={height}
          cell={(row, column) => table.cell(row, Number(column.key))}
        />
      )}
    </details>
  );
}
