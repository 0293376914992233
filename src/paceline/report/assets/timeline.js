// The timeline: lanes, a time axis above them, and the lookup of the span at a point.

const LANE_SIZES = [
  { most: 6, height: 34, gap: 8 },
  { most: 12, height: 28, gap: 6 },
  { most: 24, height: 20, gap: 4 },
  { most: Infinity, height: 13, gap: 2 },
];
const AXIS_HEIGHT = 26;
const SHORTEST_VIEW = 1e-8; // of the run: beyond, numbers lose their digits
const HIT_PIXELS = 2;
const FONT = "11.5px system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

class Timeline {
  constructor(place) {
    this.canvas = html("canvas", { class: "lanes", tabindex: 0, role: "application" });
    this.thumb = html("div");
    place.append(this.canvas, html("div", { class: "strip", "aria-hidden": "true" }, this.thumb));
    this.context = this.canvas.getContext("2d");
    this.run = null;
    this.view = { from: 0, to: 1 };
    this.chosen = null;
    onWidth(place, () => this.draw());
  }

  show(run, view, name) {
    this.run = run;
    this.chosen = null;
    this.sizes = LANE_SIZES.find((size) => run.lanes.length <= size.most);
    this.canvas.setAttribute(
      "aria-label",
      `Timeline of ${name}. Plus and minus zoom, arrows left and right move, arrows up and down choose a rank, ` +
        "comma and full stop go from span to span.",
    );
    this.look(view.from, view.to);
    this.draw(); // at once, so that the page does not jump
  }

  // Change the visible time range, within the run.
  look(from, to) {
    const whole = this.run.seconds || 1;
    const length = Math.min(whole, Math.max(to - from, whole * SHORTEST_VIEW));
    const start = Math.min(whole - length, Math.max(0, from + (to - from - length) / 2));
    this.view = { from: start, to: start + length };
    this.redraw();
  }

  // Zoom around a time that stays at its position.
  zoom(factor, time = (this.view.from + this.view.to) / 2) {
    this.look(time - (time - this.view.from) / factor, time + (this.view.to - time) / factor);
  }

  pan(seconds) {
    const length = this.view.to - this.view.from;
    const from = Math.min(this.run.seconds - length, Math.max(0, this.view.from + seconds));
    this.look(from, from + length);
  }

  redraw() {
    this.wanted ??= requestAnimationFrame(() => this.draw());
  }

  repaint() {
    this.paints = null;
    this.redraw();
  }

