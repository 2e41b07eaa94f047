// The course of the run: loss, accuracy, throughput and memory over the steps, on one axis.
const known = x => x !== null && x !== undefined;

// The largest value to show: a few steps that are much higher, as at the begin, would flatten the rest.
function highest(values) {
  const s = values.filter(known).sort((a, b) => a - b);
  return s.length ? Math.min(s[s.length - 1], 3 * s[Math.floor(0.9 * (s.length - 1))] - 2 * s[0]) || 1 : 1;
}

function frame(name, from, to, format) {
  const w = Math.max(260, ($('courses').clientWidth - (narrow() ? 0 : 40)) / (narrow() ? 1 : 2)), H = 150, L = 52, R = 10, top = 8;
  const last = Math.max(1, lastStep()), x = s => L + s / last * (w - L - R), y = q => top + H - (clamp(q, from, to) - from) / (to - from) * H;
  const svg = v('svg', { viewBox: '0 0 ' + w + ' ' + (H + 30), height: H + 30, role: 'img', 'aria-label': name });
  const step = ticksOf(to - from, 5)[1] || to - from;
  for (const q of range(20).map(i => (Math.ceil(from / step - 1e-9) + i) * step).filter(q => q <= to + step * 1e-9))
    svg.append(v('line', { class: 'hair', x1: L, x2: w - R, y1: y(q), y2: y(q) }), v('text', { x: L - 6, y: y(q) + 4, 'text-anchor': 'end' }, format(Math.abs(q) < step / 2 ? 0 : q)));
  for (const s of ticksOf(last, narrow() ? 4 : 6)) if (Number.isInteger(s) && (!s || x(s) - L > 70)) svg.append(v('text', { x: x(s), y: top + H + 18, 'text-anchor': s === last ? 'end' : s ? 'middle' : 'start' }, s ? count(s) : 'step 0'));
  return { svg, x, y, bottom: top + H, top };
}
// A line with gaps where a value is missing.
function line(g, points, key, cls) {
  let d = '', pen = false;
  for (const p of points) {
    if (!known(p[key])) { pen = false; continue; }
    d += (pen ? 'L' : 'M') + g.x(p.step).toFixed(1) + ' ' + g.y(p[key]).toFixed(1) + (pen ? '' : 'h.01');
    pen = true;
  }
  if (d) g.svg.append(v('path', { class: cls, d }));
}
const lastStep = () => Math.max(LIVE.step || 0, ...LIVE.points.map(p => p[0]), ...LIVE.evaluated.map(e => e[0]));
const shownStep = () => state.step < 0 ? lastStep() : Math.min(state.step, lastStep());
// The point that contains a step, and the last measurement before it.
const pointAt = (points, step) => points.find(p => p.step >= step) || points[points.length - 1] || null;
const heldAt = (held, step) => held.filter(p => p.step <= step).pop() || null;

