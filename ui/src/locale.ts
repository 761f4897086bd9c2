// Must be imported first: uPlot formats numbers in the browser's language as soon as it is loaded, and a browser that was
// started with LANG=C may name a language that does not exist.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
}

export {};
