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
  drawShareBars(byId("shares"), rows, payload.parts, "Time of the workers");
  new Curves(payload);
  showScaling(payload);
  const details = new Details(payload);
  startTheme(() => details.repaint());
  // Prefer a run with several ranks, which has more to show.
  const shown = first.find((run) => run.rank_count > 1) ?? first[0];
  details.show(payload.runs.indexOf(shown)).then(sayReady);
}

// Signal for programs that open the page: everything is drawn.
function sayReady() {
  document.documentElement.dataset.ready = "yes";
}

start();