  draw() {
    this.wanted = null;
    const width = this.canvas.clientWidth;
    if (!this.run || !width) {
      return;
    }
    const { height, gap } = this.sizes;
    const density = devicePixelRatio || 1;
    this.fit(width, AXIS_HEIGHT + this.run.lanes.length * (height + gap), density);
    this.gutter = this.gutterWidth(width);
    const context = this.context;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, this.canvas.height);
    this.drawAxis(width);
    this.run.lanes.forEach((lane, place) => {
      this.drawName(lane, place);
      drawLane(context, lane, this.run, this.view, this.laneBox(place), this.paints);
    });
    this.drawEnd();
    this.drawChosen();
    const share = 100 / (this.run.seconds || 1);
    this.thumb.style.left = `${this.view.from * share}%`;
    this.thumb.style.width = `max(3px, ${(this.view.to - this.view.from) * share}%)`;
  }

  fit(width, height, density) {
    const [pixelsX, pixelsY] = [Math.round(width * density), Math.round(height * density)];
    if (this.canvas.width !== pixelsX || this.canvas.height !== pixelsY || !this.paints) {
      this.canvas.width = pixelsX;
      this.canvas.height = pixelsY;
      this.canvas.style.height = `${height}px`;
      this.paints = makePaints(this.context, density);
    }
    this.context.font = FONT;
    this.context.textBaseline = "middle";
  }

  // As wide as the longest name; short names if there is little room.
  gutterWidth(width) {
    this.short = width < 560;
    return (
      10 +
      Math.ceil(
        Math.max(...this.run.lanes.map((lane) => this.context.measureText(this.laneName(lane)).width), 24),
      )
    );
  }

  laneName({ rank, role, holds }) {
    const plain = role === "worker" ? "" : ` ${role}`;
    if (this.short) {
      return `${rank}${plain && ` ${role[0].toUpperCase()}`}`;
    }
    const stage = holds.startsWith("stage") ? `, ${holds.split(" of ")[0]}` : "";
    return `rank ${rank}${plain}${stage}`;
  }

  laneBox(place) {
    const { height, gap } = this.sizes;
    const grain = this.run.lanes.length > 24 ? 2 : 1;
    return {
      x: this.gutter,
      y: AXIS_HEIGHT + place * (height + gap),
      width: this.canvas.clientWidth - this.gutter,
      height,
      grain,
    };
  }

  drawName(lane, place) {
    const { y, height } = this.laneBox(place);
    this.context.fillStyle = this.paints.muted;
    this.context.fillText(this.laneName(lane), 0, y + height / 2);
  }

  drawAxis(width) {
    const { from, to } = this.view;
    const context = this.context;
    const scale = linearScale(from, to, this.gutter, width);
    const { ticks, unit } = timeLabels(
      from,
      to,
      (text) => context.measureText(text).width,
      width - this.gutter,
    );
    const foot = AXIS_HEIGHT + this.run.lanes.length * (this.sizes.height + this.sizes.gap);
    for (const { value, text } of ticks) {
      const x = Math.round(scale.at(value)) + 0.5;
      context.fillStyle = this.paints.grid;
      context.fillRect(x - 0.5, AXIS_HEIGHT - 6, 1, foot - AXIS_HEIGHT + 6);
      context.fillStyle = this.paints.muted;
      const size = context.measureText(text).width;
      context.fillText(text, Math.min(width - size, Math.max(this.gutter, x - size / 2)), 9);
    }
    context.fillStyle = this.paints.muted;
    context.fillText(unit, 0, 9);
  }

  // The page has no spans after this time. It shows a note, so that the ranks do not appear idle.
  drawEnd() {
    if (this.run.until >= this.run.seconds || this.view.to <= this.run.until) {
      return;
    }
    const width = this.canvas.clientWidth;
    const x = Math.max(
      this.gutter,
      linearScale(this.view.from, this.view.to, this.gutter, width).at(this.run.until),
    );
    this.context.fillStyle = this.paints.paper;
    this.context.fillRect(x, AXIS_HEIGHT, width - x, this.canvas.height);
    this.context.fillStyle = this.paints.muted;
    this.context.fillText("not on this page", x + 8, AXIS_HEIGHT + 14);
  }

  drawChosen() {
    if (!this.chosen) {
      return;
    }
    const box = this.laneBox(this.chosen.lane);
    const scale = linearScale(this.view.from, this.view.to, box.x, box.x + box.width);
    const left = Math.max(box.x, scale.at(this.chosen.start));
    const right = Math.min(box.x + box.width, scale.at(this.chosen.end));
    this.context.strokeStyle = this.paints.ink;
    this.context.lineWidth = 2;
    this.context.strokeRect(left, box.y - 1, Math.max(1, right - left), box.height + 2);
  }

  timeAt(x) {
    return linearScale(this.gutter, this.canvas.clientWidth, this.view.from, this.view.to).at(x);
  }

  laneAt(y) {
    const { height, gap } = this.sizes;
    const place = Math.floor((y - AXIS_HEIGHT + gap / 2) / (height + gap));
    return place >= 0 && place < this.run.lanes.length ? place : -1;
  }

  // Return the span or the idle interval at a point of the canvas; null outside the lanes.
  spanAt(x, y) {
    const place = this.laneAt(y);
    if (place < 0 || x < this.gutter) {
      return null;
    }
    const box = this.laneBox(place);
    const rows = this.run.lanes[place].rows;
    const isUpper = y < box.y + box.height / 2;
    const inStrip = y > box.y + box.height - 2 * STRIP;
    const communication = isUpper ? [rows.send, rows.receive] : [rows.receive, rows.send];
    const under = [
      ...(inStrip ? [rows.receiveMeanwhile, rows.sendMeanwhile] : []),
      rows.processor,
      ...communication,
      rows.wait,
    ];
    const time = this.timeAt(x);
    const reach = ((this.view.to - this.view.from) / box.width) * HIT_PIXELS;
    for (const tolerance of [0, reach]) {
      for (const row of under) {
        const found = spanIn(row, time, tolerance);
        if (found !== null) {
          return this.wholeSpan(place, row.index[found], row.start[found]);
        }
      }
    }
    return idleStretch(place, rows, time, this.run);
  }

  // `from` is the start of the part of the span that the lane shows.
  wholeSpan(lane, index, from) {
    const { columns, kindNames } = this.run;
    return {
      lane,
      index,
      from,
      kind: kindNames[columns.kind[index]],
      start: columns.start[index],
      end: columns.end[index],
      peer: columns.peer[index],
      bytes: columns.bytes[index],
      step: columns.step[index],
    };
  }
}

// Return the span of a row at a time, within a tolerance; the one that began last if there are several.
function spanIn(row, time, tolerance) {
  for (
    let place = firstAbove(row.start, time + tolerance) - 1;
    place >= 0 && row.reach[place] >= time - tolerance;
    place -= 1
  ) {
    if (row.end[place] >= time - tolerance) {
      return place;
    }
  }
  return null;
}

function idleStretch(lane, rows, time, run) {
  let start = 0;
  let end = run.until;
  for (const row of [rows.processor, rows.send, rows.receive, rows.wait]) {
    const next = firstAbove(row.start, time);
    start = next > 0 ? Math.max(start, row.reach[next - 1]) : start;
    end = next < row.start.length ? Math.min(end, row.start[next]) : end;
  }
  return time <= run.until
    ? { lane, index: -1, from: start, kind: "idle", start, end, peer: -1, bytes: 0, step: null }
    : null;
}

// Return the labels of a time axis, in a unit for the visible range, as many as there is room for.
function timeLabels(from, to, measure, width) {
  const unit = axisUnit("seconds", Math.max(to - from, to / 1e4));
  let most = Math.floor(width / 60);
  for (;;) {
    const values = linearTicks(from / unit.size, to / unit.size, most);
    const step = values.length > 1 ? values[1] - values[0] : 1;
    const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9)));
    const ticks = values.map((value) => ({ value: value * unit.size, text: value.toFixed(digits) }));
    const widest = Math.max(...ticks.map((tick) => measure(tick.text)));
    if (most <= 2 || ticks.length * (widest + 22) <= width) {
      return { ticks, unit: unit.name };
    }
    most -= 1;
  }
}
