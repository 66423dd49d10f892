// Memory over time by category; what is live at the chosen moment, by stack; and the blocks of the segments. All data is
// here, so a click asks nobody.

const TALL = 300, LEFT = 52, BOTTOM = 34, TOP = 22, RIGHT = 10, BAND = 6; // pixels
const FAILED_MOST = 0.6; // of what was held: the height of an allocation that failed, so that it does not flatten the curves
const FEW = 12; // stacks that are listed at first
const FONT = "12px ui-sans-serif, system-ui, sans-serif";

export default now => place(now, (data, view) => {
  const root = make("section", "memory");
  const redraw = data.at.length ? overTime(root, data, view) : () => {};
  if (data.segments?.length) blocks(root, data);
  return [root, redraw];
});

/** The round numbers between zero and the most. */
function ticks(from, to, about) {
  const raw = (to - from) / about || 1, base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(n => n * base).find(each => each >= raw);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) found.push(+at.toPrecision(12));
  return found;
}

function overTime(root, data, view) {
  const legend = root.appendChild(legendOf(data.categories.map(([name, shade]) => [name, shade])));
  [...legend.children].forEach((entry, at) => { entry.title = data.categories[at][2]; });
  if (data.outside) legend.append(...legendOf([[`${data.outside[0]}: ${data.outside[3]}`, data.outside[1]]]).children);
  if (data.reserved) {
    const entry = legend.appendChild(make("span", "entry"));
    entry.append(make("i", "line"), "reserved");
  }
  const phases = new Map((data.bands || []).map(([name, shade]) => [name, shade]));
  if (phases.size) legend.append("below:", ...legendOf([...phases]).children);

  const beside = root.appendChild(make("div", "beside"));
  const canvas = beside.appendChild(make("div")).appendChild(make("canvas"));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "slider");
  canvas.setAttribute("aria-label", `${data.alt}. Left and right choose a moment, Home the peak.`);
  canvas.setAttribute("aria-valuemin", 0);
  canvas.setAttribute("aria-valuemax", data.at.length - 1);
  const side = beside.appendChild(make("div"));
  const box = root.appendChild(make("div", "tip"));
  box.hidden = true;

  const totals = data.at.map((_, i) => data.categories.reduce((sum, each) => sum + each[3][i], 0));
  const failed = (data.failures || []).filter(([at]) => at !== null);
  const needed = failed.map(([at, requested]) => totals[nearest(at)] + requested);
  const aside = data.outside ? data.outside[2] : 0;
  const largest = Math.max(...totals, ...(data.reserved ? data.reserved[1] : [])), tallest = (1 + FAILED_MOST) * largest;
  const most = Math.max(largest, Math.min(tallest, Math.max(0, ...needed))) + aside;
  // A capacity far above would leave the picture empty; then only its number is said.
  const top = 1.12 * (data.capacity && data.capacity < 3 * most ? Math.max(most, data.capacity) : most);
  const low = data.at[0], high = Math.max(data.at.at(-1), low + 1e-9);
  // The moment chosen before holds if the new data has it; the peak, if none was.
  const same = view.of === data.alt, kept = same ? data.moments.indexOf(view.moment) : -1;
  let chosen = kept >= 0 ? kept : data.peak, all = same && view.all, wide = 0;
  view.of = data.alt;

  function nearest(at) {
    let found = 0;
    data.at.forEach((each, i) => { if (Math.abs(each - at) <= Math.abs(data.at[found] - at)) found = i; });
    return found;
  }
  const x = at => LEFT + ((at - low) / (high - low)) * (wide - LEFT - RIGHT);
  const floor = () => TALL - BOTTOM - (phases.size ? BAND + 2 : 0);
  const y = held => floor() - (held / top) * (floor() - TOP);

  function draw() {
    wide = canvas.parentElement.clientWidth;
    if (!wide) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = wide * ratio;
    canvas.height = TALL * ratio;
    canvas.style.height = `${TALL}px`;
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = FONT;
    axes(c);
    const base = data.at.map(() => 0);
    for (const [, shade, , held] of data.categories) {
      const before = [...base];
      held.forEach((n, i) => { base[i] += n; });
      area(c, before, base, shade);
    }
    if (data.outside) {
      c.fillStyle = data.outside[1];
      c.fillRect(LEFT, y(top / 1.12), wide - LEFT - RIGHT, y(top / 1.12 - aside) - y(top / 1.12));
    }
    if (data.reserved) steps(c, data.reserved[0], data.reserved[1], data.colours.ink);
    if (data.capacity && data.capacity <= top) {
      c.setLineDash([5, 4]);
      line(c, LEFT, y(data.capacity), wide - RIGHT, y(data.capacity), data.colours.ink);
      c.setLineDash([]);
      // What failed is at the right, and its text too.
      const [at, side] = failed.length ? [LEFT + 6, "left"] : [wide - RIGHT, "right"];
      label(c, `capacity ${bytes(data.capacity)}`, at, y(data.capacity) - 5, side);
    }
    for (const [, shade, begin, end] of data.bands || []) {
      c.fillStyle = shade;
      c.fillRect(Math.max(LEFT, x(begin)), TALL - BOTTOM - BAND, Math.min(x(end), wide - RIGHT) - Math.max(LEFT, x(begin)), BAND);
    }
    failed.forEach(([at, requested, text], i) => {
      const from = totals[nearest(at)];
      c.strokeStyle = data.colours.bad;
      c.lineWidth = 2;
      c.setLineDash([3, 3]);
      const left = Math.min(x(at), wide - RIGHT - 8) - 4, cut = needed[i] > most - aside, upper = cut ? y(most - aside) : y(needed[i]);
      if (cut) { // open above, with a point that says that it goes on
        line(c, left, y(from), left, upper, data.colours.bad);
        line(c, left + 8, y(from), left + 8, upper, data.colours.bad);
        line(c, left, y(from), left + 8, y(from), data.colours.bad);
        c.setLineDash([]);
        line(c, left - 3, upper + 5, left + 4, upper - 4, data.colours.bad);
        line(c, left + 4, upper - 4, left + 11, upper + 5, data.colours.bad);
      } else c.strokeRect(left, upper, 8, y(from) - upper);
      c.setLineDash([]);
      c.lineWidth = 1;
      // Neither over the text of the peak nor on the line of the capacity.
      const peakText = y(totals[data.peak]) - 6, up = upper + 12;
      const taken = [peakText, ...(data.capacity && data.capacity <= top ? [y(data.capacity) + 4] : [])];
      const places = [up, up + 16, up - 16, peakText - 16, peakText + 16];
      const clear = places.find(place => taken.every(other => Math.abs(place - other) >= 15)) ?? up;
      if (i === failed.length - 1) label(c, cut ? `${text}: higher than drawn` : text, left - 6, clear, "right", data.colours.bad);
    });
    pin(c, data.peak, `peak ${bytes(totals[data.peak])}`);
    if (chosen !== data.peak) pin(c, chosen, "");
  }
  function axes(c) {
    const [unit, name] = data.unit;
    for (const tick of ticks(0, top / unit, 5)) {
      line(c, LEFT, y(tick * unit), wide - RIGHT, y(tick * unit), data.colours.faint);
      label(c, `${tick}`, LEFT - 6, y(tick * unit) + 4, "right", data.colours.soft);
    }
    label(c, name, LEFT - 6, 12, "right", data.colours.soft);
    for (const tick of ticks(low, high, wide > 500 ? 6 : 3)) label(c, tick.toLocaleString("en"), x(tick), TALL - 18, "center", data.colours.soft);
    label(c, data.axis, (LEFT + wide - RIGHT) / 2, TALL - 4, "center", data.colours.soft);
  }
  function line(c, x0, y0, x1, y1, shade) {
    c.strokeStyle = shade;
    c.beginPath();
    c.moveTo(x0, y0);
    c.lineTo(x1, y1);
    c.stroke();
  }
  function label(c, text, at, up, align, shade = data.colours.ink) {
    c.fillStyle = shade;
    c.textAlign = align;
    c.fillText(text, at, up);
  }
  /** Each moment holds until the next one. */
  function area(c, from, to, shade) {
    c.fillStyle = shade;
    c.beginPath();
    c.moveTo(x(data.at[0]), y(to[0]));
    data.at.forEach((at, i) => { if (i) c.lineTo(x(at), y(to[i - 1])); c.lineTo(x(at), y(to[i])); });
    for (let i = data.at.length - 1; i >= 0; i--) {
      c.lineTo(x(data.at[i]), y(from[i]));
      if (i) c.lineTo(x(data.at[i]), y(from[i - 1]));
    }
    c.fill();
  }
  function steps(c, at, held, shade) {
    c.strokeStyle = shade;
    c.lineWidth = 1.5;
    c.beginPath();
    at.forEach((each, i) => { if (i) c.lineTo(x(each), y(held[i - 1])); c[i ? "lineTo" : "moveTo"](x(each), y(held[i])); });
    c.stroke();
    c.lineWidth = 1;
  }
  function pin(c, i, text) {
    const at = x(data.at[i]), up = y(totals[i]);
    line(c, at, up, at, floor(), data.colours.ink);
    c.fillStyle = data.colours.ink;
    c.beginPath();
    for (const [dx, dy] of [[0, -5], [5, 0], [0, 5], [-5, 0]]) c.lineTo(at + dx, up + dy);
    c.fill();
    if (text) label(c, text, at > wide / 2 ? at - 8 : at + 8, up - 6, at > wide / 2 ? "right" : "left");
  }

  function list() {
    view.moment = chosen === data.peak ? null : data.moments[chosen];
    view.all = all;
    const live = data.origins.map((origin, i) => [origin, i]).filter(([origin]) => origin[3][chosen] > 0);
    live.sort((a, b) => b[0][3][chosen] - a[0][3][chosen]);
    const head = make("p", "at");
    head.append(make("b", "", `${chosen === data.peak ? "At the peak" : "Live here"}: ${bytes(totals[chosen])}`));
    head.append(make("span", "soft", data.moments[chosen]));
    if (chosen !== data.peak) {
      const back = head.appendChild(make("button", "", "To the peak"));
      back.type = "button";
      back.addEventListener("click", () => choose(data.peak));
    }
    const rows = make("ol");
    rows.setAttribute("aria-label", "Live allocations by stack, the largest first");
    for (const [[category, where, calls, held, count]] of all ? live : live.slice(0, FEW)) {
      const row = rows.appendChild(make("li"));
      const [name, shade] = data.categories[category];
      const mark = row.appendChild(make("i"));
      mark.style.background = shade;
      mark.title = name;
      row.append(make("span", "size", bytes(held[chosen])));
      const several = count[chosen];
      row.append(make("span", "place", where === name ? name : `${where} · ${name}, ${several} ${several === 1 ? "allocation" : "allocations"}`));
      if (calls) row.append(make("span", "calls", `← ${calls}`));
    }
    side.replaceChildren(head, rows);
    if (live.length > FEW && !all) {
      const more = side.appendChild(make("button", "", `Show all ${live.length}`));
      more.type = "button";
      more.addEventListener("click", () => { all = true; list(); });
    }
    canvas.setAttribute("aria-valuenow", chosen);
    canvas.setAttribute("aria-valuetext", `${bytes(totals[chosen])}, ${data.moments[chosen]}`);
  }
  function choose(i) {
    chosen = Math.max(0, Math.min(data.at.length - 1, i));
    draw();
    list();
  }
  const under = event => {
    const seen = canvas.getBoundingClientRect();
    return nearest(low + ((event.clientX - seen.left - LEFT) / (wide - LEFT - RIGHT)) * (high - low));
  };
  canvas.addEventListener("click", event => choose(under(event)));
  canvas.addEventListener("keydown", event => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) choose(chosen + by); else if (event.key === "Home") choose(data.peak); else return;
    event.preventDefault();
  });
  canvas.addEventListener("mousemove", event => {
    const i = under(event);
    const lines = data.categories.filter(each => each[3][i] > 0).map(([name, , , held]) => `${name} ${bytes(held[i])}`);
    tipAt(root, box, event, [`${bytes(totals[i])}, ${data.moments[i]}`, ...lines.reverse()].join("\n"));
  });
  canvas.addEventListener("mouseleave", () => { box.hidden = true; });
  list();
  return draw;
}

