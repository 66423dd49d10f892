// The timeline: every rank over time, and all lanes of up to two pinned ranks, on one canvas.
//
// The server cuts the run into tiles of 512 cells (diag/tables/tiles.py). Each tile is rendered into a picture once. A
// frame copies the pictures of the visible tiles and draws the few events that tiles hold as single events. So the cost
// of a frame depends on the number of pixels, not of events. Until a tile has loaded, a coarser one is stretched.
//
// Times are nanoseconds since the run's begin. Names come from traces: they are drawn, or set as textContent, never HTML.

const CELLS = 512, FULL = 255;
const SHORTEST_NS = 100, MOST_LEVEL = 52;
const MOST_TILES = 600, MOST_REQUESTS = 6;
const SETTLE_MS = 400; // the page is sent the new window this long after the last movement
const AXIS_PX = 22, STEPS_PX = 16, LANE_PX = 16, HOST_PX = 15, GAP_PX = 10, TITLE_PX = 20;
const LABEL_PX = 172; // "operators, other threads"
const NARROW_PX = 700; // on a narrower canvas, names stand above what they name, not beside it
const NAME_PX = 13, LEAST_LABEL_PX = 48, MOST_LABEL_PX = 130; // a name above; the ranks' names on a narrow canvas
const SIDE_BY_SIDE_PX = 900; // on a narrower canvas, pinned ranks are drawn one below the other
const PAGE_OF_RANKS = 64;
const COUNTER_PX = 34; // a counter below the lanes
const LEAST_OF_HIGHEST = 0.1; // a counter's axis spans at least this part of its highest value: noise stays flat
const ARROW_PX = 24; // arrows of the critical path are drawn where they are this far apart on average
const DISTINCT_ARROWS = 40; // of more launches, each is the paler
const OVERLAY_MS = 250; // path, launches and counters are asked for this long after the last movement
const SPARSE = 0.08; // of the window: lanes of a trace that fill less are drawn as their first row
const LEGEND_MOST = 8, LEGEND_SHARE = 0.004; // kinds of work: of more, the legend names those that take that part of what is drawn
const COUNTING_MS = 400; // between two queries for the progress of a search of all ranks
const LEGEND_ROWS = 2, NARROW_LEGEND_ROWS = 3; // until one asks for all of it
const ENTRY_PX = 30; // what an entry of the legend takes beside its words
const CHAR_PX = 6.6, FONT = "11px ui-sans-serif, system-ui, sans-serif", BOLD = `600 ${FONT}`, LEGEND_FONT = "12px ui-sans-serif, system-ui, sans-serif";
const HELP = "Wheel or W and S: zoom. Drag, A and D, or arrow keys left and right: pan. Shift and drag: zoom to a window. " +
  "Click on a step's number: show it, with Shift open it in Perfetto. Arrow keys up and down: choose a row. Click or Enter: details. [ and ]: the event before and after. " +
  "P and Shift+P, or a click on a rank's label: pin a rank left or right. /: search all ranks by name, N and Shift+N: next and " +
  "previous match; after the last match on the pinned ranks, the first match on the next rank. " +
  "M: measure a span by dragging. U, or a click on the line that names them: draw the folded rows, or fold them. A click on a gap says why nothing ran there. " +
  "0 or Home: the whole run, which follows new steps. Over the labels the wheel scrolls the page.";

const VIEWS = new WeakMap();

export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  let view = VIEWS.get(parentElement);
  if (!view || !view.root.isConnected) {
    view = new Timeline(parentElement);
    VIEWS.set(parentElement, view);
  }
  view.update(data, setStateValue, setTriggerValue);
  return () => setTimeout(() => { if (!view.root.isConnected) view.destroy(); }, 0);
}

// -- tiles -----------------------------------------------------------------------------------------------------------

const spanOf = level => CELLS * 2 ** level;
const mod = (a, n) => ((a % n) + n) % n;

/** A cache of tiles by group, level and number: requests missing tiles, evicts the least recently used ones. */
class Tiles {
  constructor(arrived, gone) {
    this.held = new Map();
    this.wanted = [];
    this.running = 0;
    this.arrived = arrived;
    this.gone = gone;
    this.source = "";
  }

  key(group, level, tile) { return `${group.key}|${level}|${tile}`; }

  /** The tile if it is cached, else null. Queues a request if it is missing or the run has grown since. */
  get(group, level, tile) {
    const key = this.key(group, level, tile);
    const held = this.held.get(key);
    if (!held || held.source !== this.source) this.wanted.push({ key, group, level, tile });
    if (!held || !held.rows) return null;
    this.held.delete(key); // the most recently used ones are last
    this.held.set(key, held);
    return held;
  }

  /** The finest cached tile of a coarser level that covers this one. */
  coarser(group, level, tile) {
    for (let up = 1; level + up <= group.top + 1; up++) {
      const held = this.held.get(this.key(group, level + up, Math.floor(tile / 2 ** up)));
      if (held && held.rows) return held;
    }
    return null;
  }

  /** Requests the tiles that the last frame missed, in the frame's order. */
  pump() {
    const wanted = this.wanted;
    this.wanted = [];
    for (const request of wanted) {
      if (this.running >= MOST_REQUESTS) return;
      const held = this.held.get(request.key);
      if (held && (held.asked === this.source || held.source === this.source)) continue;
      this.ask(request, held);
    }
  }

  async ask({ key, group, level, tile }, before) {
    const source = this.source;
    const entry = before || { key, level, tile, source: "", rows: null };
    entry.asked = source;
    this.held.set(key, entry);
    this.running++;
    try {
      const answer = await fetch(address(group.what, { ...group.query, source, level, tile }));
      if (answer.status === 410) { this.held.delete(key); this.gone(source); return; }
      if (!answer.ok) return; // stays empty: requested again with the next state of the run
      const fresh = { key, level, tile, source, asked: source, ...unpacked(await answer.arrayBuffer()), picture: null };
      this.held.set(key, fresh);
      for (const old of this.held.keys()) {
        if (this.held.size <= MOST_TILES) break;
        this.held.delete(old);
      }
      this.arrived(group, fresh);
    } catch {
      this.held.delete(key); // the server does not answer; the next frame requests the tile again
    } finally {
      this.running--;
      this.arrived(null, null);
    }
  }

  repaint() { for (const tile of this.held.values()) tile.picture = null; }
}

