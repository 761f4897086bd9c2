// The charts by name: the last word of a chart's address.
import type { ComponentType } from "preact";
import { ContourChart } from "./contour";
import { CurvesChart } from "./curves";
import { HistoryChart } from "./history";
import { LineageChart } from "./lineage";
import { ParallelChart } from "./parallel";
import { RecoveryChart } from "./recovery";
import { EdfChart, ImportanceChart, ParetoChart, SliceChart } from "./spread";
import { WorkersChart } from "./workers";

export interface ChartProps {
  query: Record<string, string>;
  change: (changes: Record<string, string | undefined>) => void;
}

export const CHARTS: [string, string, ComponentType<ChartProps>][] = [
  ["history", "History", HistoryChart],
  ["curves", "Learning curves", CurvesChart],
  ["parallel", "Parallel", ParallelChart],
  ["importance", "Importance", ImportanceChart],
  ["slice", "Slice", SliceChart],
  ["contour", "Contour", ContourChart],
  ["edf", "Distribution", EdfChart],
  ["pareto", "Pareto", ParetoChart],
  ["workers", "Workers", WorkersChart],
  ["lineage", "PBT lineage", LineageChart],
  ["recovery", "Recovery", RecoveryChart],
];
