// One run in detail, selected by the reader.

const STEPS_IN_VIEW = 10;
const BEGIN = 0.3; // of the run, where the first view begins: the first steps are seldom like the others

class Details {
  constructor(payload) {
    this.payload = payload;
    this.unpacked = new Map();
    this.direct = html("input", { type: "checkbox", id: "direct-waits" });
    this.direct.addEventListener("change", () => this.drawWaits(this.payload.runs[this.shown]));
    byId("waits").append(html("label", {}, this.direct, " Direct waits"));
    this.places = Object.fromEntries(
      ["waits", "bytes", "topology", "staleness", "rank-shares"].map((id) => [id, drawingPlace(byId(id))]),
    );
    this.makeTimeline(byId("timeline"));
    this.makeControls();
  }

  makeTimeline(figure) {
    this.buttons = html("div", { class: "controls" });
    this.keys = html("div", { class: "legend" });
    this.note = html("p", { class: "note" });
    const place = html("div");
    figure.append(this.buttons, place, this.keys, this.note);
    this.timeline = new Timeline(place);
    navigate(this.timeline);
    const look = (steps) => {
      const middle = (this.timeline.view.from + this.timeline.view.to) / 2;
      const seconds = steps * this.stepSeconds();
      this.timeline.look(middle - seconds / 2, middle + seconds / 2);
    };
    const length = () => this.timeline.view.to - this.timeline.view.from;
    const button = (text, name, act) => {
      const made = html("button", { type: "button", "aria-label": name, title: name }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.buttons.append(
      button("\u2212", "Zoom out", () => this.timeline.zoom(1 / ZOOM)),
      button("+", "Zoom in", () => this.timeline.zoom(ZOOM)),
      button("\u2190", "Earlier", () => this.timeline.pan(-length() / 3)),
      button("\u2192", "Later", () => this.timeline.pan(length() / 3)),
      button("Ten steps", "Show about ten steps", () => look(STEPS_IN_VIEW)),
      button("Whole run", "Show the whole run", () => this.timeline.look(0, this.timeline.run.seconds)),
    );
  }

  makeControls() {
    const { runs, entries } = this.payload;
    const select = html("select", { id: "run" });
    runs.forEach((run, place) => {
      const name = runName(entries, run) + (run.repeats > 1 ? ` (seed ${run.seed})` : "");
      select.append(html("option", { value: place }, name));
    });
    this.select = select;
    select.addEventListener("change", () => this.show(Number(select.value)));
    byId("run-controls").append(html("label", {}, "Run ", select));
  }

  stepSeconds() {
    const run = this.payload.runs[this.shown];
    return run.lanes.seconds / Math.max(1, run.steps);
  }

  async show(place) {
    const isFirst = this.shown === undefined;
    this.shown = place;
    this.select.value = String(place);
    const run = this.payload.runs[place];
    this.drawFigures(run);
    if (!this.unpacked.has(place)) {
      this.unpacked.set(place, await unpackLanes(run.lanes, this.payload.kinds));
    }
    if (this.shown !== place) {
      return; // another was chosen meanwhile
    }
    const unpacked = this.unpacked.get(place);
    const view =
      isFirst || !(this.timeline.view.from < unpacked.until) ? this.firstView(run) : this.timeline.view;
    const name = runName(this.payload.entries, run);
    explain(byId("timeline"), name);
    this.timeline.show(unpacked, view, name);
    this.drawKeys();
    this.note.textContent = this.noteOf(run);
  }

  firstView(run) {
    const seconds = STEPS_IN_VIEW * this.stepSeconds();
    const from = Math.max(0, Math.min(BEGIN * run.lanes.seconds, run.lanes.until - seconds));
    return { from, to: from + seconds };
  }

  drawFigures(run) {
    this.drawWaits(run);
    explain(byId("bytes"), `the rank of a row sent to the rank of a column${grouped(run.bytes)}`);
    drawMatrix(this.places.bytes, run.bytes, {
      name: "Bytes between ranks",
      format: (bytes) => formatBytes(bytes, 3),
      tell: (sender, receiver, value) => ({
        heading: `${ranksNamed(sender)} to ${ranksNamed(receiver)}`,
        rows: [["sent", formatBytes(value)]],
      }),
      empty: run.bytes.sent
        ? `${formatBytes(run.bytes.sent)} were sent, in collectives that the trace records without the pairs.`
        : "No bytes were sent: the ranks used shared memory, or there was only one rank.",
    });
    const hasEdges = run.bytes.cells.some(([from, to]) => from !== to);
    byId("topology").hidden = !hasEdges;
    if (hasEdges) {
      const roles = run.bytes.grouped === 1 ? run.lanes.ranks.map((rank) => rank.role) : [];
      explain(byId("topology"), "wider lines: more bytes; squares: servers");
      drawTopology(this.places.topology, run.bytes, roles);
    }
    byId("staleness").hidden = !run.staleness.length;
    if (run.staleness.length) {
      explain(byId("staleness"), "updates between a gradient's pull and its use");
      drawStaleness(this.places.staleness, run.staleness);
    }
    const ranks = run.lanes.ranks.map((rank, lane) => ({
      name: `rank ${rank.rank}${rank.role === "worker" ? "" : ` ${rank.role}`}`,
      shares: run.lanes.parts[lane],
    }));
    drawShareBars(this.places["rank-shares"], ranks, this.payload.parts, "Time of each rank");
  }

  drawWaits(run) {
    const isDirect = this.direct.checked;
    const matrix = isDirect ? run.waits : run.causes;
    const how = isDirect
      ? "the rank of a row waited for the rank of a column"
      : "the rank of a row waited because of the rank of a column, directly or through others";
    explain(byId("waits"), how + grouped(matrix));
    drawMatrix(this.places.waits, matrix, {
      name: isDirect ? "Direct waits between ranks" : "Root causes of waits",
      format: formatSeconds,
      tell: (waiter, awaited, value) => ({
        heading: `${ranksNamed(waiter)} ${isDirect ? "for" : "because of"} ${ranksNamed(awaited)}`,
        rows: [["waited", formatSeconds(value)]],
      }),
      empty: isDirect ? "No rank waited for another." : "No rank made others wait.",
    });
  }

  // Legend: the textures of the kinds of spans in the run.
  drawKeys() {
    const { run } = this.timeline;
    const found = new Set(run.columns.kind);
    const names = [...PROCESSOR_KINDS, "send", "receive", "wait"].filter((name) =>
      found.has(run.kindNames.indexOf(name)),
    );
    this.keys.replaceChildren(
      ...[...names, "idle"].map((name) => html("span", { class: "key" }, kindSwatch(name), name)),
    );
  }

  repaint() {
    this.timeline.repaint();
    if (this.timeline.run) {
      this.drawKeys();
    }
  }

  noteOf(run) {
    const { ranks, until, seconds } = run.lanes;
    const sentences = [
      "Processing fills a lane; sending is its upper half, receiving its lower.",
      "When zoomed out, a lane shows fractions of time.",
      "Zoom with the wheel or + and -, move by dragging or with the arrow keys, step through spans with , and .",
    ];
    if (ranks.length < run.rank_count) {
      sentences.push(
        `${ranks.length} of ${formatCount(run.rank_count)} ranks are shown:`,
        "servers, the ranks most waited for, the ranks idle longest, and some of the others.",
      );
    }
    if (until < seconds) {
      sentences.push(
        `The spans are from the first ${formatSeconds(until)} of ${formatSeconds(seconds)};`,
        "the saved run has them all.",
      );
    }
    run.lost.forEach(([rank, step]) => sentences.push(`Rank ${rank} was lost at step ${step}.`));
    sentences.push(...run.changes);
    return sentences.join(" ");
  }
}

function grouped(matrix) {
  return matrix.grouped > 1 ? `, ${matrix.grouped} ranks together` : "";
}

function kindSwatch(name) {
  const density = devicePixelRatio || 1;
  const canvas = html("canvas", { width: 20 * density, height: 12 * density, "aria-hidden": "true" });
  canvas.style.width = "20px";
  canvas.style.height = "12px";
  const context = canvas.getContext("2d");
  context.scale(density, density);
  const paints = makePaints(context, density);
  context.fillStyle = paints.idle;
  context.fillRect(0, 0, 20, 12);
  context.fillStyle = paints[name];
  context.fillRect(0, name === "receive" ? 6 : 0, 20, name === "send" || name === "receive" ? 6 : 12);
  context.strokeStyle = paints.rule;
  context.strokeRect(0.5, 0.5, 19, 11);
  return canvas;
}
