// A card a mode: what each device holds, as parts of what one device holds alone, and the bytes it sends to others.
const HELD = [['activations', 3], ['parameters', 0], ['gradients', 1], ['optimizer', 2]];
const COLUMNS = 8;
const holdingsOf = m => m.holdings.map(([device, kind, firstBlock, lastBlock, first, last, resident, borrowed]) =>
  ({ device, kind: KINDS[kind], blocks: [firstBlock, lastBlock], part: [first, last], resident, borrowed }));
const trafficOf = m => m.traffic.map(([from, to, bytes, axis, kind, phase]) => ({ from, to, bytes, axis, kind, phase }));
const partText = part => part[0] === 0 && part[1] === 1 ? 'all' : percent(part[0]) + ' to ' + percent(part[1]);

function card(m) {
  const n = Math.min(m.devices.length, COLUMNS), W = 244, gap = n > 4 ? 6 : 20, size = Math.min(n > 2 ? 46 : 100, (W - (n - 1) * gap) / n), x = d => d * (size + gap);
  const svg = v('svg', { role: 'img', 'aria-label': m.name + ': ' + m.description }), held = holdingsOf(m), wholes = SINGLE ? holdingsOf(SINGLE) : held;
  let y = 2;
  for (const [kind, k] of HELD) {
    const height = kind === 'activations' ? 34 : 17, of = list => list.filter(p => p.kind === kind), whole = Math.max(1, ...of(wholes).map(p => p.resident));
    for (const p of of(held).filter(q => q.device < n)) {
      // Layers go right. Rows of the state, or the samples of the batch, go down.
      const count = p.blocks[1] - p.blocks[0], all = Math.max(...held.map(q => q.blocks[1])), left = x(p.device) + (count ? p.blocks[0] / all * size : 0), wide = count ? count / all * size : size;
      const title = v('title', {}, m.devices[p.device] + ' keeps ' + mib(p.resident) + ' MiB of ' + kind + (count && count < all ? ', of blocks ' + p.blocks[0] + ' to ' + (p.blocks[1] - 1) : '') + (p.borrowed > 0.02 * whole ? ', and borrows ' + mib(p.borrowed) + ' MiB' : ''));
      svg.append(v('rect', { x: x(p.device), y, width: size, height, fill: 'var(--grid)' }));
      const box = (cls, from, to, inner) => { if (to > from) svg.append(v('rect', { class: cls, x: left, y: y + from * height, width: Math.max(1, wide), height: Math.max(1, (to - from) * height) }, inner)); };
      // Of a stage's samples, only some are held at once; the others pass through.
      const once = kind === 'activations' && count < all ? Math.min(1, p.resident / whole * all / count) : 1;
      if (once < 1) box('k' + k + ' pale', p.part[0], p.part[1]);
      box('k' + k, p.part[0], p.part[0] + (p.part[1] - p.part[0]) * once, title);
      if (p.borrowed > 0.02 * whole && kind !== 'activations') svg.append(v('rect', { class: 'borrowed k' + k, x: left + 0.75, y: y + 0.75, width: Math.max(1, wide - 1.5), height: (height - 1.5) * Math.min(1, (p.resident + p.borrowed) / whole) }));
    }
    y += height + 2;
  }
  const bottom = arrows(svg, m, n, d => x(d) + size / 2, y + 2);
  svg.setAttribute('viewBox', '-1 0 ' + (W + 2) + ' ' + bottom);
  return h('article', { class: 'card' }, h('h3', {}, modeTag(m.name)), h('div', { class: 'facts' }, 'holds ', h('b', {}, mib(peakOf(m))), ', sends ', h('b', {}, mib(m.bytes_sent / m.devices.length)), ' MiB'), byAxis(m), svg,
    h('p', {}, m.description.replace(/ \([a-z]+=-1[^()]*\)$/, '') + ' (', h('code', {}, m.title), ').', m.devices.length > n ? ' Devices 0 to ' + (n - 1) + ' of ' + m.devices.length + '.' : '', ' Changes ' + m.changed_lines + (m.changed_lines === 1 ? ' line.' : ' lines.')));
}

// The lines that a mode changes in a training program for one device.
function changesOf(m) {
  return [h('h3', {}, modeTag(m.name), ' changes ' + m.changed_lines + (m.changed_lines === 1 ? ' line' : ' lines')), h('pre', {}, m.changes.map(line => h(line[0] === '+' ? 'ins' : 'del', {}, line)))];
}

