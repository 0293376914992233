// Histogram of the staleness of the applied gradients.

const HISTOGRAM = { height: 250, top: 24, bottom: 44, left: 48, right: 10, mostBars: 40 };

function drawStaleness(place, staleness) {
  onWidthOnce(place, (width) => {
    const total = staleness.reduce((sum, [, count]) => sum + count, 0);
    const bins = binned(staleness);
    const mean = staleness.reduce((sum, [stale, count]) => sum + stale * count, 0) / total;
    const { height, top, bottom, left, right } = HISTOGRAM;
    const frame = {
      left,
      right: width - right,
      top,
      bottom: height - bottom,
      bar: (width - left - right) / bins.counts.length,
    };
    frame.bar = Math.min(frame.bar, 64);
    const highest = Math.max(...bins.counts) / total;
    const y = linearScale(0, highest, frame.bottom, frame.top);
    const picture = svg("svg", {
      width,
      height,
      role: "img",
      "aria-label": `Staleness of ${total} gradients: mean ${formatNumber(mean)}, at most ${staleness.at(-1)[0]}.`,
    });
    picture.append(...histogramAxes(bins, frame, highest, y));
    bins.counts.forEach((count, bin) => {
      const bar = svg("rect", {
        class: "bar",
        x: frame.left + bin * frame.bar + 1,
        y: y.at(count / total),
        width: Math.max(1, frame.bar - 2),
        height: frame.bottom - y.at(count / total),
      });
      const rows = [
        ["gradients", formatCount(count)],
        ["share", formatShare(count / total)],
      ];
      tooltip.follow(bar, `staleness ${bins.name(bin)}`, rows);
      picture.append(bar);
    });
    const x = frame.left + ((mean + 0.5) / bins.size) * frame.bar;
    picture.append(svg("path", { class: "rule", d: `M${x.toFixed(1)} ${frame.bottom}V${top - 8}` }));
    picture.append(
      svg("text", { x: x + 6, y: top - 8 }, `mean ${formatNumber(Number(mean.toPrecision(3)))}`),
    );
    place.replaceChildren(picture);
  });
}

// Counts of staleness 0, 1, 2, …; if there are many values, several share a bar.
function binned(staleness) {
  const greatest = staleness.at(-1)[0];
  const size = Math.ceil((greatest + 1) / HISTOGRAM.mostBars);
  const counts = new Array(Math.ceil((greatest + 1) / size)).fill(0);
  staleness.forEach(([stale, count]) => {
    counts[Math.floor(stale / size)] += count;
  });
  const name = (bin) => (size === 1 ? String(bin) : `${bin * size}\u2013${(bin + 1) * size - 1}`);
  return { counts, size, name };
}

function histogramAxes(bins, frame, highest, y) {
  const every = Math.ceil((7 * bins.name(bins.counts.length - 1).length + 8) / frame.bar);
  const right = frame.left + bins.counts.length * frame.bar;
  const parts = linearTicks(0, highest, 4).map((share) => {
    const place = y.at(share).toFixed(1);
    const label = svg(
      "text",
      { x: frame.left - 8, y: Number(place) + 4, "text-anchor": "end" },
      formatShare(share),
    );
    return svg("g", { class: "tick" }, svg("path", { d: `M${frame.left} ${place}H${right}` }), label);
  });
  bins.counts.forEach((_, bin) => {
    if (bin % every === 0) {
      const x = frame.left + (bin + 0.5) * frame.bar;
      parts.push(
        svg("text", { class: "muted", x, y: frame.bottom + 18, "text-anchor": "middle" }, bins.name(bin)),
      );
    }
  });
  const middle = (frame.left + right) / 2;
  parts.push(
    svg(
      "text",
      { class: "muted", x: middle, y: frame.bottom + 38, "text-anchor": "middle" },
      "updates since the pull",
    ),
  );
  return parts;
}
