// Choosing what a chart shows: metrics and parameters of the experiment.
import { Select } from "../parts/small";
import { type ExperimentStore, useStore } from "../store";

const HIDDEN = new Set(["timestamp", "pid", "iterations_since_restore", "time_since_restore", "time_this_iter_s"]);

export function metricsOf(store: ExperimentStore): string[] {
  const { metrics, metric } = store.experiment!;
  const own = metrics.filter((name) => !HIDDEN.has(name) && name !== metric);
  return metric ? [metric, ...own] : own;
}

export function metricOf(store: ExperimentStore, asked: string | undefined): string {
  return asked ?? metricsOf(store)[0] ?? "";
}

export function MetricSelect({ label = "metric", value, onChange }: { label?: string; value: string; onChange: (v: string) => void }) {
  const known = metricsOf(useStore());
  const options = known.includes(value) || !value ? known : [value, ...known];
  return <Select label={label} value={value} options={options} onChange={onChange} />;
}

interface ParamProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
}

export function ParamSelect({ label, value, onChange }: ParamProps) {
  const { params } = useStore().experiment!;
  return <Select label={label} value={value} options={params} onChange={onChange} />;
}
