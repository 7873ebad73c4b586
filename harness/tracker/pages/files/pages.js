// Draws curves, keeps pages up to date and follows logs. Without it, pages show tables with the latest values.
"use strict";
(() => {
  const { figure, labelled, logTicks, part, place, placeTicks, precise, ticks, widened } = Axes; // axes.js
  const SVG = "http://www.w3.org/2000/svg";
  const PAD = { left: 54, right: 10, top: 10, bottom: 22 };
  const HEIGHT = 220;
  const SLOWEST = 15000;
  const BUCKETS = 700; // a series with up to 700 points is drawn point by point
  const state = { axis: "step", log: false, smooth: 0, first: null, last: null, all: false };
  const MOST = 2 ** 63 - 1024; // the largest step that a number can represent and the tracker accepts
  const charts = [];
  const byId = (id) => document.getElementById(id);

  function element(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  async function ask(path, pairs) {
    const answer = await fetch(`${path}?${new URLSearchParams(pairs)}`, { credentials: "same-origin" });
    if (answer.status === 401) location.reload();
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  }

  // An exponential moving average, corrected for its initial bias towards zero.
  function smoothed(values, weight) {
    let mean = 0, part = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = mean * weight + value * (1 - weight);
      part = part * weight + (1 - weight);
      return mean / part;
    });
  }

  class Chart {
    constructor(figureElement) {
      this.root = figureElement;
      this.canvas = figureElement.querySelector(".canvas");
      this.readout = figureElement.querySelector(".readout");
      this.series = JSON.parse(figureElement.dataset.series).map(([run, name, label, colour]) => ({ run, name, label, colour, shown: true, data: null }));
      this.visible = false;
      this.stale = true;
      this.loading = false;
      this.cursor = null;
      this.brush = null;
      this.pinch = null;
      this.left = PAD.left; // where the plot begins: the labels of the value axis may need more space
      this.legend();
      this.listen();
    }

    legend() {
      this.root.querySelectorAll(".legend li").forEach((item, index) => {
        const one = this.series[index];
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.append(item.querySelector(".label").textContent);
        button.addEventListener("click", () => {
          one.shown = !one.shown;
          button.setAttribute("aria-pressed", String(one.shown));
          this.draw();
        });
        item.querySelector(".label").replaceWith(button);
        one.item = item;
      });
    }

    async load() {
      if (this.loading) return;
      this.loading = true;
      this.stale = false;
      const asked = () => [state.axis, state.first, state.last, state.all].join(), before = asked(), { axis, first, last, all } = state;
      try {
        for (let at = 0; at < this.series.length; at += 16) {
          const part = this.series.slice(at, at + 16);
          const pairs = part.map((one) => ["series", `${one.run}:${one.name}`]);
          pairs.push(["buckets", BUCKETS]);
          if (axis !== "step") pairs.push(["axis", axis]);
          if (first !== null) pairs.push(["first", first]);
          if (last !== null) pairs.push(["last", last]);
          if (first === null && last === null && !all) pairs.push(["fit", 1]);
          const found = await ask("/pages/curves", pairs);
          if (before !== asked()) return; // the selection has changed, so the curves are loaded again
          found.series.forEach((data, index) => { part[index].data = data; });
        }
        this.root.dataset.drawn = `${first}-${last}`;
        this.root.dataset.axis = axis;
        this.root.dataset.all = all;
        this.draw();
        this.tell();
      } catch (error) {
        this.stale = true;
        this.readout.textContent = `The tracker did not answer (${error.message}); trying again.`;
      } finally {
        this.loading = false;
        if (before !== asked()) this.load();
      }
    }

    // Update the latest values in the legend as points arrive.
    tell() {
      for (const one of this.series) {
        const bold = one.item && one.item.querySelector("b");
        if (!bold || state.axis !== "step" || state.last !== null || one.data.far || !one.data.exact && one.data.buckets.length === 0) continue;
        const buckets = one.data.buckets, at = buckets.findLastIndex((b) => b[4] !== null), end = buckets[at];
        if (!end || end[0] !== end[1]) continue;
        bold.textContent = figure(end[4]);
        const soft = one.item.querySelector(".soft");
        if (soft) soft.textContent = `step ${end[1]}`;
        const diverged = one.item.querySelector(".diverged"), next = buckets[at + 1];
        diverged.hidden = !next;
        if (next) diverged.textContent = `not finite from step ${next[0]}`;
      }
    }

    draw() {
      const width = Math.max(200, this.canvas.clientWidth);
      const shown = this.series.map((one) => [one]).filter(([one]) => one.shown && one.data);
      const up = state.log ? (v) => (v > 0 ? Math.log10(v) : null) : (v) => v;
      let low = Infinity, high = -Infinity, begin = Infinity, end = -Infinity, odd = 0, below = 0, older = 0, points = 0, exact = true;
      for (const [one] of shown) {
        points += one.data.points;
        older += one.data.older;
        exact = exact && one.data.exact;
        for (const [first, last, least, most, , unusual] of one.data.buckets) {
          begin = Math.min(begin, first);
          end = Math.max(end, last);
          odd += unusual;
          for (const value of [least, most]) {
            if (value === null) continue;
            const placed = up(value);
            if (placed === null) { below += 1; continue; }
            low = Math.min(low, placed);
            high = Math.max(high, placed);
          }
        }
      }
      const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
      this.canvas.replaceChildren(svg);
      if (begin === Infinity) {
        svg.append(element("text", { x: 12, y: 24 }, this.series.some((one) => one.data) ? "no points here" : "loading …"));
        this.scale = null;
        return;
      }
      const none = low === Infinity;
      if (none) { low = 0; high = 1; }
      const least = low, most = high;
      [low, high] = widened(low, high);
      if (this.pinch && this.pinch.window) [begin, end] = this.pinch.window;
      const marks = state.log ? logTicks(low, high) : ticks(low, high, 4), texts = labelled(state.log ? marks.map((mark) => 10 ** mark) : marks);
      this.left = Math.min(width / 2, Math.max(PAD.left, ...texts.map((text) => 7 * text.length + 8)));
      const inner = width - this.left - PAD.right, tall = HEIGHT - PAD.top - PAD.bottom, span = end - begin || 1;
      const x = (step) => this.left + ((step - begin) / span) * inner;
      const y = (placed) => PAD.top + (1 - Math.max(-1, Math.min(2, part(placed, low, high)))) * tall;
      this.scale = { begin, end, span, inner, x, y, up, gap: state.log ? Infinity : (high / 10 - low / 10) };
      marks.forEach((mark, at) => {
        svg.append(element("line", { class: "grid", x1: this.left, x2: width - PAD.right, y1: y(mark), y2: y(mark) }));
        svg.append(element("text", { x: this.left - 6, y: y(mark) + 4, "text-anchor": "end" }, texts[at]));
      });
      const places = placeTicks(state.axis, begin, end, Math.max(2, Math.floor(width / 80)));
      const every = Math.ceil((places.length * 7 * Math.max(...places.map(([, text]) => text.length))) / width);
      for (const [mark, text] of places.filter((_, index) => index % every === 0)) {
        const anchor = x(mark) > width - 40 ? "end" : "middle";
        svg.append(element("text", { x: anchor === "end" ? width - 4 : x(mark), y: HEIGHT - 6, "text-anchor": anchor }, text));
      }
      for (const [one] of shown) this.line(svg, one);
      const told = [];
      const far = shown.filter(([one]) => one.data.far).map(([one]) => one.data.far);
      if (far.length) {
        const count = far.reduce((sum, one) => sum + one[0], 0), whole = byId("whole").textContent;
        told.push(`${count} point${count > 1 ? "s" : ""} far from the others, at ${place(state.axis, far[0][1], far[0][2])}; “${whole}” shows ${count > 1 ? "them" : "it"}`);
      }
      if (older) told.push(`${older.toLocaleString("en")} older value${older > 1 ? "s" : ""} of the same steps not shown, as after a resume; the API returns all`);
      if (!exact) told.push(`${points.toLocaleString("en")} points; the band goes from the lowest to the highest`);
      if (odd) told.push(`${odd} not finite (red marks)`);
      if (below) told.push("values of 0 and less have no place on a log scale");
      this.note = told.join("; ");
      svg.setAttribute("aria-label", `${this.root.querySelector("figcaption").textContent}: ${points} points, ${place(state.axis, begin, end)}, ${none ? "no finite value" : `values ${labelled((state.log ? [10 ** least, 10 ** most] : [least, most])).join(" to ")}`}. ${this.note}`);
      if (this.cursor === null) this.readout.textContent = this.note; else this.point(this.cursor);
    }

    line(svg, one) {
      const { x, y, up } = this.scale, colour = `s${one.colour % 8}`, dash = `d${Math.floor(one.colour / 8) % 3}`;
      const buckets = one.data.buckets;
      const placed = buckets.map((b) => (b[4] === null ? null : up(b[4])));
      const drawn = state.smooth ? smoothed(placed, state.smooth) : placed;
      const path = (values) => {
        let text = "", pen = "M";
        values.forEach((value, at) => {
          if (value === null) { pen = "M"; return; }
          text += `${pen}${x((buckets[at][0] + buckets[at][1]) / 2).toFixed(1)} ${y(value).toFixed(1)}`;
          pen = "L";
        });
        return text;
      };
      if (!one.data.exact) {
        let text = "";
        for (const [first, last, least, most] of buckets) {
          if (most === null || up(most) === null) continue;
          const bottom = least > 0 || !state.log ? y(up(least)) : HEIGHT - PAD.bottom, top = y(up(most));
          const left = x(first), right = Math.max(x(last), left + 1);
          text += `M${left.toFixed(1)} ${top.toFixed(1)}H${right.toFixed(1)}V${Math.max(bottom, top + 1).toFixed(1)}H${left.toFixed(1)}Z`;
        }
        svg.append(element("path", { class: `band ${colour}`, d: text, "stroke-opacity": 0.6 }));
      } else if (state.smooth) {
        svg.append(element("path", { class: `raw ${colour}`, d: path(placed) }));
      }
      svg.append(element("path", { class: `curve ${colour} ${dash}`, d: path(drawn) }));
      const alone = placed.filter((value) => value !== null).length;
      if (alone <= 60) {
        drawn.forEach((value, at) => {
          if (value !== null) svg.append(element("circle", { class: `curve ${colour}`, cx: x(buckets[at][0]), cy: y(value), r: 1.6 }));
        });
      }
      for (const [first, last, , , , unusual] of buckets) {
        if (unusual) svg.append(element("rect", { class: "odd", x: x((first + last) / 2) - 2, y: HEIGHT - PAD.bottom - 6, width: 4, height: 6 }));
      }
    }

    step(event) {
      const box = this.canvas.getBoundingClientRect();
      const part = (event.clientX - box.left - this.left) / this.scale.inner;
      return Math.round(this.scale.begin + Math.max(0, Math.min(1, part)) * this.scale.span);
    }

    // Show the values at a step in the line below the chart.
    point(step) {
      this.cursor = step;
      const svg = this.canvas.querySelector("svg");
      if (!svg || !this.scale) return;
      svg.querySelectorAll(".cross, .brush").forEach((old) => old.remove());
      const at = Math.max(this.scale.begin, Math.min(this.scale.end, step));
      svg.append(element("line", { class: "cross", x1: this.scale.x(at), x2: this.scale.x(at), y1: PAD.top, y2: HEIGHT - PAD.bottom }));
      if (this.brush !== null) {
        const from = this.scale.x(Math.max(this.scale.begin, Math.min(this.brush, at))), to = this.scale.x(Math.max(this.brush, at));
        svg.append(element("rect", { class: "brush", x: from, y: PAD.top, width: Math.max(1, to - from), height: HEIGHT - PAD.top - PAD.bottom }));
      }
      const told = [];
      let where = place(state.axis, at, at);
      for (const one of this.series) {
        if (!one.shown || !one.data || !one.data.buckets.length) continue;
        const near = one.data.buckets.reduce((best, b) => (Math.abs((b[0] + b[1]) / 2 - at) < Math.abs((best[0] + best[1]) / 2 - at) ? b : best));
        where = place(state.axis, near[0], near[1]);
        const odd = near[5] ? near[4] === null ? "not finite" : ` and ${near[5]} not finite` : "";
        const [mean, least, most] = [near[4], near[2], near[3]].map((value) => (value === null ? "" : precise(value, this.scale.gap)));
        const value = (least === most ? mean : `${least} … ${most}`) + odd;
        told.push(this.series.length > 1 ? `${one.label} ${value}` : value);
      }
      this.readout.textContent = `${where}: ${told.slice(0, 12).join(", ")}${told.length > 12 ? " …" : ""}`;
    }

    away() {
      this.cursor = null;
      this.brush = null;
      this.canvas.querySelectorAll(".cross, .brush").forEach((old) => old.remove());
      this.readout.textContent = this.note || "";
    }

    // The step or time under a finger, even outside the plot.
    under(x) {
      return this.scale.begin + ((x - this.canvas.getBoundingClientRect().left - this.left) / this.scale.inner) * this.scale.span;
    }

    // Zoom so that each of two fingers stays on the point that it touched at first.
    pinched([from, to]) {
      const { left, right, inner } = this.pinch, near = this.canvas.getBoundingClientRect().left + this.left;
      if (to - from < 10 || right <= left) return;
      const span = ((right - left) * inner) / (to - from), start = left - ((from - near) / inner) * span;
      const first = Math.max(0, Math.round(start));
      this.pinch.window = [first, Math.max(first + 1, Math.round(start + span))];
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => { if (this.pinch) this.draw(); });
    }

    listen() {
      const fingers = new Map();
      const lifted = (event) => {
        fingers.delete(event.pointerId);
        if (!this.pinch) return false;
        if (fingers.size < 2) {
          const chosen = this.pinch.window;
          this.pinch = null;
          if (chosen && event.type === "pointerup") zoom(...chosen); else this.draw();
        }
        return true;
      };
      this.canvas.addEventListener("pointermove", (event) => {
        if (!this.scale) return;
        if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event.clientX);
        if (this.pinch) this.pinched([...fingers.values()].sort((a, b) => a - b)); else this.point(this.step(event));
      });
      this.canvas.addEventListener("pointerleave", () => { if (this.brush === null && !this.pinch) this.away(); });
      this.canvas.addEventListener("pointerdown", (event) => {
        if (!this.scale || event.button !== 0) return;
        this.canvas.setPointerCapture(event.pointerId);
        if (event.pointerType === "touch") fingers.set(event.pointerId, event.clientX);
        if (fingers.size > 2) return;
        if (fingers.size === 2) {
          this.away();
          const [left, right] = [...fingers.values()].sort((a, b) => a - b).map((x) => this.under(x));
          this.pinch = { left, right, inner: this.scale.inner, window: null };
          return;
        }
        this.brush = this.step(event);
      });
      this.canvas.addEventListener("pointerup", (event) => {
        if (lifted(event) || this.brush === null || !this.scale) return;
        const end = this.step(event), [from, to] = [this.brush, end].sort((a, b) => a - b);
        this.away();
        if (this.scale.x(to) - this.scale.x(from) > 5) zoom(from, to);
        else if (event.pointerType === "touch") this.point(end); // a tap shows the values
      });
      this.canvas.addEventListener("pointercancel", (event) => { if (!lifted(event)) this.away(); }); // the page scrolls
      this.canvas.addEventListener("dblclick", () => zoom(null, null));
      this.root.addEventListener("focus", () => { if (this.scale && this.cursor === null) this.point(this.scale.end); });
      this.root.addEventListener("blur", () => this.away());
      this.root.addEventListener("keydown", (event) => {
        if (event.target !== this.root || !this.scale || event.ctrlKey || event.metaKey || event.altKey) return;
        const { begin, end, span } = this.scale, at = this.cursor === null ? end : this.cursor;
        const move = Math.max(1, Math.round(span / 100));
        const keys = {
          ArrowLeft: () => this.point(Math.max(begin, at - move)),
          ArrowRight: () => this.point(Math.min(end, at + move)),
          Home: () => this.point(begin),
          End: () => this.point(end),
          "+": () => zoom(Math.max(0, Math.round(at - span / 4)), Math.round(at + span / 4)),
          "-": () => zoom(Math.max(0, Math.round(at - span)), Math.round(at + span)),
          0: () => zoom(null, null),
          Escape: () => zoom(null, null),
        };
        const chosen = keys[event.key === "=" ? "+" : event.key];
        if (chosen) { event.preventDefault(); chosen(); }
      });
    }
  }

  function zoom(from, to, all = false) {
    const [first, last] = [from, to].map((at) => (at === null ? null : Math.min(MOST, at)));
    state.first = first;
    state.last = last;
    state.all = all;
    const typed = state.axis === "step";
    byId("first").value = first === null || !typed ? "" : first;
    byId("last").value = last === null || !typed ? "" : last;
    refresh();
  }

  function refresh() {
    for (const chart of charts) {
      chart.stale = true;
      if (chart.visible) chart.load();
    }
  }

  function redraw() {
    for (const chart of charts) if (chart.series.some((one) => one.data)) chart.draw();
  }

  function tools() {
    const how = byId("how");
    if (!how) return;
    how.hidden = false;
    byId("log").addEventListener("change", (event) => { state.log = event.target.checked; redraw(); });
    byId("smooth").addEventListener("input", (event) => {
      state.smooth = Number(event.target.value);
      byId("smoothed").textContent = event.target.value;
      redraw();
    });
    const typed = (id) => { const text = byId(id).value; return text === "" ? null : Math.max(0, Math.floor(Number(text))); };
    for (const id of ["first", "last"]) byId(id).addEventListener("change", () => zoom(typed("first"), typed("last")));
    byId("whole").addEventListener("click", () => zoom(null, null, true));
    const turn = () => {
      state.axis = byId("axis").value;
      for (const id of ["first", "last"]) byId(id).closest("label").hidden = state.axis !== "step";
      byId("whole").textContent = state.axis === "step" ? "All steps" : "All times";
      for (const chart of charts) { chart.away(); for (const one of chart.series) one.data = null; }
    };
    byId("axis").addEventListener("change", () => { turn(); zoom(null, null); });
    turn();
    state.log = byId("log").checked;
    state.smooth = Number(byId("smooth").value);
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = charts.find((one) => one.root === entry.target);
        chart.visible = entry.isIntersecting;
        if (chart.visible && chart.stale) chart.load();
      }
    }, { rootMargin: "200px" });
    document.querySelectorAll(".chart").forEach((root) => { const chart = new Chart(root); charts.push(chart); seen.observe(root); });
    let waiting = 0;
    new ResizeObserver(() => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redraw); }).observe(document.body);
  }

  async function follow(box) {
    const asked = new URLSearchParams(location.search);
    const pairs = { run: box.dataset.run, after: box.dataset.after };
    for (const name of ["sender", "kind", "search"]) pairs[name] = asked.get(name) || "";
    const found = await ask("/pages/logs", pairs);
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const known = new Map(); // lines that can change, such as progress bars
    for (let old = box.lastElementChild, n = 0; old && n < 1000; old = old.previousElementSibling, n += 1) known.set(old.dataset.id, old);
    for (const line of found.lines) {
      const made = document.createElement("div");
      made.className = `line ${/^[A-Z]+$/.test(line.kind) ? line.kind : ""}`;
      made.dataset.id = line.id;
      for (const [name, text] of [["at", line.time], ["who", line.sender], ["text", line.message]]) {
        const part = document.createElement("span");
        part.className = name;
        part.textContent = text;
        made.append(part);
      }
      if (line.note) {
        const note = document.createElement("span");
        note.className = "soft";
        note.textContent = `(${line.note})`;
        made.lastElementChild.append(" ", note);
      }
      if (known.has(line.id)) known.get(line.id).replaceWith(made); else box.append(made, "\n");
    }
    box.dataset.after = found.last;
    while (box.children.length > 5000) box.firstElementChild.remove();
    const empty = byId("empty");
    if (empty && found.lines.length) empty.remove();
    if (atEnd) box.scrollTop = box.scrollHeight;
    if (found.more) await follow(box);
  }

  // Poll for changes: more often while a run is running, and never faster than the tracker responds.
  function live() {
    const head = document.querySelector("[data-pulse], [data-runs]");
    const box = byId("log-lines");
    if (box) box.scrollTop = box.scrollHeight;
    if (!head) return;
    const one = head.dataset.pulse ? JSON.parse(head.dataset.pulse) : null;
    const runs = one ? String(one.run) : head.dataset.runs;
    let before = one ? { [one.run]: one } : {};
    const beat = async () => {
      const began = performance.now();
      let running = false;
      try {
        if (!document.hidden) {
          const found = await ask("/pages/pulse", { runs });
          let points = false, logs = false;
          for (const now of found.runs) {
            const then = before[now.run];
            running = running || now.status === "RUNNING";
            if (then) {
              points = points || now.metrics !== then.metrics;
              logs = logs || now.logs !== then.logs;
            }
            if (one && byId("status")) {
              byId("status").textContent = now.status.toLowerCase();
              byId("status").className = `pill ${now.status}`;
            }
            before[now.run] = now;
          }
          if (one && head.dataset.tab === "" && found.runs.some((now) => now.names !== one.names)) {
            if (!charts.length) location.reload();
            byId("fresh").hidden = false;
          }
          if (points) refresh();
          if (logs && box && box.dataset.run) await follow(box);
        } else {
          running = true;
        }
      } catch { running = true; }
      setTimeout(beat, Math.min(SLOWEST, Math.max(running ? 2000 : 10000, 5 * (performance.now() - began))));
    };
    setTimeout(beat, 1500);
  }

  tools();
  live();
})();
