// Every view has an address in the fragment: `#/e/<id>/trials?filter=...`. The same with a server and in a report.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  experiment: string | null;
  page: string;
  rest: string[];
  query: Record<string, string>;
}

export function parse(fragment: string): Route {
  const [path = "", search = ""] = fragment.replace(/^#\/?/, "").split("?", 2);
  const words = path.split("/").filter(Boolean).map(decoded);
  const query: Record<string, string> = {};
  for (const pair of search.split("&").filter(Boolean)) {
    const at = pair.indexOf("=");
    if (at > 0) query[decoded(pair.slice(0, at))] = decoded(pair.slice(at + 1));
  }
  const experiment = words[0] === "e" && words[1] ? words[1] : null;
  const inside = words[0] === "e" ? words.slice(2) : words;
  return { experiment, page: inside[0] ?? "", rest: inside.slice(1), query };
}

function decoded(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

export function link(experiment: string | null, words: string[] = [], query: Record<string, string | undefined> = {}): string {
  const path = [...(experiment === null ? [] : ["e", experiment]), ...words].map(encodeURIComponent).join("/");
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const search = pairs.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value!)}`).join("&");
  return `#/${path}${search ? `?${search}` : ""}`;
}

export const go = (address: string): void => {
  window.location.hash = address;
};

/** Change the address without a new entry in the browser's history: for what is typed or dragged. */
export function replace(address: string): void {
  history.replaceState(history.state, "", address);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(window.location.hash));
  useEffect(() => {
    const update = () => setRoute(parse(window.location.hash));
    window.addEventListener("hashchange", update);
    return () => window.removeEventListener("hashchange", update);
  }, []);
  return route;
}

/** One value of the query of the present address, and a function that changes it. */
export function useQuery(route: Route, experiment: string, words: string[]) {
  return (changes: Record<string, string | undefined>, keep = true) =>
    replace(link(experiment, words, { ...(keep ? route.query : {}), ...changes }));
}
