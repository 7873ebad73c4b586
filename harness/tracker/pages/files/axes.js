// Values, ranges and ticks of a chart's axes.
"use strict";
const Axes = (() => {
  const DAY = 86400000;
  const INTERVALS = [ // between ticks on a time axis, in milliseconds
    ...[1, 2, 5, 10, 20, 50, 100, 200, 500], ...[1, 2, 5, 10, 15, 30].map((n) => n * 1000),
    ...[1, 2, 5, 10, 15, 30].map((n) => n * 60000), ...[1, 2, 3, 6, 12].map((n) => n * 3600000),
    ...[1, 2, 7, 14, 30, 91, 365].map((n) => n * DAY),
  ];

  function figure(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const rounded = Number(value.toPrecision(size >= 1e6 || size < 1e-3 ? 3 : 5));
    if (!Number.isFinite(rounded)) return String(value).replace("e+", "e"); // the largest numbers
    if (value !== 0 && (size >= 1e6 || size < 1e-3)) return rounded.toExponential().replace("e+", "e");
    return String(rounded);
  }

  // A value with as many digits as are necessary to distinguish it from values at the distance `gap`.
  function precise(value, gap) {
    let text = figure(value);
    for (let digits = 4; digits <= 17 && Math.abs(Number(text) - value) > gap / 100; digits += 1) text = String(Number(value.toPrecision(digits))).replace("e+", "e");
    return text;
  }

  // The labels of an axis: values that differ have different labels.
  function labelled(values) {
    const gaps = values.slice(1).map((value, at) => value - values[at]);
    return values.map((value, at) => precise(value, Math.min(...gaps.slice(Math.max(0, at - 1), at + 1))));
  }

  // Round numbers between two values: 1, 2 or 5 times a power of ten. The difference between the values can overflow.
  function ticks(low, high, count) {
    const raw = high / count - low / count || Math.abs(high) || 1;
    const exponent = Math.max(-323, Math.min(308, Math.floor(Math.log10(raw)))), power = Number(`1e${exponent}`);
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw && Number.isFinite(n)) || raw;
    const found = [], begin = Math.ceil(low / step);
    for (let at = 0; at < 12; at += 1) {
      const value = (begin + at) * step;
      if (!(value <= high + step * 1e-9) || value === found[found.length - 1]) break;
      if (Number.isFinite(value)) found.push(value);
    }
    return found;
  }

  // The relative position of a value in a range, even if the difference between the ends overflows. Infinite values count as the ends.
  function part(value, low, high) {
    const span = high - low;
    if (Number.isFinite(span)) return span ? (value - low) / span : 0.5;
    return (value / 2 - low / 2) / (high / 2 - low / 2);
  }

  // A range around equal values, or slightly more than the range of different values. Its ends are always finite and different.
  function widened(low, high) {
    const most = Number.MAX_VALUE, size = Math.max(Math.abs(low), Math.abs(high));
    const spare = low === high ? size * 0.05 || 0.5 : (high / 2 - low / 2) * 0.1;
    const wide = [Math.max(-most, low - spare), Math.min(most, high + spare)];
    return wide[0] < wide[1] ? wide : [low - Math.max(size * 1e-9, Number.MIN_VALUE), high + Math.max(size * 1e-9, Number.MIN_VALUE)];
  }

  // A client's time in UTC. A time outside the range of dates is shown as a number.
  function moment(time, from = 0, to = 23) {
    return Math.abs(time) <= 8.64e15 ? new Date(time).toISOString().replace("T", " ").slice(from, to) : String(time);
  }

  // [position, text] for each tick on the step axis or time axis.
  function placeTicks(axis, low, high, count) {
    if (axis === "step") {
      const steps = ticks(low, high, count).filter((at) => at % 1 === 0), texts = labelled(steps);
      return steps.map((at, index) => [at, texts[index]]);
    }
    const raw = Math.max(1, (high - low) / count), step = INTERVALS.find((n) => n >= raw) || 365 * DAY * Math.ceil(raw / (365 * DAY));
    const chosen = step >= DAY ? [0, 10] : step >= 60000 ? [high - low > DAY ? 5 : 11, 16] : step >= 1000 ? [11, 19] : [11, 23];
    const found = [];
    for (let at = Math.ceil(low / step), n = 0; at * step <= high && n < 12; at += 1, n += 1) found.push([at * step, moment(at * step, ...chosen)]);
    return found;
  }

  // A range of steps or times as text.
  function place(axis, first, last) {
    const text = axis === "step" ? String : (at) => moment(at, 0, 23);
    return first === last ? `${axis} ${text(first)}` : `${axis}s ${text(first)}–${text(last)}`;
  }

  // At most about six powers of ten within the range. If there are fewer than two, round numbers instead.
  function logTicks(low, high) {
    const found = [];
    for (let at = Math.ceil(low - 1e-9); at <= high + 1e-9; at += 1) found.push(at);
    if (found.length < 2) return ticks(10 ** low, 10 ** high, 4).filter((n) => n > 0).map(Math.log10);
    const known = found.filter((at) => 10 ** at > 0 && Number.isFinite(10 ** at)), every = Math.ceil(known.length / 6);
    return known.filter((_, index) => index % every === 0);
  }

  return { figure, labelled, logTicks, part, place, placeTicks, precise, ticks, widened };
})();