function address(what, query) {
  const url = new URL(`timeline-data/${what}`, location.href.split(/[?#]/)[0]);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url;
}

function unpacked(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const base = Math.ceil((4 + size) / 8) * 8;
  const bytes = at => at === null || at === undefined ? null : new Uint8Array(buffer, base + at, CELLS);
  for (const row of header.rows) {
    if (row.cells) {
      row.cells = row.cells.map(([work, at]) => [work, bytes(at)]);
      row.found = bytes(row.found);
      continue;
    }
    const n = row.count;
    row.start = new Float64Array(buffer, base + row.start, n);
    row.end = new Float64Array(buffer, base + row.end, n);
    row.index = new Uint32Array(buffer, base + row.index, n);
    row.name = new Uint32Array(buffer, base + row.name, n);
    row.work = new Uint8Array(buffer, base + row.work, n);
    row.found = row.found === null ? null : new Uint8Array(buffer, base + row.found, n);
  }
  return header;
}

// -- words -----------------------------------------------------------------------------------------------------------

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

function unitOf(ns) { return UNITS.find(([, size]) => Math.abs(ns) >= size) || UNITS[3]; }

function duration(ns) {
  const [unit, size] = unitOf(ns);
  const value = ns / size;
  return `${value.toLocaleString("en", { maximumFractionDigits: unit === "ns" ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0 })} ${unit}`;
}

function moment(ns, step) {
  const [unit, size] = unitOf(step);
  const digits = Math.max(0, Math.round(Math.log10(size) - Math.floor(Math.log10(step) + 1e-9)));
  return `${(ns / size).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

/** Ticks of the axis: 1, 2 or 5 times a power of ten apart. Deep inside a long run they count from `base`. */
function ticksOf(begin, end, width) {
  const least = (end - begin) / Math.max(2, width / 95);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1, [1, 2, 5, 10].map(n => n * power).find(n => n >= least));
  const far = Math.abs(begin) > 1000 * (end - begin);
  const grid = 10 ** Math.ceil(Math.log10(end - begin) + 1);
  const base = far ? Math.floor(begin / grid) * grid : 0;
  const ticks = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) {
    ticks.push([at, (far ? "+" : "") + moment(at - base, step)]);
  }
  return { ticks, base: far ? moment(base, grid) : "" };
}

// -- the view --------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Makes these [key, element] the children. One with the key of a child is not put in, the child takes its text, looks
 *  and act: a press that has begun on it becomes a click, and it keeps the focus. */
function arrange(parent, wanted) {
  const keys = new Set(wanted.map(([key]) => key));
  for (const child of [...parent.children]) if (!keys.has(child.dataset.key)) child.remove();
  let next = parent.firstElementChild;
  for (const [key, made] of wanted) {
    const held = [...parent.children].find(child => child.dataset.key === key);
    if (!held) {
      made.dataset.key = key;
      parent.insertBefore(made, next);
      continue;
    }
    if (held.innerHTML !== made.innerHTML) held.replaceChildren(...made.childNodes);
    for (const { name, value } of made.attributes) held.setAttribute(name, value);
    held.title = made.title;
    held.onclick = made.onclick;
    if (held === next) next = held.nextElementSibling; else parent.insertBefore(held, next);
  }
}

class Timeline {
  constructor(parent) {
    this.root = element("div", { class: "timeline" });
    this.bar = element("div", { class: "bar", role: "toolbar", "aria-label": "Timeline" });
    this.stage = element("div", { class: "stage" });
    this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-describedby": "timeline-help" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.details = element("section", { class: "details", "aria-live": "polite", "aria-label": "Details of an event", hidden: "" });
    this.legend = element("div", { class: "legend", "aria-label": "Colours" });
    this.status = element("div", { class: "hidden", role: "status" });
    this.help = element("p", { class: "help", id: "timeline-help" }, HELP);
    this.stage.append(this.canvas, this.tip);
    this.help.hidden = true;
    this.root.append(this.bar, this.help, this.legend, this.stage, this.details, this.status);
    parent.append(this.root);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.tiles = new Tiles((group, tile) => this.arrived(group, tile), source => this.gone(source));
    this.window = null;
    this.pinned = [];
    this.lanes = new Map(); // by rank, with and without Python functions: the titles of its rows, once known
    this.find = "";
    this.python = false;
    this.counting = 0;
    this.tally = null; // number of a search's hits on each rank
    this.firstRank = 0;
    this.everyRank = false;
    this.unfoldsRanks = false; // of many ranks, the first ones are drawn until one asks for the others
    this.asked = 0; // counts what the details were asked for: an answer that comes late is not shown
    this.about = []; // the ranks that the details are about
    this.cursor = null;
    this.pointer = null;
    this.selected = null;
    this.works = new Map(); // the pixels that each kind of work takes in the window
    this.named = new Set(); // those that the legend names
    this.wholeLegend = false;
    this.legendPx = 0; // its height at this width: it shrinks only where one asked for all of it
    this.path = null; // stretches of the critical path in the window
    this.drawsPath = true;
    this.overlays = new Map(); // by pinned rank: launches and counters in the window
    this.measuring = false;
    this.measured = null; // a span in ns
    this.unfolded = new Set(); // ranks whose empty lanes are drawn
    this.folded = new Map(); // by rank: the rows without an event in the window
    this.makeBar();
    this.listen();
  }

  destroy() { this.resizes.disconnect(); cancelAnimationFrame(this.frame); clearTimeout(this.looking); }

  /** Takes the page's data, each time that the page is drawn. */
  update(data, setState, trigger) {
    const before = this.data;
    const wasWhole = before && this.isWhole();
    this.data = data;
    this.setState = setState;
    this.trigger = trigger;
    this.tiles.source = data.source;
    if (!before || before.turn !== data.turn) { // the page chose: a link, a step, a button, a list
      this.window = { begin: data.window[0], end: data.window[1] };
      this.pinned = [...data.pinned];
      if (before) this.leave();
      if (this.find !== data.find) { this.find = data.find; if (data.find) this.openDrawer(true); this.search.value = data.find; this.matchStatus.textContent = ""; }
      this.python = Boolean(data.python);
      this.count();
    } else if (wasWhole) {
      this.window = { begin: data.begin, end: data.end };
    }
    if (!before || before.ranks.length !== data.ranks.length) { this.firstRank = 0; this.unfoldsRanks = false; }
    if (!before || before.theme.name !== data.theme.name) { this.dress(); this.tiles.repaint(); }
    this.perfettoButton();
    this.byRank = new Map(data.ranks.map(rank => [rank.rank, rank]));
    this.rankButtons();
    this.chooser();
    this.pathButton.hidden = !data.has_path;
    this.layout();
    this.look();
  }

  dress() {
    const { theme, colours } = this.data;
    for (const [name, value] of Object.entries(theme)) this.root.style.setProperty(`--${name}`, value);
    this.colours = colours;
    this.packed = colours.map(colour => rgb(colour));
    this.inks = colours.map(colour => inkOn(colour));
    this.ground = rgb(theme.ground);
  }

  gone(source) {
    if (this.staleSource === source) return;
    this.staleSource = source;
    this.trigger("stale", source);
  }

  // -- tool bar

  makeBar() {
    const button = (label, title, act) => {
      const made = element("button", { type: "button", title }, label);
      made.addEventListener("click", act);
      return made;
    };
    this.search = element("input", { type: "search", placeholder: "Search", "aria-label": "Search the events of all ranks by name" });
    this.search.addEventListener("keydown", event => this.searchKey(event));
    this.search.addEventListener("search", () => this.setFind(this.search.value));
    this.matchStatus = element("span", { class: "match-status", role: "status" });
    this.everywhere = element("span", { class: "match-status", role: "status" });
    this.shownRanks = element("span", { class: "ranks" });
    this.stepInput = element("input", { type: "number", class: "step", "aria-label": "Step", placeholder: "step", title: "Go to a step" });
    this.stepInput.addEventListener("change", () => this.goToStep(Number(this.stepInput.value)));
    this.stepInput.addEventListener("keydown", event => event.stopPropagation());
    const chooser = (label, title) => {
      const made = element("select", { "aria-label": label, title });
      made.addEventListener("change", () => this.choose());
      made.addEventListener("keydown", event => event.stopPropagation());
      return made;
    };
    this.firstChoice = chooser("Pinned rank", "The rank whose lanes are drawn (P)");
    this.secondChoice = chooser("Second pinned rank", "A second rank, drawn next to the first (Shift+P)");
    const group = (...items) => { const made = element("span", { class: "group" }); made.append(...items); return made; };
    this.drawer = button("Tools", "Search, zoom, measure, Perfetto", () => this.openDrawer(!this.bar.classList.contains("open")));
    this.drawer.classList.add("drawer");
    this.openDrawer(false);
    this.perfetto = button("", "", () => this.openInPerfetto("trace"));
    this.perfettoOfAll = button("All ranks", "The same step of all ranks on one timeline in Perfetto, their clocks aligned", () => this.openInPerfetto("together"));
    this.perfettoOfAll.setAttribute("aria-label", "All ranks in Perfetto");
    const first = group(
      button("‹", "Previous step", () => this.turnStep(-1)), this.stepInput, button("›", "Next step", () => this.turnStep(1)),
      this.wholeButton = button("Whole run", "Show the whole run, and follow it while it trains (0)", () => this.whole()),
    );
    first.classList.add("always");
    const whose = group(this.firstChoice, this.secondChoice);
    whose.classList.add("roomy");
    this.shownRanks.classList.add("roomy");
    this.bar.append(
      first,
      this.drawer,
      whose,
      group(button("+", "Zoom in (W)", () => this.zoom(0.5)), button("−", "Zoom out (S)", () => this.zoom(2))),
      group(
        this.search,
        button("◂", "Previous match (Shift+N)", () => this.goToMatch(true)),
        button("▸", "Next match (N)", () => this.goToMatch(false)),
        this.matchStatus,
        this.everywhere,
      ),
      this.measureButton = button("Measure", "Drag over a span to measure it (M)", () => this.toggleMeasuring()),
      this.pathButton = button("Critical path", "Draw the critical path as a line through the ranks", () => { this.drawsPath = !this.drawsPath; this.layout(); this.look(); }),
      this.pythonButton = button("Python functions", "Draw the Python functions that were recorded with stacks: often more events than all others", () => this.togglePython()),
      group(this.perfetto, this.perfettoOfAll),
      button("?", "Keys", () => { this.help.hidden = !this.help.hidden; }),
      this.shownRanks,
    );
    for (const [text, name] of [["‹", "Previous step"], ["›", "Next step"], ["◂", "Previous match"], ["▸", "Next match"], ["?", "Keys"]]) {
      [...this.bar.querySelectorAll("button")].find(item => item.textContent === text).setAttribute("aria-label", name);
    }
    this.pythonButton.hidden = true; // until a pinned rank has any
    for (const [label, name] of [["+", "Zoom in"], ["−", "Zoom out"]]) {
      [...this.bar.querySelectorAll("button")].find(item => item.textContent === label).setAttribute("aria-label", name);
    }
  }

  /** On a narrow canvas: draws what is in the tool bar besides the step, or hides it. */
  openDrawer(open) {
    this.bar.classList.toggle("open", open);
    this.drawer.setAttribute("aria-expanded", String(open));
  }

  /** The pinned ranks as lists. */
  chooser() {
    const { ranks } = this.data;
    for (const [place, list] of [this.firstChoice, this.secondChoice].entries()) {
      if (list.length !== ranks.length + place) {
        list.replaceChildren(...(place ? [element("option", { value: "" }, "+ rank")] : []),
          ...ranks.map(({ rank }) => element("option", { value: rank }, `rank ${rank}`)));
      }
      list.value = this.pinned[place] === undefined ? "" : String(this.pinned[place]);
      list.hidden = ranks.length < 2;
    }
  }

  choose() {
    const chosen = [this.firstChoice.value, this.secondChoice.value].filter(text => text !== "").map(Number);
    this.pinned = [...new Set(chosen)];
    this.leave();
    this.changed();
    this.layout();
    this.look();
  }

  /** Ends what was about another rank or step: details and a measured span. */
  leave() {
    this.asked++;
    this.measured = null;
    if (this.measuring) this.toggleMeasuring();
    this.show(null);
  }

  /** The place of the step that the window shows, else of the one in its middle; -1 without one. */
  stepPlace() {
    const { steps } = this.data, middle = (this.window.begin + this.window.end) / 2;
    let low = 0, high = steps.length;
    while (low < high) { const half = (low + high) >> 1; if (steps[half][2] <= middle) low = half + 1; else high = half; }
    return low < steps.length && steps[low][1] <= middle ? low : -1;
  }

  /** The number of the step that the window shows exactly; null without one. */
  stepOfWindow() {
    const { begin, end } = this.window, step = this.data.steps[this.stepPlace()];
    return step && Math.abs(step[1] - begin) < 1000 && Math.abs(step[2] - end) < 1000 ? step[0] : null;
  }

  goToStep(number) {
    const step = this.data.steps.find(candidate => candidate[0] === number);
    if (step) { this.leave(); this.moveTo(step[1], step[2]); } else this.stepShown();
  }

  turnStep(by) {
    const { steps } = this.data, place = this.stepPlace();
    const step = this.isWhole() || place < 0 ? steps[by > 0 ? 0 : steps.length - 1] : steps[place + by];
    if (step) { this.leave(); this.moveTo(step[1], step[2]); }
  }

  /** Names the step in the tool bar. */
  stepShown() {
    const place = this.isWhole() && this.data.steps.length > 1 ? -1 : this.stepPlace();
    const text = place < 0 ? "" : String(this.data.steps[place][0]);
    if (this.stepInput.value !== text && this.shadowFocus() !== this.stepInput) this.stepInput.value = text;
  }

  toggleMeasuring() {
    this.measuring = !this.measuring;
    if (!this.measuring) this.measured = null;
    this.measureButton.setAttribute("aria-pressed", String(this.measuring));
    this.canvas.style.cursor = this.measuring ? "crosshair" : "";
    this.draw();
  }

  /** Says which step it opens. While the window moves, it stays with the step that it names. */
  perfettoButton() {
    const { step, label, short, about } = this.data.open;
    this.perfetto.disabled = step === null;
    this.perfetto.textContent = short;
    this.perfetto.setAttribute("aria-label", label);
    this.perfetto.title = about;
    this.perfettoOfAll.hidden = !this.data.open.together;
  }

  /** Perfetto's page sends PONG once it listens. Then the trace is posted to it; the trace does not leave this browser. */
  async openInPerfetto(what, { rank, step } = this.data.open) {
    const { perfetto: site, source } = this.data;
    const page = window.open(site);
    if (!page) return;
    const answer = await fetch(address(what, { source, rank, step }));
    if (!answer.ok) {
      page.close();
      this.matchStatus.textContent = answer.status === 410 ? "" : (await answer.json()).error;
      if (answer.status === 410) this.gone(source);
      return;
    }
    const title = answer.headers.get("x-diag-title"), buffer = await answer.arrayBuffer();
    const asking = setInterval(() => { if (page.closed) stop(); else page.postMessage("PING", site); }, 100);
    const listen = event => {
      if (event.source !== page || event.origin !== site || event.data !== "PONG") return;
      stop();
      page.postMessage({ perfetto: { buffer, title, fileName: title } }, site);
    };
    const stop = () => { clearInterval(asking); window.removeEventListener("message", listen); };
    window.addEventListener("message", listen);
  }

  /** Draws the toolbar of ranks. If the button that has the focus goes, the one at its place gets it. */
  rankButtons() {
    const buttons = () => [...this.shownRanks.querySelectorAll("button")];
    const focused = buttons().indexOf(this.shadowFocus());
    arrange(this.shownRanks, this.toolbarOfRanks());
    const last = buttons().length - 1;
    if (focused >= 0 && last >= 0) buttons()[Math.min(focused, last)].focus();
  }

  toolbarOfRanks() {
    const count = this.data.ranks.length, { first } = this.data, tools = [];
    if (first.length) {
      const fold = element("button", { type: "button", "aria-expanded": String(this.unfoldsRanks) }, this.unfoldsRanks ? "Fold ranks" : `Show all ${count.toLocaleString("en")} ranks`);
      fold.onclick = () => this.foldRanks();
      if (!this.unfoldsRanks) tools.push(["first", element("span", {}, `${this.rowsOfRanks().length} of ${count.toLocaleString("en")} ranks: ${this.data.first_order}`)]);
      tools.push(["fold", fold]);
      if (!this.unfoldsRanks) return tools;
    }
    if (count <= PAGE_OF_RANKS) return tools;
    const last = this.everyRank ? count : Math.min(count, this.firstRank + PAGE_OF_RANKS);
    const shown = last - (this.everyRank ? 0 : this.firstRank);
    const range = this.everyRank || this.firstRank === 0 ? "" : ` (places ${this.firstRank + 1} to ${last})`;
    tools.push(["range", element("span", {}, `${shown.toLocaleString("en")} of ${count.toLocaleString("en")} ranks shown, ${this.data.order}${range} `)]);
    const turn = (label, first, every = false) => {
      const made = element("button", { type: "button" }, label);
      made.onclick = () => { this.firstRank = first; this.everyRank = every; this.rankButtons(); this.layout(); };
      tools.push([`turn ${label.split(" ")[0]}`, made]);
    };
    if (this.firstRank > 0 || this.everyRank) turn(`First ${PAGE_OF_RANKS}`, 0);
    if (!this.everyRank && last < count) turn(`Next ${Math.min(PAGE_OF_RANKS, count - last)}`, last);
    if (!this.everyRank) turn("All", 0, true);
    return tools;
  }

  /** Draws the first ranks, or all of them. */
  foldRanks() {
    this.unfoldsRanks = !this.unfoldsRanks;
    this.rankButtons();
    this.layout();
    this.look();
  }

  foldsRanks() { return this.data.first.length > 0 && !this.unfoldsRanks; }

  /** The ranks that have a row: of many the first ones and those that are pinned. */
  rowsOfRanks() {
    if (this.foldsRanks()) return [...new Set([...this.data.first, ...this.pinned])].map(rank => this.byRank.get(rank)).filter(Boolean);
    return this.everyRank ? this.data.ranks : this.data.ranks.slice(this.firstRank, this.firstRank + PAGE_OF_RANKS);
  }

  // -- layout

  layout() {
    if (!this.data) return;
    const width = Math.max(320, this.stage.clientWidth || 320);
    const shown = this.rowsOfRanks();
    this.narrow = width < NARROW_PX;
    const label = this.narrow ? this.narrowLabel(shown) : LABEL_PX;
    this.sections = [];
    let y = AXIS_PX + STEPS_PX;
    const ranks = this.ranksSection(shown, label, width - label - 8, y);
    this.sections.push(ranks);
    y += ranks.height + GAP_PX;
    const pinned = this.pinned.filter(rank => this.byRank.has(rank));
    const beside = pinned.length > 1 && width >= SIDE_BY_SIDE_PX;
    const column = beside ? (width - GAP_PX) / 2 : width;
    let lowest = y;
    pinned.forEach((rank, place) => {
      const left = beside ? place * (column + GAP_PX) : 0;
      const section = this.lanesSection(rank, left, label, column - label - 8, beside ? y : lowest);
      this.sections.push(section);
      lowest = Math.max(lowest, section.y + section.height + GAP_PX);
    });
    this.pythonButton.setAttribute("aria-pressed", String(this.python));
    this.pathButton.setAttribute("aria-pressed", String(this.drawsPath));
    this.chooser();
    this.resize(width, lowest);
    this.draw();
  }

  /** On a narrow canvas, room for the names of the ranks and no more. */
  narrowLabel(shown) {
    const texts = [...shown.map(({ rank }) => this.rankNames(rank)[1]), this.foldOfRanks(shown)];
    const most = Math.max(...texts.map(text => this.wide(text, BOLD)));
    return Math.ceil(Math.min(MOST_LABEL_PX, Math.max(LEAST_LABEL_PX, most + 12)));
  }

  /** A rank in the words that stand beside its row, the longer first. */
  rankNames(rank) {
    const pin = this.pinned.includes(rank) ? "● " : "", matches = this.tally && this.tally.get(rank);
    const found = matches ? `: ${matches.toLocaleString("en")}` : "", marks = this.byRank.get(rank).at_fault ? ["at fault ▸ ", "▸ "] : ["", ""];
    return marks.map(mark => `${pin}${mark}rank ${rank}${found}`);
  }

  foldOfRanks(shown) {
    const folded = this.foldsRanks() ? this.data.ranks.length - shown.length : 0;
    return folded ? `+ ${folded.toLocaleString("en")} other ranks` : "";
  }

  resize(width, height) {
    const scale = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.scale = scale;
    this.size = { width, height };
  }

  ranksSection(shown, label, width, y) {
    const folded = this.foldOfRanks(shown);
    const high = shown.length <= 16 ? 22 : shown.length <= 64 ? 12 : shown.length <= 128 ? 8 : shown.length <= 320 ? 3 : 1;
    const rows = [], groups = [], hosts = [];
    let at = 0;
    shown.forEach((rank, place) => {
      if (this.data.by_host && !folded && (place === 0 || shown[place - 1].host !== rank.host)) {
        if (high >= 8) { hosts.push({ host: rank.host, y: at, count: shown.filter(entry => entry.host === rank.host).length }); at += HOST_PX; }
      }
      if (place % PAGE_OF_RANKS === 0) {
        const chunk = shown.slice(place, place + PAGE_OF_RANKS).map(entry => entry.rank).join(",");
        groups.push({ key: `ranks ${chunk}`, what: "ranks", query: { ranks: chunk }, top: this.top(), rows: [], stacked: high > 3, shape: `${high} ${place}` });
      }
      const row = { rank: rank.rank, row: 0, y: at, height: high, draws: high > 4 ? high - 1 : high };
      rows.push(row);
      groups[groups.length - 1].rows.push(row);
      at += high;
    });
    const fold = folded ? { y: at, texts: [folded] } : null;
    return { kind: "ranks", left: 0, x: label, width, y, height: at + (fold ? LANE_PX : 0), rows, groups, hosts, label, fold };
  }

  lanesSection(rank, left, label, width, y) {
    const known = this.lanesOf(rank);
    const empty = this.unfolded.has(rank) ? new Set() : this.folded.get(rank) || new Set();
    const above = this.narrow ? NAME_PX : 0;
    let at = TITLE_PX + AXIS_PX;
    const rows = (known || []).map((lane, row) => {
      const height = empty.has(row) ? 0 : LANE_PX;
      const title = lane.deeper ? `${lane.deeper.toLocaleString("en")} deeper: not drawn` : lane.depth ? "" : lane.title;
      if (title && height) at += above;
      const made = { rank, row, title, heading: lane.heading, y: at, height, draws: Math.max(0, height - 2) };
      at += height;
      return made;
    });
    const titles = [...new Set((known || []).filter((lane, row) => empty.has(row)).map(lane => lane.title))];
    const fold = empty.size || this.unfolded.has(rank)
      ? { y: at, texts: empty.size ? [`: ${titles.join(" · ")}`, ""].map(names => `+ ${empty.size} ${empty.size === 1 ? "row" : "rows"} with little or nothing${names}`) : ["− fold rows with nothing"] }
      : null;
    at = Math.max(at + (fold ? LANE_PX : 0), TITLE_PX + AXIS_PX + 3 * LANE_PX);
    const counters = ((this.overlays.get(rank) || {}).counters || []).map((counter, place) => ({ ...counter, y: at + 4 + above + place * (COUNTER_PX + above), height: COUNTER_PX - 4 }));
    const find = this.find;
    const group = { key: `rank ${rank} ${this.python} ${find}`, what: "rows", query: { rank, ...(find ? { find } : {}), ...this.drawn() }, top: this.top(), rows, stacked: false, shape: `${[...empty].join()} ${above}`, rank, lanes: this.laneKey(rank) };
    return { kind: "lanes", rank, left, x: left + label, width, y, label, known: Boolean(known), fold, counters,
      height: at + counters.length * (COUNTER_PX + above) + 4, rows, groups: [group], hosts: [] };
  }

  laneKey(rank) { return `${rank} ${this.python}`; }

  lanesOf(rank) { return this.lanes.get(this.laneKey(rank)); }

  /** The parameters that every request about the rows of a rank has. */
  drawn() { return this.python ? { python: 1 } : {}; }

  togglePython() {
    this.python = !this.python;
    this.selected = this.selected && { ...this.selected, matchedText: null }; // the number of the hit has changed
    this.changed();
    this.count();
    this.layout();
  }

  top() { return this.levelOf((this.data.end - this.data.begin) / CELLS); }

  /** The level of a section's tiles: a cell is never narrower than a pixel of the screen, where it could vanish. */
  levelIn(section) { return this.levelOf((this.window.end - this.window.begin) / (section.width * Math.min(1, this.scale))); }

  levelOf(nsPerCell) { return Math.max(0, Math.min(MOST_LEVEL, Math.ceil(Math.log2(Math.max(1, nsPerCell))))); }

  arrived(group, tile) {
    if (group && group.what === "rows") {
      const known = this.lanes.get(group.lanes);
      if (tile.python) this.pythonButton.hidden = false;
      if (!known || known.length !== tile.rows.length) {
        this.folded.delete(group.rank);
        this.lanes.set(group.lanes, tile.rows.map(({ title, heading, depth, deeper }) => ({ title, heading, depth, deeper })));
        this.layout();
      }
    }
    if (group === null || group.what === "rows") this.foldSoon();
    this.draw();
  }

  /** Folds lanes without an event in the window, once it rests and its tiles have come. */
  foldSoon() {
    clearTimeout(this.folding);
    this.folding = setTimeout(() => this.fold(), OVERLAY_MS);
  }

  fold() {
    if (!this.data || !this.sections) return;
    let changes = false;
    for (const section of this.sections) {
      if (section.kind !== "lanes" || !section.known) continue;
      const { begin, end } = this.window, level = this.levelIn(section), span = spanOf(level), [group] = section.groups;
      const empty = new Set(section.rows.map(row => row.row)), extents = section.rows.map(() => [Infinity, -Infinity]);
      let whole = true;
      for (let number = Math.floor(begin / span); number * span < end; number++) {
        const tile = this.tiles.held.get(this.tiles.key(group, level, number));
        if (!tile || !tile.rows || tile.rows.length !== section.rows.length) { whole = false; break; }
        tile.rows.forEach((row, place) => {
          const [first, last] = this.extent(row, number, level);
          if (first < last) empty.delete(place);
          extents[place] = [Math.min(extents[place][0], first), Math.max(extents[place][1], last)];
        });
      }
      if (!whole) continue;
      const known = this.lanesOf(section.rank);
      known.forEach((lane, row) => { // of a lane that fills a small part of the window, the first row says where
        if (lane.depth && lane.heading === "trace" && extents[row - lane.depth][1] - extents[row - lane.depth][0] < SPARSE * (end - begin)) empty.add(row);
      });
      if (empty.size === section.rows.length) empty.clear();
      const before = this.folded.get(section.rank) || new Set();
      if (before.size !== empty.size || [...empty].some(row => !before.has(row))) { this.folded.set(section.rank, empty); changes = true; }
    }
    if (changes) this.layout();
  }

  /** Begin and end of what a row of a tile holds in the window; nothing if the begin is not before the end. */
  extent(row, number, level) {
    const { begin, end } = this.window, cell = 2 ** level, origin = number * spanOf(level);
    let first = Infinity, last = -Infinity;
    if (!row.cells) {
      for (let i = 0; i < row.count; i++) {
        const until = Math.max(row.end[i], row.start[i] + 1);
        if (until > begin && row.start[i] < end) { first = Math.min(first, row.start[i]); last = Math.max(last, until); }
      }
    } else {
      const from = Math.max(0, Math.floor((begin - origin) / cell)), to = Math.min(CELLS, Math.ceil((end - origin) / cell));
      for (const [, shares] of row.cells) {
        for (let i = from; i < to; i++) if (shares[i]) { first = Math.min(first, origin + i * cell); last = Math.max(last, origin + (i + 1) * cell); }
      }
    }
    return [Math.max(first, begin), Math.min(last, end)];
  }

  /** Asks for what is drawn over the lanes: the critical path, launches, counters. */
  look() {
    clearTimeout(this.looking);
    this.looking = setTimeout(async () => {
      this.moves = false;
      this.draw();
      const query = { from: Math.floor(this.window.begin), to: Math.ceil(this.window.end) }, turn = this.looks = (this.looks || 0) + 1;
      const pinned = [...this.pinned];
      const [path, ...found] = await Promise.all([
        this.drawsPath && this.data.has_path ? this.ask("path", query) : null,
        ...pinned.map(rank => this.ask("overlays", { rank, ...query, ...this.drawn() })),
      ]);
      if (turn !== this.looks) return;
      this.path = path;
      this.overlays = new Map(pinned.map((rank, place) => [rank, found[place] || { launches: [], counters: [] }]));
      this.layout();
    }, OVERLAY_MS);
  }

  // -- drawing

  draw() {
    if (this.frame || !this.sections) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
      this.tiles.pump();
    });
  }

  paint() {
    const { context, size, data } = this;
    const { theme } = data;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, size.width, size.height);
    context.imageSmoothingEnabled = false;
    context.textBaseline = "middle";
    const works = new Map(); // the pixels that each kind of work takes
    this.paintAxis(this.sections[0], 0, true);
    for (const section of this.sections) {
      for (const group of section.groups) this.paintGroup(section, group, works);
      if (section.kind === "lanes") { this.paintCounters(section); this.paintLaunches(section); } else this.paintPath(section);
      this.paintLabels(section); // after the pictures, which would cover the hosts' names
      this.paintSteps(section);
      this.paintCursor(section);
    }
    this.paintMeasured();
    this.paintBox();
    this.stepShown();
    this.canvas.setAttribute("aria-label", this.description());
    const named = this.namedIn(works);
    const shown = [...named].join() + works.size + this.pathHint + Boolean(this.drawsPath && this.path?.pieces.length);
    if (shown !== this.legendShows && !(this.moves && named.size === this.named.size)) { this.works = works; this.named = named; this.legendShows = shown; this.paintLegend(); }
  }

  /** The kinds of work that the legend names: those that one can see, all if they are few, but no more than its rows
   *  have room for; all if one has asked for them. */
  namedIn(works) {
    const all = [...works].sort(([a], [b]) => a - b), whole = all.reduce((sum, [, area]) => sum + area, 0);
    if (this.wholeLegend) return new Set(all.map(([work]) => work));
    const seen = all.filter(([, area]) => all.length <= LEGEND_MOST || area >= LEGEND_SHARE * whole);
    const squares = new Map(); // kinds of one colour share a square
    for (const [work, area] of seen) {
      const square = squares.get(this.colours[work]) || { works: [], area: 0 };
      squares.set(this.colours[work], { works: [...square.works, work], area: square.area + area });
    }
    const entry = words => ENTRY_PX + this.wide(words, LEGEND_FONT);
    const path = this.drawsPath && this.data.has_path ? [`critical path${this.pathWords(100)}`] : []; // the same while it moves
    const others = [...path, "+ 10 others"].map(entry), most = this.narrow ? NARROW_LEGEND_ROWS : LEGEND_ROWS;
    for (const [colour] of [...squares].sort(([, a], [, b]) => a.area - b.area)) {
      let rows = 1, at = 0;
      for (const wide of [...[...squares.values()].map(({ works }) => entry(works.map(work => this.data.works[work]).join(" · "))), ...others]) {
        if (at && at + wide > this.size.width) { rows++; at = 0; }
        at += wide;
      }
      if (rows <= most || squares.size < 3) break;
      squares.delete(colour);
    }
    const named = new Set([...squares.values()].flatMap(({ works }) => works).sort((a, b) => a - b));
    this.crowded = named.size < seen.length; // then not all others of the legend take little time
    return named;
  }

  description() {
    const { begin, end } = this.window;
    const step = Math.max(1, (end - begin) / 1000);
    const pinned = this.pinned.length ? `; all lanes of rank ${this.pinned.join(" and rank ")}` : "";
    return `Timeline of ${this.data.ranks.length} ranks from ${moment(begin, step)} to ${moment(end, step)}${pinned}`;
  }

  at(section, ns) { return section.x + (ns - this.window.begin) / (this.window.end - this.window.begin) * section.width; }
  ns(section, x) { return this.window.begin + (x - section.x) / section.width * (this.window.end - this.window.begin); }

  paintAxis(section, y, withSteps) {
    const { context, data: { theme, steps }, window: { begin, end } } = this;
    const { ticks, base } = ticksOf(begin, end, section.width);
    context.font = FONT;
    context.fillStyle = theme.soft;
    context.textAlign = "right";
    if (base) context.fillText(this.fitting([`${base} +`], section.label - 8), section.x - 6, y + AXIS_PX / 2);
    else if (withSteps) context.fillText(this.fitting(["since the run's begin", "time"], section.label - 8), section.x - 6, y + AXIS_PX / 2);
    context.textAlign = "left";
    for (const [at, text] of ticks) {
      const x = this.at(section, at);
      context.fillStyle = theme.faint;
      context.fillRect(Math.round(x), y + AXIS_PX - 5, 1, 5);
      context.fillStyle = theme.soft;
      if (x + 4 + text.length * CHAR_PX < section.x + section.width + 8) context.fillText(text, x + 3, y + AXIS_PX / 2 - 1);
    }
    if (!withSteps) return;
    const stride = this.strideOfNumbers(section);
    this.eachStep(section, ([number, from, to, traced], x, wide) => {
      if (traced) {
        context.fillStyle = theme.traced;
        context.fillRect(x, y + AXIS_PX, Math.max(1, Math.min(wide, section.x + section.width - x)), STEPS_PX - 2);
      }
      const text = wide > 58 ? `step ${number}` : String(number);
      if (stride === 1 && wide > text.length * CHAR_PX + 6) {
        context.fillStyle = theme.ink;
        context.fillText(text, Math.max(x, section.x) + 3, y + AXIS_PX + STEPS_PX / 2 - 1);
      }
    });
    if (stride > 1) this.paintNumbers(section, stride, y + AXIS_PX + STEPS_PX / 2 - 1);
    context.textAlign = "right";
    context.fillStyle = theme.soft;
    context.fillText(this.fitting(steps.some(step => step[3]) ? ["steps; shaded: profiled", "steps"] : ["steps"], section.label - 8), section.x - 6, y + AXIS_PX + STEPS_PX / 2 - 1);
  }

  /** The distance in steps between the numbers that are shown: 1, or the least of 2, 5, 10, 20 ... that has room. */
  strideOfNumbers(section) {
    const { begin, end } = this.window, inside = this.data.steps.filter(([, from, to]) => to >= begin && from <= end);
    if (!inside.length) return 1;
    const wanted = (String(inside[inside.length - 1][0]).length * CHAR_PX + 6) * inside.length / section.width;
    let stride = 1;
    for (let at = 0; stride < wanted; at++) stride = [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3);
    return stride;
  }

  /** The numbers of the steps at this distance, where steps are narrower than their numbers. */
  paintNumbers(section, stride, y) {
    const { context, data: { theme, steps }, window: { begin, end } } = this;
    context.fillStyle = theme.ink;
    let free = section.x;
    for (const [number, from] of steps) {
      if (number % stride || from < begin || from > end) continue;
      const x = this.at(section, from), text = String(number), wide = text.length * CHAR_PX + 6;
      if (x < free || x + wide > section.x + section.width) continue;
      context.fillText(text, x + 3, y);
      free = x + wide;
    }
  }

  eachStep(section, each) {
    const { steps } = this.data, { begin, end } = this.window;
    let low = 0, high = steps.length;
    while (low < high) { const middle = (low + high) >> 1; if (steps[middle][2] < begin) low = middle + 1; else high = middle; }
    let last = -Infinity;
    for (let i = low; i < steps.length && steps[i][1] <= end; i++) {
      const x = Math.max(section.x, this.at(section, steps[i][1]));
      const wide = Math.min(section.x + section.width, this.at(section, steps[i][2])) - x;
      if (x - last < 1.5 && wide < 1.5) continue;
      last = x;
      each(steps[i], x, wide);
    }
  }

  paintSteps(section) {
    const { context, data: { theme } } = this;
    const top = section.kind === "ranks" ? 0 : TITLE_PX + AXIS_PX;
    context.fillStyle = theme.faint;
    context.globalAlpha = 0.55;
    this.eachStep(section, ([, from], x, wide) => {
      if (from >= this.window.begin && wide > 4) context.fillRect(Math.round(x), section.y + top, 1, section.height - top);
    });
    context.globalAlpha = 1;
  }

  paintLabels(section) {
    const { context, data: { theme } } = this;
    context.textAlign = "left";
    if (section.kind === "lanes") {
      context.font = BOLD;
      context.fillStyle = theme.ink;
      const host = this.byRank.get(section.rank).host;
      context.fillText(fitted(`Rank ${section.rank}${host ? ` on ${host}` : ""}`, section.label + section.width), section.left, section.y + TITLE_PX / 2);
      this.paintAxis(section, section.y + TITLE_PX, false);
      if (!section.known) {
        context.font = FONT;
        context.fillStyle = theme.soft;
        context.fillText("Reading the trace…", section.x, section.y + TITLE_PX + AXIS_PX + LANE_PX);
      }
    }
    if (section.fold) {
      const { texts } = section.fold, ofRanks = section.kind === "ranks"; // whose path is drawn beside the text
      context.font = FONT;
      context.fillStyle = theme.soft;
      context.textAlign = ofRanks ? "right" : "left";
      const room = section.label + (ofRanks ? 0 : section.width) - 8;
      context.fillText(this.fitting(texts, room), ofRanks ? section.x - 6 : section.x - (section.label - 6), section.y + section.fold.y + LANE_PX / 2);
      context.textAlign = "left";
    }
    for (const counter of section.counters || []) {
      context.font = FONT;
      context.fillStyle = theme.soft;
      const top = section.y + counter.y, lines = counter.scale ? [counter.name, counter.scale] : [counter.name];
      if (this.narrow) { this.nameAbove(section, [lines.join(" · "), counter.name], top); continue; }
      context.textAlign = "right";
      lines.forEach((text, line) => context.fillText(this.fitting([text], section.label - 10), section.x - 6, top + counter.height * (2 * line + 1) / (2 * lines.length)));
      context.textAlign = "left";
    }
    for (const host of section.hosts) {
      context.font = BOLD;
      context.fillStyle = theme.soft;
      context.fillText(fitted(`${host.host || "unknown host"}: ${host.count} ${host.count === 1 ? "rank" : "ranks"}`, section.label + section.width), section.left, section.y + host.y + HOST_PX / 2);
    }
    section.rows.forEach((row, place) => {
      const middle = section.y + row.y + row.height / 2;
      context.textAlign = "right";
      if (section.kind === "lanes") {
        context.font = FONT;
        context.fillStyle = theme.soft;
        if (!row.title || !row.height) return;
        if (this.narrow) this.nameAbove(section, [row.title], section.y + row.y);
        else context.fillText(this.fitting([row.title], section.label - 10), section.x - 6, middle);
        return;
      }
      const rank = this.byRank.get(row.rank);
      const named = row.height >= 11 || (row.height >= 3 ? place % Math.ceil(12 / row.height) === 0 : place % 32 === 0) || rank.at_fault;
      if (!named) return;
      context.font = rank.at_fault ? BOLD : FONT;
      context.fillStyle = rank.at_fault || this.pinned.includes(row.rank) ? theme.ink : theme.soft;
      context.fillText(this.fitting(this.rankNames(row.rank), section.label - 8), section.x - 6, middle);
    });
    context.textAlign = "left";
  }

  /** A name on a line of its own, from the left border on. */
  nameAbove(section, texts, y) {
    this.context.textAlign = "left";
    this.context.fillText(this.fitting(texts, section.label + section.width), section.left, y - NAME_PX / 2);
  }

  /** How wide a text is, in the font of the context or in this one. */
  wide(text, font = this.context.font) {
    if (this.context.font !== font) this.context.font = font;
    return this.context.measureText(text).width;
  }

  /** The first of the texts that fits; if none does, the last one, cut. */
  fitting(texts, room) { return texts.find(text => this.wide(text) <= room) || fitted(texts[texts.length - 1], room); }

  paintGroup(section, group, works) {
    if (!group.rows.length && group.what === "ranks") return;
    const { window: { begin, end }, context } = this;
    const level = this.levelIn(section), span = spanOf(level);
    const drawn = group.rows.map(() => -1); // the last event drawn in each row: several tiles may hold the same event
    const tiles = [];
    for (let tile = Math.floor(begin / span); tile * span < end; tile++) {
      const [from, to] = [Math.max(begin, tile * span), Math.min(end, (tile + 1) * span)];
      const held = this.tiles.get(group, level, tile);
      const shown = held || this.tiles.coarser(group, level, tile);
      if (shown && shown.rows.length === group.rows.length) tiles.push({ shown, from, to, exact: Boolean(held) });
    }
    context.save();
    context.beginPath();
    context.rect(section.x, section.y, section.width, section.height);
    context.clip();
    // An event is drawn once, by the first tile that holds it, and reaches over the tiles after that. Pictures are opaque:
    // all of them come before the first event.
    for (const { shown, from, to } of tiles) this.paintPicture(section, group, shown, from, to, works);
    if (group.what === "rows") {
      for (const { shown, from, to, exact } of tiles) {
        const before = exact ? drawn : group.rows.map(() => -1);
        shown.rows.forEach((row, place) => { if (!row.cells) this.paintEvents(section, group.rows[place], shown, row, from, to, works, before, place); });
      }
    }
    context.restore();
    this.tiles.get(group, group.top, 0); // the coarsest tile, to stretch wherever the user jumps
    if (!group.rows.length) return;
    for (const tile of [Math.floor(begin / span) - 1, Math.floor(end / span) + 1]) this.tiles.get(group, level, tile);
  }

  paintPicture(section, group, tile, from, to, works) {
    const { context } = this;
    const cell = 2 ** tile.level, begin = tile.tile * spanOf(tile.level);
    if (!tile.rows.some(row => row.cells && row.cells.length)) return;
    const wide = this.at(section, to) - this.at(section, from);
    tile.rows.forEach((row, place) => {
      row.shares ||= (row.cells || []).map(([work, shares]) => [work, shares.reduce((sum, share) => sum + share, 0) / (FULL * CELLS)]);
      for (const [work, share] of row.shares) works.set(work, (works.get(work) || 0) + share * wide * (group.rows[place].height && group.rows[place].draws));
    });
    if (!tile.picture || tile.shape !== group.shape) {
      tile.picture = this.pictureOf(tile, group);
      tile.shape = group.shape; // another layout of the ranks has other heights and gaps
    }
    const [x, until] = [this.at(section, from), this.at(section, to)];
    context.drawImage(tile.picture, (from - begin) / cell, 0, Math.max(1e-3, (to - from) / cell), tile.picture.height,
      x, section.y + group.rows[0].y, until - x, tile.picture.height);
  }

  paintEvents(section, row, tile, events, from, to, works, drawn, place) {
    const { context, colours, data: { theme } } = this;
    const y = section.y + row.y, right = section.x + section.width;
    if (!row.height) return; // folded
    let reach = -Infinity;
    context.font = FONT;
    for (let i = 0; i < events.count; i++) {
      if (events.index[i] <= drawn[place] || events.end[i] < from || events.start[i] > to) continue;
      drawn[place] = events.index[i];
      const work = events.work[i];
      if (!works.has(work)) works.set(work, 0);
      const x = Math.max(section.x - 1, this.at(section, events.start[i])), until = Math.min(right + 1, this.at(section, events.end[i]));
      const matches = events.found && events.found[i];
      if (until < reach && !matches) continue; // hidden by what is drawn already
      const wide = Math.max(1, until - x - (until - x > 3 ? 0.6 : 0));
      reach = x + wide - 0.4;
      works.set(work, works.get(work) + wide * row.draws);
      context.globalAlpha = events.found && !matches ? 0.28 : 1;
      context.fillStyle = colours[work];
      context.fillRect(x, y, wide, row.draws);
      if (wide > 22) {
        context.globalAlpha = 1;
        context.fillStyle = events.found && !matches ? theme.ink : this.inks[work];
        context.fillText(fitted(tile.names[events.name[i]] || this.data.works[work], wide - 5), x + 3, y + row.draws / 2 + 0.5);
      }
      context.globalAlpha = 1;
      if (matches || this.isSelected(row, events.index[i])) {
        const wider = this.isSelected(row, events.index[i]) ? 1 : 0; // outside the selected event, against the background
        context.strokeStyle = theme.ink;
        context.lineWidth = 1 + wider;
        context.strokeRect(x + 0.5 - wider, y + 0.5 - wider, Math.max(1, wide - 1 + 2 * wider), row.draws - 1 + 2 * wider);
      }
    }
  }

  isSelected(row, index) {
    const chosen = this.selected;
    return Boolean(chosen) && chosen.rank === row.rank && chosen.row === row.row && chosen.index === index;
  }

  /** The cells of a tile as a picture: one pixel wide per cell, rows as high as they are drawn. */
  pictureOf(tile, group) {
    const first = group.rows[0].y, last = group.rows[group.rows.length - 1];
    const height = Math.max(1, last.y + last.height - first);
    const picture = document.createElement("canvas");
    picture.width = CELLS;
    picture.height = height;
    const context = picture.getContext("2d");
    const image = context.createImageData(CELLS, height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(pixel(this.ground));
    tile.rows.forEach((row, place) => {
      if (!row.cells || !row.cells.length || !group.rows[place].height) return;
      const { y, draws } = group.rows[place];
      if (group.stacked) this.stack(pixels, row.cells, y - first, draws);
      else this.blend(pixels, row, y - first, draws);
    });
    context.putImageData(image, 0, 0);
    return picture;
  }

  /** Stacks the kinds of work in each cell; the height of each is its fraction of the time. */
  stack(pixels, cells, y, high) {
    const inks = cells.map(([work]) => pixel(this.packed[work]));
    for (let x = 0; x < CELLS; x++) {
      let total = 0, filled = 0;
      for (let k = 0; k < cells.length; k++) total += cells[k][1][x];
      if (!total) continue;
      const scale = high / Math.max(total, FULL);
      if (total * scale < 0.5) { // too short for a pixel, and alone: still visible
        const most = cells.reduce((longest, each, k) => each[1][x] > cells[longest][1][x] ? k : longest, 0);
        pixels[(y + high - 1) * CELLS + x] = inks[most];
        continue;
      }
      let sum = 0;
      for (let k = 0; k < cells.length; k++) {
        sum += cells[k][1][x];
        const until = Math.min(high, Math.round(sum * scale));
        for (; filled < until; filled++) pixels[(y + high - 1 - filled) * CELLS + x] = inks[k];
      }
    }
  }

  /** Paints each cell in the colour of its longest kind of work, fainter if less of the cell is busy. */
  blend(pixels, row, y, high) {
    for (let x = 0; x < CELLS; x++) {
      let total = 0, most = 0, chosen = -1;
      for (const [work, shares] of row.cells) {
        total += shares[x];
        if (shares[x] > most) { most = shares[x]; chosen = work; }
      }
      if (chosen < 0) continue;
      let strength = 0.4 + 0.6 * Math.min(1, total / FULL);
      if (this.find && row.heading) strength = row.found && row.found[x] ? 1 : strength * 0.28;
      const colour = this.packed[chosen], ink = pixel(colour.map((part, i) => Math.round(part * strength + this.ground[i] * (1 - strength))));
      for (let line = 0; line < high; line++) pixels[(y + line) * CELLS + x] = ink;
      if (row.found && row.found[x]) pixels[(y + high - 1) * CELLS + x] = pixel(rgb(this.data.theme.ink));
    }
  }

  paintCursor(section) {
    const { cursor, context, data: { theme } } = this;
    if (!cursor || this.shadowFocus() !== this.canvas) return;
    const row = section.rows.find(candidate => candidate.rank === cursor.rank && candidate.row === cursor.row);
    if (!row || section.kind !== cursor.kind) return;
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    context.strokeRect(section.x + 0.5, section.y + row.y - 0.5, section.width - 1, row.height);
    context.fillStyle = theme.ink;
    context.fillRect(section.x + section.width / 2, section.y + row.y - 3, 1, row.height + 6);
  }

  shadowFocus() { return this.root.getRootNode().activeElement; }

  pathWords(changes) { return this.narrow ? "" : `, ${changes.toLocaleString("en")} changes of rank: zoom in to see them as arrows`; }

  /** A thin line under the row of the rank that the step waits for, with an arrow where that changes, unless the arrows
   *  would cover what they lead to. Ranks that are folded are one row. */
  paintPath(section) {
    this.pathHint = "";
    if (!this.drawsPath || !this.path || !this.path.pieces.length) return;
    const { context, data: { theme } } = this;
    const rows = new Map(section.rows.map(row => [row.rank, [section.y + row.y + row.draws - 1, section.y + row.y]]));
    const folded = section.fold ? [section.y + section.fold.y + LANE_PX / 2, section.y + section.fold.y + LANE_PX / 2] : undefined;
    const stretches = [], turns = [];
    let changes = 0, before = null;
    for (const [rank, start, end] of this.path.pieces) {
      const x = this.at(section, start), until = this.at(section, end), row = rows.get(rank) || folded;
      if (until < section.x || x > section.x + section.width) { before = null; continue; }
      if (before && before.rank !== rank) changes++;
      if (row && before && before.row && before.row !== row && x - before.x < 12) turns.push([x, before.row, row]); // else a part of the path is not drawn
      if (row && !(this.moves && until - x < 1.5)) stretches.push([x, Math.max(until, x + 0.5), row]);
      before = { x: until, row, rank };
    }
    const arrows = !this.moves && turns.length * ARROW_PX <= section.width;
    if (!arrows && changes && !this.moves) this.pathHint = this.pathWords(changes);
    context.save();
    context.beginPath();
    context.rect(section.x, section.y, section.width, section.height);
    context.clip();
    for (const [colour, wide] of this.moves ? [[theme.ink, 1]] : [[theme.ground, 4], [theme.ink, 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      for (const [x, until, [y]] of stretches) { context.moveTo(x, y); context.lineTo(until, y); }
      for (const [x, [from], [to, top]] of arrows ? turns : []) {
        const down = to > from, goal = down ? top : to; // it ends at the edge of the row that it comes to
        context.moveTo(x, from);
        context.lineTo(x, to);
        context.moveTo(x - 3.5, goal + (down ? -5 : 5));
        context.lineTo(x, goal);
        context.lineTo(x + 3.5, goal + (down ? -5 : 5));
      }
      context.stroke();
    }
    context.restore();
  }

  /** Arrows from calls of the host to what they launched: all if they are few, and those of the selected event. */
  paintLaunches(section) {
    const { launches = [] } = this.overlays.get(section.rank) || {}, { context, data: { theme }, selected } = this;
    const chosen = selected && selected.rank === section.rank ? selected.launches || [] : [];
    if (!launches.length && !chosen.length) return;
    context.save();
    context.beginPath();
    context.rect(section.x, section.y + TITLE_PX + AXIS_PX, section.width, section.height);
    context.clip();
    const many = Math.max(0.2, Math.min(1, DISTINCT_ARROWS / (launches.length || 1))); // else they hide the events
    for (const [arrows, alpha, wide, colour] of [[launches, 0.5 * many, 2.5, theme.ground], [launches, 0.7 * many, 1, theme.ink], [chosen, 1, 4, theme.ground], [chosen, 1, 2, theme.ink]]) {
      context.globalAlpha = alpha;
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      for (const [from, fromRow, to, toRow] of arrows) {
        const call = section.rows[fromRow], work = section.rows[toRow];
        if (!call || !work || !call.height || !work.height) continue;
        const up = call.y > work.y, x = this.at(section, from), until = this.at(section, to);
        if (Math.max(x, until) < section.x || Math.min(x, until) > section.x + section.width) continue;
        const y = section.y + call.y + (up ? 0 : call.draws), goal = section.y + work.y + (up ? work.draws : 0), tip = up ? 5 : -5;
        context.moveTo(x, y);
        context.bezierCurveTo(x, (y + goal) / 2, until, (y + goal) / 2, until, goal);
        context.moveTo(until - 3, goal + tip);
        context.lineTo(until, goal);
        context.lineTo(until + 3, goal + tip);
      }
      context.stroke();
    }
    context.restore();
  }

  /** Each counter as a line of steps between the lowest and the highest value of the run. What only is or is not, such
   *  as throttling, is a bar. */
  paintCounters(section) {
    const { context, data: { theme } } = this, right = section.x + section.width;
    context.save();
    context.beginPath();
    context.rect(section.x, section.y, section.width, section.height);
    context.clip();
    for (const counter of section.counters) {
      const bottom = section.y + counter.y + counter.height, high = counter.height - 3;
      context.fillStyle = theme.faint;
      context.globalAlpha = 0.5;
      context.fillRect(section.x, bottom + 1, section.width, 1);
      context.globalAlpha = 1;
      if (!counter.scale) {
        context.fillStyle = theme.ink;
        for (const [start, end] of counter.pieces) {
          const x = Math.max(section.x, this.at(section, start)), until = Math.min(right, this.at(section, end));
          if (until >= x) context.fillRect(x, bottom - high / 2 - 2, Math.max(1, until - x), 4);
        }
        continue;
      }
      const room = Math.max(counter.highest - counter.lowest, LEAST_OF_HIGHEST * Math.abs(counter.highest)) || 1;
      const floor = (counter.highest + counter.lowest - room) / 2;
      context.strokeStyle = theme.accent;
      context.lineWidth = 1.5;
      context.beginPath();
      let reached = -Infinity;
      for (const [start, end, value] of counter.pieces) {
        const x = Math.max(section.x - 2, this.at(section, start)), until = Math.min(right + 2, this.at(section, end));
        if (until < x) continue;
        const y = bottom - (value - floor) / room * high;
        if (x - reached > 1.5) context.moveTo(x, y); else context.lineTo(x, y); // a gap between samples stays one
        context.lineTo(Math.max(until, x + 1.5), y);
        reached = Math.max(until, x);
      }
      context.stroke();
    }
    context.restore();
  }

  /** The measured span over all rows, with its length. */
  paintMeasured() {
    const span = this.measured;
    if (!span) return;
    const { context, data: { theme } } = this;
    for (const section of this.sections) {
      const x = Math.max(section.x, this.at(section, span.begin)), until = Math.min(section.x + section.width, this.at(section, span.end));
      if (until <= x) continue;
      context.globalAlpha = 0.14;
      context.fillStyle = theme.accent;
      context.fillRect(x, section.y, until - x, section.height);
      context.globalAlpha = 1;
      context.fillRect(x, section.y, 1, section.height);
      context.fillRect(until - 1, section.y, 1, section.height);
    }
    const [first] = this.sections, text = duration(span.end - span.begin);
    const x = Math.max(first.x, (this.at(first, span.begin) + this.at(first, span.end)) / 2 - text.length * CHAR_PX / 2);
    context.font = BOLD;
    context.fillStyle = theme.ground;
    context.fillRect(x - 4, AXIS_PX + 1, text.length * CHAR_PX + 8, STEPS_PX - 2);
    context.fillStyle = theme.accent;
    context.textAlign = "left";
    context.fillText(text, x, AXIS_PX + STEPS_PX / 2);
  }

  /** Measures a span: what the pinned ranks spent it on. */
  async measure(from, to) {
    this.measured = { begin: Math.min(from, to), end: Math.max(from, to) };
    this.selected = null;
    this.draw();
    const turn = ++this.asked;
    const answer = await this.ask("span", { ranks: this.pinned.join(","), from: Math.floor(this.measured.begin), to: Math.ceil(this.measured.end) + 1 });
    if (!answer || turn !== this.asked) return;
    this.about = [...this.pinned];
    this.details.hidden = false;
    this.details.replaceChildren(element("h4", {}, `Measured: ${answer.duration}`));
    for (const { rank, parts } of answer.ranks) this.details.append(element("p", {}, `Rank ${rank}`), this.facts(parts));
    this.details.append(this.closer());
  }

  facts(pairs) {
    const list = element("dl");
    for (const [label, text] of pairs) list.append(element("dt", {}, label), element("dd", {}, text));
    return list;
  }

  closer() {
    const box = element("div", { class: "actions" }), made = element("button", { type: "button" }, "Close");
    made.addEventListener("click", () => { this.measured = null; this.show(null); this.canvas.focus(); });
    box.append(made);
    return box;
  }

  paintBox() {
    if (!this.box) return;
    const { context, box, data: { theme } } = this;
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(box.from, box.to), box.section.y, Math.abs(box.to - box.from), box.section.height);
    context.globalAlpha = 1;
  }

  paintLegend() {
    const colours = new Map(); // kinds of one colour share a square
    for (const work of this.named) colours.set(this.colours[work], [...colours.get(this.colours[work]) || [], work]);
    const entries = [...colours].map(([shade, works]) => {
      const entry = element("span", { class: "entry" }), swatch = element("i");
      swatch.style.background = shade;
      entry.append(swatch, ...works.map(work => element("span", {}, this.data.works[work])));
      return [shade, entry];
    });
    if (this.drawsPath && this.path && this.path.pieces.length) {
      const entry = element("span", { class: "entry" });
      entry.append(element("b", { class: "path" }), element("span", {}, `critical path${this.pathHint}`));
      entries.push(["path", entry]);
    }
    const rest = [...this.works.keys()].filter(work => !this.named.has(work));
    if (rest.length || this.wholeLegend) {
      const more = element("button", { type: "button", class: "more", "aria-expanded": String(Boolean(this.wholeLegend)) },
        this.wholeLegend ? "− fewer colours" : `+ ${rest.length} ${this.crowded ? "others" : "with little time"}`);
      if (rest.length) more.title = rest.sort((a, b) => a - b).map(work => this.data.works[work]).join(", ");
      more.onclick = () => { this.wholeLegend = !this.wholeLegend; this.draw(); };
      entries.push(["more", more]);
    }
    arrange(this.legend, entries); // also while one presses a button of it, or the canvas, which it moves, is drawn
    if (!this.wholeLegend) this.legend.style.minHeight = `${this.legendPx = Math.max(this.legendPx, this.legend.clientHeight)}px`;
  }

  // -- moving

  isWhole() { return this.window.begin <= this.data.begin && this.window.end >= this.data.end; }

  whole() { this.moveTo(this.data.begin, this.data.end); }

  moveTo(begin, end) {
    const whole = this.data.end - this.data.begin;
    const span = Math.min(Math.max(end - begin, SHORTEST_NS), Math.max(whole, SHORTEST_NS));
    const room = span / 2;
    const from = Math.min(Math.max((begin + end - span) / 2, this.data.begin - room), this.data.end + room - span);
    this.window = span >= whole ? { begin: this.data.begin, end: this.data.end } : { begin: from, end: from + span };
    this.tip.hidden = true;
    this.changed();
    this.draw();
  }

  zoom(factor, share = 0.5) {
    const { begin, end } = this.window;
    const fixed = begin + share * (end - begin), span = Math.max(SHORTEST_NS, (end - begin) * factor);
    this.moveTo(fixed - share * span, fixed + (1 - share) * span);
  }

  pan(share) {
    const { begin, end } = this.window;
    const by = share * (end - begin);
    const [low, high] = [this.data.begin - begin, this.data.end - end];
    const kept = this.isWhole() ? 0 : Math.min(Math.max(by, Math.min(0, low - (end - begin) / 2)), Math.max(0, high + (end - begin) / 2));
    this.moveTo(begin + kept, end + kept);
  }

  changed() {
    this.moves = true;
    this.look();
    this.foldSoon();
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.status.textContent = this.description();
      this.setState("look", {
        step: this.stepOfWindow(), from: Math.round(this.window.begin), to: Math.round(this.window.end), whole: this.isWhole(),
        pinned: this.pinned, find: this.find, python: this.python,
      });
    }, SETTLE_MS);
  }

  pin(rank, place) {
    const stillPinned = this.pinned.filter(pinned => pinned !== rank);
    if (place === 0) this.pinned = [rank, ...stillPinned.slice(this.pinned.includes(rank) ? 0 : 1)].slice(0, 2);
    else this.pinned = this.pinned.length && this.pinned[0] !== rank ? [this.pinned[0], rank] : this.pinned;
    if (this.measured || this.about.some(each => !this.pinned.includes(each))) this.leave();
    if (this.foldsRanks()) this.rankButtons();
    this.changed();
    this.layout();
  }

  // -- search

  searchKey(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      if (this.search.value !== this.find) this.setFind(this.search.value);
      else this.goToMatch(event.shiftKey);
    } else if (event.key === "Escape") {
      this.search.value = "";
      this.setFind("");
      this.canvas.focus();
    }
    event.stopPropagation();
  }

  setFind(text) {
    if (text === this.find) return;
    this.find = text;
    this.matchStatus.textContent = "";
    this.tiles.repaint();
    this.changed();
    this.count();
    this.layout();
    if (text) this.goToMatch(false, true);
  }

  /** Counts the search's hits on each rank: the server searches one rank after the other. */
  async count() {
    const turn = ++this.counting, { find } = this;
    this.tally = null;
    this.everywhere.textContent = "";
    if (!find || this.data.ranks.length < 2) return;
    for (;;) {
      const answer = await this.ask("tally", { find, first: this.pinned.join(","), ...this.drawn() });
      if (turn !== this.counting || !answer) return;
      this.tally = new Map(answer.counts);
      const total = answer.counts.reduce((sum, [, count]) => sum + count, 0);
      const looked = answer.searched < answer.ranks ? `, ${answer.searched.toLocaleString("en")} of ${answer.ranks.toLocaleString("en")} ranks searched` : "";
      this.everywhere.textContent = `${total.toLocaleString("en")} on ${this.tally.size.toLocaleString("en")} of ${answer.ranks.toLocaleString("en")} ranks${looked}`;
      this.layout(); // the numbers stand beside the ranks' names
      if (answer.ended) return;
      await new Promise(then => setTimeout(then, COUNTING_MS));
    }
  }

  /** The next rank after (or before) the pinned ones that has a hit of the search; null if there is none. */
  otherRank(back) {
    if (!this.tally) return null;
    const ranks = this.data.ranks.map(entry => entry.rank), places = this.pinned.map(rank => ranks.indexOf(rank));
    const from = back ? Math.min(...places) : Math.max(...places);
    for (let by = 1; by < ranks.length; by++) {
      const rank = ranks[mod(from + (back ? -by : by), ranks.length)];
      if (this.tally.has(rank) && !this.pinned.includes(rank)) return rank;
    }
    return null;
  }

  /** Moves the window to the search's next hit in time on the pinned ranks. After the last one: pins the next rank that
      has hits, and moves to its first. */
  async goToMatch(back, first = false) {
    if (!this.find || !this.pinned.length) return;
    const { selected } = this;
    const here = !first && selected && selected.matchedText === this.find ? this.pinned.indexOf(selected.rank) : -1;
    const now = here >= 0 ? selected.start_ns : first ? Math.round(this.window.begin) : Math.round((this.window.begin + this.window.end) / 2);
    // Events that begin together are in the order of the pinned ranks.
    const from = place => here < 0 ? now - 1 : back ? now + (place < here ? 1 : 0) : now - (place > here ? 1 : 0);
    const answers = await Promise.all(this.pinned.map((rank, place) => this.ask("find", {
      rank, find: this.find, from: from(place), back: back ? 1 : 0, ...(place === here ? { number: selected.number } : {}), ...this.drawn(),
    })));
    const whole = this.data.end - this.data.begin + 1;
    const ahead = event => (event.start_ns - now) * (back ? -1 : 1);
    const anew = (event, place) => ahead(event) < 0 || // wraps around the run's end
      (ahead(event) === 0 && (place === here ? answers[place].count === 1 : here > place !== back));
    const distance = (event, place) => ahead(event) + (anew(event, place) ? whole : 0);
    const places = answers.map((_, place) => place).filter(place => answers[place] && answers[place].event);
    places.sort((a, b) => distance(answers[a].event, a) - distance(answers[b].event, b) || (back ? b - a : a - b));
    const best = places.length ? answers[places[0]] : null;
    const nextRank = first || (best && !anew(best.event, places[0])) ? null : this.otherRank(back);
    if (nextRank !== null) { await this.goToRank(nextRank, back); return; }
    if (!best) { this.matchStatus.textContent = `none on rank ${this.pinned.join(" and rank ")}`; return; }
    this.showMatch(best);
  }

  async goToRank(rank, back) {
    const from = back ? this.data.end + 1 : this.data.begin - 1;
    const answer = await this.ask("find", { rank, find: this.find, from: Math.round(from), back: back ? 1 : 0, ...this.drawn() });
    if (!answer || !answer.event) return;
    this.pinned = [rank];
    this.showRank(rank);
    this.changed();
    this.layout();
    this.showMatch(answer);
  }

  /** Shows the page of ranks that has this rank. */
  showRank(rank) {
    const place = this.data.ranks.findIndex(entry => entry.rank === rank);
    if (this.foldsRanks() || this.everyRank || (place >= this.firstRank && place < this.firstRank + PAGE_OF_RANKS)) return;
    this.firstRank = Math.floor(place / PAGE_OF_RANKS) * PAGE_OF_RANKS;
    this.rankButtons();
  }

  showMatch({ event, number, count }) {
    this.matchStatus.textContent = `${this.data.ranks.length > 1 ? `rank ${event.rank}: ` : ""}${number.toLocaleString("en")} of ${count.toLocaleString("en")}`;
    this.show({ ...event, matchedText: this.find, number });
    this.bringIntoView(event);
  }

  bringIntoView({ start_ns, dur_ns }) {
    const { begin, end } = this.window, span = end - begin;
    if (start_ns >= begin && start_ns + dur_ns <= end && dur_ns > span / 400) { this.draw(); return; }
    const wanted = dur_ns > span / 400 && dur_ns < span ? span : Math.max(SHORTEST_NS, dur_ns * 20);
    const middle = start_ns + dur_ns / 2;
    this.moveTo(middle - wanted / 2, middle + wanted / 2);
  }

  async ask(what, query) {
    try {
      const answer = await fetch(address(what, { ...query, source: this.data.source }));
      if (answer.status === 410) this.gone(this.data.source);
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  }

  // -- details

  async inspect(rank, row, from, to) {
    const turn = ++this.asked;
    const answer = await this.ask("event", { rank, row, from: Math.floor(from), to: Math.ceil(to), ...this.drawn() });
    if (!answer || turn !== this.asked) return;
    this.show(answer.event);
    if (!answer.event) this.showNothing(rank, row, answer);
  }

  /** Says how long nothing ran on a row, and why. `gap`: begin and end; null before the first or after the last event. */
  showNothing(rank, row, { gap: [begin, end], why, facts }) {
    const title = (this.lanesOf(rank) || [])[row]?.title || "this row";
    const long = begin === null || end === null ? "" : ` for ${duration(end - begin)}`;
    this.about = [rank];
    const when = begin === null ? " before its first event" : end === null ? " after its last event" : "";
    this.details.hidden = false;
    this.details.replaceChildren(element("h4", {}, `Rank ${rank}, ${title}: nothing ran here${long}${when}${why ? `: ${why}` : ""}`), this.facts(facts), this.closer());
  }

  async neighbour(by) {
    if (!this.selected) return;
    const { rank, row, index } = this.selected, turn = ++this.asked;
    const answer = index + by >= 0 ? await this.ask("event", { rank, row, index: index + by, ...this.drawn() }) : null;
    if (!answer || !answer.event || turn !== this.asked) return;
    this.show(answer.event);
    this.bringIntoView(answer.event);
  }

  show(event) {
    this.selected = event;
    this.about = event ? [event.rank] : [];
    this.details.hidden = !event;
    this.details.replaceChildren();
    if (event) {
      const list = this.facts(event.facts);
      const act = (label, does) => {
        const made = element("button", { type: "button" }, label);
        made.addEventListener("click", does);
        return made;
      };
      const buttons = element("div", { class: "actions" });
      buttons.append(
        act("Zoom to event", () => this.moveTo(event.start_ns - event.dur_ns, event.start_ns + 2 * event.dur_ns)),
        act("Find all with this name", () => { this.search.value = event.title.slice(0, 200); this.setFind(this.search.value); }),
        act("Close", () => { this.show(null); this.canvas.focus(); }),
      );
      if (!this.pinned.includes(event.rank)) buttons.prepend(act(`Pin rank ${event.rank}`, () => this.pin(event.rank, 0)));
      this.details.append(element("h4", {}, event.title), list, buttons);
    }
    this.draw();
  }

  // -- input

  listen() {
    const { canvas } = this;
    this.resizes = new ResizeObserver(() => {
      if (!this.data || this.stage.clientWidth === this.size?.width) return;
      this.legendPx = 0;
      this.legend.style.minHeight = "";
      this.layout();
    });
    this.resizes.observe(this.stage);
    canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", event => this.press(event));
    canvas.addEventListener("pointermove", event => this.move(event));
    canvas.addEventListener("pointerup", event => this.release(event));
    canvas.addEventListener("pointercancel", () => { this.grip = this.box = null; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; this.pointer = null; });
    canvas.addEventListener("keydown", event => this.key(event));
    canvas.addEventListener("focus", () => { this.cursor = this.cursor || this.cursors()[0] || null; this.draw(); });
    canvas.addEventListener("blur", () => this.draw());
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const section = this.sections.find(candidate => y >= candidate.y && y < candidate.y + candidate.height && x >= candidate.left && x <= candidate.x + candidate.width + 8)
      || (y < AXIS_PX + STEPS_PX ? this.sections[0] : null);
    const row = section && section.rows.find(candidate => y >= section.y + candidate.y && y < section.y + candidate.y + candidate.height);
    return { x, y, section, row: row || null, inPlot: Boolean(section) && x >= section.x };
  }

  wheel(event) {
    const at = this.place(event);
    if (!at.inPlot) return;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.pan((event.deltaX || event.deltaY) * unit / at.section.width);
      return;
    }
    this.zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * unit)) * 0.0022), (at.x - at.section.x) / at.section.width);
  }

  press(event) {
    if (event.button !== 0) return;
    const at = this.place(event);
    this.grip = { ...at, moved: false, begin: this.window.begin, end: this.window.end, boxes: (event.shiftKey || this.measuring) && at.inPlot };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const at = this.place(event);
    this.pointer = at;
    const { grip } = this;
    if (!grip) { this.hover(at); return; }
    if (Math.abs(at.x - grip.x) > 4 || grip.moved) grip.moved = true; else return;
    if (!grip.inPlot) return;
    if (grip.boxes) { this.box = { section: grip.section, from: grip.x, to: at.x }; this.draw(); return; }
    const by = (grip.x - at.x) / grip.section.width * (grip.end - grip.begin);
    this.moveTo(grip.begin + by, grip.end + by);
  }

  release(event) {
    const { grip, box } = this;
    this.grip = this.box = null;
    if (!grip) return;
    if (box) {
      const [from, to] = [box.from, box.to].map(x => this.ns(box.section, x)).sort((a, b) => a - b);
      if (this.measuring) this.measure(from, to); else this.moveTo(from, to);
    } else if (!grip.moved && this.onFold(grip)) {
      this.unfold(grip.section);
    } else if (!grip.moved && this.stepAt(grip)) {
      const [number] = this.stepAt(grip);
      if (event.shiftKey && this.pinned.length) this.openInPerfetto("trace", { rank: this.pinned[0], step: number });
      else this.goToStep(number);
    } else if (!grip.moved && grip.row) {
      this.cursor = { kind: grip.section.kind, rank: grip.row.rank, row: grip.row.row };
      if (grip.inPlot) this.inspect(grip.row.rank, grip.row.row, this.ns(grip.section, grip.x - 1.5), this.ns(grip.section, grip.x + 1.5));
      else if (grip.section.kind === "ranks") this.pin(grip.row.rank, event.shiftKey ? 1 : 0);
    }
    this.draw();
  }

  /** Draws the folded rows of a section, or folds them. */
  unfold({ kind, rank }) {
    if (kind === "ranks") { this.foldRanks(); return; }
    if (!this.unfolded.delete(rank)) this.unfolded.add(rank);
    this.layout();
  }

  /** Whether a place is on the line that names the folded rows. */
  onFold({ section, y }) {
    return Boolean(section && section.fold) && y >= section.y + section.fold.y && y < section.y + section.fold.y + LANE_PX;
  }

  /** The step whose number is at a place; undefined without one. */
  stepAt({ x, y, section, inPlot }) {
    if (!inPlot || section.kind !== "ranks" || y < AXIS_PX || y >= AXIS_PX + STEPS_PX) return undefined;
    const now = this.ns(section, x);
    return this.data.steps.find(([, begin, end]) => begin <= now && now < end);
  }

  /** The value of a counter at a place. */
  counterAt({ x, y, section, inPlot }) {
    if (!inPlot || section.kind !== "lanes") return "";
    const counter = section.counters.find(each => y >= section.y + each.y && y < section.y + each.y + each.height + 4);
    if (!counter) return "";
    const now = this.ns(section, x), piece = counter.pieces.find(([start, end]) => start <= now && now < end);
    return `${counter.name}: ${piece ? piece[3] : "no sample"}`;
  }

  hover(at) {
    const counted = this.counterAt(at);
    const step = this.stepAt(at);
    const opens = this.pinned.length ? `; with Shift: open it of rank ${this.pinned[0]} in Perfetto` : "";
    const text = step ? `Step ${step[0]}, ${duration(step[2] - step[1])}\nClick: show it${opens}` : counted || (at.section && at.section.fold && this.onFold(at)) ? counted || "Click: draw these rows, or fold them" : at.row && at.inPlot ? this.under(at) : at.row && at.section.kind === "ranks" ? this.byRank.get(at.row.rank).about : "";
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const right = at.x > this.size.width / 2;
    this.tip.style.left = right ? "" : `${at.x + 14}px`;
    this.tip.style.right = right ? `${this.size.width - at.x + 14}px` : "";
    this.tip.style.top = `${at.y + 14}px`;
  }

  /** A description of what is drawn at a place. */
  under(at) {
    const { section, row } = at, now = this.ns(section, at.x);
    const level = this.levelIn(section);
    const group = section.groups.find(candidate => candidate.rows.includes(row));
    const number = Math.floor(now / spanOf(level));
    const tile = this.tiles.held.get(this.tiles.key(group, level, number));
    if (!tile || !tile.rows || tile.rows.length !== group.rows.length) return "";
    const held = tile.rows[group.rows.indexOf(row)];
    if (held.cells) {
      const cell = Math.min(CELLS - 1, Math.floor((now - number * spanOf(level)) / 2 ** level));
      const parts = held.cells.filter(([, shares]) => shares[cell]).map(([work, shares]) => `${this.data.works[work]} ${Math.round(shares[cell] / FULL * 100)} %`);
      return parts.length ? `${section.kind === "ranks" ? `rank ${row.rank}, ` : ""}${duration(2 ** level)} at ${moment(now, 2 ** level)}: ${parts.join(", ")}` : "";
    }
    const slack = 1.5 / section.width * (this.window.end - this.window.begin);
    for (let i = held.count - 1; i >= 0; i--) {
      if (held.start[i] <= now + slack && held.end[i] >= now - slack) {
        return `${tile.names[held.name[i]] || this.data.works[held.work[i]]}\n${this.data.works[held.work[i]]}, ${duration(held.end[i] - held.start[i])}`;
      }
    }
    return "";
  }

  cursors() {
    return this.sections.flatMap(section => section.rows.filter(row => row.height).map(row => ({ kind: section.kind, rank: row.rank, row: row.row })));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const share = this.pointer && this.pointer.inPlot ? (this.pointer.x - this.pointer.section.x) / this.pointer.section.width : 0.5;
    const lower = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const acts = {
      w: () => this.zoom(0.8, share), "+": () => this.zoom(0.8, share), "=": () => this.zoom(0.8, share),
      s: () => this.zoom(1.25, share), "-": () => this.zoom(1.25, share),
      a: () => this.pan(-0.1), ArrowLeft: () => this.pan(-0.1), d: () => this.pan(0.1), ArrowRight: () => this.pan(0.1),
      ArrowUp: () => this.step(-1), ArrowDown: () => this.step(1),
      Enter: () => this.enter(), "[": () => this.neighbour(-1), "]": () => this.neighbour(1),
      p: () => this.cursor && this.pin(this.cursor.rank, event.shiftKey ? 1 : 0),
      n: () => this.goToMatch(event.shiftKey), "/": () => { this.openDrawer(true); this.search.focus(); },
      m: () => this.toggleMeasuring(),
      u: () => { const section = this.cursor && this.sections.find(each => each.kind === this.cursor.kind && each.rows.some(row => row.rank === this.cursor.rank)); if (section && section.fold) this.unfold(section); },
      0: () => this.whole(), Home: () => this.whole(), f: () => this.whole(),
      Escape: () => { this.measured = null; this.show(null); },
    };
    const act = acts[lower];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation(); // Streamlit has its own keys
    act();
  }

  step(by) {
    const all = this.cursors();
    if (!all.length) return;
    const here = all.findIndex(candidate => this.cursor && candidate.kind === this.cursor.kind && candidate.rank === this.cursor.rank && candidate.row === this.cursor.row);
    this.cursor = all[here < 0 ? 0 : mod(here + by, all.length)];
    const title = (this.lanesOf(this.cursor.rank) || [])[this.cursor.row];
    this.status.textContent = `rank ${this.cursor.rank}${this.cursor.kind === "lanes" && title ? `, ${title.title}` : ""}`;
    this.draw();
  }

  enter() {
    if (!this.cursor) return;
    const middle = (this.window.begin + this.window.end) / 2, near = (this.window.end - this.window.begin) / 400;
    this.inspect(this.cursor.rank, this.cursor.row, middle - near, middle + near);
  }
}

// -- colours and text ------------------------------------------------------------------------------------------------

function rgb(colour) { return [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16)); }

function pixel([red, green, blue]) { return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0; }

/** Black or white, whichever is readable on the colour (WCAG's relative luminance). */
function inkOn(colour) {
  const [red, green, blue] = rgb(colour).map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 ? "#ffffff" : "#000000";
}

function fitted(text, width) {
  const most = Math.floor(width / CHAR_PX);
  if (text.length <= most) return text;
  return most > 2 ? `${text.slice(0, most - 1)}…` : "";
}
