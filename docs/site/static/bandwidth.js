// Communication of gradients: bytes and seconds of an exchange, and the bandwidth that a step needs. The same figures
// as the timed schedules and the codecs of Paceline. Tests compare them.

(globalThis.paceline ??= {}).bandwidth = function bandwidth(options) {
  const { parameters, number, workers, compute, gigabits, latency, algorithm, period, codec, share } = options;
  const exchange = messages();
  const perByte = 8 / (gigabits * 1e9);
  const seconds = exchange.count * latency + exchange.bytes * perByte;
  const perStep = seconds / period;
  const allowed = (period * compute * share) / (1 - share) - exchange.count * latency;
  return {
    bytes: exchange.bytes / period,
    seconds: perStep,
    share: perStep / (compute + perStep),
    needed: allowed > 0 ? (exchange.bytes * 8) / allowed / 1e9 : Infinity, // Gbit/s
  };

  // Messages one after the other, and the bytes that a link carries in them.
  function messages() {
    const others = workers - 1;
    if (others === 0) return { count: 0, bytes: 0 };
    if (codec === "sign") return { count: others, bytes: others * (8 + Math.ceil(parameters / 8)) };
    if (codec.startsWith("topk")) return { count: others, bytes: others * topk(Number(codec.split("-")[1])) };
    if (algorithm === "tree") { // of a power of two
      const rounds = 2 * Math.ceil(Math.log2(workers));
      return { count: rounds, bytes: rounds * coded(parameters) };
    }
    return { count: 2 * others, bytes: 2 * others * coded(parameters / workers) };
  }

  function topk(ratio) {
    return Math.min(parameters, Math.max(1, Math.round(ratio * parameters))) * (number + 4);
  }

  function coded(count) {
    const blocks = Math.ceil(count / 256);
    const sizes = { none: number * count, bf16: 2 * count, fp16: 2 * count };
    return { ...sizes, int8: count + blocks, int4: count / 2 + blocks }[codec];
  }
};
