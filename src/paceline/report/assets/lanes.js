// One lane of the timeline on a canvas: the spans of a rank between two times.
//
// Processing fills the lane; sending fills its upper half and receiving its lower half. If a rank processes and
// communicates at the same time, the communication is a narrow strip at the bottom of the block. If more spans are
// visible than a screen can show, the lane shows fractions instead: how the time of each pixel column was spent.

const DENSE = 2; // spans for each pixel of width, from which on shares are drawn
const SPANS_IN_COLUMN = 48; // several steps: with fewer, neighbouring columns would differ by chance
const WIDEST_COLUMN = 12;
const STRIP = 4;

// Colours and textures for the lanes, created separately for the light and the dark theme.
function makePaints(context, density) {
  const names = [
    ...PROCESSOR_KINDS,
    "send",
    "receive",
    "communicate",
    "idle",
    "ink",
    "paper",
    "muted",
    "rule",
    "grid",
  ];
  const paints = Object.fromEntries(names.map((name) => [name, colourOf(name)]));
  const texture = (paper, ink, stroke) =>
    makeTexture(context, density, colourOf(paper), colourOf(ink), stroke);
  paints.wait = texture("wait-paper", "wait", (tile) => tile.rising(1));
  paints.cancelled = texture("cancelled", "paper", (tile) => tile.falling(1.6));
  paints.evaluate = texture("evaluate", "paper", (tile) => tile.dots());
  paints.sleep = texture("wait-paper", "sleep", (tile) => tile.level());
  return paints;
}

function makeTexture(context, density, paper, ink, draw) {
  const size = 8;
  const canvas = html("canvas", { width: size * density, height: size * density });
  const pen = canvas.getContext("2d");
  pen.scale(density, density);
  pen.fillStyle = paper;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = ink;
  const lines = (width, pairs) => {
    pen.lineWidth = width;
    pen.beginPath();
    pairs.forEach(([x1, y1, x2, y2]) => {
      pen.moveTo(x1, y1);
      pen.lineTo(x2, y2);
    });
    pen.stroke();
  };
  draw({
    rising: (width) =>
      lines(width, [
        [-2, 10, 10, -2],
        [-2, 2, 2, -2],
        [6, 10, 10, 6],
      ]),
    falling: (width) =>
      lines(width, [
        [-2, -2, 10, 10],
        [-2, 6, 2, 10],
        [6, -2, 10, 2],
      ]),
    level: () =>
      lines(1.5, [
        [0, 2, 8, 2],
        [0, 6, 8, 6],
      ]),
    dots: () =>
      [
        [2, 2],
        [6, 6],
      ].forEach(([x, y]) => pen.fillRect(x - 0.8, y - 0.8, 1.6, 1.6)),
  });
  const pattern = context.createPattern(canvas, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / density));
  return pattern;
}

// `box` is the position of the lane on the canvas, `view` the visible times, `run` the result of `unpackLanes`.
function drawLane(context, lane, run, view, box, paints) {
  context.fillStyle = paints.idle;
  context.fillRect(box.x, box.y, box.width, box.height);
  const rows = lane.rows;
  const count = ["processor", "send", "receive", "wait"].reduce((sum, name) => {
    const [first, last] = inView(rows[name], view.from, view.to);
    return sum + last - first;
  }, 0);
  if (count > DENSE * box.width) {
    const grain = Math.ceil(Math.min(WIDEST_COLUMN, (SPANS_IN_COLUMN * box.width) / count));
    drawShares(context, lane, run, view, { ...box, grain: Math.max(grain, box.grain) }, paints);
  } else {
    drawSpans(context, lane, run, view, box, paints);
  }
}

