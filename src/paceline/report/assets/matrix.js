// A matrix of ranks as a heat map: a stronger colour is a larger value. Arrow keys move from cell to cell.
//
// matrix = { labels, grouped, cells: [[row, column, value]] }; missing cells are 0.

const CELL = { widest: 66, highest: 34, textFrom: 34 };

function drawMatrix(place, matrix, { name, format, tell, empty }) {
  onWidthOnce(place, (width) => {
    if (!matrix.cells.length) {
      place.replaceChildren(html("p", { class: "empty" }, empty));
      return;
    }
    const count = matrix.labels.length;
    const left = 12 + 7 * Math.max(...matrix.labels.map((label) => label.length));
    const cellWidth = Math.min(CELL.widest, (width - left) / count);
    const cellHeight = Math.min(CELL.highest, Math.max(cellWidth, 5));
    const frame = { left, top: 22, cellWidth, cellHeight, count };
    const picture = svg("svg", {
      width,
      height: frame.top + count * cellHeight + 4,
      role: "img",
      tabindex: 0,
      "aria-label": `${name}. Arrow keys read the cells.`,
    });
    picture.append(
      svg("rect", {
        class: "blank",
        x: left,
        y: frame.top,
        width: count * cellWidth,
        height: count * cellHeight,
      }),
    );
    picture.append(...matrixLabels(matrix.labels, frame), ...matrixCells(matrix, frame, format));
    listenToCells(picture, matrix, frame, tell);
    place.replaceChildren(picture);
  });
}

function matrixLabels(labels, { left, top, cellWidth, cellHeight }) {
  const longest = 7 * Math.max(...labels.map((label) => label.length));
  const everyColumn = Math.ceil((longest + 6) / cellWidth);
  const everyRow = Math.ceil(13 / cellHeight);
  return labels.flatMap((label, place) => {
    const column = {
      class: "muted",
      x: left + (place + 0.5) * cellWidth,
      y: top - 8,
      "text-anchor": "middle",
    };
    const row = {
      class: "muted",
      x: left - 8,
      y: top + (place + 0.5) * cellHeight + 4,
      "text-anchor": "end",
    };
    return [
      place % everyColumn === 0 ? svg("text", column, label) : null,
      place % everyRow === 0 ? svg("text", row, label) : null,
    ].filter(Boolean);
  });
}

function matrixCells({ cells }, { left, top, cellWidth, cellHeight }, format) {
  const most = Math.max(...cells.map(([, , value]) => value));
  return cells.flatMap(([row, column, value]) => {
    const share = value / most;
    const [x, y] = [left + column * cellWidth, top + row * cellHeight];
    const parts = [
      svg("rect", {
        class: "heat",
        x,
        y,
        width: cellWidth,
        height: cellHeight,
        "fill-opacity": (0.06 + 0.94 * share).toFixed(3),
      }),
    ];
    const text = format(value);
    if (cellWidth >= CELL.textFrom && cellWidth >= 6.4 * text.length) {
      const place = { x: x + cellWidth / 2, y: y + cellHeight / 2 + 4, "text-anchor": "middle" };
      parts.push(svg("text", { class: share > 0.5 ? "on-heat" : "off-heat", ...place }, text));
    }
    return parts;
  });
}

function listenToCells(picture, matrix, frame, tell) {
  const values = new Map(matrix.cells.map(([row, column, value]) => [row * frame.count + column, value]));
  const mark = svg("rect", {
    class: "chosen",
    width: frame.cellWidth,
    height: frame.cellHeight,
    hidden: true,
  });
  picture.append(mark);
  let chosen = [0, 0];
  const show = (row, column, x, y) => {
    chosen = [row, column];
    mark.setAttribute("x", frame.left + column * frame.cellWidth);
    mark.setAttribute("y", frame.top + row * frame.cellHeight);
    mark.removeAttribute("hidden");
    const { heading, rows } = tell(
      matrix.labels[row],
      matrix.labels[column],
      values.get(row * frame.count + column) ?? 0,
    );
    const box = picture.getBoundingClientRect();
    const place = [frame.left + (column + 0.5) * frame.cellWidth, frame.top + (row + 0.5) * frame.cellHeight];
    tooltip.show(heading, rows, x ?? box.left + place[0], y ?? box.top + place[1]);
    return { heading, rows };
  };
  const hide = () => {
    mark.setAttribute("hidden", "");
    tooltip.hide();
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - frame.left) / frame.cellWidth);
    const row = Math.floor((event.clientY - box.top - frame.top) / frame.cellHeight);
    const isInside = [row, column].every((place) => place >= 0 && place < frame.count);
    isInside ? show(row, column, event.clientX, event.clientY) : hide();
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) {
      event.preventDefault();
      const [row, column] = chosen.map((place, way) =>
        Math.min(frame.count - 1, Math.max(0, place + move[way])),
      );
      const { heading, rows } = show(row, column);
      tooltip.say(heading, rows);
    }
  });
}

// Return the name of a rank for a sentence. In a large run, a row represents several ranks.
function ranksNamed(label) {
  return label.includes("-") ? `ranks ${label}` : `rank ${label}`;
}
