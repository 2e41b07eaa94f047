// Can you trust these numbers: the rounds over time, and the errors of predictions.
function showTrust() {
  if (!OK.length) return $('trust') && $('trust').remove();
  const predicted = OK.filter(m => m.predicted_step_ms), noisy = OK.filter(m => m.noisy), machine = DATA.machine;
  const text = [];
  if (predicted.length) {
    const worst = most(predicted, m => Math.abs(m.prediction_error));
    text.push(predicted.filter(m => Math.abs(m.prediction_error) <= 0.05).length + ' of ' + predicted.length + ' predictions are within 5% of the measurement; the worst is ' + signed(worst.prediction_error) + ' (' + worst.name + '). ');
  } else text.push('There are no predictions. ');
  if (machine.length > 1) {
    const slow = machine.reduce((a, x, i) => x > machine[a] ? i : a, 0);
    if (machine[slow] >= 1.05) text.push('In round ' + (slow + 1) + ' the whole machine was ' + percent(machine[slow] - 1) + ' slower than usual, which paired rounds cancel. ');
  }
  if (noisy.length) text.push('Noisy: ' + (noisy.length === OK.length ? 'all modes' : noisy.map(m => m.name).join(', ')) + '; rounds of one mode differ by up to ' + percent(Math.max(...noisy.map(m => m.spread))) + ' beyond that.');
  put('trusttext', text);
  showRounds();
  showErrors(predicted);
}

function showRounds() {
  const svg = $('rounds'), w = Math.max(260, svg.parentElement.clientWidth), H = 150, L = 46, R = 104;
  const all = OK.flatMap(m => roundsOf(m).map(x => x / m.step_ms)), low = Math.min(0.97, ...all), high = Math.max(1.03, ...all);
  const X = i => ROUNDS > 1 ? L + i / (ROUNDS - 1) * (w - L - R) : L + (w - L - R) / 2, Y = q => 10 + H - (q - low) / (high - low) * H;
  svg.setAttribute('viewBox', '0 0 ' + w + ' ' + (H + 36));
  svg.setAttribute('height', H + 36);
  put(svg);
  const ticks = ticksOf(high - low, 4), step = ticks[1] || 1;
  for (let q = Math.ceil((low - 1) / step); 1 + q * step <= high; ++q) svg.append(v('line', { class: 'hair', x1: L, x2: w - R, y1: Y(1 + q * step), y2: Y(1 + q * step) }), v('text', { x: L - 6, y: Y(1 + q * step) + 4, 'text-anchor': 'end' }, q ? signed(q * step, step < 0.01 ? 1 : 0) : '0%'));
  const every = Math.ceil(ROUNDS / 12);
  for (let i = 0; i < ROUNDS; i += every) svg.append(v('text', { x: X(i), y: H + 28, 'text-anchor': 'middle' }, String(i + 1)));
  const labels = [];
  for (const m of OK) {
    const points = roundsOf(m).map((x, i) => [X(i), Y(x / m.step_ms)]);
    if (points.length === 1) svg.append(v('circle', { cx: points[0][0], cy: points[0][1], r: 3, fill: 'var(--mem)' }));
    svg.append(v('polyline', { points: points.map(p => p.map(q => q.toFixed(1)).join(',')).join(' '), fill: 'none', stroke: m.noisy ? 'var(--comm)' : 'var(--mem)', 'stroke-width': m.noisy ? 2 : 1, opacity: m.noisy ? 1 : 0.6 }, v('title', {}, m.name)));
    if (m.noisy && labels.length < 6) labels.push({ y: points[points.length - 1][1], name: m.name });
  }
  spread(labels, 14, 14, H + 8);
  for (const l of labels) svg.append(v('text', { class: 'warn', x: w - R + 6, y: l.y + 4 }, cut(l.name, R - 8)));
}
// Moves labels apart vertically, at least `gap` px, between two bounds.
function spread(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((l, i) => { l.y = Math.max(l.y, i ? labels[i - 1].y + gap : low); });
  for (let i = labels.length - 1, floor = high; i >= 0; --i, floor -= gap) labels[i].y = Math.min(labels[i].y, floor);
}

function showErrors(predicted) {
  const svg = $('errors'), w = Math.max(260, svg.parentElement.clientWidth), rh = 16, L = Math.min(170, w * 0.4), list = [...predicted].sort((a, b) => a.prediction_error - b.prediction_error), H = list.length * rh;
  const error = (m, x) => x / m.step_ms - 1, range = m => [error(m, m.predicted_low_ms), error(m, m.predicted_high_ms)];
  const all = list.flatMap(m => [m.prediction_error, ...range(m)]), low = Math.min(-0.1, ...all) * 1.08, high = Math.max(0.1, ...all) * 1.08, X = e => L + (e - low) / (high - low) * (w - L - 26);
  svg.setAttribute('viewBox', '0 0 ' + w + ' ' + (H + 26));
  svg.setAttribute('height', H + 26);
  put(svg);
  if (!list.length) return;
  svg.append(v('rect', { x: X(-0.05), y: 0, width: X(0.05) - X(-0.05), height: H, fill: 'var(--tint)' }));
  const tick = ticksOf(high - low, 5)[1];
  for (let k = Math.ceil(low / tick); k * tick <= high; ++k) {
    const e = k * tick;
    svg.append(v('line', { class: e ? 'hair' : 'gl', x1: X(e), x2: X(e), y1: 0, y2: H }), v('text', { x: X(e), y: H + 16, 'text-anchor': 'middle' }, e ? signed(e, 0) : '0'));
  }
  list.forEach((m, i) => svg.append(v('text', { x: L - 10, y: i * rh + 12, 'text-anchor': 'end' }, cut(m.name, L - 12)), v('line', { x1: X(0), x2: X(m.prediction_error), y1: i * rh + 8, y2: i * rh + 8, stroke: 'var(--ink)', 'stroke-width': 1.2, opacity: 0.5 }),
    v('line', { class: 'range', x1: X(range(m)[0]), x2: X(range(m)[1]), y1: i * rh + 8, y2: i * rh + 8 }, v('title', {}, m.name + ', from the costs of single rounds: ' + range(m).map(x => signed(x)).join(' to '))),
    v('circle', { cx: X(m.prediction_error), cy: i * rh + 8, r: 3.4, fill: 'var(--ink)' }, v('title', {}, m.name + ' ' + signed(m.prediction_error)))));
}
