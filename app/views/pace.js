// Asks the server to draw its part of a page again, every so many milliseconds.

const TIMERS = new WeakMap();

export default function ({ data, parentElement, setTriggerValue }) {
  clearInterval(TIMERS.get(parentElement));
  const timer = setInterval(() => setTriggerValue("again", true), data.ms);
  TIMERS.set(parentElement, timer);
  return () => clearInterval(timer);
}
