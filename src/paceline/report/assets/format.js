// Figures as text: three or four digits and a unit, as on Paceline's command line.

const SECOND_UNITS = [
  ["ns", 1e-9],
  ["µs", 1e-6],
  ["ms", 1e-3],
  ["s", 1],
];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function significant(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

// Return the largest unit that is not larger than the value.
function secondUnit(seconds) {
  return [...SECOND_UNITS].reverse().find(([, size]) => seconds >= size) ?? SECOND_UNITS[seconds > 0 ? 0 : 3];
}

// Format a time of a run, with the precision of a trace.
function formatMoment(seconds) {
  const [name, size] = secondUnit(seconds);
  return `${significant(seconds / size, 7)} ${name}`;
}

function formatSeconds(seconds) {
  const rounded = Number(seconds.toPrecision(3));
  if (rounded < 60) {
    const [name, size] = secondUnit(rounded);
    return `${significant(rounded / size, 4)} ${name}`;
  }
  const whole = Math.round(seconds);
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function formatBytes(bytes, digits = 4) {
  let unit = 0;
  let count = bytes;
  while (Number(count.toPrecision(digits)) >= 1024 && unit < BYTE_UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${significant(count, digits)} ${BYTE_UNITS[unit]}`;
}

function formatCount(count) {
  return Math.round(count).toLocaleString("en-GB");
}

function formatNumber(value) {
  if (value === 0) {
    return "0";
  }
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) {
    return significant(value, 4);
  }
  const [digits, power] = value.toExponential(2).split("e");
  return `${Number(digits)}e${Number(power)}`;
}

function formatShare(share) {
  const percent = 100 * share;
  return `${percent >= 9.95 || percent === 0 ? Math.round(percent) : percent.toFixed(1)}%`;
}

const FORMATS = { seconds: formatSeconds, bytes: formatBytes, count: formatCount, number: formatNumber };
