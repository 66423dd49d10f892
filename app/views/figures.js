// Every Plotly figure of the page by keyboard: one tab stop, arrow keys move from mark to mark as the pointer would, Enter
// clicks. What is said about a mark is what the pointer sees, because the figure is given the pointer's events. To
// assistive technology a figure is a slider: its name is the figure's, its value what is said about the mark. A figure
// that the server draws again keeps the focus, and so does the one that comes into the place of one not in view yet.

const FIGURE = "[data-testid=stPlotlyChart] .js-plotly-plot";
const SAID_MS = 300; // Plotly says what is under the pointer every 50 ms
const NEAR = 2; // pixels: in one line
const WATCHED = new WeakMap();
const AT = new WeakMap(); // by figure, the mark that was reached last
let held = null; // the key of the figure that has the focus, and its mark

export default function ({ parentElement, data }) {
  window.requestIdleCallback?.(() => loadAhead(data)); // not in every browser
  WATCHED.get(parentElement)?.();
  let asked = 0;
  const watch = new MutationObserver(() => { asked ||= requestAnimationFrame(() => { asked = 0; offerAll(); }); });
  watch.observe(document.body, { childList: true, subtree: true });
  const ended = new AbortController(), { signal } = ended;
  document.addEventListener("focusin", event => hold(event.composedPath()[0], event.target), { signal });
  document.addEventListener("pointerdown", () => { held = null; }, { signal });
  for (const kind of ["click", "keydown"]) document.addEventListener(kind, isolate, { signal });
  const end = () => { watch.disconnect(); ended.abort(); };
  WATCHED.set(parentElement, end);
  if (!held) hold(focused(), document.activeElement); // a place may be reached before this runs
  offerAll();
  return end;
}

/** Remembers what has the focus, if it is a figure or the place of one. `host`: it, or the element whose shadow it is in. */
function hold(node, host) {
  held = node?.matches(".later, .js-plotly-plot") ? { key: keyOf(host), mark: AT.get(node) } : null;
}

/** The element that has the focus, also inside of a component. */
function focused() {
  let node = document.activeElement;
  while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
  return node;
}

/** Loads the code of figures before the first one comes into view, and runs its first script, which imports the others:
 *  that takes longer than drawing a figure. The page is idle then, and not answering a click. */
function loadAhead(scripts) {
  for (const [place, script] of scripts.entries()) {
    const href = new URL(script, window.__streamlit?.BACKEND_BASE_URL || document.baseURI).href;
    if (document.head.querySelector(`link[href="${href}"]`)) continue;
    const link = Object.assign(document.createElement("link"), { rel: "modulepreload", crossOrigin: "", href });
    if (!place) link.onload = () => window.requestIdleCallback?.(() => import(href).catch(() => {})); // it comes with a figure
    document.head.append(link);
  }
}

/** Of a figure, also of one that is not drawn yet. */
const keyOf = node => node.closest("[class*='st-key-']")?.className.match(/st-key-(?:later-)?(\S+)/)[1];

function offerAll() {
  const figures = [...document.querySelectorAll(FIGURE)].filter(figure => figure.calcdata);
  for (const figure of figures) {
    if (!AT.has(figure)) offer(figure);
    const named = figure.parentElement.closest("[aria-label]"); // another rank's figure may come into the same place
    if (AT.has(figure)) figure.setAttribute("aria-label", named?.getAttribute("aria-label") || "Figure");
  }
  // What had the focus was taken from the page, which may be before or after the figure came.
  const again = held && document.activeElement === document.body && figures.find(each => AT.has(each) && keyOf(each) === held.key);
  if (!again) return;
  const { mark } = held, marks = marksOf(again);
  again.focus({ preventScroll: true });
  const same = mark && marks.find(each => each.curve === mark.curve && each.index === mark.index);
  if (same) show(again, marks, same);
}

