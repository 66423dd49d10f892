// Ranks by groups of a hang: a table, those at fault first.

export default now => place(now, data => {
  const root = make("div", "matrix");
  root.append(legendOf(data.seen.map(at => data.states[at])));
  const scroll = root.appendChild(make("div", "scroll"));
  scroll.tabIndex = 0; // wider than a window: scrolled by keyboard
  const table = scroll.appendChild(make("table"));
  const head = table.appendChild(make("thead")).appendChild(make("tr"));
  head.append(make("th", "corner", "ranks"));
  for (const column of data.columns) {
    const cell = head.appendChild(make("th"));
    cell.scope = "col";
    cell.title = column.about;
    cell.append(make("div", "title", column.title), make("div", "op", column.op));
  }
  const body = table.appendChild(make("tbody"));
  for (const row of data.rows) {
    const line = body.appendChild(make("tr", row.fault ? "fault" : ""));
    const name = line.appendChild(make("th", "name", row.fault ? `at fault ▸ ${row.name}` : row.name));
    name.scope = "row";
    for (const cell of row.cells) {
      const node = line.appendChild(make("td"));
      if (!cell) continue;
      const [at, text, about] = cell, [, colour, ink] = data.states[at];
      node.textContent = text || "·";
      node.title = about;
      node.style.background = colour;
      node.style.color = ink;
    }
  }
  if (data.more) root.append(make("p", "more", data.more));
  return [root];
});
