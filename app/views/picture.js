// The picture beside the verdict: a bar a rank with the predicted step, or a grid of ranks. A choice goes to the server;
// hovering and moving do not.

const TALL = 300, PATH = 34, LEAST_ROW = 9, MOST_ROW = 64; // pixels
const LABELLED_PART = 34; // a narrower segment has no number
const LEAST_CELL = 2, NAMED_CELL = 11, BLOCK_NAMED_CELL = 5, MOST_CELL = 22, BLOCK_GAP = 6, LEAST_GAP = 2;
const HOST_PX = 96, HOST_LINE = 12, HOST_FONT = "11px ui-sans-serif, system-ui, sans-serif"; // names of hosts
const WIDEST_INTERVAL = 1.3; // times the longest bar
const EDGE = 8; // pixels around, for the mark of a cell at the border
const RINGED_CELL = 7; // a smaller cell at fault has a ring around it

export default now => place(now, (data, view) => {
  const root = make("section", "picture");
  const caption = root.appendChild(make("p", "caption"));
  caption.append(make("b", "", data.title), data.rest);
  const choose = rank => view.now.setTriggerValue("rank", rank);
  const drawn = data.kind === "bars" ? bars(root, data, choose) : grid(root, data, choose);
  root.append(make("p", "hidden", data.alt));
  return [root, drawn];
});

/** A box beside the pointer. */
function tip(root) {
  const box = root.appendChild(make("div", "tip"));
  box.hidden = true;
  return {
    show(text, x, y) {
      box.textContent = text;
      box.hidden = false;
      const room = root.clientWidth - box.offsetWidth - 4;
      box.style.left = `${Math.max(0, Math.min(room, x + 12))}px`;
      box.style.top = `${y + 14}px`;
    },
    hide() { box.hidden = true; },
  };
}

const within = (root, event) => {
  const box = root.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

/** One tab stop; arrow keys move, Enter chooses. */
function keys(node, count, at, move, choose) {
  node.tabIndex = 0;
  node.addEventListener("keydown", event => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (by) at = Math.max(0, Math.min(count - 1, at + by));
    else if (event.key === "Enter" || event.key === " ") choose(at);
    else return;
    event.preventDefault();
    move(at);
  });
  node.addEventListener("focus", () => move(at));
}

// -- bars ------------------------------------------------------------------------------------------------------------

function bars(root, data, choose) {
  root.append(legendOf(data.parts));
  // The interval of a prediction may be many times as long as the step: it leaves the picture then.
  const [, likely, high] = data.predicted?.ms ?? [0, 0, 0], most = WIDEST_INTERVAL * Math.max(data.end, likely);
  const end = Math.max(data.end, Math.min(high, most)) || 1;
  const list = root.appendChild(make("div", "rows"));
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", data.alt);
  const height = Math.max(LEAST_ROW, Math.min(MOST_ROW, Math.floor((TALL - (data.path ? PATH : 0)) / data.rows.length)));
  root.style.setProperty("--row", `${height}px`);
  root.style.setProperty("--font", `${Math.max(8, Math.min(12, height - 2))}px`);
  const box = tip(root);
  const segments = [];
  const split = (line, amounts) => {
    const track = line.appendChild(make("span", "track"));
    amounts.forEach((ms, at) => {
      if (!(ms > 0)) return;
      const [, colour, ink] = data.parts[at];
      const part = track.appendChild(make("span", "part"));
      part.style.width = `${(100 * ms) / end}%`;
      part.style.background = colour;
      part.style.color = ink;
      segments.push([part, ms]);
    });
  };
  const ended = (line, row) => {
    line.setAttribute("aria-label", row.about);
    line.append(make("span", "total", row.text));
    line.addEventListener("mousemove", event => box.show(row.about, ...within(root, event)));
    line.addEventListener("mouseleave", box.hide);
  };
  data.rows.forEach(row => {
    const line = list.appendChild(make("div", row.fault ? "row fault" : "row"));
    line.setAttribute("role", "option");
    line.append(make("span", "name", row.fault ? `at fault ▸ rank ${row.rank}` : `rank ${row.rank}`));
    split(line, row.ms);
    ended(line, row);
    line.addEventListener("click", () => choose(row.rank));
  });
  if (data.path) { // what the verdict's shares are of: below the ranks that it leads through
    const line = list.appendChild(make("div", "row path"));
    line.append(make("span", "name", data.path.label));
    split(line, data.path.ms);
    ended(line, data.path);
  }
  if (data.predicted) predicted(list, root, data.predicted, end, box);
  if (data.predicted?.note) root.append(make("p", "note", data.predicted.note));
  const lines = [...list.querySelectorAll("[role=option]")];
  const first = Math.max(0, data.rows.findIndex(row => row.fault));
  keys(list, lines.length, first, at => lines.forEach((line, i) => {
    line.classList.toggle("active", i === at);
    line.setAttribute("aria-selected", String(i === at));
  }), at => choose(data.rows[at].rank));
  return () => segments.forEach(([part, ms]) => {
    part.textContent = height >= 14 && part.clientWidth >= LABELLED_PART ? number(ms) : "";
  });
}

