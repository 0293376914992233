// Starts the page.

function start() {
  const payload = JSON.parse(byId("payload").textContent);
  document.querySelectorAll(".swatch").forEach((place) => place.append(swatch(Number(place.dataset.entry))));
  if (!payload.runs.length) {
    document.querySelectorAll("[data-needs-script]").forEach((section) => section.remove());
    startTheme(() => {});
    sayReady();
    return;
  }
  const first = payload.runs.filter((run) => run.typical);
  const rows = first.map((run) => ({ name: payload.entries[run.entry], shares: run.shares }));
  drawShareBars(byId("shares"), rows, payload.parts, "Where the workers' time went");
  new Curves(payload);
  showScaling(payload);
  const details = new Details(payload);
  startTheme(() => details.repaint());
  // A run with several ranks has more to show than one alone.
  const shown = first.find((run) => run.rank_count > 1) ?? first[0];
  details.show(payload.runs.indexOf(shown)).then(sayReady);
}

// For programs that open the page: everything is drawn.
function sayReady() {
  document.documentElement.dataset.ready = "yes";
}

start();
