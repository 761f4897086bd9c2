// Painting into the area of a plot: points, or their density where they are too many; lines; finding the nearest.
import { rgb } from "../theme";
import type { Area } from "./plot";

const MANY_POINTS = 4000;
const REACH = 24;

export interface Points {
  xs: ArrayLike<number>;
  ys: ArrayLike<number>;
  count: number;
}

/** Points of one colour. Thousands are drawn as density into pixels, which costs the same for any number. */
export function points(area: Area, { xs, ys, count }: Points, color: string, radius = 3.5): void {
  if (count > MANY_POINTS) {
    density(area, { xs, ys, count }, color);
    return;
  }
  const { context: c, ratio } = area;
  const r = radius * ratio;
  c.fillStyle = color;
  c.globalAlpha = count > 500 ? 0.5 : 0.75;
  c.beginPath();
  for (let i = 0; i < count; i++) {
    const [x, y] = [area.x(xs[i]!), area.y(ys[i]!)];
    if (!Number.isFinite(x) || !Number.isFinite(y)) continue;
    c.moveTo(x + r, y);
    c.arc(x, y, r, 0, 2 * Math.PI);
  }
  c.fill();
  c.globalAlpha = 1;
}

export function density(area: Area, { xs, ys, count }: Points, color: string): void {
  const [width, height] = [Math.max(1, Math.ceil(area.width)), Math.max(1, Math.ceil(area.height))];
  const counts = new Uint32Array(width * height);
  for (let i = 0; i < count; i++) {
    const x = Math.round(area.x(xs[i]!) - area.left);
    const y = Math.round(area.y(ys[i]!) - area.top);
    if (!(x >= 1 && y >= 1 && x < width - 1 && y < height - 1)) continue;
    const at = y * width + x;
    counts[at]! += 1;
  }
  stamp(area, spread(counts, width, height), width, height, color);
}

/** A point covers the pixels around its own, the nearer the more. Once for each pixel that is hit, not for each point. */
function spread(hits: Uint32Array, width: number, height: number): Uint32Array {
  const counts = new Uint32Array(width * height);
  for (let y = 1; y < height - 1; y++) {
    for (let at = y * width + 1; at < (y + 1) * width - 1; at++) {
      const n = hits[at]!;
      if (!n) continue;
      counts[at]! += 3 * n;
      counts[at - 1]! += 2 * n;
      counts[at + 1]! += 2 * n;
      counts[at - width]! += 2 * n;
      counts[at + width]! += 2 * n;
      counts[at - width - 1]! += n;
      counts[at - width + 1]! += n;
      counts[at + width - 1]! += n;
      counts[at + width + 1]! += n;
    }
  }
  return counts;
}

/** Write counts as opacity of one colour; offscreen first, because putImageData would erase the grid. */
export function stamp(area: Area, counts: Uint32Array, width: number, height: number, color: string): void {
  const [r, g, b] = rgb(color);
  const image = new ImageData(width, height);
  for (let i = 0; i < counts.length; i++) {
    const n = counts[i]!;
    if (!n) continue;
    image.data[4 * i] = r;
    image.data[4 * i + 1] = g;
    image.data[4 * i + 2] = b;
    image.data[4 * i + 3] = Math.min(255, 60 + 40 * Math.log2(1 + n));
  }
  const sheet = document.createElement("canvas");
  sheet.width = width;
  sheet.height = height;
  sheet.getContext("2d")!.putImageData(image, 0, 0);
  area.context.drawImage(sheet, area.left, area.top);
}

export interface Stroke {
  color: string;
  width?: number;
  alpha?: number;
  dash?: number[];
}

export function polyline(area: Area, { xs, ys, count }: Points, stroke: Stroke, stepped = false): void {
  begin(area, stroke);
  trace(area, { xs, ys, count }, stepped);
  finish(area);
}

export function begin(area: Area, { color, width = 1.5, alpha = 1, dash = [] }: Stroke): void {
  const c = area.context;
  c.strokeStyle = color;
  c.globalAlpha = alpha;
  c.lineWidth = width * area.ratio;
  c.lineJoin = "round";
  c.setLineDash(dash.map((d) => d * area.ratio));
  c.beginPath();
}

export function trace(area: Area, { xs, ys, count }: Points, stepped = false): void {
  const c = area.context;
  let drawn = false;
  let before = 0;
  for (let i = 0; i < count; i++) {
    const [x, y] = [area.x(xs[i]!), area.y(ys[i]!)];
    if (!Number.isFinite(x) || !Number.isFinite(y)) {
      drawn = false;
      continue;
    }
    if (!drawn) c.moveTo(x, y);
    else {
      if (stepped) c.lineTo(x, before);
      c.lineTo(x, y);
    }
    drawn = true;
    before = y;
  }
}

export function finish(area: Area): void {
  area.context.stroke();
  area.context.globalAlpha = 1;
  area.context.setLineDash([]);
}

export function circle(area: Area, x: number, y: number, radius: number, color: string, filled: boolean): void {
  const c = area.context;
  c.beginPath();
  c.arc(area.x(x), area.y(y), radius * area.ratio, 0, 2 * Math.PI);
  c.fillStyle = filled ? color : area.colors.surface;
  c.fill();
  c.lineWidth = 1.5 * area.ratio;
  c.strokeStyle = color;
  c.stroke();
}

export function cross(area: Area, x: number, y: number, radius: number, color: string): void {
  const c = area.context;
  const [px, py, r] = [area.x(x), area.y(y), radius * area.ratio];
  c.beginPath();
  c.moveTo(px - r, py - r);
  c.lineTo(px + r, py + r);
  c.moveTo(px - r, py + r);
  c.lineTo(px + r, py - r);
  c.lineWidth = 1.8 * area.ratio;
  c.strokeStyle = color;
  c.stroke();
}

/** The point nearest to a place, or -1 if none is within reach. */
export function nearest(area: Area, { xs, ys, count }: Points, left: number, top: number): number {
  let [found, best] = [-1, REACH * REACH];
  for (let i = 0; i < count; i++) {
    const dx = area.x(xs[i]!) - left;
    const dy = area.y(ys[i]!) - top;
    const distance = dx * dx + dy * dy;
    if (distance < best) [found, best] = [i, distance];
  }
  return found;
}
