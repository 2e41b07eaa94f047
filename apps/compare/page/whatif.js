// What if the machine were different: the planner's twin simulates other numbers of devices and other links. A mode
// that it does not know keeps the predictions that the planner wrote for 1, 2, 4, ... devices.
const COUNTS = (() => {
  const all = [...new Set([...range(7).map(i => 2 ** i), N])].filter(n => n <= Math.min(64, DATA.options.batch_size));
  return all.sort((a, b) => a - b);
})();
const MICRO = [...new Set([1, 2, 4, 8, 16, 32, DATA.options.micro_batches])].filter(m => m <= DATA.options.batch_size).sort((a, b) => a - b);
const BUCKETS = [...new Set([0.25, 0.5, 1, 2, 5, 10, 25, 50, 100, DATA.options.bucket_cap_bytes / MiB])].sort((a, b) => a - b);
const LINK = DATA.link && DATA.link.ranks.message.latency_s + DATA.link.ranks.message.s_per_byte > 0 ? DATA.link.ranks.message : DATA.link && DATA.link.copy;
const FREE = LINK && LINK.latency_s + LINK.s_per_byte === 0; // one device has no link to measure
const SIMULATED = DATA.modes.filter(m => DATA.profile && (predictor_of(m.predicted_as) || DATA.scaling.some(s => s.name === m.name)));

// 0 stands for "as measured", in state.bw (GB/s) and state.lat (microseconds).
const simLink = () => link_with(DATA.link, state.lat ? state.lat / 1e6 : null, state.bw ? state.bw * 1e9 : null);
const simSetup = n => ({ batch_size: DATA.options.batch_size, devices: n, device_type: DATA.options.device_type, micro_batches: state.micro,
  first_bucket_bytes: Math.min(DATA.options.first_bucket_bytes, state.bucket * MiB), bucket_cap_bytes: state.bucket * MiB, split: DATA.options.split });
const isHere = n => n === N && asMeasured();
const asMeasured = () => ['bw', 'lat', 'micro', 'bucket', 'own'].every(k => state[k] === defaults[k]);
const whyNot = (m, n) => {
  const known = DATA.scaling.find(s => s.name === m.name && s.devices === n && s.limit);
  if (!known && m.predicted_as && m.predicted_as.axes.some(a => a.layers)) return 'its layers were not measured in such parts';
  return known ? known.limit : m.family === 'stages' && n > DATA.profile.blocks.length ? 'the model has ' + DATA.profile.blocks.length + ' blocks' : 'it was not simulated';
};

// The twin's prediction of a mode on n devices, or null. The measured machine itself is predicted with its contention; any
// other one has cores and memory for each device.
function planned(m, n, link) {
  if (!predictor_of(m.predicted_as)) return null;
  return isHere(n) && m.predicted_step_ms ? predict(m.predicted_as, DATA.profile, DATA.link, simSetup(n)) : simulate_devices(m.predicted_as, DATA.profile, link, simSetup(n), m.family === 'single' ? 1 : n);
}
// A mode on n devices: {step_ms, the five parts, peak_bytes}, or null.
const runOf = p => p && { step_ms: p.step_s * 1000, peak_bytes: Math.max(...p.memory.map(total)), forward_ms: p.breakdown.forward_s * 1000, backward_ms: p.breakdown.backward_s * 1000,
  update_ms: p.breakdown.update_s * 1000, exposed_comm_ms: p.breakdown.exposed_comm_s * 1000, idle_ms: p.breakdown.idle_s * 1000 };
function simulated(m, n, link) {
  if (predictor_of(m.predicted_as)) return runOf(planned(m, n, link));
  return DATA.scaling.find(s => s.name === m.name && s.devices === n && !s.limit) || null;
}

