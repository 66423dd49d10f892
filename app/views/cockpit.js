// The runs of a folder: a row each, worst first or sorted by a column. Ticks and opened runs go to the server; drawing and
// sorting need none.

const SPARK = { width: 110, height: 26 };
const SVG = "http://www.w3.org/2000/svg";
// The columns after that of the ticks: heading, and what a click on it sorts by, largest first unless it is text.
const COLUMNS = [["Run", "name"], ["Cause, worst first", "worst"], ["Step time by step"], ["Parts of the step", "stepMs"], ["Change", "changed"]];

export default now => place(now, (data, view) => {
  view.ticked ||= new Set(data.ticked);
  view.by ||= "worst";
  const root = make("div", "cockpit");
  root.append(legendOf(data.parts));
  const lines = new Map(data.rows.map(row => [row, line(row, data, view)]));
  const list = make("div", "rows");
  list.setAttribute("role", "list");
  const head = root.appendChild(make("div", "row head"));
  head.setAttribute("role", "toolbar");
  head.setAttribute("aria-label", "Sort the runs");
  head.append(make("span"), ...COLUMNS.map(([name, by]) => by ? heading(name, by) : make("span", "", name)));
  if (!data.rows.some(row => row.change)) head.lastChild.style.visibility = "hidden";
  root.append(list);
  const sort = () => {
    list.append(...sorted(data.rows, view).map(row => lines.get(row))); // which moves them
    for (const each of head.querySelectorAll("button")) {
      const chosen = each.dataset.by === view.by;
      each.setAttribute("aria-pressed", String(chosen));
      each.lastChild.textContent = chosen && view.by !== "worst" ? (view.up ? " ↑" : " ↓") : "";
    }
  };
  function heading(name, by) {
    const made = make("button", "sort", name);
    made.type = "button";
    made.dataset.by = by;
    made.dataset.key = `sort ${by}`;
    made.append(make("span"));
    made.addEventListener("click", () => {
      view.up = view.by === by && by !== "worst" ? !view.up : by === "name";
      view.by = by;
      sort();
    });
    return made;
  }
  sort();
  return [root];
});

/** The rows by the chosen column, which come worst first; what is not known is last either way. */
function sorted(rows, { by, up }) {
  if (by === "worst") return rows;
  const sign = up ? 1 : -1;
  const known = rows.filter(row => row[by] !== null), rest = rows.filter(row => row[by] === null);
  return [...known.sort((a, b) => sign * (by === "name" ? a.name.localeCompare(b.name, "en", { numeric: true }) : a[by] - b[by])), ...rest];
}

function line(row, data, view) {
  const node = make("div", row.broken ? "row broken" : "row");
  node.setAttribute("role", "listitem");
  const tick = node.appendChild(make("input"));
  tick.type = "checkbox";
  tick.checked = view.ticked.has(row.name);
  tick.dataset.key = `tick ${row.name}`;
  tick.setAttribute("aria-label", `Choose ${row.name}`);
  tick.addEventListener("change", () => {
    if (tick.checked) view.ticked.add(row.name); else view.ticked.delete(row.name);
    view.now.setStateValue("ticked", [...view.ticked]);
  });
  const who = node.appendChild(make("div", "who"));
  const [own, dash] = row.look;
  if (own) {
    const swatch = who.appendChild(make("i", `swatch ${dash}`));
    swatch.style.borderTopColor = own;
    swatch.title = "its curve below";
  }
  const open = who.appendChild(make("button", "name", row.name));
  open.type = "button";
  open.dataset.key = `open ${row.name}`;
  open.title = `Open ${row.name}`;
  open.addEventListener("click", () => view.now.setTriggerValue("open", row.name));
  const state = who.appendChild(make("div", "state"));
  const [sign, severity] = row.mark;
  if (severity) state.append(make("span", `mark ${severity}`, `${sign} ${severity}`));
  state.append(make("span", row.broken ? "broken" : "", row.state));
  const cause = node.appendChild(make("div", "cause"));
  cause.append(...(row.live ? [make("b", "", row.live)] : causeOf(row)));
  node.append(spark(row, data));
  const step = node.appendChild(make("div", "step"));
  step.title = row.about;
  const track = step.appendChild(make("span", "track"));
  for (const [at, ms] of row.parts) {
    const part = track.appendChild(make("span", "part"));
    part.style.width = `${(100 * ms) / data.end}%`;
    part.style.background = data.parts[at][1];
  }
  step.append(make("span", "total", row.step));
  const change = node.appendChild(make("span", `change ${row.tone}`, row.change));
  change.title = row.changeAbout;
  return node;
}

/** The cause with the culprit in bold: in the sentence where that names it, else in front. */
function causeOf({ culprit, cause }) {
  if (!culprit) return [cause];
  const escaped = culprit.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s/g, "\\s");
  const named = cause.match(new RegExp(`\\b${escaped}\\b`, "i"));
  if (!named) return [make("b", "", `${culprit}: `), cause];
  const end = named.index + named[0].length;
  return [cause.slice(0, named.index), make("b", "", named[0]), cause.slice(end)];
}

function spark(row, data) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${SPARK.width} ${SPARK.height}`);
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", row.sparkAbout);
  svg.append(document.createElementNS(SVG, "title"));
  svg.firstChild.textContent = row.sparkAbout;
  if (row.spark.length) {
    const path = svg.appendChild(document.createElementNS(SVG, "polyline"));
    const across = SPARK.width / Math.max(1, row.spark.length - 1);
    path.setAttribute("points", row.spark.map((y, at) => `${(at * across).toFixed(1)},${((1 - y) * (SPARK.height - 4) + 2).toFixed(1)}`).join(" "));
    path.setAttribute("fill", "none");
    path.setAttribute("stroke", row.look[0] || data.colours.soft);
    path.setAttribute("stroke-width", "1.5");
  }
  return svg;
}
