// A card a mode: the most that each device holds of a kind, as parts of what one device holds alone, and what it
// sends. From measured bytes: where the result does not say which layers and rows a device holds (`holdings`) or who
// sends to whom (`traffic`), parts follow each other in the order of devices.
const HELD = [['activations', 3], ['parameters', 0], ['gradients', 1], ['optimizer', 2]];
const COLUMNS = 8;

function partsOf(m, kind) {
  const whole = SINGLE && SINGLE.memory.length ? SINGLE.memory[0].most[kind] : Math.max(...m.memory.map(x => x.most[kind]));
  let begin = 0;
  return m.memory.map(x => {
    const part = whole > 0 ? Math.min(1, x.most[kind] / whole) : 0, from = begin + part > 1.02 ? Math.max(0, 1 - part) : begin;
    begin = part > 0.97 ? 0 : begin + part > 1.02 ? part : begin + part;
    return part > 0.97 ? [0, 1] : [Math.min(from, 1 - part), Math.min(from, 1 - part) + part];
  });
}

function card(m) {
  const n = Math.min(m.memory.length, COLUMNS), W = 244, gap = n > 4 ? 6 : 20, size = Math.min(46, (W - (n - 1) * gap) / n), x = d => d * (size + gap);
  const heights = { activations: 34, parameters: 17, gradients: 17, optimizer: 17 };
  const svg = v('svg', { viewBox: '-1 0 ' + (W + 2) + ' ' + (m.traffic ? 150 : 116), role: 'img', 'aria-label': m.name + ': ' + m.description });
  let y = 2;
  for (const [kind, k] of HELD) {
    const parts = partsOf(m, kind), height = heights[kind];
    for (let d = 0; d < n; ++d) {
      const [from, to] = parts[d], across = m.family === 'stages';
      svg.append(v('rect', { x: x(d), y, width: size, height, fill: 'var(--grid)' }));
      if (to > from) svg.append(v('rect', { class: 'k' + k, x: x(d) + (across ? from * size : 0), y: y + (across ? 0 : from * height), width: Math.max(1, across ? (to - from) * size : size), height: Math.max(1, across ? height : (to - from) * height) },
        v('title', {}, m.devices[d] + ' holds ' + 'at most ' + mib(m.memory[d].most[kind]) + ' MiB of ' + kind)));
    }
    y += height + 2;
  }
  if (m.traffic) arrows(svg, m, n, d => x(d) + size / 2, y + 2);
  else {  // as wide as a device's share of what is sent, on a scale that all cards share
    const largest = Math.max(1, ...OK.map(o => o.bytes_sent / o.devices.length)), w = W * Math.sqrt(m.bytes_sent / m.devices.length / largest);
    svg.append(v('rect', { x: 0, y: y + 6, width: W, height: 6, fill: 'var(--grid)' }), v('rect', { class: 'comm', x: 0, y: y + 6, width: w, height: 6 }, v('title', {}, mib(m.bytes_sent / m.devices.length) + ' MiB a device and step')));
  }
  return h('article', { class: 'card' }, h('h3', {}, modeTag(m.name)), h('div', { class: 'facts' }, 'holds ', h('b', {}, mib(peakOf(m))), ', sends ', h('b', {}, mib(m.bytes_sent / m.devices.length)), ' MiB'), svg,
    h('p', {}, m.description + '.', m.memory.length > n ? ' Devices 0 to ' + (n - 1) + ' of ' + m.memory.length + '.' : ''));
}

// Bytes from device to device, width by square root.
function arrows(svg, m, n, middle, y) {
  const largest = Math.max(1, ...OK.filter(o => o.traffic).flatMap(o => o.traffic.map(t => t.bytes)));
  for (const t of m.traffic) {
    if (t.from >= n || t.to >= n) continue;
    const far = Math.abs(t.from - t.to), shift = t.from < t.to ? 6 : -6, a = middle(t.from) + shift, b = middle(t.to) - shift, deep = 8 + 9 * far, w = Math.max(1, 5 * Math.sqrt(t.bytes / largest)), head = 3.6 + w * 0.45;
    svg.append(v('path', { d: `M${a} ${y}C${a} ${y + deep} ${b} ${y + deep} ${b} ${y + 4}`, fill: 'none', stroke: 'var(--comm)', 'stroke-width': w }, v('title', {}, `device ${t.from} to ${t.to}: ${mib(t.bytes)} MiB`)),
      v('path', { d: `M${b - head} ${y + head * 1.25}L${b} ${y - 1}L${b + head} ${y + head * 1.25}Z`, fill: 'var(--comm)' }));
  }
}

function showCards() {
  const list = OK.filter(m => m.memory.length && m !== SINGLE);
  if (!list.length) return $('holds') && $('holds').remove();
  const columns = Math.min(N, COLUMNS);
  put('holds-text', 'Each column is a device, ' + (columns > 1 ? '0 to ' + (columns - 1) : '0') + '; a full box is what one device alone holds at most. Parts go down where devices divide the batch or the rows of tensors, and right where they divide the layers. The orange bar is what a device sends per step.');
  put('cards', list.map(card));
}
