// Bars with the fractions of time of each strategy or each rank.

const PART_ORDER = ["compute", "update", "communicate", "evaluate", "cancelled", "sleep", "idle"];
const PART_WORDS = {
  compute: "computing",
  update: "updating",
  communicate: "communicating",
  evaluate: "evaluating",
  cancelled: "cancelled",
  sleep: "sleeping",
  idle: "waiting or idle",
};
let textures = 0;

// rows = [{ name, shares }], with the shares in the order of `parts`.
function drawShareBars(place, rows, parts, title) {
  onWidthOnce(place, (width) => {
    const shown = PART_ORDER.filter((part) => rows.some((row) => row.shares[parts.indexOf(part)] > 0));
    const isNarrow = width < 620 && rows.length <= 16; // names stand above the bars
    const longest = Math.max(...rows.map((row) => row.name.length));
    const names = isNarrow ? 0 : Math.min(0.34 * width, 12 + 7.4 * longest);
    const isCrowded = rows.length > 16; // then every other name has to do
    const bar = isCrowded ? 8 : 20;
    const step = isCrowded ? 10 : isNarrow ? bar + 22 : bar + 7;
    const number = (textures += 1);
    const picture = svg("svg", {
      width,
      height: rows.length * step + 2,
      role: "img",
      "aria-label": shareWords(rows, parts, shown, title),
    });
    picture.append(svg("defs", {}, ...shown.map((part) => textureOf(part, number))));
    rows.forEach((row, place) => {
      const top = place * step + (isNarrow ? 18 : 0);
      const label = isNarrow
        ? { x: 0, y: top - 4 }
        : { x: names - 10, y: top + bar / 2 + 4.5, "text-anchor": "end" };
      picture.append(
        isCrowded && place % 2 ? "" : svg("text", label, row.name),
        ...shareSegments(row, parts, shown, { left: names, width: width - names, top, bar, number }),
      );
    });
    const keys = html("div", { class: "legend" }, ...shown.map((part) => partKey(part, number)));
    place.replaceChildren(keys, picture);
  });
}

function shareSegments(row, parts, shown, { left, width, top, bar, number }) {
  let x = left;
  return shown.flatMap((part) => {
    const share = row.shares[parts.indexOf(part)];
    if (!(share > 0)) {
      return [];
    }
    const size = share * width;
    const rectangle = svg("rect", {
      x,
      y: top,
      width: Math.max(0, size - 1),
      height: bar,
      fill: `url(#texture-${part}-${number})`,
    });
    const rows = PART_ORDER.map((each) => [PART_WORDS[each], row.shares[parts.indexOf(each)]])
      .filter(([, each]) => each > 0)
      .map(([name, each]) => [name, formatShare(each)]);
    tooltip.follow(rectangle, row.name, rows);
    const label = bar >= 18 ? shareLabel(part, formatShare(share), x, size, top + bar / 2) : [];
    x += size;
    return [rectangle, ...label];
  });
}

function shareLabel(part, text, left, size, middle) {
  const width = 7 * text.length;
  if (size < width + 10) {
    return [];
  }
  // On a texture, text needs a plain background.
  const isTextured = ["idle", "sleep", "cancelled", "evaluate"].includes(part);
  const centre = left + size / 2;
  return [
    isTextured
      ? svg("rect", {
          class: "ground",
          x: centre - width / 2 - 3,
          y: middle - 7.5,
          width: width + 6,
          height: 15,
          rx: 2,
        })
      : null,
    svg(
      "text",
      { class: `on-part${isTextured ? " plain" : ""}`, x: centre, y: middle + 4, "text-anchor": "middle" },
      text,
    ),
  ].filter(Boolean);
}

// Idle is hatched and cancelled is striped, so that they can be distinguished without colours.
function textureOf(part, number) {
  const lines = {
    idle: svg("path", { class: "texture", d: "M-2 10L10 -2M-2 2L2 -2M6 10L10 6" }),
    cancelled: svg("path", { class: "texture over", d: "M-2 -2L10 10M-2 6L2 10M6 -2L10 2" }),
    evaluate: svg("path", { class: "texture over", d: "M2 1.2v1.6M6 5.2v1.6" }),
    sleep: svg("path", { class: "texture over", d: "M0 2h8M0 6h8" }),
  };
  return svg(
    "pattern",
    { id: `texture-${part}-${number}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
    svg("rect", { class: `part-${part}`, width: 8, height: 8 }),
    lines[part],
  );
}

function partKey(part, number) {
  const box = svg("rect", { width: 18, height: 12, fill: `url(#texture-${part}-${number})` });
  return html(
    "span",
    { class: "key" },
    svg("svg", { width: 18, height: 12, "aria-hidden": "true" }, box),
    PART_WORDS[part],
  );
}

function shareWords(rows, parts, shown, title) {
  const one = (row) =>
    shown.map((part) => `${PART_WORDS[part]} ${formatShare(row.shares[parts.indexOf(part)])}`).join(", ");
  return `${title}. ${rows.map((row) => `${row.name}: ${one(row)}`).join(". ")}.`;
}
