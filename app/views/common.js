// What the components share. It is put in front of each of them (`component` in common.py).
// Texts come from runs and logs: they are set as textContent, never HTML.

const make = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

/** A number and an amount of memory as Python's `number` and `size` write them (diag/words/formatting.py). */
function number(value) {
  const most = Math.abs(value), digits = most >= 99.95 || most === 0 ? 0 : most >= 9.995 ? 1 : most >= 0.995 ? 2 : 3;
  if (most > 0 && most < 0.0005) return "<0.001";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
function bytes(count) {
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (Math.abs(count) >= 0.9995 * unit) return `${number(count / unit)}\u00a0${name}`;
  return `${count}\u00a0bytes`;
}

/** Sets the colours that the style sheets name. */
function colour(root, colours) {
  for (const [name, value] of Object.entries(colours)) root.style.setProperty(`--${name}`, value);
}

/** A square and a name for each [name, colour]. */
function legendOf(entries) {
  const box = make("div", "legend");
  for (const [name, shade] of entries) {
    const entry = box.appendChild(make("span", "entry"));
    entry.appendChild(make("i")).style.background = shade;
    entry.append(name);
  }
  return box;
}

/** A predicted bar with its interval: percentages of the track. `open`: the interval goes on beyond it. */
function predictedBar(track, [low, likely, high], open = false) {
  track.appendChild(make("span", "bar")).style.width = `${likely}%`;
  const interval = track.appendChild(make("span", "interval"));
  interval.style.left = `${low}%`;
  interval.style.width = `${high - low}%`;
  if (open) interval.classList.add("open");
}

const PLACED = new WeakMap(); // by the element that a component is in
const SCROLLED = ".scroll"; // what is wider than the window
const STOPS = "button, input, [tabindex]", PRESS_ENDS = ["pointerup", "pointercancel", "keyup", "blur"];

/** Shows what `drawing` makes of the data: a root and, if its width matters, a function that draws it for one. What was
 *  made of equal data stays, and always the focus and how far one has scrolled. So does what one presses on, until the
 *  press has ended: if it were replaced, no click would follow. `drawing` gets a view, which lasts; `view.now` has the
 *  newest functions that tell the server. */
function place(now, drawing) {
  const view = PLACED.get(now.parentElement) || { root: null, pressed: false };
  PLACED.set(now.parentElement, view);
  view.watch?.disconnect();
  const watch = new ResizeObserver(() => view.redraw?.(view.root.clientWidth));
  Object.assign(view, { now, drawing, watch, asked: JSON.stringify(now.data) });
  if (!view.pressed) renew(view);
  watch.observe(view.root);
  return () => watch.disconnect();
}

function renew(view) {
  const { parentElement, data } = view.now;
  if (view.shown === view.asked && parentElement.contains(view.root)) return;
  const [root, redraw] = view.drawing(data, view);
  colour(root, data.colours);
  root.addEventListener("pointerdown", () => press(view));
  root.addEventListener("keydown", () => press(view));
  const old = parentElement.querySelector(`.${root.className}`), stops = within => [...within.querySelectorAll(STOPS)];
  const held = old?.querySelector(":focus"), at = held ? stops(old).indexOf(held) : -1;
  const scrolled = [...(old?.querySelectorAll(SCROLLED) || [])].map(each => each.scrollLeft);
  if (old) old.replaceWith(root); else parentElement.append(root);
  root.querySelectorAll(SCROLLED).forEach((each, i) => { each.scrollLeft = scrolled[i] || 0; });
  Object.assign(view, { root, redraw, shown: view.asked });
  if (held) (stops(root).find(stop => held.dataset.key && stop.dataset.key === held.dataset.key) || stops(root)[at])?.focus({ preventScroll: true });
}

function press(view) {
  if (view.pressed) return;
  view.pressed = true;
  const release = event => {
    if (event.type === "blur" && event.target !== window) return; // the focus has moved, the press goes on
    for (const name of PRESS_ENDS) window.removeEventListener(name, release, true);
    setTimeout(() => { // after the click
      view.pressed = false;
      renew(view);
      view.watch.observe(view.root);
    });
  };
  for (const name of PRESS_ENDS) window.addEventListener(name, release, true);
}

/** Puts a text on the clipboard; whether that was allowed. */
async function copied(text, root) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // a page that was not opened on this machine has no clipboard: it is asked the old way
    const area = root.appendChild(make("textarea", "hidden"));
    area.value = text;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
