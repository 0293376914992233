// The spans of a run, unpacked from the page (`report/lanes.py` packs them) and prepared for drawing.
//
// Every instant of a rank counts once, as in Paceline's summaries: as processing (compute, update, …) if there is such a
// span, else as communicating, else as waiting. The rows of a lane are cut accordingly; `index` refers to the whole span.

const PROCESSOR_KINDS = ["compute", "forward", "backward", "weights", "update", "cancelled", "evaluate", "sleep"];

async function unpackLanes(packed, kindNames) {
  const columns = await unpackColumns(packed);
  let first = 0;
  const lanes = packed.ranks.map((rank, place) => {
    const lane = makeLane(rank, columns, first, first + packed.counts[place], kindNames);
    first += packed.counts[place];
    return lane;
  });
  return { lanes, columns, seconds: packed.seconds, until: packed.until, kindNames };
}

async function unpackColumns({ data, counts, tick, sizes }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) {
    bytes[place] = text.charCodeAt(place);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const count = counts.reduce((sum, each) => sum + each, 0);
  const column = (number, Numbers) => new Numbers(buffer, 4 * count * number, count);
  const starts = runningSums(column(0, Uint32Array));
  const lengths = column(1, Uint32Array);
  return {
    start: Float64Array.from(starts, (ticks) => ticks * tick),
    end: Float64Array.from(starts, (ticks, place) => (ticks + lengths[place]) * tick),
    step: runningSums(column(2, Int32Array)),
    peer: column(3, Int32Array),
    bytes: Float64Array.from(column(4, Uint32Array), (number) => sizes[number]),
    kind: new Uint8Array(buffer, 20 * count, count),
  };
}

// Cumulative sums, in place. They wrap around at 32 bits, like the differences.
function runningSums(numbers) {
  for (let place = 1; place < numbers.length; place += 1) {
    numbers[place] += numbers[place - 1];
  }
  return numbers;
}

function makeLane(rank, columns, first, last, kindNames) {
  const chosen = { processor: [], send: [], receive: [], wait: [] };
  for (let index = first; index < last; index += 1) {
    const kind = kindNames[columns.kind[index]];
    chosen[PROCESSOR_KINDS.includes(kind) ? "processor" : kind].push(index);
  }
  const row = (indexes) => makeRow(indexes.map((index) => [columns.start[index], columns.end[index], index]));
  const [processor, send, receive] = [row(chosen.processor), row(chosen.send), row(chosen.receive)];
  const processing = union([processor]);
  const [sendMeanwhile, sendAlone] = cut(send, processing);
  const [receiveMeanwhile, receiveAlone] = cut(receive, processing);
  const communicate = cut(union([send, receive]), processing)[1];
  const wait = cut(row(chosen.wait), union([processor, send, receive]))[1];
  return {
    ...rank,
    rows: {
      processor,
      send: sendAlone,
      receive: receiveAlone,
      sendMeanwhile,
      receiveMeanwhile,
      communicate,
      wait,
    },
  };
}

// Sort spans by start. `reach[i]` is the latest end of the first i + 1, so a binary search finds the first visible one.
function makeRow(spans) {
  spans.sort((a, b) => a[0] - b[0]);
  const end = Float64Array.from(spans, (span) => span[1]);
  const reach = end.slice();
  for (let place = 1; place < reach.length; place += 1) {
    reach[place] = Math.max(reach[place], reach[place - 1]);
  }
  return {
    index: Uint32Array.from(spans, (span) => span[2]),
    start: Float64Array.from(spans, (span) => span[0]),
    end,
    reach,
  };
}

// Return the disjoint intervals in which at least one span of the rows is active.
function union(rows) {
  const spans = rows.flatMap((row) => Array.from(row.start, (start, place) => [start, row.end[place], 0]));
  spans.sort((a, b) => a[0] - b[0]);
  const joined = [];
  for (const span of spans) {
    const last = joined.at(-1);
    if (last && span[0] <= last[1]) {
      last[1] = Math.max(last[1], span[1]);
    } else {
      joined.push(span);
    }
  }
  return makeRow(joined);
}

// Return the parts of a row inside disjoint intervals, and the parts outside.
function cut(row, stretches) {
  const inside = [];
  const outside = [];
  for (let place = 0; place < row.start.length; place += 1) {
    let from = row.start[place];
    const [to, index] = [row.end[place], row.index[place]];
    for (
      let next = firstAbove(stretches.end, from);
      next < stretches.start.length && stretches.start[next] < to;
      next += 1
    ) {
      if (stretches.start[next] > from) {
        outside.push([from, stretches.start[next], index]);
      }
      inside.push([Math.max(from, stretches.start[next]), Math.min(to, stretches.end[next]), index]);
      from = stretches.end[next];
    }
    if (from < to) {
      outside.push([from, to, index]);
    }
  }
  return [makeRow(inside), makeRow(outside)];
}

// Return the index of the first value above a bound in a sorted list.
function firstAbove(values, bound) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > bound) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Return the index range of a row's spans between two times.
function inView(row, from, to) {
  return [firstAbove(row.reach, from), firstAbove(row.start, to)];
}
