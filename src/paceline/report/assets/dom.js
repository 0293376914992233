// Creation of elements. Text becomes text nodes, so user-provided names are never markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

// A part of a figure that can be redrawn. The caption above it stays.
function drawingPlace(figure) {
  const place = html("div");
  figure.append(place);
  return place;
}

// Small text after the title of a figure that describes its content.
function explain(figure, text) {
  const caption = figure.querySelector("figcaption");
  caption.querySelector("small")?.remove();
  if (text) {
    caption.append(html("small", {}, text));
  }
}

// Call `draw(width)` now and whenever the element's width changes.
function onWidth(element, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width > 0 && width !== last) {
      last = width;
      draw(width);
    }
  }).observe(element);
}

// The same for an element that gets a new drawing. The previous drawing is dropped.
const widthDrawings = new WeakMap();

function onWidthOnce(element, draw) {
  const isNew = !widthDrawings.has(element);
  widthDrawings.set(element, draw);
  if (isNew) {
    onWidth(element, (width) => widthDrawings.get(element)(width));
  } else if (element.clientWidth > 0) {
    draw(Math.floor(element.clientWidth));
  }
}

// A group of buttons with one selected.
function choice(title, options, chosen, choose) {
  const buttons = options.map(([value, text]) => {
    const button = html(
      "button",
      { type: "button", "aria-pressed": String(value === chosen), "data-value": value },
      text,
    );
    button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      choose(value);
    });
    return button;
  });
  return html("fieldset", { class: "choice" }, html("legend", {}, title), ...buttons);
}

function checkbox(text, checked, change) {
  const box = html("input", { type: "checkbox" });
  box.checked = checked;
  box.addEventListener("change", () => change(box.checked));
  return html("label", {}, box, text);
}
