// The changes of an experiment as the server tells them, shared by all tabs that show it.
// A browser opens at most six connections to a server, and a stream keeps one: six tabs with streams of their own would
// leave none for questions. One visible tab reads the stream and passes on what comes; hidden tabs hold nothing.
import type { Change } from "./types";

export interface Subscription {
  close(): void;
}

export interface Listener {
  onChange(change: Change): void;
  onState(open: boolean): void;
  /** The record up to which everything was loaded; null if nothing was. */
  loaded(): number | null;
}

type Message = { kind: "join" } | { kind: "state"; open: boolean; known: number | null } | { kind: "change"; change: Change };

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 15000;

/** Follow the changes at `path`. What a tab has missed while it was hidden comes first when it is seen again. */
export function follow(path: string, listener: Listener): Subscription {
  const follower = new Follower(path, listener);
  return { close: () => follower.close() };
}

class Follower {
  private readonly name: string;
  private readonly channel: BroadcastChannel;
  /** Ends when the tab is hidden or closed; null while it is. */
  private visit: AbortController | null = null;
  private stream: Stream | null = null;
  private known: number | null = null;

  constructor(
    private readonly path: string,
    private readonly listener: Listener,
  ) {
    this.name = `holdfast ${new URL(path, window.location.href).pathname}`;
    this.channel = new BroadcastChannel(this.name);
    this.channel.onmessage = (event) => this.hear(event.data as Message);
    document.addEventListener("visibilitychange", this.look);
    this.look();
  }

  close(): void {
    document.removeEventListener("visibilitychange", this.look);
    this.leave();
    this.channel.close();
  }

  private readonly look = (): void => {
    if (document.visibilityState === "hidden") this.leave();
    else this.join();
  };

  private leave(): void {
    this.visit?.abort();
    this.visit = null;
  }

  private join(): void {
    if (this.visit) return;
    const visit = (this.visit = new AbortController());
    const read = () => this.read(visit.signal);
    // Browsers have no locks for pages that came from another machine without TLS: each visible tab reads for itself then.
    if (!navigator.locks) return void read();
    this.tell({ kind: "join" });
    navigator.locks.request(this.name, { signal: visit.signal }, read).catch((error: unknown) => {
      if (!visit.signal.aborted) throw error;
    });
  }

  /** Read the stream until the visit ends. */
  private read(visit: AbortSignal): Promise<void> {
    return new Promise((done) => {
      if (visit.aborted) return done();
      const stream = new Stream(this.path, () => this.reached(), {
        onChange: (change) => {
          this.take(change);
          this.tell({ kind: "change", change });
        },
        onState: (open) => {
          this.listener.onState(open);
          this.tellState();
        },
      });
      this.stream = stream;
      visit.addEventListener("abort", () => {
        stream.close();
        this.stream = null;
        done();
      });
    });
  }

  /** The record that this tab knows; the server tells what came after it. */
  private reached(): number | null {
    return this.known ?? this.listener.loaded();
  }

  private take(change: Change): void {
    this.known = change.record;
    this.listener.onChange(change);
  }

  private tell(message: Message): void {
    if (navigator.locks) this.channel.postMessage(message);
  }

  private tellState(): void {
    if (this.stream) this.tell({ kind: "state", open: this.stream.isOpen, known: this.reached() });
  }

  private hear(message: Message): void {
    if (!this.visit) return;
    if (message.kind === "join") return this.tellState();
    if (this.stream) return; // From a tab that has just been hidden.
    if (message.kind === "change") return this.take(message.change);
    const own = this.reached();
    if (message.known !== null && own !== null && own < message.known) this.take({ record: message.known, more: true });
    this.listener.onState(message.open);
  }
}

/** Server-sent events of one address; connects again by itself, also after the server refused once. */
class Stream {
  isOpen = false;
  private source: EventSource | null = null;
  private timer = 0;
  private wait = FIRST_RETRY_MS;

  constructor(
    private readonly path: string,
    private readonly reached: () => number | null,
    private readonly to: Pick<Listener, "onChange" | "onState">,
  ) {
    this.open();
  }

  close(): void {
    clearTimeout(this.timer);
    if (this.source) this.source.onerror = null;
    this.source?.close();
  }

  private open(): void {
    const after = this.reached();
    const source = (this.source = new EventSource(after === null ? this.path : `${this.path}?after=${after}`));
    source.onopen = () => {
      this.wait = FIRST_RETRY_MS;
      this.say(true);
    };
    source.addEventListener("change", (event) => this.to.onChange(JSON.parse((event as MessageEvent).data)));
    source.onerror = () => {
      this.say(false);
      if (source.readyState !== EventSource.CLOSED) return;
      this.timer = window.setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(LAST_RETRY_MS, this.wait * 2);
    };
  }

  private say(open: boolean): void {
    this.isOpen = open;
    this.to.onState(open);
  }
}
