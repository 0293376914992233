// Navigation in the timeline: wheel, drag, pinch, keys and buttons; and details of the span under the pointer.

const ZOOM = 1.6; // by a key or a button
const WHEEL = 0.0022; // by a unit of the wheel, as an exponent
const GESTURE_MS = 250; // pause between two turns of the wheel after which a new gesture begins

function spanRows(timeline, span) {
  const lane = timeline.run.lanes[span.lane];
  const rows = [
    ["start", formatMoment(span.start)],
    ["length", formatSeconds(span.end - span.start)],
  ];
  if (lane.holds) {
    rows.push(["holds", lane.holds]);
  }
  if (span.peer >= 0 && !PASSES.includes(span.kind)) {
    rows.push(["peer", `rank ${span.peer}`]);
  }
  if (span.bytes > 0) {
    rows.push(["bytes", formatBytes(span.bytes)]);
  }
  if (span.step !== null && span.step >= 0) {
    rows.push(["step", formatCount(span.step)]);
  }
  return { heading: `rank ${lane.rank}: ${spanTitle(span.kind, span.peer)}`, rows };
}

function navigate(timeline) {
  const canvas = timeline.canvas;
  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const hover = (event) => {
    const span = timeline.run && timeline.spanAt(...placeOf(event));
    if (span) {
      const { heading, rows } = spanRows(timeline, span);
      tooltip.show(heading, rows, event.clientX, event.clientY);
    } else {
      tooltip.hide();
    }
  };
  listenToWheel(timeline, placeOf);
  listenToPointers(timeline, placeOf, hover);
  canvas.addEventListener("keydown", (event) => pressKey(timeline, event));
  canvas.addEventListener("blur", () => tooltip.hide());
}

function listenToWheel(timeline, placeOf) {
  // A scroll that began on the page continues to scroll the page, even if the pointer reaches the timeline.
  let scrolledAt = -Infinity;
  document.addEventListener(
    "wheel",
    (event) => {
      if (event.target !== timeline.canvas) {
        scrolledAt = event.timeStamp;
      }
    },
    { passive: true, capture: true },
  );
  timeline.canvas.addEventListener(
    "wheel",
    (event) => {
      const seconds = timeline.view.to - timeline.view.from;
      const scrolls = event.timeStamp - scrolledAt < GESTURE_MS;
      const nothingToZoomOut = event.deltaY > 0 && seconds >= timeline.run.seconds * (1 - 1e-9);
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!event.ctrlKey && !isSideways && (scrolls || nothingToZoomOut)) {
        scrolledAt = event.timeStamp;
        return;
      }
      event.preventDefault();
      tooltip.hide();
      const amount = event.deltaMode === 1 ? 30 : 1; // some browsers count lines
      if (isSideways) {
        const turned = event.deltaX || event.deltaY;
        timeline.pan((turned * amount * seconds) / timeline.canvas.clientWidth);
      } else {
        timeline.zoom(Math.exp(-event.deltaY * amount * WHEEL), timeline.timeAt(placeOf(event)[0]));
      }
    },
    { passive: false },
  );
}

function listenToPointers(timeline, placeOf, hover) {
  const canvas = timeline.canvas;
  const down = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, placeOf(event)[0]);
    canvas.classList.add("dragging");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) {
      hover(event);
      return;
    }
    tooltip.hide();
    const before = [...down.values()];
    down.set(event.pointerId, placeOf(event)[0]);
    drag(timeline, before, [...down.values()]);
  });
  const release = (event) => {
    down.delete(event.pointerId);
    canvas.classList.toggle("dragging", down.size > 0);
  };
  canvas.addEventListener("pointerup", (event) => {
    release(event);
    hover(event);
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => tooltip.hide());
}

// One finger moves the view. With two fingers, the times under them stay fixed.
function drag(timeline, before, after) {
  if (after.length === 1) {
    timeline.pan(timeline.timeAt(before[0]) - timeline.timeAt(after[0]));
    return;
  }
  const [wasApart, isApart] = [before, after].map(([a, b]) => Math.max(8, Math.abs(a - b)));
  timeline.zoom(isApart / wasApart, timeline.timeAt((after[0] + after[1]) / 2));
}

function pressKey(timeline, event) {
  const seconds = timeline.view.to - timeline.view.from;
  const actions = {
    "+": () => timeline.zoom(ZOOM),
    "=": () => timeline.zoom(ZOOM),
    "-": () => timeline.zoom(1 / ZOOM),
    ArrowLeft: () => timeline.pan(-seconds / 6),
    ArrowRight: () => timeline.pan(seconds / 6),
    Home: () => timeline.pan(-timeline.run.seconds),
    End: () => timeline.pan(timeline.run.seconds),
    0: () => timeline.look(0, timeline.run.seconds),
    ArrowUp: () => chooseLane(timeline, -1),
    ArrowDown: () => chooseLane(timeline, 1),
    ",": () => chooseSpan(timeline, -1),
    ".": () => chooseSpan(timeline, 1),
    Escape: () => choose(timeline, null),
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) {
    return;
  }
  event.preventDefault();
  actions[event.key]();
}

function chooseLane(timeline, direction) {
  const last = timeline.run.lanes.length - 1;
  const lane = timeline.chosen ? timeline.chosen.lane + direction : 0;
  const { y, height } = timeline.laneBox(Math.min(last, Math.max(0, lane)));
  const middle = (timeline.gutter + timeline.canvas.clientWidth) / 2;
  choose(timeline, timeline.spanAt(middle, y + height / 4));
}

// Select the next or previous span of the rank, and move the view to it.
function chooseSpan(timeline, direction) {
  if (!timeline.chosen) {
    chooseLane(timeline, 0);
    return;
  }
  const { lane, from, index } = timeline.chosen;
  const order = spanOrder(timeline.run.lanes[lane]);
  const isAfter = ([start, other]) => start > from || (start === from && other > index);
  const next = order.findIndex(isAfter); // idle stretches have index -1 and stand before what begins with them
  const after = next < 0 ? order.length : next;
  const found = order[direction > 0 ? after : after - (index < 0 ? 1 : 2)];
  if (found) {
    choose(timeline, timeline.wholeSpan(lane, found[1], found[0]));
  }
}

// Return all spans of a lane, sorted by start, as pairs of start and index.
function spanOrder(lane) {
  lane.order ??= ["processor", "send", "receive", "sendMeanwhile", "receiveMeanwhile", "wait"]
    .map((name) => lane.rows[name])
    .flatMap((row) => Array.from(row.start, (start, place) => [start, row.index[place]]))
    .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return lane.order;
}

function choose(timeline, span) {
  timeline.chosen = span;
  if (!span) {
    tooltip.hide();
    timeline.redraw();
    return;
  }
  const { from, to } = timeline.view;
  if (span.start < from || span.start > to) {
    timeline.pan(span.start - (from + to) / 2);
  }
  timeline.redraw();
  const { heading, rows } = spanRows(timeline, span);
  const box = timeline.canvas.getBoundingClientRect();
  const middle = (Math.max(span.start, timeline.view.from) + Math.min(span.end, timeline.view.to)) / 2;
  const x = linearScale(timeline.view.from, timeline.view.to, timeline.gutter, box.width).at(middle);
  const lane = timeline.laneBox(span.lane);
  tooltip.show(heading, rows, box.left + x, box.top + lane.y + lane.height - 8);
  tooltip.say(heading, rows);
}
