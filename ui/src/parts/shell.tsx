// The frame of every page: name and state of the experiment, views, banners, theme, help.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isReport } from "../api";
import { clock, oneLine, safe, sentenceCase } from "../format";
import { link } from "../route";
import type { ExperimentStore } from "../store";
import { type Theme, chooseTheme, nextTheme, storedTheme } from "../theme";
import { Ago, Dialog, Pill } from "./small";

const VIEWS: [string, string][] = [
  ["", "Overview"],
  ["trials", "Trials"],
  ["charts", "Charts"],
];

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#1f5f6b" />
      <g fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round">
        <path d="M16 6v20M16 20c0 4-3 6-7 6M16 20c0 4 3 6 7 6M16 12c-3 0-5-1.500-5-4.500M16 15c3 0 5-1.500 5-4.500" />
      </g>
    </svg>
  );
}

interface HeaderProps {
  store: ExperimentStore | null;
  page: string;
  several: boolean;
}

export function Header({ store, page, several }: HeaderProps) {
  const experiment = store?.experiment;
  const named = experiment ?? store?.unopened;
  const id = store?.id ?? "";
  return (
    <header class="top">
      <div class="bar">
        <a class="brand" href={several || !store ? "#/" : link(id)} aria-label="holdfast"><Mark /><span>holdfast</span></a>
        {named && (
          <div class="crumb">
            <a class="clip" href={link(id)} title={oneLine(named.name)}><bdi>{oneLine(named.name, 80)}</bdi></a>
            <Pill state={named.state} />
          </div>
        )}
        <Tools />
      </div>
      {experiment && (
        <nav class="tabs" aria-label="Views">
          {VIEWS.map(([name, title]) => (
            <a href={link(id, name ? [name] : [])} aria-current={name === page || (name === "trials" && page === "compare") ? "page" : undefined}>{title}</a>
          ))}
        </nav>
      )}
    </header>
  );
}

const THEME_WORDS: Record<Theme, string> = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const THEME_SIGNS: Record<Theme, string> = { system: "◐", light: "○", dark: "●" };

function Tools() {
  const [theme, setTheme] = useState(storedTheme);
  const [help, setHelp] = useState(false);
  useEffect(() => {
    const open = () => setHelp(true);
    window.addEventListener("holdfast-help", open);
    return () => window.removeEventListener("holdfast-help", open);
  }, []);
  const change = () => {
    const next = nextTheme(theme);
    chooseTheme(next);
    setTheme(next);
  };
  return (
    <div class="tools">
      <button type="button" class="plain" onClick={change} aria-label={THEME_WORDS[theme]} data-test="theme">
        <span aria-hidden="true">{THEME_SIGNS[theme]}</span><span class="word">{theme}</span>
      </button>
      <button type="button" class="plain" onClick={() => setHelp(true)} aria-label="Keyboard help" data-test="help">
        <kbd>?</kbd>
      </button>
      {help && <Help onClose={() => setHelp(false)} />}
    </div>
  );
}

const KEYS: [string, string][] = [
  ["/", "go to the filter"],
  ["j, k", "next, previous trial"],
  ["enter", "open the trial"],
  ["x", "select the trial to compare"],
  ["o, t, c", "overview, trials, charts"],
  ["?", "this help"],
  ["esc", "close, leave the filter, go back to the table"],
];

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([key, text]) => (
          <>
            <dt>{key.split(", ").map((k, i) => <>{i ? " " : ""}<kbd>{k}</kbd></>)}</dt>
            <dd>{text}</dd>
          </>
        ))}
      </dl>
      <div class="actions"><button type="button" onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

function Banner({ kind, children }: { kind: string; children: ComponentChildren }) {
  return <div class="banner" data-kind={kind} role={kind === "error" ? "alert" : "status"}>{children}</div>;
}

function Since({ at }: { at: number | null }) {
  return at ? <>{` since ${clock(at)} (`}<Ago at={at} />)</> : null;
}

/** What is wrong, above everything else: connection, driver, damage. */
export function Banners({ store }: { store: ExperimentStore }) {
  const { experiment, connection } = store;
  const { damage, problem, unreadable } = store;
  return (
    <>
      {isReport() && (
        <Banner kind="info"><span>{`Static report${window.HOLDFAST_REPORT?.note ? `: ${safe(window.HOLDFAST_REPORT.note, 300)}` : ""}. It does not change.`}</span></Banner>
      )}
      {connection === "lost" && store.isAway && (
        <Banner kind="error"><span><strong>Connection lost</strong>{` at ${clock(store.lostSince, false)}. Trying again; what is shown may be old.`}</span></Banner>
      )}
      {experiment?.state === "interrupted" && (
        <Banner kind="warning">
          <span class="wrap"><strong>Driver interrupted</strong><Since at={experiment.last_event_at} />{`${experiment.why ? `: ${oneLine(experiment.why, 300)}` : ""}.${store.hasLostRecords ? "" : " Nothing that was reported is lost."}`}</span>
        </Banner>
      )}
      {experiment?.unreachable && (
        <Banner kind="error"><span class="wrap"><strong>Store does not answer</strong>{`: ${safe(experiment.unreachable, 1000)}`}</span></Banner>
      )}
      {experiment && unreadable !== null && (
        <Banner kind="error"><span class="wrap"><strong>{sentenceCase(experiment.state)}</strong>{`: ${safe(unreadable, 1000)} What was read before is shown.`}</span></Banner>
      )}
      {damage && <Banner kind="error"><span class="wrap"><strong>Damage</strong>{`: ${safe(damage, 1000)}`}</span></Banner>}
      {problem && <Banner kind="error"><span class="wrap">{safe(problem, 1000)}</span></Banner>}
    </>
  );
}