function predicted(list, root, found, end, box) {
  const line = list.appendChild(make("div", "row predicted"));
  line.append(make("span", "name", found.label));
  const track = line.appendChild(make("span", "track"));
  predictedBar(track, found.ms.map(ms => Math.min(100, (100 * ms) / end)), found.ms[2] > end);
  line.append(make("span", "total", found.text));
  line.setAttribute("aria-label", found.about);
  line.addEventListener("mousemove", event => box.show(found.about, ...within(root, event)));
  line.addEventListener("mouseleave", box.hide);
}

// -- grid ------------------------------------------------------------------------------------------------------------

function colourAt(scale, value) {
  const share = Math.min(1, value); // a rounded value may be a little above the end of the scale
  const after = Math.max(1, scale.findIndex(([at]) => at >= share));
  const [[from, a], [to, b]] = [scale[after - 1], scale[after]];
  const part = (share - from) / (to - from || 1);
  const mixed = [1, 3, 5].map(i => {
    const [x, y] = [a, b].map(colour => parseInt(colour.slice(i, i + 2), 16));
    return Math.round(x + (y - x) * part);
  });
  return `rgb(${mixed.join(",")})`;
}

/** The scale of colours from nothing to the most. */
function scaleOf(data) {
  const key = make("div", "legend"), ramp = key.appendChild(make("i", "ramp"));
  ramp.style.background = `linear-gradient(90deg, ${data.scale.map(([at, colour]) => `${colour} ${100 * at}%`).join(", ")})`;
  ramp.before(data.ends[0], " ");
  ramp.after(" ", data.ends[1]);
  key.append(make("b", "most", data.most));
  return key;
}