function drawSpans(context, { rows }, run, view, box, paints) {
  const half = Math.round(box.height / 2);
  const strip = Math.min(STRIP, box.height / 5);
  const kindOf = (index) => run.kindNames[run.columns.kind[index]];
  const place = (row, top, height) =>
    eachRectangle(context, row, run, view, box, paints, kindOf, box.y + top, height);
  place(rows.wait, 0, box.height);
  place(rows.send, 0, half);
  place(rows.receive, half, box.height - half);
  place(rows.processor, 0, box.height);
  place(rows.sendMeanwhile, box.height - 2 * strip, strip);
  place(rows.receiveMeanwhile, box.height - strip, strip);
}

function eachRectangle(context, row, run, view, box, paints, kindOf, top, height) {
  const scale = box.width / (view.to - view.from);
  const [first, last] = inView(row, view.from, view.to);
  for (let place = first; place < last; place += 1) {
    const left = box.x + Math.max(0, (row.start[place] - view.from) * scale);
    const right = box.x + Math.min(box.width, (row.end[place] - view.from) * scale);
    if (right <= left) {
      continue;
    }
    const kind = kindOf(row.index[place]);
    context.fillStyle = paints[kind];
    context.fillRect(left, top, right - left, height);
    if (right - left > 44 && height >= 14) {
      label(context, kind, run.columns.peer[row.index[place]], left, right, top + height / 2, paints);
    }
  }
}

const PREPOSITIONS = { send: "to", receive: "from", wait: "for" };

const PASSES = ["forward", "backward", "weights"]; // of a micro-batch, whose number stands for a peer

function spanTitle(kind, peer) {
  if (PASSES.includes(kind)) {
    return `${kind} ${peer + 1}`;
  }
  return peer >= 0 && PREPOSITIONS[kind] ? `${kind} ${PREPOSITIONS[kind]} ${peer}` : kind;
}

function label(context, kind, peer, left, right, middle, paints) {
  const text = spanTitle(kind, peer);
  const width = context.measureText(text).width;
  if (width + 10 > right - left) {
    return;
  }
  const x = (left + right - width) / 2;
  if (kind === "wait" || kind === "cancelled" || kind === "evaluate" || kind === "sleep") {
    // On a texture, text needs a plain background.
    context.fillStyle = paints.paper;
    context.fillRect(x - 4, middle - 8, width + 8, 16);
    context.fillStyle = paints.ink;
  } else {
    context.fillStyle = kind === "receive" ? "#1b1f24" : "#ffffff";
  }
  context.fillText(text, x, middle + 0.5);
}

// The stacked fractions of each column, from the bottom: processing by kind, communicating, waiting; the rest is idle.
function drawShares(context, { rows }, run, view, box, paints) {
  const columns = Math.ceil(box.width / box.grain);
  const shares = Object.fromEntries(
    [...PROCESSOR_KINDS, "communicate", "wait"].map((name) => [name, new Float64Array(columns)]),
  );
  const gather = (row, sharesOf) => {
    const scale = box.width / box.grain / (view.to - view.from);
    const [first, last] = inView(row, view.from, view.to);
    for (let place = first; place < last; place += 1) {
      const left = Math.max(0, (row.start[place] - view.from) * scale);
      const right = Math.min(columns, (row.end[place] - view.from) * scale);
      cover(sharesOf(row.index[place]), left, right);
    }
  };
  gather(rows.processor, (index) => shares[run.kindNames[run.columns.kind[index]]]);
  gather(rows.communicate, () => shares.communicate);
  gather(rows.wait, () => shares.wait);
  const foot = new Float64Array(columns).fill(box.y + box.height);
  for (const [name, share] of Object.entries(shares)) {
    context.fillStyle = paints[name];
    for (let column = 0; column < columns; column += 1) {
      const height = Math.min(1, share[column]) * box.height;
      if (height > 0) {
        foot[column] -= height;
        const x = column * box.grain;
        context.fillRect(box.x + x, foot[column], Math.min(box.grain, box.width - x), height);
      }
    }
  }
}

// Add an interval from `left` to `right`, in columns, to the coverage of each column.
function cover(shares, left, right) {
  for (let column = Math.floor(left); column < right; column += 1) {
    shares[column] += Math.min(right, column + 1) - Math.max(left, column);
  }
}
