// Builds the page into src/holdfast/ui/static: the same bytes on every machine, nothing fetched, no source map.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "..", "src", "holdfast", "ui", "static");
const BUNDLED = ["preact", "uplot"];
const BANNER = "/* holdfast, Apache-2.0; contains Preact and uPlot, both MIT: see LICENSES.txt */";

async function licences() {
  const texts = await Promise.all(
    BUNDLED.map(async (name) => {
      const text = await readFile(join(here, "node_modules", name, "LICENSE"), "utf8");
      return `${name}\n\n${text.trim()}\n`;
    }),
  );
  return `app.js and app.css contain parts of the following libraries.\n\n${texts.join("\n")}`;
}

await mkdir(target, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2021"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii",
  legalComments: "none",
  sourcemap: false,
  banner: { js: BANNER, css: BANNER },
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) {
  await writeFile(join(target, name), await readFile(join(here, "src", name)));
}
await writeFile(join(target, "LICENSES.txt"), await licences());
