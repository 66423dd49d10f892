// What the components share. It is put in front of each of them (`component` in common.py).
// Texts come from runs and logs: they are set as textContent, never HTML.

const make = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

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

/** A predicted bar with its interval: percentages of the track. */
function predictedBar(track, [low, likely, high]) {
  track.appendChild(make("span", "bar")).style.width = `${likely}%`;
  const interval = track.appendChild(make("span", "interval"));
  interval.style.left = `${low}%`;
  interval.style.width = `${high - low}%`;
}

/** Puts the root in the place of what was drawn before. */
function place(parentElement, root) {
  const old = parentElement.querySelector(`.${root.className}`);
  if (old) old.replaceWith(root); else parentElement.append(root);
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
