// Communication graph on a circle, drawn from the bytes sent, independent of the strategy's topology.

function drawTopology(place, matrix, roles) {
  onWidthOnce(place, (width) => {
    const edges = matrix.cells.filter(([from, to]) => from !== to);
    const size = Math.min(width, 340);
    const count = matrix.labels.length;
    const node = Math.max(4, Math.min(15, (Math.PI * size) / count / 3.2));
    const ring = size / 2 - node - 4;
    const nodes = matrix.labels.map((label, index) => {
      const angle = (2 * Math.PI * index) / count - Math.PI / 2;
      return {
        label,
        x: size / 2 + ring * Math.cos(angle),
        y: size / 2 + ring * Math.sin(angle),
        serves: roles[index] === "server",
      };
    });
    const picture = svg("svg", {
      width: size,
      height: size,
      role: "img",
      "aria-label": `Graph of ${count} ranks, with ${edges.length} edges from senders to receivers.`,
    });
    const most = Math.max(...edges.map(([, , bytes]) => bytes));
    picture.append(...edges.map((edge) => drawEdge(nodes, edge, most, node, matrix)));
    picture.append(...nodes.flatMap((each) => drawNode(each, node)));
    place.replaceChildren(picture);
  });
}

// A bent curve, so that both directions of a pair are visible. Its arrow points to the receiver.
function drawEdge(nodes, [from, to, bytes], most, node, matrix) {
  const [a, b] = [nodes[from], nodes[to]];
  const length = Math.hypot(b.x - a.x, b.y - a.y);
  const bend = Math.min(26, 0.1 * length + 4);
  const middle = {
    x: (a.x + b.x) / 2 - ((b.y - a.y) / length) * bend,
    y: (a.y + b.y) / 2 + ((b.x - a.x) / length) * bend,
  };
  const start = towards(a, middle, node + 1);
  const tip = towards(b, middle, node + 2);
  const width = (0.8 + 3.4 * Math.sqrt(bytes / most)) * (nodes.length <= 24 ? 1 : 0.4);
  const head = nodes.length <= 24 ? arrowHead(middle, tip, 4 + 1.3 * width) : "";
  const curve = svg("path", {
    class: "edge",
    d: `M${pair(start)}Q${pair(middle)} ${pair(tip)}${head}`,
    "stroke-width": width.toFixed(2),
    "stroke-opacity": (0.35 + 0.6 * (bytes / most)).toFixed(2),
  });
  const heading = `${ranksNamed(matrix.labels[from])} to ${ranksNamed(matrix.labels[to])}`;
  tooltip.follow(curve, heading, [["sent", formatBytes(bytes)]]);
  return curve;
}

// Format a point for a path.
function pair({ x, y }) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

function towards(from, to, distance) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return {
    x: from.x + ((to.x - from.x) / length) * distance,
    y: from.y + ((to.y - from.y) / length) * distance,
  };
}

function arrowHead(from, tip, size) {
  const angle = Math.atan2(tip.y - from.y, tip.x - from.x);
  const barb = (turn) =>
    pair({ x: tip.x - size * Math.cos(angle + turn), y: tip.y - size * Math.sin(angle + turn) });
  return `M${barb(0.45)}L${pair(tip)}L${barb(-0.45)}`;
}

// A worker is a circle, a server a filled square.
function drawNode({ label, x, y, serves }, size) {
  const kind = serves ? " serves" : "";
  const side = 0.88 * size;
  const shape = serves
    ? svg("rect", {
        class: "node serves",
        x: x - side,
        y: y - side,
        width: 2 * side,
        height: 2 * side,
        rx: 2,
      })
    : svg("circle", { class: "node", cx: x, cy: y, r: size });
  const fits = 7 * label.length <= 2 * size - 2;
  return [
    shape,
    fits ? svg("text", { class: `node-name${kind}`, x, y: y + 4, "text-anchor": "middle" }, label) : null,
  ].filter(Boolean);
}