function tipAt(root, box, event, text) {
  const seen = root.getBoundingClientRect();
  box.textContent = text;
  box.hidden = false;
  box.style.left = `${Math.max(0, Math.min(root.clientWidth - box.offsetWidth - 4, event.clientX - seen.left + 12))}px`;
  box.style.top = `${event.clientY - seen.top + 14}px`;
}

function blocks(root, data) {
  root.append(make("h4", "", "Blocks of the segments when the snapshot was written"));
  const free = legendOf([["free", ""]]);
  free.querySelector("i").className = "free";
  free.append("coloured: in use, by category. A new allocation needs one free piece that is wide enough.");
  root.append(free);
  const box = root.appendChild(make("div", "tip"));
  box.hidden = true;
  const list = root.appendChild(make("div", "segments"));
  list.setAttribute("role", "list");
  const widest = data.segments[0].size;
  for (const segment of data.segments) {
    const row = list.appendChild(make("div", "segment"));
    row.setAttribute("role", "listitem");
    row.setAttribute("aria-label", `Segment of ${segment.name}${segment.free ? `, ${segment.free}` : ""}`);
    row.append(make("span", "name", segment.name));
    const track = row.appendChild(make("span", "track"));
    for (const [offset, size, shade, about] of segment.blocks) {
      const block = track.appendChild(make("span", shade ? "" : "free"));
      block.style.left = `${(100 * offset) / widest}%`;
      block.style.width = `${(100 * size) / widest}%`;
      if (shade) block.style.background = shade;
      block.addEventListener("mousemove", event => tipAt(root, box, event, about));
    }
    track.addEventListener("mouseleave", () => { box.hidden = true; });
  }
}
