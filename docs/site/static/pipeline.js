// The orders of a pipeline, timed: the same actions and times as paceline.schedules.pipeline. Tests compare them.
// `forward`, `inputs` and `weights` are the seconds of one micro-batch in one stage (in one chunk, if interleaved).

(globalThis.paceline ??= {}).pipeline = function pipeline(options) {
  const { stages, microbatches, order, forward, inputs, weights } = options;
  const chunks = order === "interleaved" ? options.chunks : 1;
  const seconds = { F: forward, B: inputs, W: weights, BW: inputs + weights };
  const ranks = Array.from({ length: stages }, (_, rank) => actionsOf(rank));
  const ends = new Map(); // when a stage has passed a micro-batch on, by direction, micro-batch and stage
  const timed = time();
  const cost = Math.max(...timed.map((each) => each.at(-1).end - each[0].start));
  const busy = timed.map((each) => each.reduce((sum, { start, end }) => sum + end - start, 0));
  const mean = busy.reduce((sum, each) => sum + each, 0) / stages;
  return { seconds: cost, bubble: 1 - mean / cost, activations: ranks.map(peak), timed };

  function actionsOf(rank) {
    const forwards = range(microbatches).map((micro) => action("F", micro, 0));
    const backwards = range(microbatches).map((micro) => action("BW", micro, 0));
    const after = stages - 1 - rank;
    if (order === "gpipe") return [...forwards, ...backwards];
    if (order === "1f1b") return inTurns(forwards, backwards, after);
    if (order === "zb-h1") return weightsLater(inTurns(forwards, backwards, after), rank);
    if (order === "zb-h2") return weightsLater(inTurns(forwards, backwards, 2 * after), 2 * rank);
    const groups = groupsOf(microbatches, Math.max(1, Math.floor(microbatches / stages)));
    const first = (chunks - 1) * groups[0].length + 2 * after;
    return inTurns(all("F", groups, range(chunks)), all("BW", groups, range(chunks).reverse()), first);
  }

  function inTurns(forwards, backwards, wanted) {
    const first = Math.min(wanted, forwards.length);
    const turns = forwards.slice(first).flatMap((each, place) => [each, backwards[place]]);
    return [...forwards.slice(0, first), ...turns, ...backwards.slice(forwards.length - first)];
  }

  // Split each backward pass. The gradients of the weights follow `lag` micro-batches later.
  function weightsLater(actions, lag) {
    const made = [];
    const waiting = [];
    for (const each of actions) {
      if (each.phase !== "BW") {
        made.push(each);
        continue;
      }
      made.push({ ...each, phase: "B" });
      waiting.push({ ...each, phase: "W" });
      if (waiting.length > lag) made.push(waiting.shift());
    }
    return [...made, ...waiting];
  }

  function all(phase, groups, chunkOrder) {
    return groups.flatMap((group) => chunkOrder.flatMap((c) => group.map((micro) => action(phase, micro, c))));
  }

  function groupsOf(count, groups) {
    const sizes = range(groups).map((g) => Math.floor(count / groups) + (g < count % groups ? 1 : 0));
    let next = 0;
    return sizes.map((size) => range(size).map(() => next++));
  }

  function action(phase, micro, chunk) {
    return { phase, micro, chunk };
  }

  function range(count) {
    return Array.from({ length: count }, (_, i) => i);
  }

  // A rank starts an action when its previous one has ended and the message that it needs is there.
  function time() {
    const made = ranks.map(() => []);
    let left = ranks.reduce((sum, each) => sum + each.length, 0);
    while (left > 0) {
      const before = left;
      ranks.forEach((actions, rank) => {
        while (made[rank].length < actions.length) {
          const each = actions[made[rank].length];
          const ready = needed(each, rank);
          if (ready === undefined) break;
          const start = Math.max(made[rank].at(-1)?.end ?? 0, ready);
          const end = start + seconds[each.phase];
          made[rank].push({ ...each, start, end });
          if (each.phase !== "W") ends.set(`${each.phase === "F"} ${each.micro} ${each.chunk * stages + rank}`, end);
          left -= 1;
        }
      });
      if (left === before) throw new Error("deadlock");
    }
    return made;
  }

  function needed({ phase, micro, chunk }, rank) {
    const stage = chunk * stages + rank;
    if (phase === "F") return stage === 0 ? 0 : ends.get(`true ${micro} ${stage - 1}`);
    if (phase === "W" || stage === stages * chunks - 1) return 0;
    return ends.get(`false ${micro} ${stage + 1}`);
  }

  function peak(actions) {
    let stored = 0;
    let most = 0;
    for (const { phase } of actions) {
      stored += phase === "F" ? 1 : phase === "B" ? 0 : -1;
      most = Math.max(most, stored);
    }
    return most;
  }
};