function curve(key, name, format, percentages) {
  const points = pointsOf(LIVE), held = heldPointsOf(LIVE);
  if (![...points, ...held].some(p => known(p[key]))) return null;
  const values = [...points, ...held].map(p => p[key]).filter(known), low = Math.min(...values);
  const to = percentages ? 1 : highest(values), from = percentages ? Math.min(0.9, Math.floor(low * 10) / 10) : low > 0 && low > 0.5 * to ? low - 0.1 * (to - low) : Math.min(0, low);
  const g = frame(name + ' over the steps', from, Math.max(to, from + 0.01 * Math.abs(from) + 1e-9),  // a loss may stay the same
    percentages ? x => percent(x) : format);
  if (key === 'loss') {
    const band = points.filter(p => known(p.low) && known(p.high));
    if (band.length > 1) g.svg.append(v('path', { class: 'band', d: 'M' + band.map(p => g.x(p.step).toFixed(1) + ' ' + g.y(p.high).toFixed(1)).join('L') + 'L' + band.reverse().map(p => g.x(p.step).toFixed(1) + ' ' + g.y(p.low).toFixed(1)).join('L') + 'Z' }));
  }
  line(g, points, key, 'train');
  line(g, held, key, 'held');
  for (const p of held) if (known(p[key])) g.svg.append(v('circle', { class: 'helddot', cx: g.x(p.step), cy: g.y(p[key]), r: 3.2 }));
  return { name, g, said: step => {
    const p = pointAt(points, step), q = heldAt(held, step);
    return [p && ['training ', h('b', {}, known(p[key]) ? format(p[key]) : 'not a number'), key === 'loss' && known(p.low) && p.low < p.high ? ' (' + format(p.low) + ' to ' + format(p.high) + ')' : ''],
      q && known(q[key]) ? [p ? '; ' : '', LIVE.held_out + ' ', h('b', {}, format(q[key])), ' after step ' + count(q.step)] : null];
  } };
}
function throughput() {
  const points = pointsOf(LIVE).filter(p => known(p.rate));
  if (!points.length) return null;
  const g = frame(LIVE.unit + ' per second over the steps', 0, highest(points.map(p => p.rate)) * 1.05, number);
  line(g, points, 'rate', 'train');
  return { name: LIVE.unit[0].toUpperCase() + LIVE.unit.slice(1) + ' per second', g, said: step => [h('b', {}, number(pointAt(points, step).rate)), ' ' + LIVE.unit + ' a second'] };
}
function memory() {
  const points = pointsOf(LIVE).filter(p => sum(p.memory) > 0);
  if (!points.length) return null;
  const to = Math.max(...points.map(p => sum(p.memory))) / MiB * 1.05, g = frame('Memory by kind over the steps', 0, to, q => number(q)), below = points.map(() => 0);
  LIVE.kinds.forEach((kind, k) => {
    let forth = '', back = '';
    points.forEach((p, i) => {
      const low = below[i], x = g.x(p.step).toFixed(1), x0 = g.x(i ? points[i - 1].step : Math.max(0, p.step - 1)).toFixed(1);
      below[i] += p.memory[k] / MiB;
      const y1 = g.y(below[i]).toFixed(1), y0 = g.y(low).toFixed(1);
      forth += (i ? 'L' : 'M') + x0 + ' ' + y1 + 'L' + x + ' ' + y1;
      back = 'L' + x + ' ' + y0 + 'L' + x0 + ' ' + y0 + back;
    });
    g.svg.append(v('path', { class: 'k' + k, d: forth + back + 'Z' }, v('title', {}, kind)));
  });
  return { name: 'Memory of the fullest device, MiB', g, said: step => {
    const m = pointAt(points, step).memory;
    return [h('b', {}, mib(sum(m)) + ' MiB'), ': ' + LIVE.kinds.map((kind, k) => [kind, m[k]]).filter(x => mib(x[1]) > 0).map(([kind, b]) => kind + ' ' + mib(b)).join(', ')];
  } };
}

function showCourse() {
  const charts = [curve('loss', 'Loss', number), curve('accuracy', 'Accuracy', x => percent(x, 1), true), throughput(), memory()].filter(Boolean);
  $('course').hidden = !charts.length;
  if (!charts.length) return;
  const step = shownStep(), slider = $('scrub');
  slider.max = lastStep();
  slider.value = step;
  slider.setAttribute('aria-valuetext', 'step ' + count(step));
  $('tout').textContent = 'step ' + count(step);
  put('course-text', 'Blue is training' + (LIVE.points.some(p => p[2] < p[3]) ? ', the mean of the steps of a point, with the least and the greatest loss around it' : '') + '; dots are measurements on ' + LIVE.held_out + '. The slider chooses the step that the sentences are about.');
  put('courses', charts.map(c => {
    const x = c.g.x(step);
    c.g.svg.append(v('line', { class: 'scrub', x1: x, x2: x, y1: c.g.top, y2: c.g.bottom }));
    return h('figure', {}, h('h3', {}, c.name), h('figcaption', {}, c.said(step)), c.g.svg);
  }));
}
