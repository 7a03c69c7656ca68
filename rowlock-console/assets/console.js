// Puts the newest content into a page that is looked at. What has not changed stays, and with it the focus.
"use strict";

(() => {
  const live = document.getElementById("live");
  const away = document.getElementById("away");
  if (!live || !window.EventSource) return;

  const lost = "The console does not answer. This page tries again.";
  const ended = "Your login has ended. Load this page again.";
  let source = null;
  let patience = null;

  function tell(text) {
    if (away.textContent !== text) away.textContent = text;
    away.hidden = text === "";
    document.documentElement.classList.toggle("stale", text !== "");
  }

  // A row has a key: it is the same one wherever it stands.
  function isSame(old, next) {
    return old.nodeType === next.nodeType && old.nodeName === next.nodeName && keyOf(old) === keyOf(next);
  }

  function keyOf(node) {
    return node.dataset ? node.dataset.key : undefined;
  }

  function morph(old, next) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!next.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    morphChildren(old, next);
  }

  function morphChildren(old, next) {
    let place = old.firstChild;
    for (const child of [...next.childNodes]) {
      let found = place;
      while (found && !isSame(found, child)) found = found.nextSibling;
      if (!found) {
        old.insertBefore(document.importNode(child, true), place);
        continue;
      }
      // What stands between has gone, or comes later.
      if (found !== place && keyOf(found) === undefined) {
        while (place !== found) place = remove(place);
      } else if (found !== place) {
        old.insertBefore(found, place);
      }
      morph(found, child);
      place = found.nextSibling;
    }
    while (place) place = remove(place);
  }

  function remove(node) {
    const after = node.nextSibling;
    node.remove();
    return after;
  }

  function show(html) {
    // The parser runs no scripts; and the policy of the page allows none that stand in it.
    const next = new DOMParser().parseFromString(html, "text/html").body;
    morphChildren(live, next);
    tell("");
  }

  function open() {
    source = new EventSource(live.dataset.live);
    source.addEventListener("open", answered);
    source.addEventListener("fragment", (event) => {
      answered();
      show(JSON.parse(event.data));
    });
    source.addEventListener("away", (event) => {
      answered();
      tell(JSON.parse(event.data));
    });
    // The server ends a stream after a minute: then another one is opened, and nobody notices.
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) refused();
      source.close();
      source = null;
      if (!document.hidden) setTimeout(look, 1000);
      patience ??= setTimeout(() => tell(lost), 4000);
    });
  }

  // The answer was no stream. It says why, and an event has no room for that.
  async function refused() {
    const answer = await fetch(live.dataset.live).catch(() => null);
    if (!answer) return;
    if (answer.ok && !answer.redirected) {
      // There is a stream again, which is opened soon.
      answer.body.cancel();
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    answered();
    tell(answer.redirected ? ended : page.querySelector("[role=alert]").textContent);
  }

  function answered() {
    clearTimeout(patience);
    patience = null;
  }

  // A page that nobody sees costs no statement.
  function look() {
    if (document.hidden) {
      answered();
      if (source) source.close();
      source = null;
    } else if (!source) {
      open();
    }
  }

  document.addEventListener("visibilitychange", look);
  look();
})();
