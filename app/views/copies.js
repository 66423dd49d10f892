// Buttons that copy a text each.

const SAID_MS = 1600;

export default now => place(now, data => {
  const root = make("section", "copies");
  for (const [name, text] of data.texts) {
    const button = root.appendChild(make("button", "", name));
    button.type = "button";
    button.addEventListener("click", async () => {
      button.textContent = (await copied(text, root)) ? "Copied" : "Not allowed";
      setTimeout(() => { button.textContent = name; }, SAID_MS);
    });
  }
  return [root];
});
