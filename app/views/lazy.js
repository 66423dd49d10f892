// The place of a figure that is not in view yet: asks the server for the figure when one has scrolled to it.

const SEEN = 0.25; // part of the place: the browser draws a figure as long as it takes to read the first screen
const AGAIN_MS = 600; // the server draws one part of a page at a time, and drops what was asked for meanwhile

export default function ({ data, parentElement, setTriggerValue }) {
  let box = parentElement.querySelector(".later");
  if (!box) {
    box = document.createElement("div");
    box.className = "later";
    box.tabIndex = 0; // reached by keyboard it comes into view, and the figure gets the focus
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", "A figure that is drawn when it is in view");
    parentElement.append(box);
  }
  box.style.height = `${data.height}px`;
  let asking = 0;
  const ask = () => { if (box.isConnected) setTriggerValue("seen", true); };
  const watch = new IntersectionObserver(entries => {
    const seen = entries.at(-1).isIntersecting;
    if (seen && !asking) {
      ask();
      asking = setInterval(ask, AGAIN_MS);
    } else if (!seen) {
      clearInterval(asking);
      asking = 0;
    }
  }, { threshold: SEEN });
  watch.observe(box);
  return () => {
    watch.disconnect();
    clearInterval(asking);
  };
}