function offer(figure) {
  const marks = marksOf(figure);
  if (!marks.length) return;
  AT.set(figure, null);
  figure.tabIndex = 0;
  figure.setAttribute("role", "slider");
  figure.setAttribute("aria-roledescription", "figure");
  figure.setAttribute("aria-valuemin", "1");
  say(figure, 0, marks.length, "Arrow keys read it");
  figure.addEventListener("keydown", event => {
    if (event.target !== figure || event.altKey || event.ctrlKey || event.metaKey) return;
    const found = marksOf(figure), before = AT.get(figure);
    const at = before && found.find(mark => mark.curve === before.curve && mark.index === before.index);
    if (event.key === "Enter" || event.key === " ") {
      if (at) click(figure, at);
    } else if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
      const to = found.length ? next(found, at, event.key) : null;
      if (to) show(figure, found, to);
    } else return;
    event.preventDefault();
  });
  figure.addEventListener("blur", () => {
    const mark = AT.get(figure), layer = mark && layerOf(figure, mark);
    layer?.dispatchEvent(pointer(layer, "mouseout", mark));
  });
}

// -- legends ---------------------------------------------------------------------------------------------------------

const FAINT = "0.07";

/** A click on an entry of a legend leaves the lines of its group, and another one brings the others back. */
function isolate(event) {
  const entry = event.target.closest?.("[data-isolates]");
  if (!entry || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  const alone = entry.getAttribute("aria-pressed") !== "true";
  for (const each of entry.closest("[role=list]").querySelectorAll("[data-isolates]")) {
    each.setAttribute("aria-pressed", String(alone && each === entry));
    each.style.opacity = alone && each !== entry ? "0.4" : "1";
  }
  let around = entry.parentElement;
  while (around && !around.querySelector(FIGURE)) around = around.parentElement;
  const figure = around?.querySelector(FIGURE);
  for (const trace of (figure?.calcdata || []).map(points => points[0]?.trace).filter(each => each)) {
    const faint = alone && trace.legendgroup !== entry.dataset.isolates;
    for (const line of figure.querySelectorAll(`.trace${trace.uid}`)) line.style.opacity = faint ? FAINT : "1";
  }
}

// -- marks -----------------------------------------------------------------------------------------------------------

/** What the pointer can be over, of every trace: where it is in the window, its trace and its place in it. */
function marksOf(figure) {
  const marks = [];
  for (const [curve, points] of figure.calcdata.entries()) {
    const trace = points[0]?.trace;
    if (!trace || trace.visible !== true || trace.hoverinfo === "skip") continue;
    const [x, y] = [axis(figure, trace.xaxis || "x"), axis(figure, trace.yaxis || "y")];
    const layer = x && y && layerOf(figure, { subplot: x._id + y._id });
    if (!layer) continue;
    const box = layer.getBoundingClientRect(), of = { curve, subplot: x._id + y._id, type: trace.type, lies: trace.orientation === "h" };
    const add = (index, across, down, name) => {
      if (!Number.isFinite(across) || !Number.isFinite(down)) return;
      const inside = (at, room) => Math.max(1, Math.min(room - 1, at)); // an axis may be cut off
      marks.push({ ...of, index, x: inside(across, box.width), y: inside(down, box.height), name });
    };
    if (trace.type === "heatmap") {
      const { z, xCenter, yCenter } = points[0];
      z.forEach((row, r) => row.forEach?.((value, c) => Number.isFinite(value) && add(`${r} ${c}`, x.c2p(xCenter[c]), y.c2p(yCenter[r]), trace.name)));
    } else for (const [index, point] of points.entries()) {
      if (trace.type === "bar") {
        if (!point.s) continue;
        const middle = point.b + point.s / 2;
        if (of.lies) add(index, x.c2p(middle), y.c2p(point.p), trace.name); else add(index, x.c2p(point.p), y.c2p(middle), trace.name);
      } else add(index, x.c2p(point.x), y.c2p(point.y), trace.name);
    }
  }
  if (figure._fullLayout.hovermode?.endsWith?.(" unified")) { // what is said is about all traces together
    const longest = marks.reduce((most, mark) => { most[mark.curve] = (most[mark.curve] || 0) + 1; return most; }, {});
    const first = marks.find(mark => longest[mark.curve] === Math.max(...Object.values(longest)));
    return marks.filter(mark => mark.curve === first.curve);
  }
  // Points that make the cells of a map clickable lie on them, and say the same.
  const pointed = new Set(marks.filter(mark => mark.type === "scatter").map(mark => mark.subplot));
  return marks.filter(mark => mark.type !== "heatmap" || !pointed.has(mark.subplot));
}

const axis = (figure, id) => figure._fullLayout[`${id[0]}axis${id.slice(1)}`];
const layerOf = (figure, { subplot }) => figure.querySelector(`.nsewdrag[data-subplot="${subplot}"]`);

/** The mark that a key leads to: along a trace, or across to another one; in a map to the neighbour in its row or column. */
function next(marks, at, key) {
  if (!at) return marks[0];
  const mine = marks.filter(mark => mark.curve === at.curve);
  if (key === "Home") return mine[0];
  if (key === "End") return mine.at(-1);
  const flat = key === "ArrowLeft" || key === "ArrowRight", sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  const [to, side] = flat ? ["x", "y"] : ["y", "x"];
  const nearest = found => found.sort((a, b) => sign * (a[to] - b[to]))[0];
  const ahead = mark => sign * (mark[to] - at[to]) > NEAR, inLine = mark => Math.abs(mark[side] - at[side]) <= NEAR;
  if (isMap(mine)) return nearest(mine.filter(mark => ahead(mark) && inLine(mark)));
  if (flat !== at.lies) return nearest(mine.filter(ahead));
  const others = [...new Set(marks.filter(mark => sign * (mark.curve - at.curve) > 0).map(mark => mark.curve))].sort((a, b) => sign * (a - b));
  const theirs = others.map(curve => marks.filter(mark => mark.curve === curve)
    .sort((a, b) => Math.abs(a[side] - at[side]) - Math.abs(b[side] - at[side]))[0]);
  return theirs.find(inLine) || theirs[0];
}

/** Whether several marks share a row and several a column. */
function isMap(marks) {
  const shared = side => new Set(marks.map(mark => Math.round(mark[side]))).size < marks.length;
  return marks.length > 2 && shared("x") && shared("y");
}

// -- saying and clicking ---------------------------------------------------------------------------------------------

/** An event of the pointer at a mark; `target`: what it is sent to. */
function pointer(target, kind, { x, y }, buttons = 0) {
  const box = target.getBoundingClientRect();
  return new MouseEvent(kind, { bubbles: true, cancelable: true, view: window, buttons, clientX: box.left + x, clientY: box.top + y });
}

function show(figure, marks, mark) {
  AT.set(figure, mark);
  if (held) held.mark = mark;
  const place = marks.indexOf(mark) + 1;
  const layer = layerOf(figure, mark), sent = pointer(layer, "mousemove", mark);
  const read = hovered => { // what Plotly tells, undefined if it has been silent
    const ours = hovered && hovered.event === sent, reached = AT.get(figure) === mark;
    if (ours || !reached) figure.removeListener("plotly_hover", read);
    if (ours) clearTimeout(late);
    if (reached && (ours || !hovered)) say(figure, place, marks.length, saidBy(figure) || mark.name || "");
  };
  figure.on("plotly_hover", read);
  const late = setTimeout(read, SAID_MS); // what it says stays the same, it says nothing, or it is busy and says it later
  layer.dispatchEvent(sent);
}

/** The texts beside the pointer, line by line. */
function saidBy(figure) {
  return [...figure.querySelectorAll(".hoverlayer text")]
    .flatMap(text => { const lines = [...text.querySelectorAll("tspan.line")]; return lines.length ? lines : [text]; })
    .map(line => line.textContent.trim().replace(" : ", ": ")).filter(line => line).join(", ");
}

function say(figure, place, count, text) {
  figure.setAttribute("aria-valuemax", String(count));
  figure.setAttribute("aria-valuenow", String(Math.max(1, place)));
  figure.setAttribute("aria-valuetext", text);
}

function click(figure, mark) {
  const layer = layerOf(figure, mark), { left, top } = layer.getBoundingClientRect();
  layer.dispatchEvent(pointer(layer, "mousedown", mark, 1));
  document.dispatchEvent(new MouseEvent("mouseup", { bubbles: true, cancelable: true, view: window, clientX: left + mark.x, clientY: top + mark.y }));
}
