// A chart of lines: two axes, any number of lines, and the values under the pointer.
//
// model = { name, x: { kind, title }, y: { kind, log }, lines, rules: [y] }
// line  = { name, look, x: [], y: [], faint } with ascending x; a y of null is a gap. Faint lines have no tooltip.

const CHART = { height: 292, top: 12, right: 14, bottom: 46, markers: 5 };

class LineChart {
  constructor(place) {
    this.place = place;
    this.model = null;
    onWidth(place, () => this.draw());
  }

  show(model) {
    this.model = model;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.place.clientWidth);
    if (!this.model || !width) {
      return;
    }
    const range = this.range();
    if (typeof range === "string") {
      this.place.replaceChildren(html("p", { class: "empty" }, range));
      return;
    }
    const yTicks = this.yTicks(range);
    const left = 14 + 7 * Math.max(...yTicks.map((tick) => tick.text.length));
    this.frame = {
      width,
      left,
      right: width - CHART.right,
      top: CHART.top,
      bottom: CHART.height - CHART.bottom,
    };
    this.makeScales(range);
    const picture = svg("svg", {
      width,
      height: CHART.height,
      viewBox: `0 0 ${width} ${CHART.height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${this.model.name}. Arrow keys read the values.`,
    });
    picture.append(...this.axes(range, yTicks), ...this.rules(range));
    picture.append(...this.model.lines.flatMap((line) => this.line(line)));
    this.cursor = svg("path", { class: "cursor", hidden: true });
    picture.append(this.cursor);
    this.listen(picture);
    this.place.replaceChildren(picture);
  }

  // Return the ranges of both axes, or the reason that there is nothing to draw.
  range() {
    const lines = this.model.lines;
    if (!lines.length) {
      return "Nothing to show.";
    }
    const xs = lines.flatMap((line) => [line.x[0], line.x.at(-1)]);
    const isLog = this.model.y.log;
    let low = Infinity;
    let high = -Infinity;
    for (const value of [...lines.flatMap((line) => line.y), ...this.model.rules]) {
      if (value !== null && (!isLog || value > 0)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    const rightmost = Math.max(...xs);
    if (!(rightmost > 0)) {
      return this.model.x.kind === "bytes" ? "No bytes were sent." : "Nothing to show.";
    }
    if (low > high) {
      return "Nothing to show on a logarithmic scale.";
    }
    return {
      x: [this.model.x.from ?? 0, rightmost],
      y: isLog ? [low / 1.12, high * 1.12] : padded(low, high),
    };
  }

  yTicks({ y: [low, high] }) {
    if (this.model.y.log) {
      return logTicks(low, high, 9).map((value) => ({ value, text: formatNumber(value) }));
    }
    return axisLabels(this.model.y.kind, low, high, 6).ticks;
  }

  makeScales({ x, y }) {
    const { left, right, top, bottom } = this.frame;
    this.x = linearScale(x[0], x[1], left, right);
    this.y = (this.model.y.log ? logScale : linearScale)(y[0], y[1], bottom, top);
  }

  axes(range, yTicks) {
    const { left, right, top, bottom } = this.frame;
    const labels = axisLabels(this.model.x.kind, ...range.x, Math.max(2, Math.floor((right - left) / 72)));
    const parts = yTicks.map(({ value, text }) => {
      const y = this.y.at(value);
      return svg(
        "g",
        { class: "tick" },
        svg("path", { d: `M${left} ${y.toFixed(1)}H${right}` }),
        svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, text),
      );
    });
    for (const { value, text } of labels.ticks) {
      const x = this.x.at(value);
      const label = svg("text", { x, y: bottom + 19, "text-anchor": "middle" }, text);
      parts.push(svg("g", { class: "tick" }, svg("path", { d: `M${x.toFixed(1)} ${bottom}v5` }), label));
    }
    const title = labels.unit ? `${this.model.x.title}, ${labels.unit}` : this.model.x.title;
    const middle = (left + right) / 2;
    parts.push(svg("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
    parts.push(svg("text", { class: "muted", x: middle, y: bottom + 40, "text-anchor": "middle" }, title));
    return parts;
  }

  rules(range) {
    const { left, right } = this.frame;
    return this.model.rules
      .filter((rule) => rule >= range.y[0] && rule <= range.y[1])
      .map((rule) => svg("path", { class: "rule", d: `M${left} ${this.y.at(rule).toFixed(1)}H${right}` }));
  }

  line(line) {
    const points = this.points(line);
    const path = points.map(([x, y], place) =>
      y === null ? "" : `${startsHere(points, place) ? "M" : "L"}${x} ${y}`,
    );
    const parts = [
      svg("path", {
        class: `line ${line.look.colour}${line.faint ? " faint" : ""}`,
        d: path.join(""),
        "stroke-dasharray": line.faint ? null : line.look.dash || null,
      }),
    ];
    if (!line.faint && line.look.marker) {
      parts.push(...this.markers(line, points));
    }
    return [svg("g", {}, ...parts)];
  }

  points(line) {
    const isLog = this.model.y.log;
    return line.x.map((x, place) => {
      const y = line.y[place];
      return [this.x.at(x).toFixed(1), y === null || (isLog && y <= 0) ? null : this.y.at(y).toFixed(1)];
    });
  }

  // Mark all points if there are few; otherwise a few, at different positions for each line so that they do not overlap.
  markers(line, points) {
    const known = points.filter(([, y]) => y !== null);
    const few = known.length <= 2 * CHART.markers;
    const places = Array.from(
      { length: CHART.markers },
      (_, place) => (place + 0.2 + 0.09 * (line.number % 7)) / CHART.markers,
    );
    const chosen = few ? known : places.map((share) => known[Math.floor(share * (known.length - 1))]);
    return chosen.map(([x, y]) => markerAt(line.look, Number(x), Number(y)));
  }

  listen(picture) {
    picture.addEventListener("pointermove", (event) => {
      this.tell(event.clientX - picture.getBoundingClientRect().left, picture, event.clientY);
    });
    picture.addEventListener("pointerleave", () => this.untell());
    picture.addEventListener("blur", () => this.untell());
    picture.addEventListener("keydown", (event) => {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (direction) {
        event.preventDefault();
        const { left, right } = this.frame;
        this.told = Math.min(right, Math.max(left, (this.told ?? left) + (direction * (right - left)) / 40));
        const { heading, rows } = this.tell(this.told, picture, picture.getBoundingClientRect().top + 40);
        tooltip.say(heading, rows);
      }
    });
  }

  // Show the values of all lines at a position.
  tell(place, picture, windowY) {
    const { left, right, top, bottom } = this.frame;
    const x = Math.min(right, Math.max(left, place));
    const value = this.x.invert(x);
    this.cursor.setAttribute("d", `M${x.toFixed(1)} ${top}V${bottom}`);
    this.cursor.removeAttribute("hidden");
    const heading = `${this.model.x.title}: ${FORMATS[this.model.x.kind](value)}`;
    const rows = this.model.lines
      .filter((line) => !line.faint)
      .map((line) => [line.name, line.y[nearest(line.x, value)]])
      .filter(([, y]) => y !== null)
      .map(([name, y]) => [name, FORMATS[this.model.y.kind](y)]);
    tooltip.show(heading, rows, picture.getBoundingClientRect().left + x, windowY);
    return { heading, rows };
  }

  untell() {
    this.cursor.setAttribute("hidden", "");
    tooltip.hide();
  }
}

function startsHere(points, place) {
  return place === 0 || points[place - 1][1] === null;
}

function padded(low, high) {
  const room = high > low ? 0.05 * (high - low) : Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low < room ? 0 : low - room, high + room];
}

// Return the index of the value nearest to `wanted` in a sorted list.
function nearest(values, wanted) {
  let low = 0;
  let high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
}