function knob(id, label, value, attrs, set) {
  const out = h('output', { for: 'k-' + id }, value());
  const input = h('input', { type: 'range', id: 'k-' + id, ...attrs, 'aria-valuetext': value(), oninput: e => { set(Number(e.target.value)); out.textContent = value(); e.target.setAttribute('aria-valuetext', value()); update('sim'); } });
  return h('div', { class: 'knob' }, h('label', { for: 'k-' + id }, h('span', {}, label), out), input);
}
const rounded = (x, digits) => Number(x.toPrecision(digits));
function showKnobs() {
  if (!SIMULATED.length) return $('whatif') && $('whatif').remove();
  const nearest = (list, x) => list.reduce((a, y, i) => Math.abs(y - x) < Math.abs(list[a] - x) ? i : a, 0);
  const measuredBw = LINK && LINK.s_per_byte > 0 ? 1e-9 / LINK.s_per_byte : 1, measuredLat = LINK ? LINK.latency_s * 1e6 : 1;
  const text = (x, unit) => rounded(x, 2) + ' ' + unit, preset = (label, bw, lat) => h('button', { type: 'button', onclick: () => { state.bw = bw; state.lat = lat; showKnobs(); update('sim'); } }, label);
  // Logarithms place the sliders only; the values that they give are rounded.
  const scale = x => Math.log10(Math.max(x, 1e-9));
  put('knobs', knob('n', 'devices', () => String(state.n), { min: 0, max: COUNTS.length - 1, step: 1, value: nearest(COUNTS, state.n) }, i => { state.n = COUNTS[i]; }),
    LINK ? [knob('bw', 'bandwidth of a link', () => state.bw || !FREE ? text(state.bw || measuredBw, 'GB/s') : 'takes no time', { min: -1, max: 2.6, step: 0.05, value: clamp(scale(state.bw || measuredBw), -1, 2.6) }, x => { state.bw = rounded(10 ** x, 2); }),
      knob('lat', 'latency of a message', () => state.lat || !FREE ? text(state.lat || measuredLat, '\u00b5s') : 'takes no time', { min: 0, max: 3.3, step: 0.05, value: clamp(scale(state.lat || measuredLat), 0, 3.3) }, x => { state.lat = rounded(10 ** x, 2); }),
      h('div', { class: 'presets', role: 'group', 'aria-label': 'Links' }, preset(FREE ? 'takes no time' : N === 1 ? 'as given' : 'as measured', 0, 0), preset('10 Gbit Ethernet', 1.25, 30), preset('NVLink-like', 300, 4))] : null,
    knob('m', 'micro-batches of a pipeline', () => String(state.micro), { min: 0, max: MICRO.length - 1, step: 1, value: nearest(MICRO, state.micro) }, i => { state.micro = MICRO[i]; }),
    knob('bk', 'largest bucket of gradients', () => state.bucket + ' MiB', { min: 0, max: BUCKETS.length - 1, step: 1, value: nearest(BUCKETS, state.bucket) }, i => { state.bucket = BUCKETS[i]; }),
    DATA.options.device_type === 'cpu' ? h('label', {}, h('input', { type: 'checkbox', id: 'own', checked: state.own ? '' : null, onchange: e => { state.own = e.target.checked ? 1 : 0; update('sim'); } }), ' each device has cores and memory of its own') : null);
  put('whatif-text', 'A simulation in this page, from the costs that were measured on one device. ' + (FREE ? 'No link was measured, because one device has none: communication takes no time here until you set a bandwidth and a latency. ' : N === 1 ? 'No link was measured; it is as --link-latency-us and --link-bandwidth-gbs say. ' : '') + (DATA.options.device_type === 'cpu' ? 'The measured devices share cores and memory; any others are simulated with their own. ' : '') + 'Diamonds are measurements, and stay where they are.');
}

const COLORS = ['var(--bwd)', 'var(--k2)', 'var(--k4)', 'var(--comm)'], INK = { 'var(--k2)': 'var(--tk2)', 'var(--k4)': 'var(--tk4)', 'var(--comm)': 'var(--tcomm)' };
// Up to four modes are coloured: the best and the worst of each family.
const COLORED = (() => {
  const of = family => OK.filter(m => m.family === family && SIMULATED.includes(m)), ends = list => list.length > 1 ? [list[0], list[list.length - 1]] : list;
  return new Map([...ends(of('data')), ...ends(of('stages'))].map((m, i) => [m.name, COLORS[i]]));
})();

