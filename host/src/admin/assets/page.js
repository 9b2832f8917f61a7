// Refreshes what is marked data-live every few seconds, from the same page. Everything works without it.
"use strict";

const EVERY_MS = 3000;

async function refresh() {
  const live = [...document.querySelectorAll("[data-live]")];
  if (live.length === 0 || document.hidden) return;
  try {
    // Without the notice of an action, which was read already.
    const answer = await fetch(location.pathname, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const old of live) {
      // Where the keyboard is, nothing moves.
      if (old.contains(document.activeElement)) continue;
      const now = fresh.getElementById(old.id);
      if (now) old.replaceWith(document.adoptNode(now));
    }
    document.body.classList.remove("stale");
  } catch {
    document.body.classList.add("stale");
  }
}

setInterval(refresh, EVERY_MS);
