// Something asked from the server for a component: kept while it is asked for again, dropped when nobody looks.
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { StoreContext } from "./store";

const MIN_GAP_MS = 400;

export interface Resource<T> {
  data: T | null;
  error: string | null;
  loading: boolean;
}

interface Held<T> extends Resource<T> {
  key: string;
}

/** Asks one question at a time: changes that come meanwhile lead to one more, so that a fast trial starves nobody. */
class Asker {
  private readonly abort = new AbortController();
  private isBusy = false;
  private isStale = false;

  constructor(private readonly ask: (signal: AbortSignal) => Promise<void>) {}

  request(): void {
    if (this.isBusy) this.isStale = true;
    else void this.run();
  }

  close(): void {
    this.abort.abort();
  }

  get isClosed(): boolean {
    return this.abort.signal.aborted;
  }

  private async run(): Promise<void> {
    this.isBusy = true;
    this.isStale = false;
    await this.ask(this.abort.signal);
    window.setTimeout(() => {
      this.isBusy = false;
      if (this.isStale && !this.isClosed) this.request();
    }, MIN_GAP_MS);
  }
}

/** Load when `key` changes (what is shown is dropped) or `version` does (what is shown stays until the answer). */
export function useResource<T>(key: string, version: string | number, load: (signal: AbortSignal) => Promise<T>): Resource<T> {
  const [held, setHeld] = useState<Held<T>>({ key, data: null, error: null, loading: true });
  const store = useContext(StoreContext);
  const latest = useRef(load);
  latest.current = load;
  const asker = useRef<Asker | null>(null);
  useEffect(() => {
    const own = new Asker(async (signal) => {
      try {
        const data = await latest.current(signal);
        if (!own.isClosed) setHeld({ key, data, error: null, loading: false });
      } catch (error) {
        if (own.isClosed) return;
        store.refused(error);
        const text = error instanceof Error ? error.message : String(error);
        setHeld((old) => ({ key, data: old.key === key ? old.data : null, error: text, loading: false }));
      }
    });
    asker.current = own;
    return () => own.close();
  }, [key]);
  useEffect(() => asker.current?.request(), [key, version]);
  return held.key === key ? held : { data: null, error: null, loading: true };
}