// Values of the address that no slider has.
function checkKnobs() {
  if (!COUNTS.includes(state.n)) state.n = COUNTS.includes(N) ? N : 1;
  if (!MICRO.includes(state.micro)) state.micro = DATA.options.micro_batches;
  if (!BUCKETS.includes(state.bucket)) state.bucket = defaults.bucket;
}
function showSim() {
  if (!SIMULATED.length) return;
  const link = simLink(), single = SIMULATED.find(m => m.family === 'single'), base = single ? simulated(single, 1, link) : null, here = isHere(state.n);
  const runs = SIMULATED.map(m => ({ m, r: simulated(m, state.n, link) })), able = runs.filter(x => x.r).sort((a, b) => a.r.step_ms - b.r.step_ms), none = runs.filter(x => !x.r);
  const best = able[0], ofBest = modeNamed(best.m.name);
  put('simanswer', here ? 'As measured: on ' : 'On ', state.n + (state.n === 1 ? ' device, ' : ' devices, '), modeTag(best.m.name), (here ? ' should' : ' would') + ' be fastest: ' + ms(best.r.step_ms) + ' ms',
    base && best.m !== single ? ', ' + times(base.step_ms / best.r.step_ms) + ' one device' : '', here && ofBest ? ' (measured: ' + ms(ofBest.step_ms) + ' ms)' : '', '. ', able.length > 1 && state.n > 1 ? lesson(able) : '');
  const cap = Math.min(able[able.length - 1].r.step_ms, Math.max(best.r.step_ms * 2.2, median(able.map(x => x.r.step_ms)) * 1.5)) * 1.03;
  const simRow = (name, r, measured) => {
    const track = h('div', { class: 'track' }, segments(r, r.step_ms, cap));
    if (measured && measured.step_ms < cap) track.append(h('i', { class: 'pin', title: 'measured ' + ms(measured.step_ms) + ' ms', style: { left: 100 * measured.step_ms / cap + '%' } }));
    return h('div', { class: 'simrow' }, modeTag(name), track, h('span', { class: 'v' }, h('b', {}, ms(r.step_ms)), ' ms'), h('span', { class: 'v' + (state.limit && r.peak_bytes > state.limit * MiB ? ' toomuch' : '') }, mib(r.peak_bytes) + ' MiB'));
  };
  // Devices over whose ranks nothing was measured have no link between processes.
  const all = state.n > 1 && !is_free(link.ranks.message) ? sweep(DATA.profile, link, simSetup(state.n), state.n) : [], shown = all.slice(0, MOST_MESHES);
  put('simmeshes', shown.length ? [h('h3', {}, (all.length > shown.length ? 'The fastest ' + shown.length + ' of ' + all.length : all.length === 1 ? 'The only' : 'All ' + all.length) + (all.length === 1 ? ' mesh' : ' meshes') + ' of ' + state.n + ' processes, each with cores and memory of its own'),
    shown.map(x => simRow(x.name, runOf(x.prediction), null))] : null);
  put('simbars', able.map(({ m, r }) => simRow(m.name, r, state.n === N || m === single ? modeNamed(m.name) : null)), none.map(({ m }) => h('div', { class: 'simrow' }, h('span', { class: 'mode off' }, breakable(m.name)), h('span', { class: 'none' }, 'cannot run: ' + whyNot(m, state.n)))));
  if (base) showScaling(base.step_ms, link, best.m);
}
// What the best mode avoids: the largest loss of the mode that most people try first, which is the slowest coloured one.
function lesson(able) {
  const slow = able.filter(x => COLORED.has(x.m.name)).pop();
  if (!slow || slow === able[0]) return '';
  const part = most(PARTS.slice(2), ([key]) => slow.r[key]);
  return [modeTag(slow.m.name), ' would take ' + times(slow.r.step_ms / able[0].r.step_ms) + ' as long; ' + percent(slow.r[part[0]] / slow.r.step_ms) + ' of its step is ' + part[2] + '.'];
}

