// The memory of the fullest device over the step, as layers by kind, on the clock of the timelines.
function memoryEndOf(modes) { return Math.max(...modes.map(peakOf), state.limit * MiB) * 1.06; }

// The picture, and `y`, which maps bytes to its vertical axis.
function memoryPicture(m, g, end) {
  const height = narrow() ? 88 : 96, top = 10, axis = 20, y = b => top + height - b / end * height;
  const svg = v('svg', { class: 'tl', height: height + top + axis, viewBox: '0 0 ' + g.w + ' ' + (height + top + axis), role: 'img',
    'aria-label': 'Memory of the fullest device of ' + m.name + ' over the step, at most ' + mib(peakOf(m)) + ' MiB' });
  const ticks = ticksOf(end / MiB, 3);
  ticks.forEach((b, i) => svg.append(v('line', { class: 'hair', x1: g.left, x2: g.w - g.right, y1: y(b * MiB), y2: y(b * MiB) }),
    v('text', { x: g.left - 8, y: y(b * MiB) + 4, 'text-anchor': 'end' }, b + (i === ticks.length - 1 && !narrow() ? ' MiB' : ''))));
  if (m.memory_over_time) layers(svg, m, g, y, height, end);
  else svg.append(v('text', { x: g.left + 8, y: top + height / 2 }, 'memory over the step was not recorded'));
  if (state.limit) svg.append(v('line', { class: 'end', 'stroke-dasharray': '4 3', x1: g.left, x2: g.w - g.right, y1: y(state.limit * MiB), y2: y(state.limit * MiB) }));
  svg.append(v('line', { class: 'end', x1: g.x(m.step_ms), x2: g.x(m.step_ms), y1: top - 4, y2: top + height }));
  for (const t of g.ticks) svg.append(v('text', { x: g.x(t), y: top + height + 15, 'text-anchor': t ? 'middle' : 'start' }, t ? String(t) : '0 ms'));
  return { svg, bottom: top + height };
}

function layers(svg, m, g, y, height, end) {
  const list = m.memory_over_time.samples.map(([t, ...bytes]) => ({ t, bytes })), below = list.map(() => 0), names = [];
  const until = i => i + 1 < list.length ? list[i + 1].t : m.step_ms;
  KINDS.forEach((kind, k) => {
    if (!list.some(s => s.bytes[k] > 0)) return;
    let forth = '', back = '', runBegin = -1, best = null;
    list.forEach((s, i) => {
      const x1 = g.x(s.t), x2 = g.x(until(i)), low = below[i], high = low + s.bytes[k];
      forth += (i ? 'L' : 'M') + x1.toFixed(1) + ' ' + y(high).toFixed(1) + 'L' + x2.toFixed(1) + ' ' + y(high).toFixed(1);
      back = 'L' + x2.toFixed(1) + ' ' + y(low).toFixed(1) + 'L' + x1.toFixed(1) + ' ' + y(low).toFixed(1) + back;
      below[i] = high;
      // The longest time in which the layer is thick enough for its name, at about one height.
      const thick = s.bytes[k] / end * height >= 13.5;
      if (!thick) runBegin = -1;
      else if (runBegin < 0) runBegin = i;
      if (thick && (!best || x2 - g.x(list[runBegin].t) > best.w)) best = { w: x2 - g.x(list[runBegin].t), from: runBegin, to: i };
    });
    svg.append(v('path', { class: 'k' + k, d: forth + back + 'Z' }, v('title', {}, kind + ', at most ' + mib(Math.max(...list.map(s => s.bytes[k]))) + ' MiB')));
    if (!best) return;
    const half = kind.length * 3.5 + 5, x0 = g.x(list[best.from].t), x1 = g.x(until(best.to));
    if (x1 - x0 < 2 * half) return;
    for (const part of [0.5, 0.3, 0.7, 0.15, 0.85]) {
      const cx = clamp(x0 + part * (x1 - x0), x0 + half, x1 - half);
      const over = range(best.to - best.from + 1).map(i => best.from + i).filter(i => g.x(until(i)) > cx - half && g.x(list[i].t) < cx + half);
      const low = Math.max(...over.map(i => below[i] - list[i].bytes[k])), high = Math.min(...over.map(i => below[i]));
      if ((high - low) / end * height < 12) continue;
      names.push(v('text', { class: k ? 'onlight' : 'onk0', x: cx, y: y((low + high) / 2) + 4, 'text-anchor': 'middle' }, kind));
      break;
    }
  });
  svg.append(...names);
}

// The sample of a moment.
function memoryAt(m, t) {
  if (!m.memory_over_time) return null;
  let now = m.memory_over_time.samples[0];
  for (const s of m.memory_over_time.samples) if (s[0] <= t) now = s;
  const [, ...bytes] = now;
  return { device: m.memory_over_time.device, total: sum(bytes), activations: bytes[KINDS.indexOf('activations')] };
}
