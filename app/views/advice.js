// The advice as rows: gain as a bar with its interval, memory, risk, and a button that copies what to type.
// Texts are set as textContent, never HTML.

const COPIED_MS = 1600;

const make = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

export default function ({ data, parentElement }) {
  const old = parentElement.querySelector(".advice");
  const root = make("ol", "advice");
  for (const [name, colour] of Object.entries(data.colours)) root.style.setProperty(`--${name}`, colour);
  data.rows.forEach((row, at) => {
    const line = root.appendChild(make("li", "row"));
    const title = line.appendChild(make("span", "title", row.title));
    title.prepend(make("span", "number", `${at + 1} `));
    const gain = line.appendChild(make("span", "gain"));
    gain.title = row.gain;
    const track = gain.appendChild(make("span", "track"));
    const [low, likely, high] = row.share.map(share => Math.max(0, Math.min(1, share)) * 100);
    track.appendChild(make("span", "bar")).style.width = `${likely}%`;
    const interval = track.appendChild(make("span", "interval"));
    interval.style.left = `${low}%`;
    interval.style.width = `${high - low}%`;
    gain.append(make("span", row.sure ? "saves" : "saves unsure", row.saves), make("span", "range", row.range));
    line.append(make("span", "memory", row.memory), make("span", row.safe ? "risk" : "risk unsafe", row.risk));
    line.append(row.copy ? copying(row, at, root) : make("span", "none", ""));
  });
  if (old) old.replaceWith(root); else parentElement.append(root);
}

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
