// The picture beside a finding: a step over time on a few ranks. What the finding is about has its full colour.

const ROW_PX = 22, PALE = 0.28;

export default now => place(now, (data, view) => {
  const root = make("section", "moment");
  const caption = root.appendChild(make("p", "caption"));
  caption.append(make("b", "", data.title), data.rest);
  const open = root.appendChild(make("button", "open"));
  open.type = "button";
  open.setAttribute("aria-label", data.alt);
  open.addEventListener("click", () => view.now.setTriggerValue("open", true));
  const rows = data.rows.map(row => {
    open.append(make("span", row.named ? "name named" : "name", `${row.named ? "▸ " : ""}rank ${row.rank}`));
    const canvas = open.appendChild(make("canvas"));
    canvas.title = `rank ${row.rank}: ${row.about}`;
    open.append(make("span", row.named ? "total named" : "total", row.text));
    return [row, canvas];
  });
  open.append(make("span"));
  const axis = open.appendChild(make("span", "axis"));
  axis.append(make("span", "", data.ends[0]), make("span", "", data.ends[1]));
  root.append(legendOf(data.parts.filter(([name]) => data.strong.includes(name))));
  return [root, () => rows.forEach(([row, canvas]) => drawRow(row, canvas, data))];
});

function drawRow(row, canvas, data) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = ROW_PX * ratio;
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio);
  const columns = row.runs.reduce((sum, [count]) => sum + count, 0);
  let from = 0;
  for (const [count, shares] of row.runs) {
    const left = (from / columns) * width, right = ((from + count) / columns) * width;
    let below = ROW_PX;
    for (const [part, percent] of shares) {
      const tall = (Math.min(100, percent) / 100) * ROW_PX;
      c.globalAlpha = row.strong.includes(part) ? 1 : PALE;
      c.fillStyle = data.parts[part][1];
      c.fillRect(left, below - tall, right - left, tall);
      below -= tall;
    }
    from += count;
  }
}