// What each axis sends per step, beside its prediction; nothing if there is one axis and no prediction.
function byAxis(m) {
  const axes = [...new Set(trafficOf(m).map(t => t.axis))], prediction = DATA.predictions.find(p => p.name === m.name), predicted = axis => ((prediction && prediction.axes) || []).find(a => a.axis === axis);
  return axes.length > 1 || axes.some(predicted) ? h('div', { class: 'facts' }, axes.map(axis =>
    axisTag(axis, axis + ' ' + mib(sum(trafficOf(m).filter(t => t.axis === axis).map(t => t.bytes))) + ' MiB' + (predicted(axis) ? ', predicted ' + mib(predicted(axis).bytes_sent) : '')))) : null;
}

// Bytes from device to device along an axis, width by square root, on a scale that all cards share.
const LARGEST = Math.max(1, ...OK.flatMap(m => [...sums(m).values()].map(t => t.bytes)));
function sums(m) {
  const all = new Map();
  for (const t of trafficOf(m)) {
    const key = t.from + '>' + t.to + ' ' + t.axis, known = all.get(key) || { from: t.from, to: t.to, axis: t.axis, bytes: 0, kinds: [] };
    known.bytes += t.bytes;
    known.kinds.push(t.kind + ' ' + mib(t.bytes) + ' MiB' + (t.phase ? ' in ' + t.phase : ''));
    all.set(key, known);
  }
  return all;
}
function arrows(svg, m, n, middle, y) {
  let lowest = y + 8;
  const drawn = [];  // arrows between the same devices along another axis lie deeper
  for (const t of sums(m).values()) {
    if (t.from >= n || t.to >= n) continue;
    const deep = Math.min(44, 8 + 9 * Math.abs(t.from - t.to)) + 9 * drawn.filter(pair => pair === t.from + '>' + t.to).length, shift = t.from < t.to ? 6 : -6, a = middle(t.from) + shift, b = middle(t.to) - shift, w = Math.max(1, 5 * Math.sqrt(t.bytes / LARGEST)), head = 3.6 + w * 0.45;
    drawn.push(t.from + '>' + t.to);
    lowest = Math.max(lowest, y + deep * 0.75 + 6);
    svg.append(v('path', { d: `M${a} ${y}C${a} ${y + deep} ${b} ${y + deep} ${b} ${y + 4}`, fill: 'none', stroke: axisColor(t.axis), 'stroke-width': w }, v('title', {}, `device ${t.from} to ${t.to}, axis ${t.axis}: ${t.kinds.join(', ')}`)),
      v('path', { d: `M${b - head} ${y + head * 1.25}L${b} ${y - 1}L${b + head} ${y + head * 1.25}Z`, fill: axisColor(t.axis) }));
  }
  return lowest;
}

function showCards() {
  const list = OK.filter(m => m.memory.length && m !== SINGLE);
  if (!list.length) return $('holds') && $('holds').remove();
  const columns = Math.min(N, COLUMNS);
  put('holds-text', 'Each column is a device, ' + (columns > 1 ? '0 to ' + (columns - 1) : '0') + '; a full box is what one device alone keeps. To the right are the layers of the model, down the samples of the batch (activations) or the rows of tensors. Arrows are bytes per step, coloured by the axis of the mesh; a collective counts as a ring.');
  put('cards', list.map(card));
  put('changes', list.map(changesOf));
  put('parts', plainTable('What devices keep', ['mode', 'device', 'kind', 'blocks', 'part', 'keeps, MiB', 'borrows, MiB'], list.flatMap(m => holdingsOf(m).map(p =>
    [m.name, p.device, p.kind, p.blocks[1] > p.blocks[0] ? p.blocks[0] + ' to ' + (p.blocks[1] - 1) : '', partText(p.part), (p.resident / MiB).toFixed(2), (p.borrowed / MiB).toFixed(2)]))),
  plainTable('What devices send per step', ['mode', 'from', 'to', 'axis', 'what', 'phase', 'MiB'], list.flatMap(m => trafficOf(m).map(t => [m.name, t.from, t.to, t.axis, t.kind, t.phase, (t.bytes / MiB).toFixed(2)]))));
}