function grid(root, data, choose) {
  const canvas = root.appendChild(make("canvas"));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", data.alt);
  const shade = data.states ? at => data.states[data.places[at][0]][1]
    : ms => colourAt(data.scale, Math.max(0, ms) / data.top);
  const about = ({ y, cell: [rank, value, fault] }) => {
    const what = data.states ? data.places[value][1] : `${number(value)} ${data.unit}`;
    return `rank ${rank}, ${data.rows[y].host}${fault ? ", at fault" : ""}\n${what}`;
  };
  if (data.states) root.append(legendOf(data.states));
  else root.append(scaleOf(data));
  if (!data.shown.length) canvas.style.cursor = "default"; // nothing to choose
  if (data.predicted) root.append(make("p", "caption", data.predicted.about));
  const box = tip(root);
  const columns = Math.max(...data.rows.map(row => row.cells.length));
  const cells = data.rows.flatMap((row, y) => row.cells.map((cell, x) => ({ x, y, cell })));
  let at = Math.max(0, cells.findIndex(each => each.cell[2])), placed = null, focused = false;

  const measured = document.createElement("canvas").getContext("2d");
  measured.font = HOST_FONT;
  const longest = Math.max(...data.rows.map(row => measured.measureText(row.host).width));
  const layout = width => {
    // Hosts stand one below the other, else in blocks side by side, with their names where there is room for them.
    const hosts = data.rows.length, room = width - 2 * EDGE, names = Math.ceil(Math.min(HOST_PX, longest + 8));
    const single = Math.min(MOST_CELL, Math.floor((room - names) / columns), Math.floor(TALL / hosts));
    if (single >= NAMED_CELL) return { rows: hosts, names, size: single, block: room };
    const wide = (size, names) => names + columns * size + (size > 4 ? BLOCK_GAP : LEAST_GAP);
    const fitting = (least, names) => {
      for (let size = MOST_CELL; size >= least; size--) {
        const rows = Math.max(1, Math.floor(TALL / size)), blocks = Math.ceil(hosts / rows), block = wide(size, names);
        if (blocks * block <= room) return { rows: Math.ceil(hosts / blocks), names, size, block };
      }
      return null;
    };
    const found = fitting(BLOCK_NAMED_CELL, names) || fitting(LEAST_CELL, 0);
    if (found) return found;
    const blocks = Math.max(1, Math.floor(room / wide(LEAST_CELL, 0)));
    return { rows: Math.ceil(hosts / blocks), names: 0, size: LEAST_CELL, block: wide(LEAST_CELL, 0) };
  };
  /** The rows whose name is drawn: all, or of rows that are too low every second or third, and those at fault. */
  const named = () => {
    const every = Math.ceil(HOST_LINE / placed.size), faults = data.rows.flatMap((row, y) => (row.fault ? [y] : []));
    const near = y => faults.some(fault => fault !== y && Math.abs(fault - y) < every
      && Math.floor(fault / placed.rows) === Math.floor(y / placed.rows));
    return data.rows.map((row, y) => y).filter(y => data.rows[y].fault || ((y % placed.rows) % every === 0 && !near(y)));
  };
  const corner = ({ x, y }) => [
    Math.floor(y / placed.rows) * placed.block + placed.names + x * placed.size + EDGE,
    (y % placed.rows) * placed.size + EDGE,
  ];
  const draw = width => {
    placed = layout(width);
    const ratio = window.devicePixelRatio || 1, tall = placed.rows * placed.size + 2 * EDGE;
    canvas.width = width * ratio;
    canvas.height = tall * ratio;
    canvas.style.height = `${tall}px`;
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    const gap = placed.size > 5 ? 1 : 0;
    c.textBaseline = "middle";
    for (const y of placed.names ? named() : []) {
      const row = data.rows[y];
      c.font = row.fault ? `600 ${HOST_FONT}` : HOST_FONT;
      c.fillStyle = row.fault ? data.colours.ink : data.colours.soft;
      const [left, top] = corner({ x: 0, y });
      c.fillText(row.host, left - placed.names, top + placed.size / 2, placed.names - 6);
    }
    for (const each of cells) {
      const [left, top] = corner(each);
      c.fillStyle = shade(each.cell[1]);
      c.fillRect(left, top, placed.size - gap, placed.size - gap);
    }
    c.strokeStyle = data.colours.ink;
    for (const each of cells.filter(each => each.cell[2])) {
      const [left, top] = corner(each);
      c.lineWidth = 2;
      if (placed.size >= RINGED_CELL) c.strokeRect(left - 1, top - 1, placed.size + 1, placed.size + 1);
      else {
        c.beginPath();
        c.arc(left + placed.size / 2, top + placed.size / 2, 6, 0, 2 * Math.PI);
        c.stroke();
      }
    }
    if (focused) {
      const [left, top] = corner(cells[at]);
      c.lineWidth = 1;
      c.setLineDash([2, 2]);
      c.strokeRect(left - 3, top - 3, placed.size + 5, placed.size + 5);
      c.setLineDash([]);
    }
  };
  const under = event => {
    const [x, y] = within(canvas, event);
    return cells.find(each => {
      const [left, top] = corner(each);
      return x >= left && x < left + placed.size && y >= top && y < top + placed.size;
    });
  };
  const chosen = each => { if (data.shown.includes(each.cell[0])) choose(each.cell[0]); };
  canvas.addEventListener("mousemove", event => {
    const each = placed && under(event);
    if (each) box.show(about(each), ...within(root, event)); else box.hide();
  });
  canvas.addEventListener("mouseleave", box.hide);
  canvas.addEventListener("click", event => { const each = under(event); if (each) chosen(each); });
  canvas.addEventListener("blur", () => { focused = false; box.hide(); draw(root.clientWidth); });
  keys(canvas, cells.length, at, next => {
    at = next;
    focused = true;
    draw(root.clientWidth);
    const [left, top] = corner(cells[at]);
    box.show(about(cells[at]), left, canvas.offsetTop + top + placed.size);
  }, next => chosen(cells[next]));
  return draw;
}
