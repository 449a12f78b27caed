// Live refresh, and nothing else: every page works without it. The page is fetched again, and those of its parts that
// have changed ([data-live]) are exchanged, unless the reader is in the middle of them.
"use strict";
(() => {
  const EVERY_MS = 3000;
  const SLOWEST_MS = 30000;
  const AIMING_MS = 2000;  // a person who moves the pointer over a part is about to click what is under it
  const said = document.getElementById("said");
  const fresh = document.getElementById("fresh");
  const stale = document.getElementById("stale");
  const button = document.getElementById("live");
  let timer = 0;
  let wait = EVERY_MS;
  let isLive = true;
  let aimed = { at: -AIMING_MS, part: null, isDown: false };

  const partOf = (event) => (event.target instanceof Element ? event.target.closest("[data-live]") : null);
  const aims = (event) => { aimed = { at: performance.now(), part: partOf(event), isDown: event.buttons !== 0 }; };
  for (const kind of ["pointermove", "pointerdown", "pointerup", "pointercancel"]) { document.addEventListener(kind, aims, { passive: true }); }

  addEventListener("blur", () => { aimed.isDown = false; });

  const isAimedAt = (part) => aimed.part === part && (aimed.isDown || performance.now() - aimed.at < AIMING_MS);
  const isMarked = (part) => { const marked = getSelection(); return !marked.isCollapsed && marked.containsNode(part, true); };
  const isTypedInto = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button, summary");
  const isBusy = (part) => isTypedInto(part) || isAimedAt(part) || isMarked(part);
  // The keys of forms differ in each answer; a part that differs in nothing else is the same.
  const gist = (part) => {
    const copy = part.cloneNode(true);
    copy.querySelectorAll("input[type=hidden], .drawn").forEach((one) => one.remove());  // .drawn: plots.js
    copy.querySelectorAll("details").forEach((one) => one.removeAttribute("open"));
    return copy.innerHTML;
  };

  // Places in a part by what they are about ([data-key]: an Incident, a look), so that they are found again where rows
  // have come or gone in between.
  function named(part, what) {
    const count = new Map();
    return new Map([...part.querySelectorAll(what)].map((one) => {
      const owner = one.closest("[data-key]");
      const key = owner && part.contains(owner) ? owner.dataset.key : "";
      const index = count.get(key) || 0;
      count.set(key, index + 1);
      return [`${key}#${index}`, one];
    }));
  }

  const STOPS = "a[href], summary, button, input, select, textarea, [tabindex]";

  // Exchange what is in a part; what was opened, scrolled to and focused stays so, and what is read stays in its place.
  function exchangeOne(part, other) {
    const places = (what, get) => new Map([...named(part, what)].map(([key, one]) => [key, get(one)]));
    const open = places("details", (one) => one.open);
    const scrolled = places(".scroll, pre", (one) => [one.scrollLeft, one.scrollTop]);
    const focused = part.contains(document.activeElement) ? [...named(part, STOPS)].find(([, one]) => one === document.activeElement) : undefined;
    const isAround = part.getBoundingClientRect().top < 0;
    const read = isAround ? [...named(part, "[data-key]")].find(([, one]) => one.getBoundingClientRect().bottom > 0) : undefined;
    const before = read ? read[1].getBoundingClientRect().top : 0;
    part.replaceChildren(...document.importNode(other, true).childNodes);
    part.dispatchEvent(new CustomEvent("rekindle:exchanged", { bubbles: true }));
    named(part, "details").forEach((one, key) => { one.open = open.get(key) === true; });
    named(part, ".scroll, pre").forEach((one, key) => { [one.scrollLeft, one.scrollTop] = scrolled.get(key) || [0, 0]; });
    if (focused) { const again = named(part, STOPS).get(focused[0]); if (again) { again.focus({ preventScroll: true }); } }
    const again = read && named(part, "[data-key]").get(read[0]);
    if (again) { scrollBy({ top: again.getBoundingClientRect().top - before, behavior: "instant" }); }
  }

  function exchange(next) {
    let changed = 0;
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = next.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!other) { if (!isBusy(part)) { part.replaceChildren(); } continue; }
      if (gist(part) === gist(other) || isBusy(part)) { continue; }
      exchangeOne(part, other);
      changed += 1;
    }
    const known = new Set([...document.querySelectorAll("[data-live]")].map((one) => one.dataset.live));
    const main = document.getElementById("main");
    for (const other of next.querySelectorAll("[data-live]")) {  // a part that was not there before
      if (known.has(other.dataset.live)) { continue; }
      const before = other.previousElementSibling && other.previousElementSibling.dataset.live;
      const place = before && main.querySelector(`:scope > [data-live="${before}"]`);
      if (place) { place.after(document.importNode(other, true)); changed += 1; }
    }
    return changed;
  }

  // Only what matters is spoken: the state of an Incident, how many are open; not every number that moved.
  const headline = (page) => ["phase", "incidents-open"].map((id) => page.getElementById(id)).filter(Boolean).map((one) => one.textContent.trim()).join(", ");

  async function refresh() {
    const before = headline(document);
    try {
      const answer = await fetch(location.href.replace(/[?&]note=[0-9a-f]+/, ""), { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (!answer.ok) { throw new Error(String(answer.status)); }
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!isLive) { return; }  // a person who has stopped it meanwhile is reading
      const changed = exchange(next);
      const now = next.getElementById("fresh");
      if (now) { fresh.textContent = now.textContent; }
      stale.hidden = true;
      const after = headline(document);
      if (after !== before) { said.textContent = after; }
      wait = changed > 0 ? EVERY_MS : Math.min(wait * 1.25, EVERY_MS * 3);
    } catch {
      stale.textContent = `The service does not answer. What stands here is old (${fresh.textContent}); trying again.`;
      stale.hidden = false;
      wait = Math.min(wait * 2, SLOWEST_MS);
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (isLive && !document.hidden) { timer = setTimeout(refresh, wait); }
  }

  button.addEventListener("click", () => {
    isLive = !isLive;
    button.setAttribute("aria-pressed", String(isLive));
    button.textContent = isLive ? "Live" : "Not live";
    wait = EVERY_MS;
    plan();
  });
  document.addEventListener("visibilitychange", () => { wait = EVERY_MS; plan(); });
  document.documentElement.classList.add("has-script");
  if (document.querySelector("[data-live]")) { plan(); } else { button.disabled = true; }
})();
