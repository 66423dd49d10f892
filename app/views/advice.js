// The advice as rows: gain as a bar with its interval, memory, risk, and a button that copies what to type.

const COPIED_MS = 1600;

export default now => place(now, data => {
  const root = make("section", "advice"), head = root.appendChild(make("div", "row head"));
  head.append(make("span", "", "Change"), make("span", "", "Predicted gain, and its interval"));
  head.append(make("span", "", "Memory"), make("span", "", "Risk"));
  const list = root.appendChild(make("ol"));
  data.rows.forEach((row, at) => {
    const line = list.appendChild(make("li", "row"));
    const title = line.appendChild(make("span", "title", row.title));
    title.prepend(make("span", "number", `${at + 1} `));
    const gain = line.appendChild(make("span", "gain"));
    gain.title = row.gain;
    const track = gain.appendChild(make("span", "track"));
    predictedBar(track, row.share.map(share => Math.max(0, Math.min(1, share)) * 100));
    gain.append(make("span", row.sure ? "saves" : "saves unsure", row.saves), make("span", "range", row.range));
    line.append(make("span", "memory", row.memory), make("span", row.safe ? "risk" : "risk unsafe", row.risk || "memory only"));
    line.append(row.copy ? copying(row, at, root) : make("span", "none", ""));
  });
  return [root];
});

function copying(row, at, root) {
  const button = make("button", "copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy what to type for ${at + 1}`);
  button.title = row.copy;
  button.addEventListener("click", async () => {
    button.textContent = (await copied(row.copy, root)) ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, COPIED_MS);
  });
  return button;
}
