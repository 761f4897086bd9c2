// A table of any length: only the rows in sight are in the document.
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useSize } from "./small";

const ROW = 34;
const HEAD = 38;
const SPARE = 6;
const MAX_HEIGHT = 12_000_000; // Browsers cut elements at about 15 million pixels; beyond, scrolling is mapped.

export interface VColumn {
  key: string;
  title: string;
  width: number;
  right?: boolean;
  sortable?: boolean;
  mono?: boolean;
  head?: ComponentChildren;
}

interface Props {
  label: string;
  columns: VColumn[];
  count: number;
  cell: (row: number, column: VColumn) => ComponentChildren;
  height: string;
  active?: number;
  sort?: { key: string; descending: boolean };
  onSort?: (key: string) => void;
  onOpen?: (row: number) => void;
}

export function VTable(props: Props) {
  const { columns, count, active } = props;
  const [box, size] = useSize<HTMLDivElement>();
  const [top, setTop] = useState(0);
  const frame = useRef(0);
  const full = count * ROW;
  const shown = Math.min(full, MAX_HEIGHT);
  const view = Math.max(ROW, size.height - HEAD);
  const ratio = full > shown ? (full - view) / (shown - view) : 1;
  const offset = top * ratio;
  const first = Math.max(0, Math.floor(offset / ROW) - SPARE);
  const last = Math.min(count, Math.ceil((offset + view) / ROW) + SPARE);
  const onScroll = () => {
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      if (box.current) setTop(box.current.scrollTop);
    });
  };
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  useEffect(() => {
    if (active === undefined || active < 0 || !box.current) return;
    const from = active * ROW;
    if (from < offset) box.current.scrollTop = from / ratio;
    else if (from + ROW > offset + view) box.current.scrollTop = (from + ROW - view) / ratio;
  }, [active]);
  const width = columns.reduce((sum, column) => sum + column.width, 0);
  const stretch = Math.max(1, size.width / width);
  const style = {
    height: props.height,
    "--columns": columns.map((c) => `${Math.floor(c.width * stretch)}px`).join(" "),
    "--width": `${width}px`,
  };
  // A row keeps its element while it is in sight: scrolling changes only the rows that come.
  const slots = Math.ceil(view / ROW) + 2 * SPARE + 2;
  const rows = Array.from({ length: last - first }, (_, i) => first + i).sort((a, b) => (a % slots) - (b % slots));
  const rowAt = useRowsInSight(props, slots, ratio === 1);
  return (
    <div class="vtable" role="table" aria-label={props.label} aria-rowcount={count + 1} tabIndex={0} ref={box} style={style} onScroll={onScroll}>
      <Head {...props} />
      <div role="rowgroup" class="vbody" style={{ height: `${shown}px` }}>
        {rows.map((row) => rowAt(row, Math.round(row * ROW - offset + top)))}
      </div>
    </div>
  );
}

/** Draws rows. What was drawn for the same properties is given again, which tells Preact that nothing has changed. */
function useRowsInSight(props: Props, slots: number, areFixed: boolean): (row: number, top: number) => VNode {
  const held = useRef({ props, slots, drawn: new Map<number, VNode>() });
  const isSame = areFixed && held.current.props === props && held.current.slots === slots;
  const before = isSame ? held.current.drawn : new Map<number, VNode>();
  const drawn = new Map<number, VNode>();
  held.current = { props, slots, drawn };
  return (row, top) => {
    const made = before.get(row) ?? <Row key={row % slots} {...props} row={row} top={top} />;
    drawn.set(row, made);
    return made;
  };
}

function Row({ columns, cell, active, onOpen, row, top }: Props & { row: number; top: number }) {
  return (
    <div
      class="vrow"
      style={{ top: `${top}px` }}
      role="row"
      aria-rowindex={row + 2}
      data-active={row === active ? "1" : undefined}
      onDblClick={onOpen && (() => onOpen(row))}
    >
      {columns.map((column) => (
        <div role="cell" class={`${column.right ? "right" : ""}${column.mono ? " mono" : ""}`}>
          {cell(row, column)}
        </div>
      ))}
    </div>
  );
}

function Head({ columns, sort, onSort }: Props) {
  return (
    <div role="rowgroup" class="vhead-group" style={{ position: "sticky", top: 0, zIndex: 2 }}>
      <div class="vhead" role="row" aria-rowindex={1}>
        {columns.map((column) => {
          const sorted = sort?.key === column.key ? (sort.descending ? "descending" : "ascending") : undefined;
          const sorts = column.sortable && onSort && !column.head;
          return (
            <div role="columnheader" class={`${column.right ? "right" : ""}${sorts ? " sorts" : ""}`} aria-sort={sorted} title={column.title}>
              {column.head ??
                (sorts ? (
                  <button type="button" onClick={() => onSort!(column.key)}>
                    <span class="clip">{column.title}</span>
                    {sorted && <span aria-hidden="true">{sort!.descending ? "↓" : "↑"}</span>}
                  </button>
                ) : (
                  <span class="clip">{column.title}</span>
                ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}
