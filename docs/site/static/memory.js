// Peak memory of the rank of a GPT that needs the most, in bytes. The same figures as pl.predict(…).memory_bytes for
// `hybrid` on pl.models.GPT: tests compare them.

(globalThis.paceline ??= {}).memory = function memory(options) {
  const ranks = Array.from({ length: options.pipeline }, (_, rank) => rankMemory(options, rank));
  return ranks.reduce((most, each) => (each.total > most.total ? each : most));

  function rankMemory(o, rank) {
    const number = o.precision === "bf16" ? 2 : 4; // bytes of a parameter, a gradient and an activation
    const state = o.precision === "bf16" ? 12 : 8; // Adam's moments, and the master copy with bf16
    const stage = {
      blocks: o.layers / o.pipeline,
      isFirst: rank === 0,
      isLast: rank === o.pipeline - 1,
      stored: Math.min(o.microbatches, o.pipeline - rank), // 1F1B: micro-batches in flight
    };
    const count = parameterCount(o, stage);
    const found = {
      rank,
      parameters: count * number,
      gradients: (count * number) / (o.zero >= 2 ? o.data : 1),
      optimizer: (count * state) / (o.zero >= 1 ? o.data : 1),
      activations: o.recompute ? recomputed(o, stage, number) : kept(o, stage, number),
    };
    found.total = found.parameters + found.gradients + found.optimizer + found.activations;
    return found;
  }

  // Number of parameters that a rank of a stage holds.
  function parameterCount(o, stage) {
    const { hidden: h, tensor: t } = o;
    const blocks = stage.blocks * ((12 * h * h + 7 * h) / t + 6 * h);
    const embedding = stage.isFirst ? (o.vocabulary + o.sequence) * h : 0;
    const head = stage.isLast ? (o.vocabulary + 2) * h : 0;
    return blocks + embedding + head;
  }

  // Bytes of what one micro-batch saves in a layer.
  function sizes(o, number) {
    const positions = o.microbatch * o.sequence;
    return {
      values: positions * o.hidden * number, // an activation as wide as the model
      statistics: 2 * positions * 4, // mean and deviation of a norm
      normalisers: positions * (o.heads / o.tensor) * 4, // of attention
      tokens: positions * 8,
      logits: (positions * o.vocabulary + 1) * number,
    };
  }

  function kept(o, stage, number) {
    const each = sizes(o, number);
    // With tensor parallelism, 12 of the activations of a block are split; the others are saved by every rank.
    const wide = o.tensor === 1 ? 16 : 6 + 12 / o.tensor;
    let bytes = stage.blocks * (wide * each.values + each.normalisers + 2 * each.statistics);
    if (stage.isFirst) bytes += each.tokens + o.sequence * 8;
    if (stage.isLast) bytes += 2 * each.values + each.statistics + each.tokens + each.logits;
    return stage.stored * bytes;
  }

  // Inputs of the segments of all micro-batches in flight, and everything in the segment that is computed again.
  function recomputed(o, stage, number) {
    const each = sizes(o, number);
    let inputs = stage.blocks * (o.tensor === 1 ? 1 : 6) * each.values;
    if (stage.isFirst) inputs += each.tokens;
    if (stage.isLast) inputs += 2 * each.values + 2 * each.tokens;
    const whole = 15 * each.values + each.normalisers + 2 * each.statistics;
    const parts = [(8 * each.values) / o.tensor, (4 * each.values) / o.tensor + each.normalisers];
    let again = o.tensor === 1 ? whole : Math.max(...parts);
    if (stage.isLast) again = Math.max(again, each.logits + (o.tensor === 1 ? 0 : each.statistics));
    return stage.stored * inputs + again;
  }
};
