// Conversion between values and positions, and the labelled values of an axis.

function linearScale(low, high, start, stop) {
  const factor = high > low ? (stop - start) / (high - low) : 0;
  return {
    at: (value) => start + (value - low) * factor,
    invert: (place) => (factor ? low + (place - start) / factor : low),
  };
}

function logScale(low, high, start, stop) {
  const inner = linearScale(Math.log(low), Math.log(high), start, stop);
  return { at: (value) => inner.at(Math.log(value)), invert: (place) => Math.exp(inner.invert(place)) };
}

// Return the smallest of 1, 2, 5, 10, 20, … that divides the range into at most `most` parts.
function niceStep(range, most) {
  const rough = range / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const digit = [1, 2, 5, 10].find((each) => each * power >= rough * (1 - 1e-9));
  return digit * power;
}

function linearTicks(low, high, most) {
  if (!(high > low)) {
    return [low];
  }
  const step = niceStep(high - low, most);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

// 1, 2 and 5 of each decade if there is room, else the decades, else some of them.
function logTicks(low, high, most) {
  const ticks = (digits, every) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      if (power % every === 0) {
        found.push(...digits.map((digit) => digit * 10 ** power));
      }
    }
    return found.filter((value) => value >= low * 0.9999 && value <= high * 1.0001);
  };
  const fine = ticks([1, 2, 5], 1);
  if (fine.length <= most) {
    return fine;
  }
  const range = Math.log10(high / low);
  return ticks([1], Math.max(1, Math.ceil(range / Math.max(2, most))));
}

// The unit of an axis. All labels use it, and the title names it.
function axisUnit(kind, high) {
  if (kind === "seconds") {
    const units = [
      ["h", 3600, 7200],
      ["min", 60, 180],
      ["s", 1, 1],
      ["ms", 1e-3, 1e-3],
      ["µs", 1e-6, 1e-6],
      ["ns", 1e-9, 0],
    ];
    const [name, size] = units.find(([, , from]) => high >= from);
    return { name, size };
  }
  if (kind === "bytes") {
    const power = high > 0 ? Math.min(4, Math.floor(Math.log(high) / Math.log(1024))) : 0;
    return { name: BYTE_UNITS[power], size: 1024 ** power };
  }
  return { name: "", size: 1 };
}

// Positions and texts of the labels of a linear axis.
function axisLabels(kind, low, high, most) {
  const unit = axisUnit(kind, high);
  const values = linearTicks(low / unit.size, high / unit.size, most);
  const step = values.length > 1 ? values[1] - values[0] : 1;
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
  const isWhole = kind === "count";
  const shown = isWhole ? values.filter((value) => Number.isInteger(Number(value.toFixed(6)))) : values;
  const text = (value) =>
    value.toLocaleString("en-GB", {
      minimumFractionDigits: isWhole ? 0 : digits,
      maximumFractionDigits: isWhole ? 0 : digits,
    });
  return { unit: unit.name, ticks: shown.map((value) => ({ value: value * unit.size, text: text(value) })) };
}
