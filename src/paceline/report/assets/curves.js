// The learning curves: loss, metric and consensus distance over an axis selected by the reader.

const AXES = {
  seconds: { kind: "seconds", title: "time", text: "time" },
  samples: { kind: "count", title: "samples", text: "samples" },
  bytes: { kind: "bytes", title: "bytes sent", text: "bytes" },
  steps: { kind: "count", title: "steps", text: "steps" },
};
const LOG_FROM = 30; // times that the greatest loss is of the least

class Curves {
  constructor(payload) {
    this.entries = payload.entries;
    this.runs = payload.runs;
    this.hidden = new Set();
    this.axis = "seconds";
    this.smooth = this.runs.some((run) => run.loss.smooth);
    this.log = lossRange(this.runs) > LOG_FROM;
    this.charts = ["loss", "metric", "consensus"]
      .filter((name) => this.has(name) || (name === "loss" && this.runs.length))
      .map((name) => ({ name, chart: new LineChart(drawingPlace(byId(name))) }));
    for (const name of ["loss", "metric", "consensus"]) {
      byId(name).hidden = !this.charts.some((each) => each.name === name);
    }
    const targets = this.targets().map(formatNumber);
    const direction = this.runs.some((run) => run.better === "lower") ? "; lower is better" : "";
    const target = targets.length ? `dotted: the target, ${targets.join(" and ")}` : "";
    explain(byId("metric"), (target + direction).replace(/^; /, ""));
    explain(byId("consensus"), "root of the workers' mean squared distance from their mean");
    this.makeControls();
    this.makeLegend();
    this.show();
  }

  has(name) {
    return this.runs.some((run) => (name === "loss" ? run.loss.raw : run[name]));
  }

  makeControls() {
    const axes = Object.entries(AXES).map(([name, axis]) => [name, axis.text]);
    const set = (key) => (value) => {
      this[key] = value;
      this.show();
    };
    byId("curve-controls").append(
      choice("Against", axes, this.axis, set("axis")),
      checkbox("logarithmic loss", this.log, set("log")),
    );
    if (this.smooth) {
      byId("curve-controls").append(checkbox("moving mean of the loss", true, set("smooth")));
    }
  }

  makeLegend() {
    const drawn = new Set(this.runs.map((run) => run.entry));
    byId("curve-legend").append(
      ...[...drawn].map((entry) => {
        const button = html(
          "button",
          { type: "button", "aria-pressed": "true" },
          swatch(entry),
          this.entries[entry],
        );
        button.addEventListener("click", () => {
          const isHidden = this.hidden.has(entry);
          this.hidden[isHidden ? "delete" : "add"](entry);
          button.setAttribute("aria-pressed", String(isHidden));
          this.show();
        });
        return button;
      }),
    );
  }

  show() {
    for (const { name, chart } of this.charts) {
      chart.show({
        name: byId(name).querySelector("figcaption").firstChild.textContent,
        x: AXES[this.axis],
        y: { kind: "number", log: name === "consensus" || (name === "loss" && this.log) },
        lines: this.shownRuns().flatMap((run) => this.lines(name, run)),
        rules: name === "metric" ? this.targets() : [],
      });
    }
  }

  shownRuns() {
    return this.runs.filter((run) => !this.hidden.has(run.entry));
  }

  lines(name, run) {
    if (name !== "loss") {
      return this.line(run, run[name], false);
    }
    const { raw, smooth } = run.loss;
    return this.smooth && smooth
      ? [...this.line(run, raw, true), ...this.line(run, smooth, false)]
      : this.line(run, raw, false);
  }

  line(run, curve, faint) {
    if (!curve) {
      return [];
    }
    return [
      {
        name: runName(this.entries, run),
        number: run.entry,
        look: look(run.entry),
        x: curve[this.axis],
        y: curve.value,
        faint,
      },
    ];
  }

  targets() {
    const targets = new Set(this.runs.map((run) => run.target).filter((target) => target !== null));
    return [...targets];
  }
}

function runName(entries, run) {
  const name = entries[run.entry];
  return run.repeats > 1 ? `${name}, run ${run.repeat + 1}` : name;
}

// Return the ratio of the largest to the smallest loss, from the smoother of the available lines.
function lossRange(runs) {
  let low = Infinity;
  let high = 0;
  for (const run of runs) {
    for (const value of (run.loss.smooth ?? run.loss.raw)?.value ?? []) {
      if (value !== null) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  return low > 0 ? high / low : 0;
}

function showScaling(payload) {
  const scaling = payload.scaling;
  byId("scaling").hidden = !scaling;
  if (!scaling) {
    return;
  }
  explain(byId("scaling"), `in samples a second, over ${scaling.base}; dotted: ideal`);
  const lines = scaling.lines.map((line) => ({
    name: line.name,
    number: line.entry,
    look: look(line.entry),
    x: line.workers,
    y: line.speed_up,
    faint: false,
  }));
  const widest = scaling.lines.reduce((a, b) => (b.workers.at(-1) > a.workers.at(-1) ? b : a));
  lines.push({
    name: "ideal",
    number: 0,
    look: IDEAL_LOOK,
    x: widest.workers,
    y: widest.ideal,
    faint: false,
  });
  new LineChart(drawingPlace(byId("scaling"))).show({
    name: "Speed-up against workers",
    x: { kind: "count", title: "workers" },
    y: { kind: "number", log: false },
    lines,
    rules: [],
  });
}