function showScaling(base, link, best) {
  const svg = $('scaling'), w = Math.max(280, svg.parentElement.clientWidth), right = narrow() ? 118 : 178, left = 36, top = 10, height = narrow() ? 220 : 250, bottom = top + height;
  const last = COUNTS[COUNTS.length - 1], octaves = Math.max(1, Math.log2(last)), X = n => left + Math.log2(n) / octaves * (w - left - right), Y = s => bottom - Math.log2(Math.max(s, 0.5) * 2) / (octaves + 1) * height;
  svg.setAttribute('viewBox', '0 0 ' + w + ' ' + (bottom + 34));
  svg.setAttribute('height', bottom + 34);
  put(svg);
  const marks = COUNTS.filter(n => Number.isInteger(Math.log2(n)));
  for (const n of marks) svg.append(v('line', { class: 'hair', x1: X(n), x2: X(n), y1: top, y2: bottom }), v('text', { x: X(n), y: bottom + 15, 'text-anchor': 'middle', class: n === state.n ? 'strong' : '' }, String(n)));
  for (const s of [0.5, ...marks]) svg.append(v('line', { class: 'hair', x1: left, x2: w - right, y1: Y(s), y2: Y(s) }), v('text', { x: left - 6, y: Y(s) + 4, 'text-anchor': 'end' }, s < 1 ? '\u00bd' : s + '\u00d7'));
  svg.append(v('text', { x: (left + w - right) / 2, y: bottom + 31, 'text-anchor': 'middle' }, narrow() ? 'devices; up: speed' : 'devices; upwards: speed relative to one device'));
  svg.append(v('line', { class: 'gl', 'stroke-dasharray': '4 4', x1: X(1), y1: Y(1), x2: X(last), y2: Y(last) }), v('line', { class: 'end', x1: X(state.n), x2: X(state.n), y1: top, y2: bottom, opacity: 0.35 }));
  const labels = [{ y: Y(last), text: 'perfect', color: 'var(--faint)' }], front = [];
  for (const m of SIMULATED) {
    if (m.family === 'single') continue;
    // A simulation for every number of devices, also for that of the measurement, so that the line has no corner there.
    const points = COUNTS.map(n => [n, simulatedAlone(m, n, link)]).filter(p => p[1]).map(([n, r]) => [X(n), Y(base / r.step_ms)]), color = COLORED.get(m.name) || (m === best ? 'var(--ink)' : null);
    if (!points.length) continue;
    const line = predictor_of(m.predicted_as) ? v('polyline', { points: points.map(p => p.map(q => q.toFixed(1)).join(',')).join(' '), fill: 'none', stroke: color || 'var(--hatch)', 'stroke-width': color ? 2.2 : 1.1 }, v('title', {}, m.name))
      : v('g', {}, points.map(([x, y]) => v('circle', { cx: x, cy: y, r: 3, fill: color || 'var(--hatch)' }, v('title', {}, m.name + ', as the planner predicts'))));
    if (!color) { svg.append(line); continue; }
    front.push(line);
    labels.push({ y: points[points.length - 1][1], text: m.name, color });
  }
  svg.append(...front);
  spread(labels, 15, top + 4, bottom);
  for (const l of labels) svg.append(v('text', { x: w - right + 8, y: l.y + 4, style: 'fill:' + (INK[l.color] || l.color) + ';font-weight:600' }, cut(l.text, right - 10)));
  if (SINGLE && COUNTS.includes(N)) for (const m of OK) if (COLORED.has(m.name) || m.name === best.name) svg.append(v('rect', { x: -4, y: -4, width: 8, height: 8, fill: 'var(--ink)', stroke: 'var(--bg)', 'stroke-width': 1.2, transform: 'translate(' + X(N) + ' ' + Y(SINGLE.step_ms / m.step_ms) + ') rotate(45)' }, v('title', {}, m.name + ', measured: ' + times(SINGLE.step_ms / m.step_ms))));
}
function simulatedAlone(m, n, link) {
  if (!predictor_of(m.predicted_as)) return simulated(m, n, link);
  const p = simulate_devices(m.predicted_as, DATA.profile, link, simSetup(n), n);
  return p && { step_ms: p.step_s * 1000 };
}
