// Looks of lines: colour, dashes and markers. An entry of the comparison has the same look everywhere.

const COLOURS = 8;
const DASHES = ["", "9 4", "2 3", "12 4 2 4", "5 3", "14 4", "2 5", "9 3 2 3 2 3"];
const MARKERS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", // circle
  "M-3.6 -3.6h7.2v7.2h-7.2z", // square
  "M0 -4.8l4.6 8.2h-9.2z", // triangle
  "M0 -5.2l4.7 5.2l-4.7 5.2l-4.7 -5.2z", // diamond
  "M0 4.8l4.6 -8.2h-9.2z", // triangle upside down
  "M-4 -4l8 8M4 -4l-8 8", // saltire
  "M-5 0h10M0 -5v10", // plus
  "M-2.6 -4.6h5.2l2.6 4.6l-2.6 4.6h-5.2l-2.6 -4.6z", // hexagon
];

function look(entry) {
  return {
    colour: `series-${entry % COLOURS}`,
    dash: DASHES[entry % DASHES.length],
    marker: MARKERS[entry % MARKERS.length],
    hollow: Math.floor(entry / MARKERS.length) % 2 === 1, // a second round of markers is hollow
  };
}

const IDEAL_LOOK = { colour: "series-ideal", dash: "3 5", marker: null, hollow: false };

function markerAt(style, x, y) {
  return svg("path", {
    class: `marker ${style.colour}${style.hollow ? " hollow" : ""}`,
    d: style.marker,
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
  });
}

// A short sample of the line, for legends and tables.
function swatch(entry) {
  const style = look(entry);
  return svg(
    "svg",
    { width: 34, height: 12, viewBox: "0 0 34 12", "aria-hidden": "true" },
    svg("path", { class: `line ${style.colour}`, d: "M0 6h34", "stroke-dasharray": style.dash || null }),
    markerAt(style, 17, 6),
  );
}

// Return a colour of the style sheet for the canvas. Only the colour of an element is resolved for the theme.
const probe = html("span", { hidden: true });

function colourOf(name) {
  if (!probe.isConnected) {
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
