// Keeps a page current. Without it all pages work as they are.
(() => {
  "use strict";
  const heard = (text) => { document.getElementById("heard").textContent = text; };
  const region = () => document.getElementById("live");
  const LATE = "Changed meanwhile: it is shown when the form is closed";
  let stream = null;
  let isLate = false;

  // What an operator is writing is not taken away from them.
  const isBusy = () => {
    const region_ = region();
    const active = document.activeElement;
    const isField = active && region_.contains(active) && active.matches("input, select, textarea");
    const isWritten = (field) => field.value !== field.defaultValue;
    return isField || [...region_.querySelectorAll("details[open] :is(input, textarea)")].some(isWritten);
  };
  const isOpen = () => region().querySelector("details[open]") !== null;

  const renew = () => {
    isLate = isBusy() || isOpen();
    if (isLate) heard(LATE);
    else window.htmx.trigger(document.body, "changed");
  };

  const close = () => { if (stream) stream.close(); stream = null; };

  const listen = () => {
    if (stream || !region() || document.hidden) return;
    stream = new EventSource(region().dataset.live);
    stream.addEventListener("open", () => heard("Live"));
    stream.addEventListener("changed", renew);
    stream.addEventListener("error", () => {
      if (stream && stream.readyState === EventSource.CLOSED) { close(); heard("Not live: reload to see changes"); }
      else heard("Not live: it tries again");
    });
  };

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { status, responseText } = event.detail.xhr;
    if (status < 400 && responseText.includes("id=\"live\"")) {
      // A form may have been opened while the page was asked for.
      isLate = isBusy() || isOpen();
      if (isLate) { event.detail.shouldSwap = false; heard(LATE); }
      return;
    }
    event.detail.shouldSwap = false;
    // A session that is over leads to the form to sign in. After any other failure the page as it was is the best there is.
    if (status < 400 || status === 401) window.location.reload();
    else heard(`Not current: the gateway answers ${status}. This is the page as it was`);
  });
  document.addEventListener("htmx:afterSwap", () => heard("Live"));
  document.addEventListener("htmx:sendError", () => heard("Not current: the gateway does not answer. This is the page as it was"));
  document.addEventListener("toggle", () => { if (isLate && !isOpen()) renew(); }, true);

  // A hidden page holds no connection: a browser has few of them.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else { listen(); if (region()) renew(); }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", listen);

  const span = (seconds) => {
    if (seconds < 120) return `${seconds} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} d`;
  };
  const ages = () => {
    const now = Math.floor(Date.now() / 1000);
    for (const age of document.querySelectorAll("[data-since]")) {
      age.textContent = `${span(Math.max(0, now - age.dataset.since))} ago`;
    }
    for (const wait of document.querySelectorAll("[data-until]")) {
      const left = wait.dataset.until - now;
      wait.textContent = left > 0 ? `in ${span(left)}` : "now";
    }
  };
  setInterval(ages, 5000);
})();
