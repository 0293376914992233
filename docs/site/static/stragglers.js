// Seconds of an update and staleness of a gradient, if computation times are random and communication is free. The
// same closed forms as paceline.testing.order_statistics (Dutta et al., arXiv 1803.01113). Tests compare them.

(globalThis.paceline ??= {}).stragglers = function stragglers({ distribution, workers, k, ...times }) {
  return {
    sync: { seconds: smallest(workers), staleness: 0 },
    "k-sync": { seconds: smallest(k), staleness: 0 },
    "k-async": { seconds: kAsync(), staleness: (workers - k) / k },
    async: { seconds: mean() / workers, staleness: workers - 1 },
  };

  function mean() {
    if (distribution === "constant") return times.mean;
    if (distribution === "exponential") return times.mean;
    if (distribution === "shifted") return times.shift + times.mean;
    return times.shape > 1 ? (times.minimum * times.shape) / (times.shape - 1) : Infinity;
  }

  // Expected value of the n-th smallest of the workers' times.
  function smallest(n) {
    if (distribution === "constant") return times.mean;
    if (distribution === "exponential") return times.mean * harmonic(n);
    if (distribution === "shifted") return times.shift + times.mean * harmonic(n);
    let product = times.minimum;
    for (let i = workers - n + 1; i <= workers; i += 1) {
      if (i <= 1 / times.shape) return Infinity;
      product *= i / (i - 1 / times.shape);
    }
    return product;
  }

  function harmonic(n) {
    let sum = 0;
    for (let i = workers - n + 1; i <= workers; i += 1) sum += 1 / i;
    return sum;
  }

  // Known for memoryless times, and if no worker or every worker starts again. null: no closed form is known.
  function kAsync() {
    if (k === 1) return mean() / workers;
    return k === workers || distribution === "exponential" ? smallest(k) : null;
  }
};
