// The tooltip that follows the pointer, and a live region for screen readers.

const tooltip = {
  box: html("div", { class: "tooltip", hidden: true }),
  voice: html("div", { class: "heard", "aria-live": "polite" }),

  // Rows are pairs of texts. `x` and `y` are window coordinates.
  show(heading, rows, x, y) {
    if (!this.box.isConnected) {
      document.body.append(this.box, this.voice);
    }
    const lines = rows.map(([name, value]) =>
      html("div", {}, html("span", {}, name), html("span", {}, value)),
    );
    this.box.replaceChildren(html("b", {}, heading), ...lines);
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : Math.max(8, x - 16 - width);
    const top = Math.min(Math.max(8, y + 16), Math.max(8, innerHeight - height - 8));
    this.box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  },

  say(heading, rows) {
    this.voice.textContent = [heading, ...rows.map((row) => row.join(" "))].join(", ");
  },

  hide() {
    this.box.hidden = true;
  },

  // Shows the figures while the pointer is over an element.
  follow(element, heading, rows) {
    element.addEventListener("pointermove", (event) => this.show(heading, rows, event.clientX, event.clientY));
    element.addEventListener("pointerleave", () => this.hide());
  },
};

addEventListener("scroll", () => tooltip.hide(), { passive: true, capture: true });
