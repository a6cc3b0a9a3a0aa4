// Charts of the processor time and the memory that a sandbox uses.

import { metrics } from "./api.js";
import { attempt, element, every, shape, size, span, troubleLine } from "./dom.js";

const REST = 2000;
/** Minimum and maximum time that a chart shows, in milliseconds. */
const SHORTEST = 60 * 1000;
const LONGEST = 5 * 60 * 1000;
const WIDTH = 300;
const HEIGHT = 80;

export class Charts {
  constructor(id) {
    this.id = id;
    this.trouble = troubleLine();
    this.processor = new Chart("Processor", (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`);
    this.memory = new Chart("Memory", size);
    this.root = element(
      "section",
      { class: "charts", "aria-label": "Resource usage" },
      this.processor.root,
      this.memory.root,
      this.trouble,
    );
    this.stop = null;
  }

  show() {
    this.stop ??= every(REST, () => attempt(() => this.look(), this.trouble));
  }

  hide() {
    this.stop?.();
    this.stop = null;
  }

  async look() {
    // Ask again from the last point on, because the API takes times in whole seconds.
    for (const one of await metrics(this.id, this.processor.last ?? Date.now() - LONGEST)) {
      const time = new Date(one.timestamp).getTime();
      this.processor.add(time, one.cpuUsedPct, 100, one.cpuCount === 1 ? "1 processor" : `${one.cpuCount} processors`);
      this.memory.add(time, one.memUsed, one.memTotal, size(one.memTotal));
    }
    this.processor.draw();
    this.memory.draw();
  }
}

class Chart {
  constructor(label, unit) {
    this.unit = unit;
    this.points = [];
    this.now = element("output", { class: "now" }, "–");
    this.all = element("span", { class: "dim" });
    this.top = element("span");
    this.since = element("span");
    this.area = shape("path", { class: "area" });
    this.line = shape("path", { class: "line" });
    const grid = [0, 0.5, 1].map((part) =>
      shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: part * HEIGHT, y2: part * HEIGHT }),
    );
    const drawing = shape(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      ...grid,
      this.area,
      this.line,
    );
    this.root = element(
      "figure",
      { class: "card chart" },
      element(
        "figcaption",
        { class: "row" },
        element("h2", {}, label),
        element("span", { class: "stretch" }),
        this.now,
        this.all,
      ),
      element("div", { class: "plot" }, this.top, drawing),
      element("div", { class: "row dim axis" }, this.since, element("span", { class: "stretch" }), "now"),
    );
  }

  /** Returns the time of the last point, if there is one. */
  get last() {
    return this.points.at(-1)?.time;
  }

  /** Adds a point. `limit` is the maximum of the value, and `all` is the text of the maximum. */
  add(time, value, limit, all) {
    if (time <= this.last) return;
    this.points.push({ time, value, limit, all });
    this.points = this.points.filter((point) => point.time >= time - LONGEST);
  }

  draw() {
    if (this.points.length === 0) return;
    const last = this.points.at(-1);
    const shown = Math.min(LONGEST, Math.max(SHORTEST, last.time - this.points[0].time));
    const highest = Math.max(...this.points.map((point) => point.value));
    // Scale the chart to the values, so that a small part of a large limit is still visible.
    const most = Math.min(Math.max(highest * 1.25, last.limit / 50), Math.max(last.limit, highest)) || 1;
    const x = ({ time }) => (WIDTH - ((last.time - time) / shown) * WIDTH).toFixed(1);
    const y = ({ value }) => (HEIGHT - (value / most) * HEIGHT).toFixed(1);
    const line = this.points.map((point) => `${x(point)} ${y(point)}`).join(" L ");
    this.line.setAttribute("d", `M ${line}`);
    this.area.setAttribute("d", `M ${x(this.points[0])} ${HEIGHT} L ${line} L ${WIDTH} ${HEIGHT} Z`);
    this.now.textContent = this.unit(last.value);
    this.all.textContent = `of ${last.all}`;
    this.top.textContent = this.unit(most);
    this.since.textContent = `${span(shown)} ago`;
    this.root.dataset.points = this.points.length;
  }
}
