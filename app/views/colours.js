// Has the page drawn again when the system has changed its colours: figures have colours of their own.

const WATCHED = new WeakMap();
const shade = app => getComputedStyle(app).backgroundColor;

export default function ({ parentElement, setTriggerValue }) {
  WATCHED.get(parentElement)?.disconnect();
  const app = document.querySelector("[data-testid=stApp]");
  let before = shade(app);
  const watch = new MutationObserver(() => {
    const now = shade(app);
    if (now !== before) setTriggerValue("changed", true);
    before = now;
  });
  watch.observe(app, { attributes: true, attributeFilter: ["class"] });
  WATCHED.set(parentElement, watch);
  return () => watch.disconnect();
}
