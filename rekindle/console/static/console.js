// Live refresh, and nothing else: every page works without it. The page is fetched again, and those of its parts that
// have changed ([data-live]) are exchanged, unless the reader is in the middle of them.
"use strict";
(() => {
  const EVERY_MS = 3000;
  const SLOWEST_MS = 30000;
  const said = document.getElementById("said");
  const fresh = document.getElementById("fresh");
  const button = document.getElementById("live");
  let timer = 0;
  let wait = EVERY_MS;
  let isLive = true;

  const isBusy = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button, summary");
  const opened = (part) => [...part.querySelectorAll("details")].map((one) => one.open);
  // The keys of forms and relative times differ in each answer; a part that differs in nothing else is the same.
  const gist = (part) => {
    const copy = part.cloneNode(true);
    copy.querySelectorAll("input[type=hidden]").forEach((one) => one.remove());
    copy.querySelectorAll("details").forEach((one) => one.removeAttribute("open"));
    return copy.innerHTML;
  };

  function exchange(next) {
    let changed = 0;
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = next.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!other) { if (!isBusy(part)) { part.replaceChildren(); } continue; }
      if (gist(part) === gist(other) || isBusy(part)) { continue; }
      const focus = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      const open = opened(part);
      part.replaceChildren(...document.importNode(other, true).childNodes);
      part.querySelectorAll("details").forEach((one, index) => { one.open = open[index] === true; });
      part.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
      if (focus !== null) { const again = [...part.querySelectorAll("a")].find((one) => one.getAttribute("href") === focus); if (again) { again.focus(); } }
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
      if (!isLive) { return; }  // whoever has stopped it meanwhile is reading
      const changed = exchange(next);
      const now = next.getElementById("fresh");
      if (now) { fresh.textContent = now.textContent; }
      const after = headline(document);
      if (after !== before) { said.textContent = after; }
      wait = changed > 0 ? EVERY_MS : Math.min(wait * 1.25, EVERY_MS * 3);
    } catch {
      fresh.textContent = "The service does not answer; trying again";
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
